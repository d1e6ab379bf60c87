"""What a parent tells a worker of the router at its start, on its command line.

A worker never reads the configuration file: its parent has, and a file that was broken or changed since must not be
what a restarted worker lives by. Nothing secret is in here; keys come with the table.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from llmgw.config.schema import Log, Router
from llmgw.strict import make_converter

WORKER_MODULE = "llmgw.router.worker"

_converter = make_converter(detailed=False)


@attrs.frozen
class WorkerSettings:
    """Everything but the files and the sockets."""

    folder: str
    """Of the router's files: the table kept from last time."""
    router: Router
    log: Log


def router_folder(state_dir: Path, port: int) -> Path:
    """Where the files of the router on that port are: it is no other's, though several share a `state_dir`."""
    return state_dir / f"router-{port}"


def worker_command(settings: WorkerSettings, index: int, stream_fd: int, listener_fd: int) -> list[str]:
    """How a worker is started. Index 0 is the one that writes the table to disk."""
    # Workers need neither: and what can differ between them is in the table.
    plain = attrs.evolve(settings, router=attrs.evolve(settings.router, control=None, tls=None))
    text = json.dumps(_converter.unstructure(plain))
    return [sys.executable, "-m", WORKER_MODULE, text, str(index), str(stream_fd), str(listener_fd)]


@attrs.frozen
class WorkerArguments:
    """The command line of a worker, read."""

    settings: WorkerSettings
    index: int
    stream_fd: int
    listener_fd: int


def parse_worker_arguments(argv: Sequence[str]) -> WorkerArguments:
    """What `worker_command` wrote. ValueError for anything else: nobody types this by hand."""
    text, index, stream_fd, listener_fd = argv
    settings = _converter.structure(json.loads(text), WorkerSettings)
    return WorkerArguments(settings, int(index), int(stream_fd), int(listener_fd))
