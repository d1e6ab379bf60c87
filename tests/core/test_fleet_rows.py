"""A node outlives control, there and back."""

import attrs

from llmgw.core.fleet_events import KnownNode
from llmgw.core.fleet_rows import KEPT, from_row, to_row
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Node, NodeState

ROW = KnownNode("n1", "i", "b", "h", "p:1", {"zone": "a"}, cordoned=True, draining=True)


def test_a_row_comes_back_as_a_node_that_is_not_believed_yet() -> None:
    node = from_row(ROW, 5.0)
    assert (node.state, node.reason) == (NodeState.SYNCING, "not back yet since control started")
    assert to_row(node) == ROW
    assert node.connection is None


def test_a_lost_row_is_lost_and_a_kept_one_has_its_shards() -> None:
    lost = attrs.evolve(ROW, lost=True)
    assert from_row(lost, 5.0).state is NodeState.LOST
    assert to_row(from_row(lost, 5.0)) == lost
    kept = attrs.evolve(ROW, engines_kept=True, shards=(ShardReport("m/0/0", 7, state="ready"),))
    node = from_row(kept, 5.0)
    assert (node.state, node.reason, list(node.shards)) == (NodeState.UNREACHABLE, KEPT, ["m/0/0"])
    assert to_row(node) == kept


def test_shards_are_kept_only_while_nobody_reports_them() -> None:
    node = Node("n1", NodeState.HEALTHY, shards={"m/0/0": ShardReport("m/0/0", 7)})
    assert to_row(node).shards == ()
