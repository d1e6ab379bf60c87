"""Connections to engines: the newest first, none that the engine is about to close, and failures that say why."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from llmgw.core.address import Address
from llmgw.net.listening import bind
from llmgw.router.pool import IDLE_PER_ENDPOINT_MAX, IDLE_SECONDS, Pool, Site, UnreachableError, site

URL = "http://127.0.0.1:9000"


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(3.0)
    yield made
    made.close()
    assert made.idle == 0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind(Address("127.0.0.1", 0)) as bound:
        yield bound


@pytest.fixture(autouse=True)
def far_ends() -> Iterator[list[socket.socket]]:
    """What `idle` connections lead to."""
    yield FAR_ENDS
    for far in FAR_ENDS:
        far.close()
    FAR_ENDS.clear()


FAR_ENDS: list[socket.socket] = []


def idle() -> socket.socket:
    """A connection on which nothing has come."""
    near, far = socket.socketpair()
    near.setblocking(False)
    FAR_ENDS.append(far)
    return near


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9000", Site("127.0.0.1", 9000, True, b"127.0.0.1:9000", b"")),
        ("http://[::1]:9000", Site("::1", 9000, True, b"[::1]:9000", b"")),
        ("http://engine.local", Site("engine.local", 80, False, b"engine.local:80", b"")),
        ("http://engine:1/some/where/", Site("engine", 1, False, b"engine:1", b"/some/where")),
    ],
)
def test_where_an_endpoint_is(url: str, expected: Site) -> None:
    assert site(url) == expected


def test_the_newest_connection_is_used_first(pool: Pool) -> None:
    first, second = idle(), idle()
    pool.give(URL, first, 10.0)
    pool.give(URL, second, 11.0)
    assert pool.take("http://127.0.0.1:1", 11.5) is None
    assert pool.take(URL, 11.5) is second
    assert pool.take(URL, 11.5) is first
    assert pool.take(URL, 11.5) is None
    first.close()
    second.close()


def test_a_connection_that_the_engine_may_be_closing_is_not_used(pool: Pool) -> None:
    old, older = idle(), idle()
    pool.give(URL, older, 9.0)
    pool.give(URL, old, 10.0)
    assert pool.take(URL, 10.0 + IDLE_SECONDS) is None
    assert (old.fileno(), older.fileno(), pool.idle) == (-1, -1, 0)


@pytest.mark.parametrize("what", ["end", "bytes"])
def test_a_connection_on_which_something_has_come_is_not_used(
    pool: Pool, far_ends: list[socket.socket], what: str
) -> None:
    """Its end, or bytes that nobody had asked for: those are never the answer to the next request."""
    good, spoilt = idle(), idle()
    pool.give(URL, good, 1.0)
    pool.give(URL, spoilt, 1.0)
    if what == "end":
        far_ends[1].close()
    else:
        far_ends[1].send(b"HTTP/1.1 200 OK")
    assert pool.take(URL, 1.5) is good
    assert (spoilt.fileno(), pool.idle) == (-1, 0)
    good.close()


def test_a_sweep_closes_what_has_been_idle_for_too_long(pool: Pool) -> None:
    old, new = idle(), idle()
    pool.give(URL, old, 10.0)
    pool.give(URL, new, 12.0)
    pool.sweep(10.0 + IDLE_SECONDS)
    assert (old.fileno(), pool.idle) == (-1, 1)
    pool.sweep(12.0 + IDLE_SECONDS)
    assert (new.fileno(), pool.idle) == (-1, 0)


def test_a_burst_does_not_leave_more_than_the_limit(pool: Pool) -> None:
    for _ in range(IDLE_PER_ENDPOINT_MAX + 1):
        pool.give(URL, socket.socket(), 1.0)
    assert pool.idle == IDLE_PER_ENDPOINT_MAX


async def test_a_connection_is_made_by_address_and_by_name(pool: Pool, listener: socket.socket) -> None:
    for url in (url_of(listener), url_of(listener).replace("127.0.0.1", "localhost")):
        connection = await pool.connect(url)
        assert connection.getpeername() == listener.getsockname()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not connection.getblocking()
        connection.close()


async def test_a_refused_connection_says_so(pool: Pool, listener: socket.socket) -> None:
    url = url_of(listener)
    listener.close()
    for refused in (url, url.replace("127.0.0.1", "localhost")):
        with pytest.raises(UnreachableError, match="Connection refused"):
            await pool.connect(refused)


async def test_an_address_that_drops_packets_costs_the_connect_timeout(pool: Pool, autojump_clock: Any) -> None:
    """A queue that is full drops the last step of a handshake, as a dead address does."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        began = trio.current_time()
        with pytest.raises(UnreachableError, match="no connection within 3 s"):
            await pool.connect(url_of(full))
        assert 3.0 <= trio.current_time() - began < 3.1
        for filler in fillers:
            filler.close()


async def test_a_cancelled_attempt_leaves_no_socket(pool: Pool, autojump_clock: Any) -> None:
    """Warnings are errors: a socket that is collected while open would fail the test."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        with trio.move_on_after(0.5):
            await pool.connect(url_of(full))
        for filler in fillers:
            filler.close()
