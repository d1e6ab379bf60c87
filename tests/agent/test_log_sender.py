"""Output is sent only while nothing more urgent waits on the same stream."""

import trio
from trio.testing import MockClock, lockstep_stream_pair

from llmgw.agent.log_sender import CHUNK_BYTES, QUEUED_MAX, REQUESTS_MAX, LogSender
from llmgw.agent.uplink import Output
from llmgw.net.framed import QUEUE_FRAMES_MAX, MessageStream
from llmgw.wire.messages import PROTOCOL, Heartbeat, LogChunk, LogEnd, Register, Registered
from llmgw.wire.session import AgentSession, ControlSession


async def open_session(nursery: trio.Nursery) -> tuple[MessageStream, MessageStream]:
    """An agent's and a control's end of an open session that holds nothing back in buffers."""
    ours, theirs = lockstep_stream_pair()
    agent, control = MessageStream(ours, AgentSession()), MessageStream(theirs, ControlSession())
    nursery.start_soon(agent.run)
    nursery.start_soon(control.run)
    agent.send_nowait(Register(PROTOCOL, "n", "i"))
    await control.receive()
    control.send_nowait(Registered("c", 2.0))
    await agent.receive()
    return agent, control


async def test_a_control_that_reads_slowly_still_gets_heartbeats_before_output(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    agent, control = await open_session(nursery)
    sender = LogSender(agent, nursery)
    for request_id in range(REQUESTS_MAX):
        assert sender.open(request_id)
        sender.send(Output(request_id, b"x" * CHUNK_BYTES * 20))
    await trio.sleep(10)
    assert agent.queued <= QUEUED_MAX + REQUESTS_MAX
    agent.send_nowait(Heartbeat(1))  # there is room, and little before it
    before_it = 0
    while not any(isinstance(message, Heartbeat) for message in await control.receive()):
        before_it += 1
    assert before_it <= QUEUE_FRAMES_MAX // 2

    chunks, ends = 0, 0
    while ends < REQUESTS_MAX:
        received = await control.receive()
        chunks += sum(isinstance(message, LogChunk) for message in received)
        ends += sum(isinstance(message, LogEnd) for message in received)
    assert chunks > 0
    nursery.cancel_scope.cancel()


async def test_a_number_in_use_is_refused_and_free_again_after_its_end(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    agent, control = await open_session(nursery)
    sender = LogSender(agent, nursery)
    assert sender.open(1)
    assert not sender.open(1)
    (end,) = await control.receive()
    assert isinstance(end, LogEnd)
    assert end.reason
    sender.send(Output(1, b"", "nothing here"))
    assert await control.receive() == [LogEnd(1, "nothing here")]
    await trio.testing.wait_all_tasks_blocked()
    assert sender.open(1)
    nursery.cancel_scope.cancel()
