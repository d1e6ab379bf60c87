"""Real launches: a shim without the agent's client, and a state directory with one agent after the other."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from short_paths import short

from llmgw.agent.launch import EngineEvent, Gone, LaunchRequest, RunningEngine
from llmgw.agent.shard_folders import launch_folders
from llmgw.agent.shim_files import RECORD
from llmgw.agent.shims import ShimLauncher, open_launcher
from llmgw.agent.state_dir import StateDir

HANG_SECONDS = 20.0
"""Ten times what the slowest of these takes."""
AGAIN_SECONDS = 0.005
"""Between looks at real processes, where there is nothing to wait on from outside."""


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
class Talk:
    """A client of the shim's socket, as plain as can be."""

    sock: socket.socket
    received: bytes = b""

    def send(self, line: bytes) -> None:
        self.sock.sendall(line + b"\n")

    def receive(self) -> dict[str, Any]:
        while b"\n" not in self.received:
            data = self.sock.recv(1 << 16)
            assert data, "the shim closed the connection"
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        return dict(json.loads(line))

    def ask(self, command: str, **fields: object) -> dict[str, Any]:
        self.send(json.dumps({"v": 1, "id": 1, "command": command, **fields}).encode())
        answer = self.receive()
        assert "ok" in answer, answer
        return dict(answer["ok"])

    def until_event(self, name: str) -> None:
        while self.receive().get("event") != name:
            pass

    def until(self, **wanted: object) -> dict[str, Any]:
        return dict(until(lambda: self.ask("state"), lambda state: wanted.items() <= state.items()))


def until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What is looked at once it holds. Real processes: there is nothing to wait on from outside."""
    deadline = time.monotonic() + HANG_SECONDS
    while not holds(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(AGAIN_SECONDS)
    return seen


@contextmanager
def talk(shim: RawShim | Path) -> Iterator[Talk]:
    """A connection to that shim, or to the one of that folder."""
    folder = shim if isinstance(shim, Path) else shim.folder
    with socket.socket(socket.AF_UNIX) as sock, short(folder) as near:
        sock.settimeout(HANG_SECONDS)
        sock.connect(f"{near}/shim.sock")
        yield Talk(sock)


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


async def printed(engine: RunningEngine, output: bytes) -> None:
    """Until the engine has printed exactly that."""
    while await engine.output_tail(len(output) + 1) != output:  # noqa: ASYNC110  (another process's doing)
        await trio.sleep(AGAIN_SECONDS)
