"""Dialling for ever: what is waited for, what resets it, and what is said."""

import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from llmgw.core.address import Address
from llmgw.core.backoff import CAP_SECONDS, LEAST_SHARE, nominal_seconds
from llmgw.errors import PeerError, PeerReason
from llmgw.net.dial import CONNECT_SECONDS, LASTED_SECONDS, Attempt, connect_tcp, keep_dialling
from llmgw.wire.session import IncompatibleVersionError

CONTROL = Address("control.example", 7070)


class Network:
    """What is dialled: `answer` says what becomes of each connection; the times of all are kept."""

    def __init__(self, answer: Callable[[int], Awaitable[None]]) -> None:
        self.answer = answer
        self.times: list[float] = []

    async def connect(self, address: Address) -> trio.abc.Stream:
        assert address == CONTROL
        self.times.append(trio.current_time())
        await self.answer(len(self.times) - 1)
        return trio.testing.memory_stream_pair()[0]

    def delays(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


async def works(_: int) -> None:
    """Every connection comes about."""


async def refuses(_: int) -> None:
    raise ConnectionRefusedError("connection refused")


async def close_at_once(stream: trio.abc.Stream, attempt: Attempt) -> None:
    await stream.aclose()


async def dial(
    network: Network, converse: Callable[[trio.abc.Stream, Attempt], Awaitable[None]], seconds: float
) -> list[Any]:
    """Keep dialling for so long; what was logged."""
    with capture_logs() as logs, trio.move_on_after(seconds):
        await keep_dialling(CONTROL, converse, rng=random.Random(1), connect=network.connect)
    return list(logs)


def assert_growing(delays: list[float], extra: float = 0.0) -> None:
    for attempt, delay in enumerate(delays):
        nominal = nominal_seconds(attempt)
        assert LEAST_SHARE * nominal <= delay - extra <= nominal


async def test_it_dials_for_ever_and_waits_longer_each_time(autojump_clock: trio.testing.MockClock) -> None:
    network = Network(refuses)
    logs = await dial(network, close_at_once, 3600)
    assert len(network.times) > 120
    assert_growing(network.delays())
    assert {entry["event"] for entry in logs} == {"cannot reach control"}
    assert logs[0]["reason"] == "connection refused"
    assert logs[0]["address"] == "control.example:7070"


async def test_a05_a_bare_connection_resets_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A05: control accepts TCP and closes before it answers the registration, 20 times in a row; the delay keeps
    growing."""
    network = Network(works)
    await dial(network, close_at_once, 1000)
    assert len(network.times) > 20
    assert_growing(network.delays())


async def test_a05_an_accepted_registration_that_lasted_resets_the_delay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, lasted = Network(works), LASTED_SECONDS + 1

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        if len(network.times) == 8:
            attempt.accepted()
            await trio.sleep(lasted)

    logs = await dial(network, converse, 400)
    delays = network.delays()
    assert_growing(delays[:7])
    assert delays[6] > 3
    assert_growing(delays[7:8], extra=lasted)
    assert_growing([delays[7] - lasted, *delays[8:]])
    assert [entry["event"] for entry in logs[6:9]] == [
        "cannot reach control",
        "disconnected from control",
        "cannot reach control",
    ]


async def test_an_accepted_registration_that_did_not_last_resets_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network(works)

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        attempt.accepted()

    await dial(network, converse, 300)
    assert_growing(network.delays())


async def test_a05_a_fleet_does_not_return_in_one_second(autojump_clock: trio.testing.MockClock) -> None:
    """A05: 200 agents, control down 10 minutes, then up. No one-second bin has more than 15 % of them."""
    accepted: list[float] = []
    up_at = trio.current_time() + 600

    async def answer(_: int) -> None:
        if trio.current_time() < up_at:
            raise ConnectionRefusedError

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        attempt.accepted()
        accepted.append(trio.current_time())
        await trio.sleep_forever()

    async def agent(seed: int) -> None:
        await keep_dialling(CONTROL, converse, rng=random.Random(seed), connect=Network(answer).connect)

    with capture_logs():
        async with trio.open_nursery() as nursery:
            for seed in range(200):
                nursery.start_soon(agent, seed)
            await trio.sleep(700)
            nursery.cancel_scope.cancel()
    assert len(accepted) == 200
    assert max(Counter(int(time) for time in accepted).values()) <= 0.15 * 200
    assert max(accepted) - up_at <= CAP_SECONDS


async def test_a_refusal_s_time_to_come_back_is_obeyed_with_jitter(autojump_clock: trio.testing.MockClock) -> None:
    network = Network(works)

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        attempt.refused("another n1 is registered from 10.0.0.5", 60.0)

    logs = await dial(network, converse, 2000)
    assert all(60 <= delay <= 90 for delay in network.delays())
    assert len(set(network.delays())) == len(network.delays()) > 10
    assert logs[0]["reason"] == "another n1 is registered from 10.0.0.5"


async def test_a_senseless_time_to_come_back_is_not_obeyed(autojump_clock: trio.testing.MockClock) -> None:
    network = Network(works)

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        attempt.refused("no", float("inf") if len(network.times) == 1 else 1e12)

    await dial(network, converse, 600)
    first, second = network.delays()[:2]
    assert first <= 1
    assert 300 <= second <= 450


async def test_a10_another_version_is_retried_at_the_maximum_backoff(autojump_clock: trio.testing.MockClock) -> None:
    """A10 (d): retries happen at maximum backoff, and the line in the log names both versions."""
    network = Network(works)

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        raise IncompatibleVersionError("2.0", None, "")

    logs = await dial(network, converse, 600)
    assert all(CAP_SECONDS <= delay <= 1.5 * CAP_SECONDS for delay in network.delays())
    assert "control speaks 2.0, and this side speaks 1.0" in logs[0]["reason"]


async def test_a_connection_that_does_not_come_about_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def hang(_: int) -> None:
        await trio.sleep_forever()

    network = Network(hang)
    logs = await dial(network, close_at_once, 100)
    assert CONNECT_SECONDS <= network.delays()[0] <= CONNECT_SECONDS + 1
    assert logs[0]["reason"] == "no connection within 10 s"


async def test_a_conversation_is_not_limited_in_time(autojump_clock: trio.testing.MockClock) -> None:
    network = Network(works)

    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        await trio.sleep(100 * CONNECT_SECONDS)

    await dial(network, converse, 99 * CONNECT_SECONDS)
    assert len(network.times) == 1


async def in_a_group(_: trio.abc.Stream, __: Attempt) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_with, trio.BrokenResourceError("reset"))
        raise PeerError(PeerReason.TIMEOUT, "nothing was heard")


async def fail_with(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(-2, "Name or service not known"), "the name control.example cannot be resolved: Name or serv"),
        (trio.BrokenResourceError("reset by peer"), "the connection broke: reset by peer"),
        (trio.ClosedResourceError(), "the connection broke: ClosedResourceError"),
        (PeerError(PeerReason.BAD_KEY, "expected a str"), "a map key is not a unique str: expected a str"),
    ],
)
async def test_what_ended_it_is_said_and_it_goes_on(
    autojump_clock: trio.testing.MockClock, error: Exception, reason: str
) -> None:
    network = Network(lambda _: fail_with(error))
    logs = await dial(network, close_at_once, 10)
    assert logs[0]["reason"].startswith(reason)
    assert len(logs) > 2


async def test_a_group_of_endings_is_one_ending(autojump_clock: trio.testing.MockClock) -> None:
    """Conversations have nurseries; the violation explains the broken stream beside it."""
    logs = await dial(Network(works), in_a_group, 10)
    assert logs[0]["reason"] == "nothing was heard for too long: nothing was heard"


async def test_a_bug_is_not_retried(autojump_clock: trio.testing.MockClock) -> None:
    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_with, trio.BrokenResourceError())
            raise KeyError("a bug")

    with pytest.raises(BaseExceptionGroup) as caught:
        await dial(Network(works), converse, 100)
    assert caught.group_contains(KeyError)


async def test_cancellation_beside_an_ending_stays_a_cancellation(autojump_clock: trio.testing.MockClock) -> None:
    async def converse(stream: trio.abc.Stream, attempt: Attempt) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise PeerError(PeerReason.TIMEOUT)

    async def with_nursery(stream: trio.abc.Stream, attempt: Attempt) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(converse, stream, attempt)
            await trio.sleep_forever()

    await dial(Network(works), with_nursery, 5)


async def test_every_address_of_a_name_is_tried() -> None:
    """`localhost` may be ::1 first; a listener on 127.0.0.1 alone is found in the same attempt."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    stream = await connect_tcp(Address("localhost", port))
    await stream.aclose()
    await listeners[0].aclose()


async def test_a_closed_port_is_said_as_it_is() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    with capture_logs() as logs, trio.move_on_after(0.1):
        await keep_dialling(Address("127.0.0.1", port), close_at_once, rng=random.Random(1))
    assert "Connection refused" in logs[0]["reason"]
