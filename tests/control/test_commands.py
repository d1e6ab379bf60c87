"""Commands on their way, and what becomes of them."""

import attrs
import pytest
import structlog
import trio

from llmgw.control.commands import Commands, to_wire
from llmgw.core.catalog import Profile
from llmgw.core.nodes import Node, NodeState
from llmgw.core.reconcile import Command, DrainShard, Refused, Start, Stop
from llmgw.wire import messages as wire

START = Start("n1", "m/0/0", 7, "0" * 16, Profile("llamacpp", "m.gguf"), "m", ("GPU-1",))
STOP = Stop("n1", "m/0/0", 7, 20.0, "scaled down")
DRAIN = DrainShard("n1", "m/0/0", 7, 60.0)


@attrs.define
class FakeLink:
    """Takes `room` messages."""

    connection: int = 1
    room: int = 100
    sent: list[wire.AgentDown] = attrs.field(factory=list)

    def send_nowait(self, message: wire.AgentDown) -> None:
        if len(self.sent) >= self.room:
            raise trio.WouldBlock
        self.sent.append(message)

    def accept(self, heartbeat_interval_seconds: float, status_acked: int) -> None:
        raise AssertionError

    def refuse(self, reason: str, retry_after_seconds: float) -> None:
        raise AssertionError

    def supersede(self) -> None:
        raise AssertionError

    def acknowledge(self, number: int) -> None:
        raise AssertionError


@attrs.define
class Counts:
    seen: list[tuple[str, str]] = attrs.field(factory=list)

    def __call__(self, kind: str, result: str) -> None:
        self.seen.append((kind, result))


def nodes(connection: int | None) -> dict[str, Node]:
    return {"n1": Node("n1", NodeState.HEALTHY, connection=connection)}


def test_a_command_is_on_its_way_until_it_is_answered() -> None:
    counts, link = Counts(), FakeLink()
    commands = Commands(counts)
    assert commands.send(START, link, 0.0)
    assert commands.send(STOP, link, 0.0)
    assert [message.command_id for message in link.sent if not isinstance(message, wire.Ping)] == [1, 2]  # type: ignore[union-attr]
    assert commands.keys(nodes(1)) == {("m/0/0", 7, "start"), ("m/0/0", 7, "stop")}
    assert commands.peek(1, connection=1) is START
    commands.settle(1, accepted=True, reason="")
    assert commands.peek(1, connection=1) is None
    assert commands.keys(nodes(1)) == {("m/0/0", 7, "stop")}
    assert counts.seen == [("start", "accepted")]


def test_an_answer_on_another_connection_is_none() -> None:
    commands = Commands(Counts())
    commands.send(START, FakeLink(connection=1), 0.0)
    assert commands.peek(1, connection=2) is None
    assert commands.peek(99, connection=1) is None


def test_what_went_out_on_an_earlier_stream_is_not_on_its_way() -> None:
    counts = Counts()
    commands = Commands(counts)
    commands.send(START, FakeLink(connection=1), 0.0)
    assert commands.keys(nodes(2)) == frozenset()
    assert commands.keys(nodes(None)) == frozenset()
    assert commands.keys({}) == frozenset()
    commands.connection_ended(1, "n1")
    assert commands.peek(1, connection=1) is None
    assert counts.seen == [("start", "unanswered")]


def test_refusals_are_handed_over_once() -> None:
    counts = Counts()
    commands = Commands(counts)
    commands.send(START, FakeLink(), 0.0)
    commands.send(STOP, FakeLink(), 0.0)
    with structlog.testing.capture_logs() as lines:
        commands.settle(1, accepted=False, reason="port 20000 is taken")
        commands.settle(2, accepted=False, reason="")
    assert commands.take_refused() == (
        Refused("m/0/0", 7, "start", "port 20000 is taken"),
        Refused("m/0/0", 7, "stop", "refused without a reason"),
    )
    assert commands.take_refused() == ()
    assert counts.seen == [("start", "refused"), ("stop", "refused")]
    assert [(line["event"], line["node"], line["reason"]) for line in lines] == [
        ("command refused", "n1", "port 20000 is taken"),
        ("command refused", "n1", "refused without a reason"),
    ]


def test_a_full_queue_is_said_once_in_a_while_and_is_over_with_the_next_that_goes_out() -> None:
    counts, link = Counts(), FakeLink(room=0)
    commands = Commands(counts)
    with structlog.testing.capture_logs() as lines:
        assert not commands.send(START, link, 10.0)
        assert not commands.send(STOP, link, 20.0)
        assert not commands.send(STOP, link, 40.0)
    assert [line["event"] for line in lines] == ["not keeping up", "not keeping up"]
    assert lines[0]["node"] == "n1"
    assert commands.busy_since == {"n1": 10.0}
    assert commands.keys(nodes(1)) == frozenset()
    link.room = 1
    assert commands.send(START, link, 50.0)
    assert commands.busy_since == {}
    assert counts.seen == [("start", "unsent"), ("stop", "unsent"), ("stop", "unsent")]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            START,
            wire.StartShard(5, "m/0/0", 7, "0" * 16, Profile("llamacpp", "m.gguf"), "m", gpus=("GPU-1",)),
        ),
        (STOP, wire.StopShard(5, "m/0/0", 7, 20.0, "scaled down")),
        (DRAIN, wire.DrainShard(5, "m/0/0", 7, 60.0)),
    ],
)
def test_the_message_for_each_command(command: Command, message: wire.AgentDown) -> None:
    assert to_wire(command, 5) == message
