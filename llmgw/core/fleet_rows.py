"""What of a node outlives control, there and back."""

from llmgw.core.fleet_events import KnownNode
from llmgw.core.nodes import Node, NodeState

KEPT = "agent stopped, engines kept"
"""The reason of a node whose agent said Goodbye(kept)."""


def to_row(node: Node) -> KnownNode:
    """What the store keeps of that node."""
    return KnownNode(
        id=node.id,
        instance=node.instance,
        boot_id=node.boot_id,
        address=node.address,
        peer=node.peer,
        labels=node.labels,
        cordoned=node.cordoned,
        draining=node.draining,
        lost=node.state is NodeState.LOST,
        engines_kept=node.engines_kept,
        shards=tuple(node.shards.values()) if node.engines_kept else (),
    )


def from_row(row: KnownNode, now: float) -> Node:
    """The node as it is believed when control has just started and nothing of it was heard."""
    state, reason = NodeState.SYNCING, "not back yet since control started"
    if row.lost:
        state, reason = NodeState.LOST, "was lost before control started"
    elif row.engines_kept:
        state, reason = NodeState.UNREACHABLE, KEPT
    return Node(
        id=row.id,
        state=state,
        reason=reason,
        instance=row.instance,
        boot_id=row.boot_id,
        peer=row.peer,
        address=row.address,
        labels=row.labels,
        cordoned=row.cordoned,
        draining=row.draining,
        engines_kept=row.engines_kept,
        shards={report.shard: report for report in row.shards},
        shard_since={report.shard: now for report in row.shards},
        since=now,
    )
