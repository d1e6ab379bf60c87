"""What the daemons' mains share: their command lines, reading the files, and how a mistake in one is told.

Everything that the pure `config` may not touch is here: files, the host's name and who runs this process.
"""

import argparse
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import llmgw
from llmgw.config.load import Loaded, Source, load_cluster, load_node
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.engines import ENGINES
from llmgw.errors import ConfigError, Mistake
from llmgw.logs import printable

EXIT_CONFIG = 2
"""The configuration or the command line is wrong, and nothing was started."""

FILE_BYTES_MAX = 16 * 1024**2
"""Of a configuration: thousands of models fit many times; a wrong path to a model file does not get read."""

C = TypeVar("C")


def cluster_parser(program: str, purpose: str) -> argparse.ArgumentParser:
    """`PROGRAM FILE [--check]`, for llmgw-control and llmgw-router; results are `file` and `check`."""
    parser = _parser(program, purpose)
    parser.add_argument("file", metavar="cluster.toml", help="the configuration")
    return parser


def node_parser(program: str, purpose: str) -> argparse.ArgumentParser:
    """`PROGRAM [FILE] [--server HOST:PORT] [--node-id ID] [--check]`; results are named like that, with `_`."""
    parser = _parser(program, purpose)
    parser.add_argument("file", metavar="node.toml", nargs="?", help="the configuration; not needed with --server")
    parser.add_argument("--server", metavar="HOST:PORT", help="llmgw-control's agent port, the setting `control`")
    parser.add_argument(
        "--node-id", metavar="ID", help="this node's name, the setting `node_id` (else the host's name)"
    )
    return parser


def read_cluster(file: str, environ: Mapping[str, str]) -> Loaded[ClusterConfig]:
    """The configuration of llmgw-control and llmgw-router. ConfigError with every mistake."""
    source = _source(file)
    return load_cluster(source, environ, engines=tuple(ENGINES), state_base=state_base(environ))


def read_node(
    file: str | None, environ: Mapping[str, str], *, server: str | None = None, node_id: str | None = None
) -> Loaded[NodeConfig]:
    """The configuration of llmgw-agent, with or without a file. ConfigError with every mistake."""
    source = Source("no configuration file", Path.cwd()) if file is None else _source(file)
    options: dict[str, tuple[str, str]] = {}
    if server is not None:
        options["control"] = ("--server", server)
    if node_id is not None:
        options["node_id"] = ("--node-id", node_id)
    return load_node(source, environ, options=options, host_name=socket.gethostname(), state_base=state_base(environ))


def settle(load: Callable[[], Loaded[C]], *, check: bool) -> Loaded[C]:
    """What `load` gives. A mistake ends the process with code 2, every one on a line of its own on standard error.

    With `check` the process ends either way: with "ok" and code 0 where there is no mistake.
    """
    try:
        loaded = load()
    except ConfigError as error:
        for mistake in error.mistakes:
            print(printable(str(mistake)), file=sys.stderr)
        count = len(error.mistakes)
        print(f"{count} mistake{'s' if count > 1 else ''}, nothing was started", file=sys.stderr)
        raise SystemExit(EXIT_CONFIG) from None
    if check:
        for note in loaded.notes:
            print(f"note: {printable(note)}", file=sys.stderr)
        print("ok")
        raise SystemExit(0)
    return loaded


def state_base(environ: Mapping[str, str], *, root: bool | None = None) -> Path | None:
    """The folder for state where no setting names one: /var/lib/llmgw as root, else in the user's state folder.

    None where neither XDG_STATE_HOME nor HOME says which that is.
    """
    if os.geteuid() == 0 if root is None else root:
        return Path("/var/lib/llmgw")
    # The XDG rules: a relative value is to be ignored.
    if (state_home := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(state_home) / "llmgw"
    if (home := environ.get("HOME", "")).startswith("/"):
        return Path(home) / ".local/state/llmgw"
    return None


def _parser(program: str, purpose: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=purpose)
    parser.add_argument("--version", action="version", version=f"{program} {llmgw.__version__}")
    parser.add_argument(
        "--check", action="store_true", help="only check the configuration: 0 and ok, or 2 and every mistake"
    )
    return parser


def _source(file: str) -> Source:
    path = Path(file).absolute()  # not resolved: paths are relative to the folder of a link, not of its target
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError((Mistake(str(path), "", f"cannot be read: {error.strerror}"),)) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError((Mistake(str(path), "", f"expected a configuration of at most {FILE_BYTES_MAX} bytes"),))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError((Mistake(f"{file}:{line}", "", "not TOML: expected UTF-8 text"),)) from None
    return Source(file, path.parent, text)
