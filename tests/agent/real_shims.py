"""Real launches: a shim without the agent's client, and a state directory with one agent after the other."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from llmgw.agent.launch import EngineEvent, Gone, LaunchRequest, RunningEngine
from llmgw.agent.shard_folders import launch_folders
from llmgw.agent.shim_files import RECORD
from llmgw.agent.shims import ShimLauncher, open_launcher
from llmgw.agent.state_dir import StateDir

HANG_SECONDS = 20.0
"""Ten times what the slowest of these takes."""


@attrs.frozen
class RawShim:
    """A shim as a process of the test, without the agent's client."""

    folder: Path
    process: "subprocess.Popen[bytes]"

    def reply(self) -> dict[str, object]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def wait(self) -> int:
        return self.process.wait(HANG_SECONDS)


@attrs.define
class Shards:
    """A state directory and the launchers of one agent after the other over it."""

    state_dir: StateDir
    epoch: int = 0

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[ShimLauncher]:
        """One life of the agent: its end leaves the engines alone."""
        with trio.fail_after(HANG_SECONDS):
            async with open_launcher(self.state_dir) as launcher:
                yield launcher

    def request(self, *argv: str, shard: str = "m/1/0", **fields: Any) -> LaunchRequest:
        self.epoch += 1
        request = LaunchRequest(shard, self.epoch, argv, {"PATH": os.environ["PATH"]})
        return attrs.evolve(request, **fields)

    def python(self, code: str, *arguments: str, **fields: Any) -> LaunchRequest:
        """An engine that is a line of Python."""
        return self.request(sys.executable, "-I", "-S", "-c", code, *arguments, **fields)

    def folder(self, engine: RunningEngine) -> Path:
        (path,) = (path for path in launch_folders(self.state_dir.shards) if path.name.endswith(f"-{engine.epoch}"))
        return path

    def edit_record(self, engine: RunningEngine, **fields: object) -> None:
        path = self.folder(engine) / RECORD
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def record(self, engine: RunningEngine) -> dict[str, int]:
        return dict(json.loads((self.folder(engine) / RECORD).read_text()))


async def life(engine: RunningEngine) -> list[EngineEvent]:
    """Every event up to the last."""
    events: list[EngineEvent] = []
    while not events or not isinstance(events[-1], Gone):
        events.append(await engine.wait_event())
    return events
