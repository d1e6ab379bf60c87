"""The whole core together: what a cluster does, told by its commands, its table and its explanations."""

from typing import Any

import attrs
import pytest

from llmgw.core.catalog import Update
from llmgw.core.fleet_events import Forgotten, Marked
from llmgw.core.lifecycle import Cause
from llmgw.core.nodes import Memory
from llmgw.core.plan import RouterSeen, Start


def kinds(cluster: Any) -> list[str]:
    """What was sent, in order."""
    return [f"{command.kind} {command.shard} {command.node}" for command in cluster.sent]


# --- the main line ----------------------------------------------------------------------------------------------


def test_a_model_is_placed_started_and_then_left_alone(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1")
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert cluster.running() == {"tiny/0/0": "n1"}
    assert kinds(cluster) == ["start tiny/0/0 n1"]
    assert cluster.endpoints() == {"tiny/0": ("ready", cluster.sent[0].epoch)}
    assert cluster.summary() == ""
    assert cluster.plan.wake_after is None


def test_with_no_node_the_explanation_says_so(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.step()
    assert cluster.summary() == "0 of 1 ready: tiny/0: no node has registered"
    assert cluster.published.models[0].unavailable.reason == f"pending: {cluster.summary()}"
    assert cluster.states() == {"tiny/0": "pending"}


def test_a_pending_replica_is_placed_as_soon_as_a_node_joins(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=2))
    cluster.add("n1", 1)
    cluster.settle()
    assert cluster.summary() == "0 of 1 ready: tiny/0: fits nowhere: n1: gpus: needs 2, 1 free of 1"
    cluster.add("n2", 2)
    cluster.settle()
    assert cluster.running() == {"tiny/0/0": "n2"}


def test_while_it_loads_the_table_says_loading(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1", slow=True)
    cluster.run(5)
    assert cluster.published.models[0].unavailable.reason == "loading: tiny/0 is loading on n1"
    assert cluster.summary() == "0 of 1 ready: tiny/0 is loading on n1"
    assert cluster.endpoints() == {}


def test_more_replicas_are_added_and_the_surplus_ends(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=1))
    cluster.add("n1")
    cluster.settle()
    cluster.set_models(core.model(replicas=3))
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready", "tiny/1": "ready", "tiny/2": "ready"}
    cluster.set_models(core.model(replicas=1))
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert min(cluster.served["tiny"][10:]) >= 1


def test_scale_down_takes_the_failed_then_the_loading_then_the_least_loaded(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=4))
    agent = cluster.add("n1")
    cluster.settle()
    epochs = {replica: epoch for replica, (_, epoch) in cluster.endpoints().items()}
    load = {("tiny/0", epochs["tiny/0"]): 1, ("tiny/3", epochs["tiny/3"]): 5}
    cluster.routers = {"r": RouterSeen("r", cluster.revision, load)}
    agent.fail("tiny/1/0")
    cluster.heartbeat(agent)
    cluster.set_models(core.model(replicas=3))
    cluster.settle()
    assert sorted(cluster.states()) == ["tiny/0", "tiny/2", "tiny/3"], "the failed one went"
    cluster.set_models(core.model(replicas=2))
    cluster.settle()
    assert sorted(cluster.states()) == ["tiny/0", "tiny/3"], "the idle one went"
    agent.slow = True
    cluster.set_models(core.model(replicas=3))
    cluster.run(5)
    assert cluster.states()["tiny/1"] == "loading"
    cluster.set_models(core.model(replicas=2))
    cluster.run(3)
    assert sorted(cluster.states()) == ["tiny/0", "tiny/3"], "the loading one went"


def test_a_removed_model_is_drained_and_stopped(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("b"))
    cluster.add("n1")
    cluster.settle()
    cluster.sent.clear()
    cluster.set_models(core.model("b"))
    cluster.settle()
    assert kinds(cluster) == ["drain a/0/0 n1", "stop a/0/0 n1"]
    assert cluster.running() == {"b/0/0": "n1"}
    assert sorted(cluster.replicas.by_id) == ["b/0"]


def test_counts_labels_and_aliases_never_restart(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=1))
    cluster.add("n1", labels={"zone": "a"})
    cluster.settle()
    cluster.sent.clear()
    cluster.set_models(core.model(replicas=1, labels={"zone": "b"}, aliases=("x",), drain_deadline=5.0))
    cluster.settle()
    assert cluster.sent == []


def test_nothing_is_sent_twice_while_it_is_in_flight(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    plan = cluster.look()
    assert [command.kind for command in plan.commands] == ["start"]
    again = cluster.look()
    assert again.commands == plan.commands, "never sent: issued again"
    cluster.in_flight = {(command.shard, command.epoch, command.kind): 1 for command in plan.commands}
    assert cluster.look().commands == ()
    cluster.cut(agent)
    cluster.connect(agent)
    assert cluster.look().commands == plan.commands, "the stream ended: nothing is in flight on the new one"


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


def test_a_stop_that_is_refused_is_not_repeated_at_once(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    cluster.set_models()
    agent.refuses = "not now"
    cluster.run(11)
    kinds_sent = [command.kind for command in cluster.sent]
    assert kinds_sent.count("drain") + kinds_sent.count("stop") <= 4


# --- restarts of failed launches --------------------------------------------------------------------------------


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


def test_nothing_is_launched_while_a_failed_engine_is_not_gone(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1)
    cluster.settle()
    agent.fail("tiny/0/0", gone=False)
    cluster.run(120)
    assert len(cluster.sent) == 1
    assert cluster.states() == {"tiny/0": "failed"}
    agent.shards["tiny/0/0"] = attrs.evolve(agent.shards["tiny/0/0"], gone=True)
    cluster.run(60)
    assert cluster.states() == {"tiny/0": "ready"}


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
    gaps = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
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


def test_a_shard_that_its_agent_no_longer_lists_is_started_again(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    agent.shards.clear()
    cluster.run(3)
    assert cluster.states() == {"tiny/0": "backing off"}
    assert "no longer lists it (it was ready)" in cluster.summary()
    cluster.run(30)
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


# --- draining ---------------------------------------------------------------------------------------------------


def test_a_drain_waits_for_every_router_to_confirm_and_be_idle(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1")
    cluster.settle()
    epoch = cluster.endpoints()["tiny/0"][1]
    busy = {("tiny/0", epoch): 2}
    cluster.routers = {"a": RouterSeen("a", cluster.revision), "b": RouterSeen("b", cluster.revision, busy)}
    cluster.routers_follow = False
    cluster.set_models()
    cluster.run(5)
    assert not core.stops(cluster.sent), "no router has confirmed"
    cluster.routers["a"] = RouterSeen("a", cluster.revision)
    cluster.routers["b"] = RouterSeen("b", cluster.revision, busy)
    cluster.run(5)
    assert not core.stops(cluster.sent), "one is busy"
    cluster.routers["b"] = RouterSeen("b", cluster.revision)
    cluster.settle()
    assert len(core.stops(cluster.sent)) == 1
    assert cluster.running() == {}


def test_a_drain_ends_at_its_deadline(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=1, drain_deadline=40.0))
    cluster.add("n1")
    cluster.settle()
    cluster.routers = {"a": RouterSeen("a", 0, {("tiny/0", cluster.endpoints()["tiny/0"][1]): 1})}
    cluster.set_models(core.model(replicas=0, drain_deadline=40.0))
    started = cluster.now
    plan = cluster.step()
    assert cluster.endpoints()["tiny/0"][0] == "draining"
    assert plan.wake_after == pytest.approx(40)
    while not core.stops(cluster.sent):
        cluster.step()
    assert cluster.now - started == pytest.approx(41, abs=1)


def test_a_deadline_survives_a_restart_and_a_clock_set_back(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(drain_deadline=60.0))
    cluster.add("n1")
    cluster.settle()
    epoch = cluster.endpoints()["tiny/0"][1]
    cluster.routers = {"a": RouterSeen("a", 0, {("tiny/0", epoch): 1})}
    cluster.set_models(core.model(replicas=0, drain_deadline=60.0))
    cluster.run(10)
    cluster.restart(down_for=20)
    cluster.connect_all()
    cluster.run(5)
    assert not core.stops(cluster.sent)
    cluster.wall_ahead -= 86400
    cluster.run(50)
    assert not core.stops(cluster.sent), "it was given its time anew, no more"
    cluster.run(20)
    assert len(core.stops(cluster.sent)) == 1


def test_a_node_that_is_drained_gives_its_replicas_away_before_it_ends_them(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    cluster.add("n1")
    cluster.settle()
    cluster.add("n2")
    cluster.apply(Marked("n1", draining=True))
    first = len(cluster.served["tiny"])
    cluster.settle()
    assert set(cluster.running().values()) == {"n2"}
    assert cluster.states().keys() != set()
    assert list(cluster.states().values()) == ["ready", "ready"]
    assert min(cluster.served["tiny"][first:]) >= 2


def test_a_drained_node_without_room_elsewhere_keeps_what_is_promised(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2, gpus=1))
    cluster.add("n1", 2)
    cluster.settle()
    cluster.apply(Marked("n1", draining=True))
    cluster.settle()
    assert len(cluster.running()) == 1
    assert "of 1 ready 1 are promised" in cluster.summary()
    assert cluster.plan.explanations["tiny"].change == "room for one more replica, or ready_min = 0"


# --- updates ----------------------------------------------------------------------------------------------------


def test_an_update_surges_when_there_is_room(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=3, gpus=1))
    cluster.add("n1", 4)
    cluster.settle()
    first = len(cluster.served["tiny"])
    cluster.set_models(core.model(replicas=3, gpus=1, args=("--new",)))
    cluster.settle()
    assert min(cluster.served["tiny"][first:]) >= 3
    hashes = {launch.spec_hash for replica in cluster.replicas.by_id.values() for launch in replica.launches}
    assert hashes == {core.spec_hash(core.model(gpus=1, args=("--new",)).profile)}
    assert list(cluster.states().values()) == ["ready"] * 3
    assert cluster.fired["surge"] == 3


def test_d07_update_when_there_is_no_spare_gpu(core: Any) -> None:
    """Update when there is no spare GPU: stopped first by policy, else blocked and said; halted after one failure."""
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=2))
    agent = cluster.add("n1", 2)
    cluster.settle()
    cluster.set_models(core.model(gpus=2, args=("--new",)))
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert cluster.plan.views["tiny"][0].outdated
    assert "update blocked, the old revision serves" in cluster.summary()
    assert cluster.plan.explanations["tiny"].change == 'room for one more replica, or update = "stop-first"'
    cluster.set_models(core.model(gpus=2, args=("--new",), update=Update.STOP_FIRST))
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert not cluster.plan.views["tiny"][0].outdated
    assert [command.kind for command in agent.received] == ["start", "drain", "stop", "start"]

    # With a spare node the new one is ready before the old one is drained.
    cluster.add("n2", 2)
    first = len(cluster.served["tiny"])
    cluster.set_models(core.model(gpus=2, args=("--third",)))
    cluster.settle()
    assert min(cluster.served["tiny"][first:]) >= 1
    assert set(cluster.running().values()) == {"n2"}

    # Three replicas, one spare slot, and a new revision that does not load.
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=3, gpus=1))
    bad = core.model(replicas=3, gpus=1, args=("--bad",))
    agent = cluster.add("n1", 4, broken=(core.spec_hash(bad.profile),))
    cluster.settle()
    first = len(cluster.served["tiny"])
    cluster.set_models(bad)
    cluster.run(600)
    assert min(cluster.served["tiny"][first:]) >= 2
    assert len(core.starts(agent.received)) == 4, "three old, one new: no second try"
    assert "update halted, the old revision serves: tiny/3 on n1: died: exited" in cluster.summary()
    assert sorted(cluster.states().values()) == ["ready"] * 3


def test_stop_first_with_three_replicas_takes_one_out_at_a_time_and_halts(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=3, gpus=1))
    bad = core.model(replicas=3, gpus=1, args=("--bad",), update=Update.STOP_FIRST)
    cluster.add("n1", 3, broken=(core.spec_hash(bad.profile),))
    cluster.settle()
    first = len(cluster.served["tiny"])
    cluster.set_models(bad)
    cluster.run(600)
    assert min(cluster.served["tiny"][first:]) == 2
    good = core.model(replicas=3, gpus=1, args=("--good",), update=Update.STOP_FIRST)
    cluster.set_models(good)
    cluster.run(200)
    assert list(cluster.states().values()) == ["ready"] * 3
    assert min(cluster.served["tiny"][first:]) >= 2


def test_ready_min_forbids_the_outage_of_stop_first(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    cluster.add("n1", 1)
    cluster.settle()
    cluster.set_models(core.model(gpus=1, args=("--new",), update=Update.STOP_FIRST, ready_min=1))
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert "of 1 ready 1 are promised" in cluster.summary()


def test_an_outdated_launch_that_serves_nobody_is_replaced_at_once(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1, slow=True)
    cluster.run(5)
    cluster.set_models(core.model(gpus=1, args=("--new",)))
    cluster.run(10)
    assert [command.kind for command in agent.received] == ["start", "stop", "start"]


def test_a_changed_mind_before_the_start_went_out_frees_the_gpus(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    cluster.add("n1", 1)
    cluster.look()  # decided, and not sent
    cluster.set_models(core.model("other", gpus=1))
    cluster.settle()
    assert kinds(cluster) == ["start other/0/0 n1"]


def test_d14_update_missed_by_a_replica_that_was_away(core: Any) -> None:
    """Update missed by a replica that was away: recognised on its return, shown as outdated, rolled like the others."""
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2, gpus=1))
    n1, n2 = cluster.add("n1", 1), cluster.add("n2", 1)
    cluster.settle()
    cluster.add("n3", 1)
    cluster.cut(n1)
    cluster.run(30)
    new = core.model(replicas=2, gpus=1, args=("--new",))
    cluster.set_models(new)
    cluster.run(60)
    rolled = [command.node for command in core.stops(cluster.sent)]
    assert rolled == ["n2"]
    first = len(cluster.served["tiny"])
    cluster.connect(n1)
    cluster.step()
    views = {view.shards[0].node: view for view in cluster.plan.views["tiny"] if view.shards}
    assert views["n1"].outdated
    cluster.settle()
    assert min(cluster.served["tiny"][first:]) >= 1
    assert {report.spec_hash for agent in (n1, n2, cluster.agents["n3"]) for report in agent.shards.values()} == {
        core.spec_hash(new.profile)
    }
    assert list(cluster.states().values()) == ["ready", "ready"]
    old = [command for command in n1.received if command.kind in ("drain", "stop")]
    assert [command.kind for command in old] == ["drain", "stop"], "drained first"


# --- liveness ---------------------------------------------------------------------------------------------------


def test_a_silent_node_keeps_its_replicas_and_its_endpoints_are_suspect(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    cluster.add("n2")
    cluster.sent.clear()
    cluster.cut(agent)
    cluster.run(60)
    assert cluster.sent == []
    assert cluster.endpoints()["tiny/0"][0] == "suspect"
    assert cluster.published.endpoints[0].reason == "n1 is unreachable"
    assert cluster.published.models[0].unavailable is None
    cluster.connect(agent)
    cluster.settle()
    assert cluster.sent == []
    assert cluster.endpoints()["tiny/0"][0] == "ready"


def d02(core: Any, *, slow: bool = False, room: bool = True) -> Any:
    """One replica on n1, which has been cut for longer than lost_after."""
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    n1 = cluster.add("n1", 1)
    cluster.settle()
    if room:
        cluster.add("n2", 1, slow=slow)
    cluster.cut(n1)
    cluster.run(200)
    return cluster


def test_d02_case_1_the_replacement_is_ready_when_the_node_returns(core: Any) -> None:
    """Node returns after its replicas were replaced: the newest ready launch is kept, the other drained, then stopped."""
    cluster = d02(core)
    assert cluster.endpoints()["tiny/0"][0] == "ready"
    first = len(cluster.served["tiny"])
    n1 = cluster.agents["n1"]
    cluster.connect(n1)
    cluster.settle()
    assert cluster.running() == {"tiny/0/0": "n2"}
    assert [command.kind for command in n1.received] == ["start", "drain", "stop"]
    assert min(cluster.served["tiny"][first:]) == max(cluster.served["tiny"][first:]) == 1
    assert len(cluster.replicas.by_id["tiny/0"].launches) == 1
    assert cluster.fired["drain: doubled"] == 1


def test_d02_case_2_the_replacement_is_still_loading(core: Any) -> None:
    """The ready copy serves at once, and the loading one is withdrawn."""
    cluster = d02(core, slow=True)
    assert cluster.states() == {"tiny/0": "loading"}
    n1 = cluster.agents["n1"]
    cluster.connect(n1)
    cluster.step()
    assert cluster.endpoints()["tiny/0"] == ("ready", n1.received[0].epoch)
    first = len(cluster.served["tiny"])
    cluster.settle()
    assert cluster.running() == {"tiny/0/0": "n1"}
    assert min(cluster.served["tiny"][first:]) == 1
    assert [command.kind for command in n1.received] == ["start"]


def test_d02_case_3_there_was_no_room_elsewhere(core: Any) -> None:
    """The old copy is adopted, nothing is started beside it."""
    cluster = d02(core, room=False)
    assert cluster.states() == {"tiny/0": "pending"}
    assert "n1: state: lost, silent for 3m00s" in cluster.summary()
    n1 = cluster.agents["n1"]
    cluster.connect(n1)
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert [command.kind for command in n1.received] == ["start"]


def test_d02_case_4_the_old_copy_is_dead_on_return(core: Any) -> None:
    """The replacement goes on."""
    cluster = d02(core, slow=True)
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    n1.fail("tiny/0/0")
    cluster.connect(n1)
    cluster.run(5)
    n2.slow = False
    cluster.settle()
    assert cluster.running() == {"tiny/0/0": "n2"}
    assert len(n2.received) == 1
    assert cluster.replicas.by_id["tiny/0"].failures == ()


def test_an_outdated_copy_that_returns_serves_until_its_successor_is_ready(core: Any) -> None:
    cluster = d02(core, slow=True)
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    cluster.set_models(core.model(gpus=1, args=("--new",)))
    cluster.run(5)
    cluster.connect(n1)
    cluster.step()
    first = len(cluster.served["tiny"])
    cluster.run(20)
    assert set(cluster.served["tiny"][first:]) == {1}
    n2.slow = False
    cluster.settle()
    assert cluster.running() == {"tiny/0/0": "n2"}
    assert set(cluster.served["tiny"][first:]) == {1}


def test_d04_pinned_replicas_and_whole_node_death(core: Any) -> None:
    """Pinned replicas stay pending and say why; free ones are placed anew; a Goodbye is believed."""
    cluster = core.Cluster()
    pinned, free = core.model("p", labels={"host": "n1"}), core.model("q", gpus=1, gpu="H100")
    cluster.set_models(pinned, free)
    n1 = cluster.add("n1", 1, labels={"host": "n1"})
    cluster.settle()
    cluster.add("n2", 1)
    cluster.add("n3", 1, hardware=core.hardware(1, node="n3", name="T4"))
    cluster.cut(n1)
    cluster.run(60)
    assert cluster.endpoints()["q/0"][0] == "suspect"
    cluster.run(140)
    assert cluster.running() == {"p/0/0": "n1", "q/0/0": "n1"} | {"q/0/0": "n2"}
    assert cluster.states("q") == {"q/0": "ready"}
    assert cluster.states("p") == {"p/0": "pending"}
    assert "pinned to n1, which is lost" in cluster.summary("p")
    shown = [shard for view in cluster.plan.views["p"] for shard in view.shards]
    assert [(shard.node, shard.state) for shard in shown] == [("n1", "lost")]

    # In order, with the engines kept: nothing is replaced, they go on serving.
    n2 = cluster.agents["n2"]
    cluster.add("n4", 1)
    cluster.sent.clear()
    cluster.goodbye(n2, "kept")
    cluster.run(60)
    assert cluster.sent == []
    assert cluster.endpoints()["q/0"][0] == "ready"

    # With the engines stopped they are replaced at once.
    cluster.connect(n2)
    cluster.settle()
    cluster.goodbye(n2, "stopped")
    cluster.run(5)
    assert cluster.running()["q/0/0"] == "n4"
    assert cluster.states("q") == {"q/0": "ready"}


def test_replace_after_longer_than_lost_after_and_never(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("late", replace_after=400.0), core.model("never", replace_after=None))
    n1 = cluster.add("n1")
    cluster.settle()
    cluster.add("n2")
    cluster.sent.clear()
    cluster.cut(n1)
    cluster.run(395)
    assert cluster.sent == []
    assert "replaced after 6m40s of silence" in cluster.summary("late")
    assert "never replaced" in cluster.summary("never")
    cluster.run(20)
    assert kinds(cluster) == ["start late/0/0 n2"]
    assert cluster.states("never") == {"never/0": "lost"}
    cluster.apply(Forgotten("n1"))
    cluster.settle()
    assert cluster.states("never") == {"never/0": "ready"}


# --- restarts of control ----------------------------------------------------------------------------------------


def test_after_a_restart_what_runs_is_adopted_without_a_command(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a", replicas=2), core.model("b"))
    cluster.add("n1")
    cluster.add("n2")
    cluster.settle()
    cluster.sent.clear()
    before = cluster.running()
    cluster.restart(down_for=30)
    cluster.run(10)
    assert cluster.published.complete is False
    cluster.connect_all()
    cluster.run(400)
    assert cluster.sent == []
    assert cluster.running() == before
    assert cluster.published.complete is True
    assert {state for state, _ in cluster.endpoints().values()} == {"ready"}


def test_an_engine_that_died_meanwhile_is_replaced_while_recovering(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("b"))
    n1 = cluster.add("n1")
    cluster.add("n2")
    cluster.settle()
    cluster.restart()
    del n1.shards["a/0/0"]
    cluster.connect(n1)
    cluster.sent.clear()
    cluster.run(60)
    assert cluster.fleet.recovering
    assert kinds(cluster) == ["start a/0/0 n1"]


def test_d01_right_after_control_starts_nobody_is_dead(core: Any) -> None:
    """Right after control starts, everybody looks dead: the sixth node alone is replaced, once, after its time."""
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=10, gpus=1, gpu="H100"))
    for number in range(6):
        cluster.add(f"n{number}", 4)
    cluster.settle()
    on_sixth = [shard for shard, node in cluster.running().items() if node == "n2"]
    assert len(on_sixth) == 2
    gone = cluster.agents["n2"]
    cluster.restart(down_for=300)
    cluster.sent.clear()
    delays = {"n0": 1, "n1": 5, "n3": 10, "n4": 20, "n5": 40}
    for second in range(60):
        for name, delay in delays.items():
            if second == delay:
                cluster.connect(cluster.agents[name])
        cluster.step()
    assert cluster.sent == []
    started = cluster.now
    while not cluster.sent:
        cluster.step()
    assert cluster.now - started + 60 >= 180
    cluster.run(120)
    assert sorted(command.shard for command in cluster.sent) == sorted(on_sixth)
    assert all(isinstance(command, Start) for command in cluster.sent)
    assert gone.connection is None

    # The same with control's loop blocked: it was deaf, nobody was silent.
    cluster.sent.clear()
    cluster.now += 200
    cluster.run(10)
    assert cluster.sent == []
    states = {node.state.value for node in cluster.fleet.nodes.values() if node.id != "n2"}
    assert states == {"healthy"}


def test_without_a_file_control_serves_at_once_and_spares_what_it_finds(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.FIRST_START)
    cluster.set_models(core.model(replicas=1), core.model("b"))
    cluster.connect_all()
    cluster.sent.clear()
    cluster.run(250)
    assert kinds(cluster) == ["start b/0/0 n1"], "it serves at once"
    cluster.run(100)
    assert len(core.stops(cluster.sent)) == 1, "after recover_for the surplus goes"


def test_with_an_unreadable_file_nothing_is_started_or_stopped_until_it_is_over(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("gone"))
    cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.UNREADABLE)
    cluster.set_models(core.model("a"), core.model("b"))
    cluster.connect_all()
    cluster.sent.clear()
    cluster.run(295)
    assert cluster.sent == []
    assert cluster.states("a") == {"a/0": "ready"}
    assert "control is recovering, and does not know what runs" in cluster.summary("b")
    cluster.run(60)
    assert kinds(cluster) == ["start b/0/0 n1", "drain gone/0/0 n1", "stop gone/0/0 n1"]


def test_the_drain_of_a_control_whose_file_is_lost_goes_on(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    cluster.add("n1")
    cluster.settle()
    busy = {("tiny/0", cluster.endpoints()["tiny/0"][1]): 5, ("tiny/1", cluster.endpoints()["tiny/1"][1]): 1}
    cluster.routers = {"a": RouterSeen("a", 0, busy)}
    cluster.set_models(core.model(replicas=1))
    cluster.run(5)
    assert cluster.endpoints()["tiny/1"][0] == "draining"
    cluster.restart(memory=Memory.UNREADABLE)
    cluster.connect_all()
    cluster.run(400)
    assert cluster.running() == {"tiny/0/0": "n1"}


def test_at_most_twenty_placements_a_wake_and_the_rest_at_once(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=50))
    cluster.add("n1")
    plan = cluster.look()
    assert (len(plan.commands), plan.wake_after) == (20, 0)
    assert "tiny/20: is about to be placed" in cluster.summary() or "and 47 more" in cluster.summary()
    cluster.settle()
    assert len(cluster.running()) == 50


def test_many_that_fit_nowhere_are_tried_once_and_not_again(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(*(core.model(f"m{number:02}", gpus=1) for number in range(60)))
    cluster.add("n1")
    wakes = [cluster.look().wake_after for _ in range(4)]
    assert wakes == [0, 0, None, None]
    assert all("needs 1, 0 free of 0" in cluster.summary(f"m{number:02}") for number in range(60))
