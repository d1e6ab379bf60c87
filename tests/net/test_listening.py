"""Listening sockets: bound once, taken over, accepted from through exhaustion."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
import trio
import trio.testing

from llmgw.core.address import Address
from llmgw.net.listening import (
    AddressTakenError,
    Inherited,
    accept_forever,
    bind,
    bound_address,
    holder_of,
    open_listener,
    raise_file_limit,
)

NOTHING = Inherited([])


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with bind(Address("127.0.0.1", 0)) as listener:
        yield listener


def test_a_taken_address_is_refused_and_its_holder_named(taken: socket.socket) -> None:
    with pytest.raises(AddressTakenError, match=rf"127\.0\.0\.1:\d+ is taken by .*pid {os.getpid()}$"):
        bind(bound_address(taken))


def test_without_so_reuseport(taken: socket.socket) -> None:
    assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0


def test_nobody_visible_holds_a_free_port(taken: socket.socket) -> None:
    address = bound_address(taken)
    taken.close()
    assert holder_of(address) == "a process that is not visible to this user"


def test_localhost_and_ipv6_bind() -> None:
    for host in ("localhost", "::1"):
        with bind(Address(host, 0)) as listener:
            assert bound_address(listener).port > 0


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
        bind(Address("192.0.2.1", 0))


async def test_a_taken_address_is_tried_until_it_is_free(
    taken: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    async def let_go() -> None:
        await trio.sleep(4)
        taken.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_go)
        listener = await open_listener(bound_address(taken), name="router", inherited=NOTHING)
    listener.close()
    assert 4 <= trio.current_time() < 5


async def test_leftovers_are_ended_once_when_patience_is_over(
    taken: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    ended: list[float] = []

    def end_leftovers() -> None:
        ended.append(trio.current_time())
        taken.close()

    address = bound_address(taken)
    listener = await open_listener(address, name="router", inherited=NOTHING, end_leftovers=end_leftovers)
    listener.close()
    assert len(ended) == 1
    assert 10 <= ended[0] < 11


async def test_an_address_that_stays_taken_is_an_error_that_names_the_holder(
    taken: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(AddressTakenError, match=f"pid {os.getpid()}"):
        await open_listener(bound_address(taken), name="router", inherited=NOTHING)


# --- LISTEN_FDS -----------------------------------------------------------------------------------------------


async def test_an_inherited_socket_is_found_by_its_address(taken: socket.socket) -> None:
    inherited = Inherited([("", taken)])
    assert await open_listener(bound_address(taken), name="router", inherited=inherited) is taken


def test_an_inherited_socket_is_found_by_its_name(taken: socket.socket) -> None:
    inherited = Inherited([("router", taken)])
    assert inherited.take(Address("127.0.0.1", 1), "admin") is None
    assert inherited.take(Address("127.0.0.1", 1), "router") is taken
    assert inherited.take(Address("127.0.0.1", 1), "router") is None


def test_inherited_sockets_that_nobody_takes_are_closed(taken: socket.socket) -> None:
    Inherited([("router", taken)]).close()
    assert taken.fileno() == -1


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "2"}, {"LISTEN_FDS": "x", "LISTEN_PID": "1"}],
)
def test_sockets_meant_for_another_process_are_not_taken(environ: dict[str, str]) -> None:
    inherited = Inherited.from_environment(environ, pid=1)
    assert inherited.take(Address("127.0.0.1", 1), "") is None


# --- accepting ------------------------------------------------------------------------------------------------


@contextmanager
def no_file_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_accepting_pauses_while_files_have_run_out_says_so_and_goes_on(
    taken: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    accepted = trio.Event()

    def start(connection: trio.socket.SocketType) -> None:
        connection.close()
        accepted.set()

    listener = trio.socket.from_stdlib_socket(taken)
    address = bound_address(taken)
    with socket.create_connection((address.host, address.port)), structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            with no_file_left():
                nursery.start_soon(accept_forever, listener, start)
                await trio.sleep(5)
                assert not accepted.is_set()
            await accepted.wait()
            nursery.cancel_scope.cancel()
    assert trio.current_time() < 5.5
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("accepting pauses", "Too many open files")]


async def test_accepting_ends_when_the_listener_is_closed(taken: socket.socket) -> None:
    listener = trio.socket.from_stdlib_socket(taken)
    listener.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        await accept_forever(listener, lambda connection: connection.close())


def test_the_file_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, soft), hard))
    try:
        assert raise_file_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
