"""Statuses are sent until they are acknowledged, under numbers that rise per instance."""

from llmgw.core.lifecycle import ShardReport
from llmgw.core.outbox import Outbox


def shard(n: int, state: str = "ready", epoch: int = 1) -> ShardReport:
    return ShardReport(f"m/{n}/0", epoch, state=state)


def test_numbers_begin_after_what_control_has_handled_of_earlier_processes() -> None:
    outbox = Outbox()
    assert outbox.add(shard(0), "", 0.0) is None
    assert outbox.add(shard(1), "out", 0.0) is None
    settled, again = outbox.registered(57)
    assert settled == ()
    assert [(one.number, one.report.shard, one.output) for one in again] == [(58, "m/0/0", ""), (59, "m/1/0", "out")]
    sent = outbox.add(shard(2), "", 0.0)
    assert sent is not None
    assert sent.number == 60


def test_what_is_not_acknowledged_is_sent_again_after_a_new_registration() -> None:
    outbox = Outbox()
    outbox.registered(0)
    for n in range(3):
        outbox.add(shard(n), "", 0.0)
    assert outbox.acknowledged(1) == (("m/0/0", 1),)
    settled, again = outbox.registered(2)  # the acknowledgement of 2 was lost with the stream
    assert settled == (("m/1/0", 1),)
    assert [one.number for one in again] == [3]


def test_a_control_that_lost_its_memory_gets_everything_that_waits() -> None:
    outbox = Outbox()
    outbox.registered(57)
    outbox.add(shard(0), "", 0.0)
    settled, again = outbox.registered(0)
    assert settled == ()
    assert [one.number for one in again] == [58]


def test_a_launch_is_settled_when_its_last_status_is() -> None:
    outbox = Outbox()
    outbox.registered(0)
    outbox.add(shard(0, "failed"), "", 0.0)
    outbox.add(shard(0, "failed"), "", 0.0)
    assert outbox.acknowledged(1) == ()
    assert outbox.acknowledged(2) == (("m/0/0", 1),)
    assert outbox.acknowledged(2) == ()
    assert len(outbox) == 0


def test_an_acknowledgement_before_any_registration_settles_nothing() -> None:
    outbox = Outbox()
    outbox.add(shard(0), "", 0.0)
    assert outbox.acknowledged(99) == ()
    assert len(outbox) == 1


def test_a_full_outbox_keeps_the_newest_of_each_launch() -> None:
    outbox = Outbox(statuses_max=4)
    outbox.registered(0)
    for state in ("starting", "loading"):
        for n in range(2):
            outbox.add(shard(n, state), "", 0.0)
    outbox.add(shard(0, "ready"), "", 0.0)
    _, again = outbox.registered(0)
    assert [(one.report.shard, one.report.state) for one in again] == [("m/1/0", "loading"), ("m/0/0", "ready")]


def test_what_is_sent_late_is_as_old_as_it_is() -> None:
    outbox = Outbox()
    outbox.add(ShardReport("m/0/0", 1, since_seconds=2.0), "", 100.0)
    _, (status,) = outbox.registered(0)
    assert status.aged(160.0).since_seconds == 62.0
