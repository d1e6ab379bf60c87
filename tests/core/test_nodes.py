"""A node as decisions read it."""

import attrs

from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import FleetView, Node, NodeState, Pulse


def test_a_report_is_found_by_shard_and_epoch_held_or_ended() -> None:
    held, ended = ShardReport("m/0/0", 7), ShardReport("m/0/0", 6, gone=True)
    node = Node("n1", NodeState.HEALTHY, shards={"m/0/0": held}, ended={"m/0/0": ended})
    assert node.report("m/0/0", 7) is held
    assert node.report("m/0/0", 6) is ended
    assert node.report("m/0/0", 5) is None
    assert node.report("m/1/0", 7) is None


def test_commands_reach_a_healthy_node_with_a_connection() -> None:
    node = Node("n1", NodeState.HEALTHY, connection=0)
    assert node.commandable
    assert not attrs.evolve(node, connection=None).commandable
    assert not attrs.evolve(node, state=NodeState.UNREACHABLE).commandable


def test_silence_does_not_count_time_in_which_control_was_deaf() -> None:
    view = FleetView(pulses={"n1": Pulse(heard=100.0)}, deaf_seconds=30.0)
    assert view.silence("n1", 180.0) == 50.0
    assert view.silence("n1", 110.0) == 0.0
