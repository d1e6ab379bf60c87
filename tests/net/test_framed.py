"""Messages over a stream: who writes, what waits, what ends it, and the last word."""

import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from llmgw.errors import PeerError, PeerReason
from llmgw.net.framed import (
    FLUSH_SECONDS,
    OPENER_SECONDS,
    PING_SECONDS,
    QUEUE_FRAMES_MAX,
    SILENCE_SECONDS,
    STALL_SECONDS,
    WRITE_BYTES,
    MessageStream,
)
from llmgw.wire.codec import UnknownMessage
from llmgw.wire.frames import frame
from llmgw.wire.messages import (
    PROTOCOL,
    Goodbye,
    Heartbeat,
    LogChunk,
    Ping,
    Refused,
    Register,
    Registered,
    Unsupported,
)
from llmgw.wire.session import AgentSession, ControlSession

REGISTER = Register(PROTOCOL, "n1", "i1")
REGISTERED = Registered("inc", 2.0)

Pair = tuple[MessageStream, MessageStream]


@contextlib.asynccontextmanager
async def connected(
    streams: tuple[trio.abc.Stream, trio.abc.Stream] | None = None, **settings: Any
) -> AsyncIterator[Pair]:
    """(agent, control) with their writers running, and both closed at the end."""
    near, far = streams or trio.testing.memory_stream_pair()
    agent, control = MessageStream(near, AgentSession()), MessageStream(far, ControlSession(), **settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        nursery.start_soon(control.run)
        try:
            yield agent, control
        finally:
            nursery.start_soon(agent.aclose)
            nursery.start_soon(control.aclose)


@contextlib.asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[Pair]:
    """The same, with the session open."""
    async with connected(**settings) as (agent, control):
        agent.send_nowait(REGISTER)
        assert await control.receive() == [REGISTER]
        control.send_nowait(REGISTERED)
        assert await agent.receive() == [REGISTERED]
        yield agent, control


async def test_messages_go_both_ways_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, control):
        for number in range(10):
            agent.send_nowait(Heartbeat(number))
        got: list[Any] = []
        while len(got) < 10:
            got += await control.receive()
        assert got == [Heartbeat(number) for number in range(10)]
        control.send_nowait(Ping(4.0))
        assert await agent.receive() == [Ping(4.0)]


async def test_over_tcp_without_nagle() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.testing.open_stream_to_socket_listener(listeners[0])
    far = await listeners[0].accept()
    await listeners[0].aclose()
    assert near.socket.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY)
    assert far.socket.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY)
    async with connected((near, far)) as (agent, control):
        agent.send_nowait(REGISTER)
        assert await control.receive() == [REGISTER]


async def test_iteration_ends_with_the_peer_s_goodbye(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, control):
        agent.send_nowait(Heartbeat(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.aclose, Goodbye("kept"))
            assert [message async for message in control] == [Heartbeat(1), Goodbye("kept")]
            await control.aclose()


async def test_unknown_messages_are_answered(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    async with connected((near, far)) as (agent, control):
        agent.send_nowait(REGISTER)
        await control.receive()
        await near.send_all(frame(msgpack.packb({"type": "novelty"})))
        assert await control.receive() == [UnknownMessage("novelty")]
        assert await agent.receive() == [Unsupported("novelty")]


async def test_a_full_queue_is_the_sender_s_to_deal_with(autojump_clock: trio.testing.MockClock) -> None:
    """At most QUEUE_FRAMES_MAX wait; the next one has not happened, so that it can be said again later."""
    async with opened() as (agent, control):
        queued = 0
        with contextlib.suppress(trio.WouldBlock):
            while queued < 1000:
                agent.send_nowait(Heartbeat(queued))
                queued += 1
        with pytest.raises(trio.WouldBlock):
            agent.send_nowait(Goodbye())
        assert agent.queued == QUEUE_FRAMES_MAX
        assert queued - QUEUE_FRAMES_MAX <= 1  # one may be with the writer already
        assert [number async for number in count(control, queued)] == list(range(queued))
        agent.send_nowait(Goodbye())
        assert await control.receive() == [Goodbye()]


async def count(stream: MessageStream, until: int) -> AsyncIterator[int]:
    """The numbers of the next heartbeats."""
    seen = 0
    while seen < until:
        for message in await stream.receive():
            assert isinstance(message, Heartbeat)
            yield message.number
            seen += 1


async def test_send_waits_for_room(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, control):

        async def send_all() -> None:
            for number in range(3 * QUEUE_FRAMES_MAX):
                await agent.send(Heartbeat(number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            assert len([number async for number in count(control, 3 * QUEUE_FRAMES_MAX)]) == 3 * QUEUE_FRAMES_MAX


async def test_each_side_hears_the_other_at_least_every_30_seconds(autojump_clock: trio.testing.MockClock) -> None:
    """With nothing else to say Pings are, from both sides; control's carry what it puts in."""
    async with opened(make_ping=lambda: Ping(7.0)) as (agent, control):
        for _ in range(5):
            before = trio.current_time()
            assert await agent.receive() == [Ping(7.0)]
            assert await control.receive() == [Ping()]
            assert trio.current_time() - before <= PING_SECONDS < 30
            assert agent.last_received == control.last_sent == trio.current_time()


async def test_no_ping_beside_what_is_said_anyway(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, control):
        for number in range(5):
            await trio.sleep(PING_SECONDS - 1)
            agent.send_nowait(Heartbeat(number))
            assert await control.receive() == [Heartbeat(number)]


async def test_nothing_is_said_before_the_opener(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    agent = MessageStream(near, AgentSession())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        with trio.move_on_after(10 * PING_SECONDS):
            assert not await far.receive_some()
        await agent.aclose()


async def reason_raised(receive: Callable[[], Any]) -> PeerReason:
    with pytest.raises(PeerError) as caught:
        await receive()
    return caught.value.reason


async def test_a_stranger_that_says_nothing_is_let_go(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as (_, control):
        before = trio.current_time()
        assert await reason_raised(control.receive) is PeerReason.TIMEOUT
        assert trio.current_time() - before == pytest.approx(OPENER_SECONDS)


async def test_a_stranger_cannot_stretch_that_by_dribbling(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    control = MessageStream(far, ControlSession())

    async def dribble() -> None:
        await near.send_all(b"\x00\x00\x10\x00")
        while True:
            await trio.sleep(1)
            await near.send_all(b"\x81")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        before = trio.current_time()
        assert await reason_raised(control.receive) is PeerReason.TIMEOUT
        assert trio.current_time() - before == pytest.approx(OPENER_SECONDS)
        nursery.cancel_scope.cancel()


async def test_who_dialled_and_hears_nothing_for_90_seconds_gives_up(autojump_clock: trio.testing.MockClock) -> None:
    near, _far = trio.testing.memory_stream_pair()
    agent = MessageStream(near, AgentSession())
    before = trio.current_time()
    assert await reason_raised(agent.receive) is PeerReason.TIMEOUT
    assert trio.current_time() - before == pytest.approx(SILENCE_SECONDS)
    assert SILENCE_SECONDS == 90


async def test_control_judges_silence_elsewhere(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    agent, control = AgentSession(), MessageStream(far, ControlSession())
    await near.send_all(agent.send(REGISTER))
    assert await control.receive() == [REGISTER]
    with trio.move_on_after(10_000) as scope:
        await control.receive()
    assert scope.cancelled_caught


async def test_a_limit_on_silence_can_be_set(autojump_clock: trio.testing.MockClock) -> None:
    near, _far = trio.testing.memory_stream_pair()
    agent = MessageStream(near, AgentSession(), silence_seconds=5)
    with trio.fail_after(6):
        assert await reason_raised(agent.receive) is PeerReason.TIMEOUT


async def test_a_peer_that_does_not_read_ends_the_stream_after_30_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing left the queue: the stream is closed, and its reader is told why."""
    near, _far = trio.testing.lockstep_stream_pair()  # without a buffer: what is not read is not written
    agent = MessageStream(near, AgentSession())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        agent.send_nowait(REGISTER)
        before = trio.current_time()
        with pytest.raises(PeerError, match=r"nothing could be written for 30 s") as caught:
            await agent.receive()
        assert caught.value.reason is PeerReason.TIMEOUT
        assert trio.current_time() - before == pytest.approx(STALL_SECONDS)
        with pytest.raises(trio.ClosedResourceError):
            agent.send_nowait(Ping())
        await agent.aclose()


async def test_a_slow_peer_is_no_stalled_one(autojump_clock: trio.testing.MockClock) -> None:
    """A large frame that takes minutes goes out as long as pieces of it do."""
    near, far = trio.testing.lockstep_stream_pair()
    chunk = LogChunk(1, bytes(10 * WRITE_BYTES))
    agent, control = MessageStream(near, AgentSession()), ControlSession()
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        agent.send_nowait(REGISTER)
        control.receive(await far.receive_some())
        nursery.start_soon(far.send_all, control.send(REGISTERED))
        assert await agent.receive() == [REGISTERED]
        agent.send_nowait(chunk)
        got: list[Any] = []
        while not got:
            await trio.sleep(STALL_SECONDS - 1)
            got = control.receive(await far.receive_some(WRITE_BYTES))
        assert got == [chunk]
        assert trio.current_time() - started > 9 * (STALL_SECONDS - 1)
        nursery.start_soon(agent.aclose)
        await far.aclose()


async def test_a_violation_is_raised_after_the_messages_before_it_and_said_at_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.testing.memory_stream_pair()
    agent, control = AgentSession(), MessageStream(far, ControlSession())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        await near.send_all(agent.send(REGISTER) + frame(msgpack.packb({"type": "Heartbeat", 1: 2})))
        assert await control.receive() == [REGISTER]
        assert await reason_raised(control.receive) is PeerReason.BAD_KEY
        nursery.start_soon(control.aclose)
        (refused,) = agent.receive(await near.receive_some())
        assert isinstance(refused, Refused)
        assert "a map key is not a unique str" in refused.reason
        assert await near.receive_some() == b""
        await near.aclose()


async def test_an_end_inside_a_frame_is_a_violation(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    control = MessageStream(far, ControlSession())
    await near.send_all(AgentSession().send(REGISTER)[:-1])
    await near.send_eof()
    assert await reason_raised(control.receive) is PeerReason.TRUNCATED


async def test_a_broken_connection_is_no_violation(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, control):
        await trio.aclose_forcefully(control._stream)
        agent.send_nowait(Heartbeat(1))
        assert await agent.receive() == []
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
            agent.send_nowait(Heartbeat(2))


async def test_what_is_queued_goes_out_before_the_last_word(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, control):
        for number in range(QUEUE_FRAMES_MAX):
            agent.send_nowait(Heartbeat(number))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.aclose, Goodbye("stopped"))
            got = [message async for message in control]
            assert got == [*map(Heartbeat, range(QUEUE_FRAMES_MAX)), Goodbye("stopped")]
            await control.aclose()


async def test_the_last_word_goes_out_when_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    agent, control = MessageStream(near, AgentSession()), MessageStream(far, ControlSession())

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run)
            agent.send_nowait(REGISTER)
            try:
                await agent.receive()
            finally:
                await agent.aclose(Goodbye("kept"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        assert await control.receive() == [REGISTER]
        before = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - before <= FLUSH_SECONDS
    assert await control.receive() == [Goodbye("kept")]


async def test_a_last_word_that_is_not_legal_is_left_out(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as (agent, control), trio.open_nursery() as nursery:
        nursery.start_soon(agent.aclose, Goodbye())
        assert await control.receive() == []
        await control.aclose()


async def test_closing_is_bounded_whatever_the_peer_does(autojump_clock: trio.testing.MockClock) -> None:
    near, _far = trio.testing.lockstep_stream_pair()
    agent = MessageStream(near, AgentSession())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        agent.send_nowait(REGISTER)
        before = trio.current_time()
        await agent.aclose(Goodbye())
        assert trio.current_time() - before == pytest.approx(FLUSH_SECONDS)
    assert trio.current_time() - before == pytest.approx(FLUSH_SECONDS)


async def test_nothing_is_sent_on_a_closed_stream(autojump_clock: trio.testing.MockClock) -> None:
    """It is the stream that is over, also where the session would not allow the message any more."""
    async with opened() as (agent, control), trio.open_nursery() as nursery:
        nursery.start_soon(control.aclose)
        await agent.aclose(Goodbye("kept"))
        with pytest.raises(trio.ClosedResourceError):
            agent.send_nowait(Heartbeat(1))
        with pytest.raises(trio.ClosedResourceError):
            await agent.send(Heartbeat(1))


async def test_closing_ends_a_receive_of_another_task(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (agent, _), trio.open_nursery() as nursery:

        async def read() -> None:
            assert await agent.receive() == []

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await agent.aclose()


async def test_a_last_word_reaches_a_peer_whose_bytes_were_not_read() -> None:
    """Over TCP: closing a socket that holds unread bytes resets the connection, and would take the last word along."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.testing.open_stream_to_socket_listener(listeners[0])
    far = await listeners[0].accept()
    await listeners[0].aclose()
    agent, control = AgentSession(), MessageStream(far, ControlSession())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        await near.send_all(agent.send(REGISTER))
        assert await control.receive() == [REGISTER]
        await near.send_all(agent.send(Ping()) * 1_000)
        nursery.start_soon(control.aclose, Refused("another n1 is registered", 5.0))
        data = b""
        while chunk := await near.receive_some():
            data += chunk
        assert agent.receive(data) == [Refused("another n1 is registered", 5.0)]
        await near.aclose()


async def test_the_limit_on_silence_is_no_limit_by_default_for_control() -> None:
    control = MessageStream(trio.testing.memory_stream_pair()[0], ControlSession())
    assert control._silence_seconds == math.inf
