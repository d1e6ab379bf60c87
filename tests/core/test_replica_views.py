"""What people are shown of a model."""

from typing import Any

from llmgw.core.lifecycle import ShardReport


def test_a_ready_replica_with_its_shard(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    cluster.add("n1", 1)
    cluster.settle()
    (view,) = cluster.plan.views["tiny"]
    assert (view.id, view.state, view.reason, view.outdated) == ("tiny/0", "ready", "", False)
    (shard,) = view.shards
    held = cluster.agents["n1"].shards["tiny/0/0"]
    assert (shard.id, shard.node, shard.state, shard.gone) == ("tiny/0/0", "n1", "ready", False)
    assert (shard.epoch, shard.port, shard.pid, shard.error) == (held.epoch, held.port, held.pid, "")


def test_a_draining_replica_says_why(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    cluster.add("n1")
    cluster.settle()
    cluster.set_models(core.model(replicas=1))
    cluster.step()
    reasons = {view.id: view.reason for view in cluster.plan.views["tiny"]}
    assert reasons == {"tiny/0": "", "tiny/1": "1 of it is wanted"}


def test_a_silent_node_is_the_reason(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    cluster.cut(agent)
    cluster.run(10)
    (view,) = cluster.plan.views["tiny"]
    assert (view.state, view.reason) == ("ready", "n1 is unreachable (3 heartbeats missed)")
    assert cluster.summary() == "0 of 1 ready: tiny/0 on n1: n1 is unreachable (3 heartbeats missed)"


def test_a_state_that_only_a_newer_agent_knows_is_shown_raw(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    held = agent.shards["tiny/0/0"]
    agent.shards["tiny/0/0"] = ShardReport(held.shard, held.epoch, held.spec_hash, "warming", port=held.port)
    cluster.step()
    (view,) = cluster.plan.views["tiny"]
    assert (view.state, view.shards[0].state) == ("unknown", "warming")
    assert view.reason == "its agent reports the state 'warming', which this version does not know"
    assert cluster.endpoints() == {"tiny/0": ("out", held.epoch)}
    assert cluster.plan.commands == ()


def test_a_replica_on_a_node_that_is_not_back_yet_is_unknown(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1")
    cluster.settle()
    cluster.restart()
    cluster.step()
    (view,) = cluster.plan.views["tiny"]
    assert (view.state, view.shards[0].state) == ("unknown", "unknown")
    assert view.reason == "n1 is syncing (not back yet since control started)"


def test_the_summary_is_short_and_counts_the_rest(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=10))
    cluster.add("n1", slow=True)
    cluster.run(5)
    assert cluster.summary() == (
        "0 of 10 ready: tiny/0 is loading on n1; tiny/1 is loading on n1; tiny/2 is loading on n1; and 7 more"
    )


def test_a_launch_that_ends_before_the_next_one_comes_is_told(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1)
    cluster.settle()
    agent.fail("tiny/0/0", gone=False)
    cluster.step()
    assert cluster.summary() == "0 of 1 ready: tiny/0 on n1: died: signalled"
