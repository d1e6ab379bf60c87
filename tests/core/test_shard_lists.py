"""A node's word about its shards: a list is the whole truth, a status never moves a shard backwards."""

import attrs

from llmgw.core.lifecycle import Cause, ShardReport, ShardState
from llmgw.core.nodes import Node, NodeState
from llmgw.core.shard_lists import (
    ENDED_MAX,
    OUTPUT_CHARS_MAX,
    all_gone,
    fold_accepted,
    fold_list,
    fold_status,
    same_but_for_age,
)

READY = ShardReport("m/0/0", 7, "h", "ready", port=20000, since_seconds=3.0)
EMPTY = Node("n1", NodeState.HEALTHY)


def holding(*reports: ShardReport) -> Node:
    return fold_list(EMPTY, reports, 100.0)


def test_a_list_is_taken_as_it_is_with_the_age_of_each_state() -> None:
    node = holding(READY)
    assert node.shards == {"m/0/0": READY}
    assert node.shard_since == {"m/0/0": 97.0}


def test_a_list_that_only_grew_older_leaves_the_very_same_node() -> None:
    node = holding(READY)
    assert fold_list(node, (attrs.evolve(READY, since_seconds=9.0),), 106.0) is node
    assert fold_list(EMPTY, (), 1.0) is EMPTY


def test_a_state_keeps_its_age_while_other_facts_change() -> None:
    node = fold_list(holding(READY), (attrs.evolve(READY, pid=5),), 200.0)
    assert node.shard_since == {"m/0/0": 97.0}
    assert node.shards["m/0/0"].pid == 5
    again = fold_list(node, (attrs.evolve(READY, state="draining", since_seconds=1.0),), 300.0)
    assert again.shard_since == {"m/0/0": 299.0}


def test_what_a_list_lacks_is_gone_and_its_end_is_kept() -> None:
    failed = attrs.evolve(READY, state="failed", cause="exited", exit_code=1)
    node = fold_list(holding(failed), (), 200.0)
    assert node.shards == {}
    assert node.ended == {"m/0/0": attrs.evolve(failed, gone=True)}
    assert node.report("m/0/0", 7) == node.ended["m/0/0"]
    assert node.report("m/0/0", 8) is None
    lost = fold_list(holding(READY), (), 200.0).ended["m/0/0"]
    assert (lost.state, lost.gone, lost.cause) == ("failed", True, "unknown to its agent")
    assert lost.error == "its agent no longer lists it (it was ready)"


def test_a_newer_launch_takes_the_place_of_an_ended_one() -> None:
    node = fold_list(holding(READY), (), 200.0)
    node = fold_list(node, (attrs.evolve(READY, epoch=8),), 201.0)
    assert (list(node.shards), node.ended) == (["m/0/0"], {})


def test_ended_shards_and_output_are_bounded() -> None:
    node = EMPTY
    for number in range(ENDED_MAX + 10):
        shard = f"m/{number}/0"
        report = ShardReport(shard, 1, state="failed", gone=True)
        node = fold_list(fold_status(node, report, "x" * (OUTPUT_CHARS_MAX + 1), 1.0), (), 2.0)
    assert len(node.ended) == ENDED_MAX
    assert next(iter(node.ended)) == "m/10/0"
    assert set(node.outputs) == set(node.ended) == set(node.shard_since)
    assert {len(text) for text in node.outputs.values()} == {OUTPUT_CHARS_MAX}


def test_a_status_moves_a_shard_forwards_only() -> None:
    node = holding(READY)
    assert fold_status(node, attrs.evolve(READY, state="loading"), "", 1.0) is node
    assert fold_status(node, attrs.evolve(READY, epoch=6, state="failed"), "", 1.0) is node
    node = fold_status(node, attrs.evolve(READY, state="failed"), "Traceback", 200.0)
    assert node.shards["m/0/0"].state == "failed"
    assert node.outputs == {"m/0/0": "Traceback"}
    gone = fold_status(node, attrs.evolve(READY, state="failed", gone=True), "", 201.0)
    assert gone.shards["m/0/0"].gone
    assert fold_status(gone, attrs.evolve(READY, state="failed"), "", 202.0) is gone


def test_a_state_that_only_a_newer_agent_knows_is_kept_raw() -> None:
    node = fold_status(holding(READY), attrs.evolve(READY, state="warming"), "", 1.0)
    assert node.shards["m/0/0"].state == "warming"


def test_a_status_of_a_launch_that_has_ended_is_late() -> None:
    node = fold_list(holding(READY), (), 200.0)
    assert fold_status(node, attrs.evolve(READY, state="draining"), "", 201.0) is node


def test_a_new_launch_forgets_the_output_of_the_old_one() -> None:
    node = fold_status(holding(READY), attrs.evolve(READY, state="failed"), "Traceback", 1.0)
    assert fold_status(node, attrs.evolve(READY, epoch=8, state="accepted"), "", 2.0).outputs == {}


def test_an_accepted_start_is_a_report_unless_something_newer_was_said() -> None:
    accepted = ShardReport("m/0/0", 7, "h")
    assert fold_accepted(EMPTY, accepted, 5.0).shards == {"m/0/0": accepted}
    node = holding(READY)
    assert fold_accepted(node, accepted, 5.0) is node
    ended = fold_list(node, (), 6.0)
    assert fold_accepted(ended, accepted, 7.0) is ended


def test_when_nothing_is_left_everything_has_ended() -> None:
    failed = ShardReport("m/1/0", 7, state="failed", cause="exited")
    node = all_gone(holding(READY, failed), ShardState.STOPPED, Cause.AGENT_STOPPED, 300.0)
    assert node.shards == {}
    assert {shard: (one.state, one.gone, one.cause) for shard, one in node.ended.items()} == {
        "m/0/0": ("stopped", True, "agent stopped"),
        "m/1/0": ("failed", True, "exited"),
    }
    assert node.shard_since == {"m/0/0": 300.0, "m/1/0": 100.0}


def test_two_reports_are_compared_without_their_ages() -> None:
    assert same_but_for_age(READY, attrs.evolve(READY, since_seconds=99.0))
    for field in attrs.fields(ShardReport):
        if field.name != "since_seconds":
            assert not same_but_for_age(READY, attrs.evolve(READY, **{field.name: "other"}))  # type: ignore[arg-type]
