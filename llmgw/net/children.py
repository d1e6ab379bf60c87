"""Worker processes of the router: each with a socketpair to its parent and the one listening socket, by fd.

Theory of operation. A slot per worker starts a process and runs `serve` on the parent's end of its socketpair. When
either ends, the other is made to: the end of the stream tells the process to finish what is in flight and end, and
the death of the process ends `serve`. The slot starts a successor at once (after a pause that doubles while workers
do not live), since a leaving worker accepts nothing. When the parent is cancelled it closes the listening socket
first and the streams next, so that no connection waits in a queue that nobody reads; a parent that is killed leaves
the same picture to its workers by the closing of its files.

Each worker is recorded with its start time, so that a successor of the parent can end one that hangs and never
touches a process that merely has its number.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import structlog
import trio

from llmgw.core.backoff import Backoff
from llmgw.net.listening import listens_on

log = structlog.get_logger()

RESTART_PAUSE_SECONDS = 0.1
"""Before the successor of a worker that had lived; doubles while successors die young."""

RESTART_PAUSE_SECONDS_MAX = 10.0

STEADY_SECONDS = 10.0
"""A worker that has lived so long was no failed start."""

LEAVES_WITHIN_SECONDS = 3600.0
"""A worker that was told to end may finish its streams for so long; then it hangs, and is killed."""

GRACE_SECONDS = 5.0
"""How long an ending parent waits for its workers; then they finish on their own."""

Command = Callable[[int, int, int], Sequence[str]]
"""(index of the worker, fd of its socketpair, fd of the listening socket) -> its command line."""


async def run_workers(
    *,
    count: int,
    listener: socket.socket,
    command: Command,
    serve: Callable[[int, trio.SocketStream], Awaitable[None]],
    record: Path,
    rng: random.Random,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Keep `count` workers running until cancelled, and own `listener` (it is closed at the end).

    `serve(index, stream)` speaks with one worker and handles its errors; when it returns, that worker ends.
    `record` is the file that lists the living workers for `end_recorded_workers`.
    """
    workers = _Workers(listener, command, serve, record, rng, grace_seconds)
    async with trio.open_nursery() as nursery:
        slots = trio.CancelScope(shield=True)
        nursery.start_soon(workers.run, count, slots)
        try:
            await trio.sleep_forever()
        finally:
            listener.close()
            slots.cancel()


@attrs.define
class _Workers:
    listener: socket.socket
    command: Command
    serve: Callable[[int, trio.SocketStream], Awaitable[None]]
    record: Path
    rng: random.Random
    grace_seconds: float
    living: dict[int, trio.Process] = attrs.field(factory=dict)

    async def run(self, count: int, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for index in range(count):
                    nursery.start_soon(self.keep, index, nursery)

    async def keep(self, index: int, nursery: trio.Nursery) -> None:
        pause = Backoff(self.rng, RESTART_PAUSE_SECONDS, RESTART_PAUSE_SECONDS_MAX)
        while True:
            started = trio.current_time()
            await self.run_one(index, nursery)
            if trio.current_time() - started >= STEADY_SECONDS:
                pause.reset()
            await trio.sleep(pause.next_seconds())

    async def run_one(self, index: int, nursery: trio.Nursery) -> None:
        """Start a worker and serve it until it has died, or `serve` has ended and it is leaving."""
        await trio.lowlevel.checkpoint_if_cancelled()  # the listener is closed by then
        ours, theirs = socket.socketpair()
        # A duplicate, since the listener may be closed while the process is being started.
        with theirs, self.listener.dup() as listener:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            with trio.CancelScope(shield=True):  # cancelled in between, a process would be nobody's
                process = await trio.lowlevel.open_process(
                    list(self.command(index, theirs.fileno(), listener.fileno())),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), listener.fileno()),
                )
        self.living[process.pid] = process
        self.write_record()
        log.info("router worker started", worker=index, pid=process.pid)

        async def watch(scope: trio.CancelScope) -> None:
            await process.wait()
            scope.cancel()

        try:
            async with stream, trio.open_nursery() as serving:
                serving.start_soon(watch, serving.cancel_scope)
                await self.serve(index, stream)
                serving.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                nursery.start_soon(self.leave, index, process)
            else:
                self.ended(index, process)

    async def leave(self, index: int, process: trio.Process) -> None:
        """Wait for a worker that was told to end."""
        try:
            with trio.move_on_after(LEAVES_WITHIN_SECONDS):
                await process.wait()
            if process.returncode is None:
                log.error("router worker does not end, killing it", worker=index, pid=process.pid)
                process.kill()
                await process.wait()
        except trio.Cancelled:
            with trio.move_on_after(self.grace_seconds) as grace:
                grace.shield = True
                await process.wait()
            if process.returncode is None:
                log.info("router worker finishes on its own", worker=index, pid=process.pid)
            raise
        finally:
            if process.returncode is not None:
                self.ended(index, process)

    def ended(self, index: int, process: trio.Process) -> None:
        del self.living[process.pid]
        self.write_record()
        code = process.returncode
        assert code is not None
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        (log.info if code == 0 else log.error)("router worker ended", worker=index, pid=process.pid, how=how)

    def write_record(self) -> None:
        workers = [{"pid": pid, "start_time": start_time(pid)} for pid in self.living]
        parent = {"pid": os.getpid(), "start_time": start_time(os.getpid())}
        text = json.dumps({"boot_id": boot_id(), "parent": parent, "workers": workers})
        draft = self.record.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(text)
        draft.replace(self.record)


def end_recorded_workers(record: Path, port: int) -> list[int]:
    """Kill the workers in `record` that still listen on `port` although their parent is dead; their pids.

    A worker lets go of the socket within moments of its parent's death, so one that has not is hanging. Workers
    that finish streams have let go and are left alone. Identity: boot id, pid and start time.
    """
    try:
        recorded = json.loads(record.read_text())
        parent, workers = recorded["parent"], recorded["workers"]
        if recorded["boot_id"] != boot_id() or start_time(parent["pid"]) == parent["start_time"]:
            return []
        candidates = [(int(worker["pid"]), worker["start_time"]) for worker in workers]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("record of workers cannot be read", file=str(record), error=str(error))
        return []
    return [pid for pid, started in candidates if _kill(pid, started, port)]


def _kill(pid: int, started: int | None, port: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The pidfd is held before the start time is read, so the number cannot pass to another process in between.
        if started is None or start_time(pid) != started or not listens_on(pid, port):
            return False
        log.warning("killing a worker of a dead parent that holds the address", pid=pid, port=port)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    finally:
        os.close(handle)


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None: there is none, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def boot_id() -> str:
    """Changes with each boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
