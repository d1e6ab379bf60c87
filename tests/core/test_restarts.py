"""When and where a failed launch is repeated."""

import itertools
from typing import Any

import pytest

from llmgw.core.catalog import Catalog
from llmgw.core.group import Group, Wake, slot_of
from llmgw.core.lifecycle import Cause
from llmgw.core.nodes import FleetView
from llmgw.core.plan import World
from llmgw.core.replicas import Failure, Launch, Member, Replica, Replicas, ReplicaState
from llmgw.core.restarts import FAILURES_MAX, note_end
from llmgw.core.standing import Presence, Standing


def test_a_crashed_engine_is_started_again_on_its_node_after_ten_seconds(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n0")
    agent = cluster.add("n1", labels={"here": "yes"})
    cluster.set_models(core.model(labels={"here": "yes"}))
    cluster.settle()
    cluster.set_models(core.model())
    first = cluster.sent[-1].epoch
    agent.fail("tiny/0/0")
    cluster._statuses(agent, {})
    started = cluster.now
    cluster.step()
    assert cluster.states() == {"tiny/0": "backing off"}
    assert cluster.published.models[0].unavailable.reason == "failed: died: signalled"
    cluster.run(60)
    assert cluster.states() == {"tiny/0": "ready"}
    again = cluster.sent[-1]
    assert (again.node, again.epoch > first) == ("n1", True)
    assert cluster.fired["restart here"] == 1
    assert cluster.replicas.by_id["tiny/0"].retry_at - cluster.wall_ahead - started == pytest.approx(10, rel=0.4)


def test_five_failures_in_half_an_hour_and_then_elsewhere(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(labels={"zone": "a"}))
    bad = cluster.add("n1", labels={"zone": "a"}, broken=(core.spec_hash(core.model().profile),))
    cluster.run(400)
    assert len(bad.received) == 5
    assert "failures: tiny/0 failed there 5 times in 30 min, the last time: died: exited" in cluster.summary()
    cluster.add("n2", labels={"zone": "a"})
    cluster.run(400)
    assert cluster.running() == {"tiny/0/0": "n2"}
    assert len(bad.received) == 5


def test_the_delay_doubles_up_to_five_minutes_and_is_jittered(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    for number in range(4):
        cluster.add(f"n{number}", broken=(core.spec_hash(core.model().profile),))
    starts = []
    for _ in range(2400):
        starts += [cluster.now for _ in core.starts(cluster.step().commands)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert [round(gap) for gap in gaps[:3]] == pytest.approx([13, 23, 43], rel=0.35)
    assert 225 <= max(gaps) <= 300 * 1.25 + 5
    assert len({round(gap, 3) for gap in gaps}) > 3


def test_a_failure_that_cannot_get_better_is_not_repeated(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1", broken=(core.spec_hash(core.model().profile),), cause=Cause.BAD_PROFILE.value)
    cluster.run(900)
    assert len(agent.received) == 1
    assert "cannot run: tiny/0 on n1: died: bad profile" in cluster.summary()
    assert cluster.plan.explanations["tiny"].change == "change the profile"
    cluster.set_models(core.model(args=("--good",)))
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}


def test_a_clock_that_steps_back_does_not_delay_a_restart_for_hours(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    agent.fail("tiny/0/0")
    cluster.run(3)
    cluster.wall_ahead -= 7200
    cluster.run(30)
    assert cluster.states() == {"tiny/0": "ready"}
    epochs = [command.epoch for command in core.starts(cluster.sent)]
    assert epochs == sorted(epochs)


def test_a_start_that_is_refused_is_repeated_after_a_delay(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    agent.refuses = "no such engine"
    cluster.step()
    plan = cluster.step()
    assert plan.commands == ()
    assert cluster.states() == {"tiny/0": "backing off"}
    assert "its agent refused it: no such engine" in cluster.summary()
    assert 0 < plan.wake_after <= 12.5


@pytest.mark.parametrize(
    ("failed_before", "drawn", "delay"),
    [
        (0, 0.0, 7.5),
        (0, 0.5, 10.0),
        (0, 1.0, 12.5),
        (1, 0.5, 20.0),
        (4, 0.5, 160.0),
        (5, 0.5, 300.0),
        (40, 0.0, 225.0),
        (40, 1.0, 375.0),
    ],
)
def test_the_delay_is_jittered_by_a_quarter_at_every_attempt(failed_before: int, drawn: float, delay: float) -> None:
    """Also at the cap: what died together must not start together for ever."""

    class Drawn:
        def random(self) -> float:
            return drawn

    world = World(Catalog(), FleetView(), Replicas(), now=10.0, wall=5000.0)
    wake = Wake.begin(world, Drawn(), None, 0)
    launch = Launch(1, "h", (Member("n1"),), 0.0)
    failures = tuple(Failure(4000.0 + number, "n1", spec_hash="h") for number in range(failed_before))
    slot = slot_of(Replica("m/0", "m", (launch,), failures), wake.fleet)
    standing = Standing("m/0", launch, ReplicaState.FAILED, gone=True, presence=Presence.HERE, node="n1")
    note_end(wake, Group("m", None, "h", {}, None), slot, standing)
    assert slot.replica.retry_at - 5000.0 == pytest.approx(delay)
    assert len(slot.replica.failures) == min(failed_before + 1, FAILURES_MAX)


def test_failures_of_another_profile_and_of_an_hour_ago_do_not_count(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1", broken=(core.spec_hash(core.model().profile),))
    cluster.run(400)
    assert len(agent.received) == 5
    cluster.set_models(core.model(args=("--good",)))
    cluster.run(10)
    assert cluster.states() == {"tiny/0": "ready"}
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1", broken=(core.spec_hash(core.model().profile),))
    cluster.run(400)
    cluster.run(1800, step=5.0)
    assert len(agent.received) > 5
