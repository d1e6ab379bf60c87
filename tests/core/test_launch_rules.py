"""What becomes of one launch: each rule with the trouble that it prevents."""

from typing import Any

import attrs
import pytest

from llmgw.core.fleet_events import Forgotten
from llmgw.core.nodes import Memory
from llmgw.core.plan import RouterSeen


def kinds(cluster: Any) -> list[str]:
    """What was sent, in order."""
    return [f"{command.kind} {command.shard} {command.node}" for command in cluster.sent]


def test_nothing_is_launched_while_a_failed_engine_is_not_gone(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1)
    cluster.settle()
    agent.fail("tiny/0/0", gone=False)
    cluster.run(40)
    assert len(cluster.sent) == 1
    assert cluster.states() == {"tiny/0": "failed"}
    cluster.run(80)
    assert len(cluster.sent) == 1
    assert "replica: launch" in cluster.summary()
    agent.shards["tiny/0/0"] = attrs.evolve(agent.shards["tiny/0/0"], gone=True)
    cluster.run(60)
    assert cluster.states() == {"tiny/0": "ready"}


def test_a_card_that_is_never_given_back_does_not_hold_up_its_replica(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1)
    cluster.settle()
    cluster.add("n2", 1)
    agent.fail("tiny/0/0", gone=False)
    cluster.run(49)
    assert cluster.states() == {"tiny/0": "failed"}, "its grace and 30 s"
    cluster.run(20)
    assert cluster.states() == {"tiny/0": "ready"}
    assert cluster.fired["move: not gone"] > 0
    assert cluster.endpoints()["tiny/0"][1] == cluster.agents["n2"].received[0].epoch
    cluster.set_models(core.model(gpus=1), core.model("other", gpus=1))
    cluster.run(10)
    assert cluster.states("other") == {"other/0": "pending"}, "its card is still booked"


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
    """Node returns after its replicas were replaced: the newest ready one stays, the other is drained, then stopped."""
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


def test_a_drain_that_nobody_remembers_is_finished(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    agent = cluster.add("n1")
    cluster.settle()
    agent.shards["tiny/1/0"] = attrs.evolve(agent.shards["tiny/1/0"], state="draining")
    cluster.sent.clear()
    cluster.settle()
    assert cluster.fired["drain: found"] == 1
    assert [(command.kind, getattr(command, "reason", "")) for command in cluster.sent] == [
        ("stop", "it was draining when control started"),
        ("start", ""),
    ]
    assert list(cluster.states().values()) == ["ready", "ready"]


def test_while_one_of_two_copies_is_out_of_sight_nothing_is_decided(core: Any) -> None:
    cluster = d02(core, slow=True)
    n1, n2 = cluster.agents["n1"], cluster.agents["n2"]
    cluster.connect(n1)
    cluster.goodbye(n1, "kept")
    cluster.run(20)
    assert [command.kind for command in n2.received] == ["start"]
    assert cluster.endpoints()["tiny/0"] == ("ready", n1.received[0].epoch)
    cluster.connect(n1)
    cluster.settle()
    assert cluster.running() == {"tiny/0/0": "n1"}


def test_a_start_that_is_on_its_way_is_stopped_and_not_forgotten(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1)
    (start,) = cluster.look().commands
    cluster.in_flight = {("tiny/0/0", start.epoch, "start"): 1}
    cluster.set_models(core.model("other", gpus=1))
    assert cluster.look().commands == ()
    assert cluster.states("other") == {"other/0": "pending"}, "the GPU may be in use any moment"
    agent.obey(start)
    cluster.in_flight = {}
    cluster.settle()
    assert [command.kind for command in agent.received] == ["start", "stop", "start"]
    assert cluster.running() == {"other/0/0": "n1"}
