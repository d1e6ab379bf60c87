"""What a launch amounts to, from what was decided, what is reported, and how far the node can be believed."""

from typing import Any

import attrs
import pytest

from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import FleetView, Node, NodeState, Recovery
from llmgw.core.replicas import Drain, Launch, Member, Replica
from llmgw.core.standing import Presence, Standing, error_of, here, read, routed, unreadable_state

LAUNCH = Launch(5, "h", (Member("n1"),), 0.0, accepted=True)
REPLICA = Replica("m/0", "m", (LAUNCH,))


def fleet(state: NodeState = NodeState.HEALTHY, *reports: ShardReport, **changes: Any) -> FleetView:
    node = Node("n1", state, shards={report.shard: report for report in reports})
    recovery = changes.pop("recovery", None)
    return FleetView(nodes={"n1": attrs.evolve(node, **changes)}, recovery=recovery)


def report(state: str, **changes: Any) -> ShardReport:
    return ShardReport("m/0/0", 5, "h", state, **changes)


def seen(view: FleetView, launch: Launch = LAUNCH) -> tuple[str, bool, Presence]:
    standing = read(REPLICA, launch, view)
    return standing.state.value, standing.gone, standing.presence


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (fleet(NodeState.HEALTHY, report("ready", port=1)), ("ready", False, Presence.HERE)),
        (fleet(NodeState.HEALTHY, report("failed")), ("failed", False, Presence.HERE)),
        (fleet(NodeState.HEALTHY, report("failed", gone=True)), ("failed", True, Presence.HERE)),
        (fleet(NodeState.HEALTHY, report("ready", gone=True)), ("ready", False, Presence.HERE)),
        (fleet(NodeState.HEALTHY, report("warming")), ("unknown", False, Presence.HERE)),
        (fleet(NodeState.HEALTHY), ("failed", True, Presence.HERE)),
        (fleet(NodeState.UNREACHABLE, report("ready")), ("ready", False, Presence.SILENT)),
        (fleet(NodeState.INCOMPATIBLE, report("ready")), ("ready", False, Presence.SILENT)),
        (fleet(NodeState.UNREACHABLE, report("ready"), engines_kept=True), ("ready", False, Presence.KEPT)),
        (fleet(NodeState.UNREACHABLE), ("unknown", False, Presence.SILENT)),
        (fleet(NodeState.SYNCING), ("unknown", False, Presence.SYNCING)),
        (fleet(NodeState.LOST, report("ready")), ("lost", False, Presence.LOST)),
        (fleet(NodeState.LOST, report("ready"), engines_kept=True), ("lost", False, Presence.LOST)),
        (fleet(NodeState.LOST), ("lost", False, Presence.LOST)),
        (fleet(NodeState.LOST, engines_stopped=True), ("stopped", True, Presence.LOST)),
        (FleetView(), ("lost", True, Presence.LOST)),
        (FleetView(recovery=Recovery(1, 0, 9.0, "")), ("unknown", False, Presence.SYNCING)),
    ],
)
def test_one_launch_on_one_node(view: FleetView, expected: tuple[str, bool, Presence]) -> None:
    assert seen(view) == expected


def test_what_was_never_accepted_is_pending_not_failed() -> None:
    assert seen(fleet(), attrs.evolve(LAUNCH, accepted=False)) == ("pending", False, Presence.HERE)


def test_a_report_of_another_epoch_is_of_another_launch() -> None:
    other = ShardReport("m/0/0", 4, "h", "ready")
    assert seen(fleet(NodeState.HEALTHY, other), attrs.evolve(LAUNCH, accepted=False))[0] == "pending"


def test_a_launch_over_several_nodes_is_as_good_as_its_worst_shard() -> None:
    launch = attrs.evolve(LAUNCH, members=(Member("n1"), Member("n2")))
    leader = Node("n1", NodeState.HEALTHY, shards={"m/0/0": report("ready", port=5)})
    follower = Node("n2", NodeState.UNREACHABLE, shards={"m/0/1": ShardReport("m/0/1", 5, "h", "failed", gone=True)})
    standing = read(REPLICA, launch, FleetView(nodes={"n1": leader, "n2": follower}))
    assert (standing.state, standing.gone, standing.presence) == ("failed", False, Presence.SILENT)
    assert (standing.node, standing.port, standing.reported) == ("n2", 5, True)


def standing(epoch: int, state: str = "ready", presence: NodeState = NodeState.HEALTHY, **changes: Any) -> Standing:
    launch = attrs.evolve(LAUNCH, epoch=epoch, **changes)
    said = attrs.evolve(report(state), epoch=epoch)
    return read(REPLICA, launch, fleet(presence, said))


def test_routers_see_the_newest_ready_launch() -> None:
    old, new = standing(5), standing(6)
    assert routed([new, old]) is new
    assert routed([old, new]) is new


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (standing(5), standing(6, "loading")),
        (standing(5), standing(6, "draining")),
        (standing(5), standing(6, presence=NodeState.UNREACHABLE)),
        (standing(5), standing(6, presence=NodeState.LOST)),
        (standing(5), standing(6, drain=Drain("x", 1.0))),
        (standing(5, presence=NodeState.UNREACHABLE), standing(6, drain=Drain("x", 1.0))),
        (standing(6, "draining"), standing(5, "draining")),
    ],
)
def test_routers_see_the_better_of_two_launches(better: Standing, worse: Standing) -> None:
    assert routed([worse, better]) is better
    assert routed([better, worse]) is better


def test_routers_see_nothing_that_cannot_serve() -> None:
    silent = [
        standing(5, "loading"),
        standing(6, "failed"),
        standing(7, presence=NodeState.LOST),
        standing(8, "warming"),
    ]
    assert routed(silent) is None
    assert not any(one.ready or one.serving for one in silent)


def test_ready_is_what_counts_towards_the_promise() -> None:
    assert standing(5).ready
    assert not standing(5, presence=NodeState.UNREACHABLE).ready
    assert standing(5, presence=NodeState.UNREACHABLE).serving
    assert not standing(5, stop="why").ready
    assert here(standing(5))
    assert not here(standing(5, presence=NodeState.UNREACHABLE))


def test_the_raw_name_of_an_unknown_state() -> None:
    view = fleet(NodeState.HEALTHY, report("warming"))
    assert unreadable_state(read(REPLICA, LAUNCH, view), view) == "warming"
    view = fleet(NodeState.HEALTHY, report("ready"))
    assert unreadable_state(read(REPLICA, LAUNCH, view), view) == ""
    assert unreadable_state(read(REPLICA, LAUNCH, view), FleetView()) == ""


@pytest.mark.parametrize(
    ("said", "phrase"),
    [
        ({"error": "CUDA out of memory", "exit_code": 1}, "CUDA out of memory"),
        ({"signal": 9}, "signal 9"),
        ({"exit_code": 137}, "exit code 137"),
        ({"cause": "start deadline"}, "start deadline"),
        ({}, ""),
    ],
)
def test_what_went_wrong_in_one_phrase(said: dict[str, Any], phrase: str) -> None:
    assert error_of(report("failed", **said)) == phrase
