"""Launches for replicas that have none."""

from typing import Any

import attrs


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


def test_several_nodes_that_do_not_fit_are_counted_and_each_is_explained(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    cluster.add("n1")
    cluster.add("n2")
    cluster.step()
    assert cluster.summary() == "0 of 1 ready: tiny/0: fits on none of 2 nodes"
    (reason,) = cluster.plan.explanations["tiny"].reasons
    assert (reason.rule, reason.nodes, reason.detail) == ("gpus", ("n1", "n2"), "needs 1, 0 free of 0")


def test_a_model_with_nothing_ready_is_placed_before_one_that_wants_more(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a", gpus=1))
    cluster.add("n1", 2)
    cluster.settle()
    cluster.set_models(core.model("a", gpus=1, replicas=2), core.model("b", gpus=1))
    cluster.settle()
    assert cluster.running() == {"a/0/0": "n1", "b/0/0": "n1"}


def test_a_model_with_only_static_endpoints_has_no_replicas(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(attrs.evolve(core.model(), profile=None))
    cluster.add("n1")
    cluster.settle()
    assert (cluster.sent, cluster.plan.views, cluster.plan.explanations) == ([], {}, {})
