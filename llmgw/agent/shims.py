"""Shims started and shims found: the agent's `Launcher`.

Before a shim is started its folder holds `launch.json` (whose launch it is, and the supervisor's state), so that an
agent that dies at any moment leaves something for the next one to find: see `llmgw.agent.shimmed`. Folders with
another mark than ours, of another instance that this directory was copied from, are left alone.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
import trio

from llmgw.agent import shim
from llmgw.agent.launch import JsonObject, LaunchRequest, RunningEngine
from llmgw.agent.processes import end_all, read_identity
from llmgw.agent.shard_folders import LAUNCH, folder_name, launch_folders, open_folder, read_file, read_launch
from llmgw.agent.shim_engine import MARK_VARIABLE, RESET
from llmgw.agent.shim_files import RECORD, SHIM_LOG, write_json
from llmgw.agent.shimmed import KILL_SECONDS, ShimmedEngine
from llmgw.agent.state_dir import StateDir
from llmgw.errors import EngineError

START_SECONDS = 30.0
"""A shim starts in 0.1 s; a machine that swaps takes its time."""
REPLY_BYTES_MAX = 4096
"""One line: a pid, or an error."""
SHIM_INHERITS = ("LD_LIBRARY_PATH",)
"""Some interpreters do not start without it; all else of our environment would only be kept for months."""

log = structlog.get_logger()


class ShimLauncher:
    """A `Launcher` (see there). `open_launcher` makes it."""

    def __init__(self, state_dir: StateDir, nursery: trio.Nursery) -> None:
        self._state_dir = state_dir
        self._nursery = nursery
        self._engines: weakref.WeakSet[ShimmedEngine] = weakref.WeakSet()

    async def launch(self, request: LaunchRequest) -> RunningEngine:
        folder = self._state_dir.shards / folder_name(request.shard, request.epoch)
        mark = self._mark(folder)
        launch: JsonObject = {
            "v": 1,
            "shard": request.shard,
            "epoch": request.epoch,
            "port": request.port,
            "mark": mark,
            "state": request.state,
        }
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise EngineError(f"{request.shard}: {folder} cannot be made: {error.strerror}") from error
        # Shielded: what is half started when the agent ends would be found by the next one as a dead shim.
        with trio.CancelScope(shield=True):
            try:
                with open_folder(folder) as fd:
                    write_json(fd, LAUNCH, launch)
                await self._start(folder, mark, request)
            except (OSError, EngineError) as error:
                await self._undo(folder)
                raise EngineError(f"{request.shard}: its shim cannot be started: {error}") from error
        return self._engine(folder, launch, mark)

    async def attach(self) -> list[RunningEngine]:
        await trio.lowlevel.checkpoint()
        found: list[ShimmedEngine] = []
        for folder in launch_folders(self._state_dir.shards):
            launch = read_launch(folder) or _read_record_as_launch(folder)
            if launch is None:
                log.warning("folder of no launch", folder=str(folder))
            elif launch.get("mark") != self._mark(folder):
                log.warning("launch of another instance, left alone", folder=str(folder), shard=launch["shard"])
            else:
                found.append(self._engine(folder, launch, self._mark(folder)))
        return [*sorted(found, key=lambda engine: (engine.shard, engine.epoch))]

    def close(self) -> None:
        """Let go of every shim; all of them go on."""
        for engine in tuple(self._engines):
            engine.close()

    def _engine(self, folder: Path, launch: JsonObject, mark: str) -> ShimmedEngine:
        engine = ShimmedEngine(folder, launch, mark)
        self._engines.add(engine)
        return engine

    def _mark(self, folder: Path) -> str:
        return f"{self._state_dir.mark}.{folder.name}"

    async def _start(self, folder: Path, mark: str, request: LaunchRequest) -> None:
        """Start the shim and wait for its word. OSError, EngineError: nothing was launched, the shim may live."""
        ports = (request.port, *request.other_ports)
        text = {
            "mark": mark,
            "agent": self._state_dir.mark,
            "state_dir": str(self._state_dir.path),
            "shard": request.shard,
            "epoch": request.epoch,
            "argv": request.argv,
            "env": dict(request.env),
            "cwd": request.cwd,
            "ports": [port for port in ports if port is not None],
            "grace_seconds": request.grace_seconds,
            "second_term": request.second_term,
            "cgroup": request.cgroup or "",
        }
        pid, replies = spawn_shim(folder, mark, json.dumps(text).encode())
        pidfd = os.pidfd_open(pid)  # our child, which nobody has reaped yet
        try:
            answer = await _read_reply(replies)
        except EngineError as error:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            raise EngineError(f"{error}; {_last_words(folder)}") from error
        finally:
            self._nursery.start_soon(_reap, pid, pidfd)
        if "error" in answer:
            raise EngineError(answer["error"])

    async def _undo(self, folder: Path) -> None:
        identity = read_identity(read_file(folder, RECORD))
        if identity is not None:
            await end_all(identity, KILL_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def open_launcher(state_dir: StateDir) -> AsyncIterator[ShimLauncher]:
    """The launcher. Shims go on when the block ends; while it lasts, those that it started are reaped."""
    async with trio.open_nursery() as nursery:
        launcher = ShimLauncher(state_dir, nursery)
        try:
            yield launcher
        finally:
            launcher.close()
            nursery.cancel_scope.cancel()


def spawn_shim(folder: Path, mark: str, request: bytes) -> tuple[int, int]:
    """(pid, descriptor of its standard output). The request, with its secrets, is in memory only. OSError."""
    argv = [sys.executable, "-I", "-S", shim.__file__, str(folder)]
    env = {name: os.environ[name] for name in SHIM_INHERITS if name in os.environ} | {MARK_VARIABLE: mark}
    descriptors: list[int] = []
    try:
        stdin = os.memfd_create("launch request")
        descriptors.append(stdin)
        with open(stdin, "wb", closefd=False) as file:
            file.write(request)
        os.lseek(stdin, 0, os.SEEK_SET)
        stderr = os.open(folder / SHIM_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        descriptors.append(stderr)
        replies, stdout = os.pipe()
        descriptors.append(stdout)
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate((stdin, stdout, stderr))],
                setsigmask=(),
                setsigdef=[getattr(signal, f"SIG{name}") for name in RESET],
            )
        except OSError:
            os.close(replies)
            raise
    finally:
        for fd in descriptors:
            os.close(fd)
    return pid, replies


async def _read_reply(descriptor: int) -> JsonObject:
    """The shim's one line."""
    line = b""
    async with trio.lowlevel.FdStream(descriptor) as stream:
        with trio.move_on_after(START_SECONDS) as scope:
            while not line.endswith(b"\n") and len(line) < REPLY_BYTES_MAX:
                data = await stream.receive_some(REPLY_BYTES_MAX)
                if not data:
                    raise EngineError("it died before it said a word")
                line += data
    if scope.cancelled_caught:
        raise EngineError(f"it did not say a word within {START_SECONDS:.0f} s")
    try:
        reply = json.loads(line)
    except ValueError as error:
        raise EngineError(f"it did not speak JSON: {error}") from error
    return dict(reply)


async def _reap(pid: int, pidfd: int) -> None:
    """Our own child, and nobody else waits for it."""
    try:
        await trio.lowlevel.wait_readable(pidfd)
        os.waitpid(pid, 0)  # noqa: ASYNC222  (it has ended: this does not wait)
    finally:
        os.close(pidfd)


def _last_words(folder: Path) -> str:
    try:
        words = (folder / SHIM_LOG).read_text(errors="replace").strip().splitlines()
    except OSError:
        words = []
    return f"its last words: {words[-1]}" if words else "it said nothing"


def _read_record_as_launch(folder: Path) -> JsonObject | None:
    """Whose launch it is, by the shim's record, where our own file was lost; the supervisor's state went with it."""
    record = read_file(folder, RECORD)
    if record is None or not isinstance(record.get("shard"), str) or type(record.get("epoch")) is not int:
        return None
    ports = record.get("ports") or [None]
    return {**{field: record.get(field) for field in ("shard", "epoch", "mark")}, "port": ports[0], "state": {}}
