"""The pump: bytes move as they come, a slow client costs one read, and every end is told to exactly one task."""

import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from llmgw.router.framer import ChunkedBody, CloseBody, LengthBody
from llmgw.router.pump import EVENTS_PER_POLL, READ_BYTES, Outcome, Pump, Transfer
from llmgw.router.records import TAIL_BYTES, TAIL_PIECES


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection on loopback, not blocking: where a reset is the subject."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends between which nothing is ever on its way, as it may be with TCP while the machine is busy."""
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


@attrs.define
class Ends:
    """A transfer with the far ends of its sockets."""

    engine: socket.socket
    moving: Transfer
    client: socket.socket
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def over(self) -> None:
        """Wait for the end of the transfer; one that never ends fails its test instead of holding up the rest."""
        with trio.fail_after(60):
            await self.ended.wait()

    def read(self) -> bytes:
        """Everything that has arrived: a read may end where one of the writes did."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while more := self.client.recv(1 << 20):
                data += more
        return data

    def close(self) -> None:
        for one in (self.engine, self.moving.up, self.moving.down, self.client):
            one.close()


class Pumping:
    """A running pump with any number of transfers."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.pump = Pump()
        self.nursery = nursery
        self.all: list[Ends] = []
        nursery.start_soon(self.pump.run)

    async def start(self, body: Any = None, *, tcp: bool = False, **more: Any) -> Ends:
        (up, engine), (down, client) = (tcp_pair(), tcp_pair()) if tcp else (pair(), pair())
        ends = Ends(engine, Transfer(up, down, body or ChunkedBody(), **more), client)
        self.all.append(ends)
        self.nursery.start_soon(self._run, ends)
        await trio.testing.wait_all_tasks_blocked()
        return ends

    async def _run(self, ends: Ends) -> None:
        await self.pump.transfer(ends.moving)
        ends.ended.set()


@pytest.fixture
async def pumping(autojump_clock: Any, nursery: trio.Nursery) -> AsyncIterator[Pumping]:
    made = Pumping(nursery)
    yield made
    nursery.cancel_scope.cancel()
    for ends in made.all:
        ends.close()
    assert all(ends.ended.is_set() for ends in made.all)
    assert made.pump.transfers == made.pump.watched == 0


async def moved() -> None:
    """Let the pump do what it can."""
    await trio.sleep(0.001)


async def fill(ends: Ends) -> int:
    """Send from the engine until no buffer on the way takes any more; how much that was."""
    sent = 0
    while True:
        try:
            sent += ends.engine.send(b"x" * READ_BYTES)
        except BlockingIOError:
            return sent
        await moved()


async def test_chunks_pass_as_they_come_until_the_last(pumping: Pumping, autojump_clock: MockClock) -> None:
    ends = await pumping.start(counts_events=True)
    for event in (b"data: 1\n\n", b"data: 2\n\n"):
        chunk = b"%x\r\n%b\r\n" % (len(event), event)
        ends.engine.send(chunk)
        await moved()
        assert ends.read() == chunk
    assert not ends.ended.is_set()
    ends.engine.send(b"0\r\n\r\n")
    await ends.over()
    assert ends.read() == b"0\r\n\r\n"
    moving = ends.moving
    assert (moving.outcome, moving.events, moving.bytes_sent, moving.surplus) == (Outcome.COMPLETE, 2, 33, False)
    assert b"".join(moving.tail).count(b"data: ") == 2


async def test_for_clients_without_chunks_the_content_alone_is_sent(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    payload: list[bytes] = []
    ends = await pumping.start(ChunkedBody(payload), payload=payload)
    for piece in (b"3\r\nab", b"c\r\n2\r\n", b"de\r\n0\r\n\r\n"):
        ends.engine.send(piece)
        await moved()
    await ends.over()
    assert ends.read() == b"abcde"


async def test_what_comes_after_the_end_is_not_passed_on(pumping: Pumping, autojump_clock: MockClock) -> None:
    ends = await pumping.start(LengthBody(3))
    ends.engine.send(b"abcHTTP/1.1 200 OK")
    await ends.over()
    assert ends.read() == b"abc"
    assert (ends.moving.outcome, ends.moving.surplus) == (Outcome.COMPLETE, True)


async def test_the_end_of_the_connection_ends_a_body_to_the_end(pumping: Pumping, autojump_clock: MockClock) -> None:
    ends = await pumping.start(CloseBody())
    ends.engine.send(b"abc")
    ends.engine.close()
    await ends.over()
    assert ends.read() == b"abc"
    assert ends.moving.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("how", ["end", "reset", "nonsense"])
async def test_a_dead_engine_is_told_from_a_finished_one(pumping: Pumping, how: str, autojump_clock: MockClock) -> None:
    ends = await pumping.start(tcp=how == "reset")
    ends.engine.send(b"5\r\nhe")
    while not ends.moving.bytes_sent:
        await moved()
    if how == "nonsense":
        ends.engine.send(b"lloXX")
    elif how == "reset":
        ends.engine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how != "nonsense":
        ends.engine.close()
    await ends.over()
    moving = ends.moving
    said = {"end": "before the end", "reset": "reset by peer", "nonsense": "framing"}[how]
    assert moving.outcome is Outcome.ENGINE_DIED
    assert said in moving.detail
    assert moving.intact == (how != "nonsense")
    assert moving.bytes_sent == 5


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_client_that_leaves_is_noticed_while_the_engine_is_silent(
    pumping: Pumping, how: str, autojump_clock: MockClock
) -> None:
    ends = await pumping.start(tcp=True)
    if how == "reset":
        ends.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ends.client.close()
    await ends.over()
    assert ends.moving.outcome is Outcome.CLIENT_LEFT


async def test_what_a_client_sends_meanwhile_is_left_where_it_is(pumping: Pumping, autojump_clock: MockClock) -> None:
    """The next request of an impatient client neither ends the transfer nor keeps the pump busy."""
    ends = await pumping.start(LengthBody(2))
    ends.client.send(b"GET / HTTP/1.1\r\n\r\n")
    await moved()
    assert not ends.ended.is_set()
    ends.engine.send(b"ok")
    await ends.over()
    assert ends.moving.down.recv(100) == b"GET / HTTP/1.1\r\n\r\n"


async def test_a_slow_client_holds_up_its_engine_and_costs_one_read(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    slow, quick = await pumping.start(CloseBody()), await pumping.start(CloseBody())
    sent = await fill(slow)
    assert 0 < len(slow.moving.pending) <= READ_BYTES
    quick.engine.send(b"quick")
    await moved()
    assert quick.read() == b"quick"
    slow.engine.close()
    received = 0
    while not slow.ended.is_set():
        received += len(slow.read())
        await moved()
    received += len(slow.read())
    assert received == sent
    assert slow.moving.outcome is Outcome.COMPLETE
    quick.client.close()
    await quick.over()


async def test_an_engine_that_dies_while_its_client_is_slow_keeps_nobody_busy(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    """A dead socket is always ready, so it must not be in the set: a busy pump would never let the clock jump."""
    ends = await pumping.start()
    ends.engine.send(b"fffffff\r\n")
    await fill(ends)
    ends.engine.close()
    await trio.sleep(1000)
    assert not ends.ended.is_set()
    while not ends.ended.is_set():
        ends.read()
        await moved()
    assert ends.moving.outcome is Outcome.ENGINE_DIED


async def test_what_the_client_had_not_taken_at_the_start_goes_first(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    ends = await pumping.start(LengthBody(3), pending=b"HTTP/1.1 200 OK\r\n\r\n")
    ends.engine.send(b"abc")
    await ends.over()
    assert ends.read() == b"HTTP/1.1 200 OK\r\n\r\nabc"


async def test_silence_and_a_client_that_takes_nothing_have_a_limit(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    silent = await pumping.start()
    stuck = await pumping.start(CloseBody())
    await fill(stuck)
    await trio.sleep(5)
    pumping.pump.sweep(trio.current_time(), 300)
    await moved()
    assert not silent.ended.is_set()
    pumping.pump.sweep(trio.current_time(), 5)
    await silent.over()
    await stuck.over()
    assert silent.moving.outcome is stuck.moving.outcome is Outcome.STALLED
    assert silent.moving.detail == "the engine sends nothing for 5 s"
    assert stuck.moving.detail == "the client takes nothing for 5 s"


async def test_the_tail_is_bounded(pumping: Pumping, autojump_clock: MockClock) -> None:
    ends = await pumping.start(CloseBody())
    for _ in range(TAIL_PIECES + 2):
        ends.engine.send(b"y" * (TAIL_BYTES + 10))
        await moved()
        ends.read()
    ends.engine.close()
    await ends.over()
    assert [len(piece) for piece in ends.moving.tail] == [TAIL_BYTES] * TAIL_PIECES


async def test_more_streams_than_a_poll_gives_are_all_served(pumping: Pumping, autojump_clock: MockClock) -> None:
    streams = [await pumping.start(LengthBody(20)) for _ in range(EVENTS_PER_POLL + 20)]
    for turn in range(20):
        for ends in streams:
            ends.engine.send(b"%d" % (turn % 10))
        await moved()
    for ends in streams:
        await ends.over()
        assert ends.read() == b"01234567890123456789"


async def test_a_cancelled_transfer_is_taken_out_and_its_sockets_are_left_alone(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    up, engine = pair()
    down, client = pair()
    with trio.move_on_after(1):
        await pumping.pump.transfer(Transfer(up, down, ChunkedBody()))
    assert pumping.pump.transfers == 0
    engine.send(b"0\r\n\r\n")
    await moved()
    assert up.recv(10) == b"0\r\n\r\n"
    for one in (up, engine, down, client):
        one.close()


async def test_a_watched_client_is_told_of_once_and_a_transfer_takes_it_over(
    pumping: Pumping, autojump_clock: MockClock
) -> None:
    pump, left = pumping.pump, []
    down, client = pair()
    pump.watch(down, lambda: left.append(1))
    assert pump.watched == 1
    client.send(b"more")
    await moved()
    assert not left
    client.close()
    await moved()
    assert left == [1]
    assert pump.watched == 0
    pump.unwatch(down)  # no more than nothing
    down.close()

    ends = await pumping.start(LengthBody(1))
    ends.engine.send(b"a")
    await ends.over()
    pump.watch(ends.moving.down, lambda: left.append(2))
    again = Transfer(ends.moving.up, ends.moving.down, LengthBody(1))
    ends.engine.send(b"b")
    await pump.transfer(again)
    assert (again.outcome, pump.watched, left) == (Outcome.COMPLETE, 0, [1])
    pump.watch(ends.moving.down, lambda: left.append(3))
    pump.unwatch(ends.moving.down)
    assert pump.watched == 0
