"""How many replicas, and how they are replaced: counts, roll-outs, moves."""

from typing import Any

from llmgw.core.catalog import Update
from llmgw.core.fleet_events import Marked
from llmgw.core.plan import RouterSeen


def kinds(cluster: Any) -> list[str]:
    """What was sent, in order."""
    return [f"{command.kind} {command.shard} {command.node}" for command in cluster.sent]


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


def test_a_silent_replica_is_not_given_up_for_one_that_is_still_loading(core: Any) -> None:
    """Or the other way round: nothing is ended that may be missed."""
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    n1 = cluster.add("n1", labels={"a": "b"})
    cluster.settle()
    cluster.add("n2", slow=True, labels={"c": "d"})
    cluster.set_models(core.model(replicas=3, labels={"c": "d"}))
    cluster.run(5)
    assert cluster.states()["tiny/2"] == "loading"
    cluster.cut(n1)
    cluster.run(10)
    cluster.sent.clear()
    cluster.set_models(core.model(replicas=2, labels={"c": "d"}))
    cluster.run(20)
    assert cluster.sent == []
    assert sorted(cluster.states()) == ["tiny/0", "tiny/1", "tiny/2"]
    cluster.connect(n1)
    cluster.run(5)
    assert [command.shard for command in cluster.sent] == ["tiny/2/0"], "now the loading one goes"


def test_a_model_of_no_replicas_keeps_none(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=1))
    cluster.add("n1")
    cluster.settle()
    cluster.set_models(core.model(replicas=0))
    cluster.settle()
    assert cluster.running() == {}
    assert cluster.replicas.by_id == {}
    assert cluster.published.models[0].unavailable.reason == "pending: no replica is wanted"


def test_two_updates_in_a_row_end_at_the_last_one(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2, gpus=1))
    cluster.add("n1", 3)
    cluster.settle()
    first = len(cluster.served["tiny"])
    cluster.set_models(core.model(replicas=2, gpus=1, args=("--second",)))
    cluster.run(2)
    last = core.model(replicas=2, gpus=1, args=("--third",))
    cluster.set_models(last)
    cluster.settle()
    assert min(cluster.served["tiny"][first:]) >= 2
    assert {report.spec_hash for report in cluster.agents["n1"].shards.values()} == {core.spec_hash(last.profile)}


def test_a_leaver_stays_while_it_is_promised_although_its_successor_is_ready(core: Any) -> None:
    cluster = core.Cluster()
    old = core.model(replicas=2, gpus=1, ready_min=2)
    cluster.set_models(old)
    cluster.add("n1", 1)
    away = cluster.add("n2", 1)
    cluster.settle()
    cluster.add("n3", 4)
    cluster.cut(away)
    cluster.run(10)
    cluster.sent.clear()
    cluster.set_models(core.model(replicas=2, gpus=1, ready_min=2, args=("--new",)))
    cluster.run(60)
    assert [command.kind for command in cluster.sent] == ["start"], "one successor, nothing ended, no second successor"
    assert "one of 3 replicas is to go first" in cluster.summary()
    cluster.connect(away)
    cluster.settle()
    assert list(cluster.states().values()) == ["ready", "ready"]
    assert not any(view.outdated for view in cluster.plan.views["tiny"])


def test_one_that_is_lost_is_not_given_up_before_the_others_are_ready(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=1, replace_after=None))
    away = cluster.add("n1")
    cluster.settle()
    slow = cluster.add("n2", slow=True)
    cluster.cut(away)
    cluster.run(200)
    cluster.set_models(core.model(replicas=2, replace_after=None))
    cluster.run(10)
    cluster.set_models(core.model(replicas=1, replace_after=None))
    cluster.run(10)
    assert [replica.retired for replica in cluster.replicas.by_id.values()] == ["", ""]
    slow.slow = False
    cluster.run(10)
    assert [replica.retired for replica in cluster.replicas.by_id.values()] == ["1 of it is wanted", ""]


def test_an_update_takes_one_at_a_time_until_it_is_gone(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=3, drain_deadline=300.0))
    cluster.add("n1")
    cluster.settle()
    cluster.routers = {"r": RouterSeen("r", 0)}
    cluster.routers_follow = False
    cluster.sent.clear()
    cluster.set_models(core.model(replicas=3, drain_deadline=300.0, args=("--new",)))
    cluster.run(100)
    assert [command.kind for command in cluster.sent] == ["start", "drain"]
    assert "is to end first" in cluster.summary()
