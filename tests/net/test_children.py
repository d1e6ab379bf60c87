"""Worker processes: real ones, since processes are the thing itself; small scripts that start within milliseconds."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from llmgw.core.address import Address
from llmgw.core.backoff import Backoff
from llmgw.net.children import (
    RESTART_PAUSE_SECONDS,
    RESTART_PAUSE_SECONDS_MAX,
    boot_id,
    end_recorded_workers,
    run_workers,
    start_time,
)
from llmgw.net.listening import bind, bound_address

HANG_GUARD_SECONDS = 20

WORKER = """
import os, socket, sys
parent = socket.socket(fileno=int(sys.argv[2]))
listener = socket.socket(fileno=int(sys.argv[3]))
listener.setblocking(True)
parent.sendall(f"{sys.argv[1]} {os.getpid()}\\n".encode())
parent.recv(1)
parent.close()
listener.setblocking(False)
try:
    connection, _ = listener.accept()
    connection.sendall(b"queued")
except BlockingIOError:
    pass
"""


@attrs.define
class Hello:
    index: int
    pid: int
    let_go: trio.Event


@attrs.define
class Workers:
    port: int
    record: Path
    hellos: trio.MemoryReceiveChannel[Hello]
    scope: trio.CancelScope
    ended: trio.Event
    starts: list[float]

    async def hello(self) -> Hello:
        with trio.fail_after(HANG_GUARD_SECONDS):
            return await self.hellos.receive()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    @asynccontextmanager
    async def running(count: int, script: str = WORKER) -> AsyncIterator[Workers]:
        send, receive = trio.open_memory_channel[Hello](16)
        listener = bind(Address("127.0.0.1", 0))
        workers = Workers(
            bound_address(listener).port, tmp_path / "workers.json", receive, trio.CancelScope(), trio.Event(), []
        )

        async def serve(index: int, stream: trio.SocketStream) -> None:
            line = bytearray()
            while not line.endswith(b"\n"):
                chunk = await stream.receive_some()
                if not chunk:
                    return
                line += chunk
            hello = Hello(index, int(line.split()[1]), trio.Event())
            assert int(line.split()[0]) == index
            await send.send(hello)
            await hello.let_go.wait()

        def command(*fds: int) -> list[str]:
            workers.starts.append(trio.current_time())
            return [sys.executable, "-ISc", script, *map(str, fds)]

        async def keep() -> None:
            with workers.scope:
                await run_workers(
                    count=count,
                    listener=listener,
                    command=command,
                    serve=serve,
                    record=workers.record,
                    rng=random.Random(1),
                    grace_seconds=HANG_GUARD_SECONDS,
                )
            workers.ended.set()

        with trio.fail_after(HANG_GUARD_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep)
                yield workers
                workers.scope.cancel()
        assert json.loads(workers.record.read_text())["workers"] == []

    return running


async def test_each_worker_has_its_stream_and_the_one_listening_socket(run: Any) -> None:
    async with run(2) as workers:
        hellos = sorted([await workers.hello(), await workers.hello()], key=lambda hello: hello.index)
        assert [hello.index for hello in hellos] == [0, 1]
        recorded = json.loads(workers.record.read_text())
        assert sorted(worker["pid"] for worker in recorded["workers"]) == sorted(hello.pid for hello in hellos)
        assert recorded["workers"][0]["start_time"] == start_time(recorded["workers"][0]["pid"])
        assert workers.record.stat().st_mode & 0o777 == 0o600


async def test_a_killed_worker_is_replaced(run: Any) -> None:
    async with run(1) as workers:
        first = await workers.hello()
        os.kill(first.pid, signal.SIGKILL)
        second = await workers.hello()
        assert (second.index, second.pid != first.pid) == (0, True)


async def test_a_worker_whose_session_ended_ends_and_is_replaced(run: Any) -> None:
    async with run(1) as workers:
        first = await workers.hello()
        first.let_go.set()
        second = await workers.hello()
        assert second.pid != first.pid
        while start_time(first.pid) is not None:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_cancelled_parent_lets_go_of_the_socket_and_workers_serve_what_is_queued(run: Any) -> None:
    async with run(1) as workers:
        hello = await workers.hello()
        with socket.create_connection(("127.0.0.1", workers.port)) as queued:
            workers.scope.cancel()
            await workers.ended.wait()
            assert start_time(hello.pid) is None
            assert queued.recv(10) == b"queued"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", workers.port))


async def test_workers_that_die_young_are_restarted_with_growing_pauses(run: Any) -> None:
    async with run(1, "import sys; sys.exit(3)") as workers:
        while len(workers.starts) < 4:  # noqa: ASYNC110
            await trio.sleep(0.01)
    first, second, third, fourth = workers.starts[:4]
    pause = Backoff(random.Random(1), RESTART_PAUSE_SECONDS, RESTART_PAUSE_SECONDS_MAX)
    assert second - first >= pause.next_seconds()
    assert third - second >= pause.next_seconds()
    assert fourth - third >= pause.next_seconds()


# --- leftovers of a dead parent -------------------------------------------------------------------------------

LISTENS = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def leftover() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with subprocess.Popen([sys.executable, "-ISc", LISTENS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def write(record: Path, pid: int, started: int | None, parent_started: int = 1, boot: str | None = None) -> None:
    content = {
        "boot_id": boot or boot_id(),
        "parent": {"pid": os.getpid(), "start_time": parent_started},
        "workers": [{"pid": pid, "start_time": started}],
    }
    record.write_text(json.dumps(content))


def test_a_hanging_worker_of_a_dead_parent_is_killed(tmp_path: Path, leftover: tuple[Any, int]) -> None:
    process, port = leftover
    write(tmp_path / "workers.json", process.pid, start_time(process.pid))
    assert end_recorded_workers(tmp_path / "workers.json", port) == [process.pid]
    assert process.wait(HANG_GUARD_SECONDS) == -signal.SIGKILL
    assert end_recorded_workers(tmp_path / "workers.json", port) == []


def test_nobody_else_is_killed(tmp_path: Path, leftover: tuple[Any, int]) -> None:
    """Another process with that number, one that has let go of the socket, one of a live parent, of another boot."""
    process, port = leftover
    record = tmp_path / "workers.json"
    started, ours = start_time(process.pid), start_time(os.getpid())
    assert started is not None
    assert ours is not None
    assert end_recorded_workers(record, port) == []
    write(record, process.pid, started - 1)
    assert end_recorded_workers(record, port) == []
    write(record, process.pid, None)
    assert end_recorded_workers(record, port) == []
    write(record, process.pid, started)
    assert end_recorded_workers(record, port - 1) == []
    write(record, process.pid, started, parent_started=ours)
    assert end_recorded_workers(record, port) == []
    write(record, process.pid, started, boot="another")
    assert end_recorded_workers(record, port) == []
    assert process.poll() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"workers": 3}', '{"boot_id": "x", "parent": 1, "workers": []}'])
def test_a_broken_record_is_said_and_kills_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "workers.json").write_text(content)
    assert end_recorded_workers(tmp_path / "workers.json", 1) == []
