"""Who connects to the agent port, and what becomes of those who are no agents."""

from typing import Any

import msgpack
import pytest
import structlog
import trio
from trio.testing import MockClock

from llmgw.net.framed import MessageStream
from llmgw.wire import messages as wire
from llmgw.wire.session import RenewalSession


def frame(value: Any) -> bytes:
    body: bytes = msgpack.packb(value)
    return len(body).to_bytes(4, "big") + body


def warnings(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["reason"]) for line in lines if line["log_level"] == "warning"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "frame too large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame too large"),
        (frame({"type": "Heartbeat", "number": 1}), "the first message is not one that opens a session"),
        (frame({"type": "Snapshot"}), "the first message is not one that opens a session"),
        (frame([1]), "a frame holds something other than one map"),
        (frame({"type": "Register", "protocol": [1, 0], "node": "", "instance": "i"}), "a field is missing"),
        (frame({"type": "Register", "protocol": [1, 0], "node": "x\n", "instance": "i"}), "a field is missing"),
        (frame({"type": "Follow", "protocol": [1, 0], "router": "r" * 300}), "a field is missing"),
        (frame({"type": "Follow", "protocol": [2, 0], "router": "r"}), "another major version of the protocol"),
        (frame({"type": "Register", "protocol": [2, 0], "node": 5}), "another major version of the protocol"),
    ],
)
async def test_a_stranger_who_says_something_else_is_closed_with_one_log_line(
    autojump_clock: MockClock, world: Any, said: bytes, reason: str
) -> None:
    await world.start()
    agent = await world.agent()
    with structlog.testing.capture_logs() as lines:
        raw = world.dial()
        await raw.send_all(said)
        with trio.fail_after(10):
            answer = b"".join([chunk async for chunk in raw])
    ((event, said_reason),) = warnings(lines)
    assert reason in said_reason
    assert event in ("connection ended: the peer broke the protocol", "refused")
    assert [line["peer"] for line in lines if line["log_level"] == "warning"] == ["10.0.0.9:40001"]
    assert b"Refused" in answer
    assert not agent.ended.is_set()
    assert world.node().state == "healthy"


async def test_a_silent_stranger_is_closed_after_ten_seconds(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    with structlog.testing.capture_logs() as lines:
        raw = world.dial()
        began = trio.current_time()
        answer = b"".join([chunk async for chunk in raw])
    assert trio.current_time() - began == pytest.approx(10, abs=0.5)
    assert b"no opening message within 10 s" in answer
    assert len(warnings(lines)) == 1


async def test_one_who_drips_bytes_is_closed_after_ten_seconds_too(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    raw = world.dial()
    began = trio.current_time()
    await raw.send_all(b"\0\0\0\x50")
    answer = b""
    while b"no opening message within 10 s" not in answer:
        await trio.sleep(1)
        await raw.send_all(b"\x81")
        with trio.move_on_after(0.001):
            answer += await raw.receive_some()
    assert trio.current_time() - began == pytest.approx(12, abs=2)


async def test_one_who_hangs_up_is_said_and_that_is_all(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    with structlog.testing.capture_logs() as lines:
        await world.dial().aclose()
        await trio.sleep(1)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("connection closed before it said anything", "info")
    ]


async def test_a_certificate_is_not_issued_and_that_is_said(
    autojump_clock: MockClock, world: Any, nursery: trio.Nursery
) -> None:
    await world.start()
    stream = MessageStream(world.dial(), RenewalSession())
    nursery.start_soon(stream.run)
    stream.send_nowait(wire.RenewRequest("csr"))
    assert await stream.receive() == [wire.Refused("this control issues no certificates")]
    await stream.aclose()


async def test_a_hundred_silent_connections_do_not_keep_an_agent_out(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    silent = [world.dial() for _ in range(90)]
    agent = await world.agent()
    assert len(agent.registered) == 1
    await trio.sleep(15)
    for raw in silent:
        assert b"Refused" in await raw.receive_some()
    assert world.node().state == "healthy"


async def test_the_end_of_control_closes_every_stream(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent, router, silent = await world.agent(), await world.router(), world.dial()
    began = trio.current_time()
    await world.kill()
    assert trio.current_time() - began <= 5
    await agent.ended.wait()
    await router.ended.wait()
    assert await silent.receive_some() == b""
    for peer in (agent, router):
        await peer.stream.aclose()
