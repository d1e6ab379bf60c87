"""The service manager hears of us, over real Unix sockets and on a virtual clock."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trio
from short_paths import short
from trio.testing import MockClock

from llmgw.net.notify import ServiceManager, keep_informed


class Manager:
    """A service manager's end of the socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + path[1:] if path.startswith("@") else path)

    def heard(self) -> list[str]:
        """Every message since the last look."""
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    with short(tmp_path) as near:
        opened = Manager(f"{near}/notify" if request.param == "file" else f"@llmgw-test-{os.getpid()}")
        yield opened
        opened.close()


def environment(path: str, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": path, **more}


def test_what_is_said(manager: Manager) -> None:
    told = ServiceManager.from_environment(environment(manager.path), pid=1)
    told.ready()
    told.reloading(12.3456789)
    told.ready()
    told.alive()
    told.stopping()
    assert manager.heard() == [
        "READY=1",
        "RELOADING=1\nMONOTONIC_USEC=12345678",
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


@pytest.mark.parametrize("path", ["", "relative", "vsock:2:1234"])
def test_without_its_socket_nothing_is_said(path: str) -> None:
    told = ServiceManager.from_environment(environment(path, WATCHDOG_USEC="1000000"), pid=1)
    assert told.watchdog_seconds is None
    with structlog.testing.capture_logs() as logs:
        told.ready()
    assert logs == []
    assert ServiceManager.from_environment({}, pid=1).watchdog_seconds is None


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_PID": "7"}, None),
        ({}, None),
    ],
)
def test_who_is_watched(variables: dict[str, str], seconds: float | None) -> None:
    """A worker that inherits the variables of its parent is not."""
    assert ServiceManager.from_environment(environment("/run/x", **variables), pid=7).watchdog_seconds == seconds


def test_a_manager_that_is_away_is_no_error_of_ours(tmp_path: Path) -> None:
    with short(tmp_path) as near, structlog.testing.capture_logs() as logs:
        told = ServiceManager(f"{near}/gone")
        told.ready()
        told.alive()
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        ("service manager not reached", "No such file or directory")
    ]


async def test_ready_then_alive_at_half_the_time_then_stopping(manager: Manager, autojump_clock: MockClock) -> None:
    told = ServiceManager.from_environment(environment(manager.path, WATCHDOG_USEC="10000000"), pid=1)
    with trio.move_on_after(12):
        await keep_informed(told)
    assert manager.heard() == ["READY=1", *["WATCHDOG=1"] * 3, "STOPPING=1"]


async def test_who_is_not_watched_says_only_that_it_is_ready(manager: Manager, autojump_clock: MockClock) -> None:
    with trio.move_on_after(1000):
        await keep_informed(ServiceManager(manager.path))
    assert manager.heard() == ["READY=1", "STOPPING=1"]


def test_a_loop_that_hangs_says_nothing(manager: Manager) -> None:
    """Which is the point: the messages come from a task of the loop, not from a thread."""
    clock = MockClock(rate=0)
    said: list[list[str]] = []

    def hang() -> None:
        clock.jump(60)  # time goes by, and no task gets its turn
        said.append(manager.heard())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_informed, ServiceManager(manager.path, 10))
            await trio.testing.wait_all_tasks_blocked()
            said.append(manager.heard())
            hang()
            await trio.testing.wait_all_tasks_blocked()
            said.append(manager.heard())
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    assert said == [["READY=1", "WATCHDOG=1"], [], ["WATCHDOG=1"]]
