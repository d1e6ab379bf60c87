"""A /proc of our own, real launches in a state directory of their own, and somebody who must not be hurt."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from fake_proc import FakeProc
from real_shims import HANG_SECONDS, RawShim, Shards

from llmgw.agent import shim
from llmgw.agent.processes import end_all, read_identity
from llmgw.agent.shard_folders import launch_folders, read_file
from llmgw.agent.shim_files import RECORD
from llmgw.agent.state_dir import open_state_dir, read_machine


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path / "proc")
    fake.boot()
    return fake


@pytest.fixture
def start_raw(tmp_path: Path) -> Iterator[Callable[..., RawShim]]:
    """`start_raw(argv, field=...)`; what is left at the end is killed with its session."""
    started: list[RawShim] = []

    def start(argv: list[str], *python: str, **fields: object) -> RawShim:
        folder = tmp_path / f"raw-{len(started)}"
        folder.mkdir(exist_ok=True)
        request = {
            "mark": f"test.{folder.name}",
            "agent": "test",
            "state_dir": str(tmp_path),
            "shard": "m/1/0",
            "epoch": 7,
            "argv": argv,
            "env": {"PATH": os.environ["PATH"]},
            **fields,
        }
        with (folder / "shim.log").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", *python, shim.__file__, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={"LLMGW_MARK": str(request["mark"])},
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        started.append(RawShim(folder, process))
        return started[-1]

    yield start
    for one in started:
        identity = read_identity(read_file(one.folder, RECORD))
        if identity is not None:
            trio.run(end_all, identity, HANG_SECONDS)
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    with open_state_dir(tmp_path / "agent", "n1", read_machine(), Random(1)) as state_dir:
        yield Shards(state_dir)
        for folder in launch_folders(state_dir.shards):
            identity = read_identity(read_file(folder, RECORD))
            if identity is not None:
                trio.run(end_all, identity, HANG_SECONDS)


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is none of ours, and must live on."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    assert process.poll() is None, "a stranger was signalled"
    process.send_signal(signal.SIGKILL)
    process.wait()
