"""The story of a node, from two of its states."""

import attrs

from llmgw.core.fleet_events import Line
from llmgw.core.fleet_lines import problem_lines, shard_lines, some_of, unaged
from llmgw.core.hardware import Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Node, NodeState

NODE = Node("n1", NodeState.HEALTHY)


def test_a_line_for_each_problem_that_opened_or_cleared() -> None:
    one = attrs.evolve(NODE, problems=(Problem("xid", "79", "GPU-1"), Problem("disk_full", "99 %")))
    two = attrs.evolve(NODE, problems=(Problem("disk_full", "99 %"),))
    assert list(problem_lines(NODE, one)) == [
        Line("warning", "problem opened", {"node": "n1", "problem": "xid", "gpu": "GPU-1", "detail": "79"}),
        Line("warning", "problem opened", {"node": "n1", "problem": "disk_full", "gpu": "", "detail": "99 %"}),
    ]
    assert list(problem_lines(one, two)) == [
        Line("info", "problem cleared", {"node": "n1", "problem": "xid", "gpu": "GPU-1"})
    ]
    assert list(problem_lines(one, one)) == []
    assert unaged((Problem("a", "b", since_seconds=5.0),)) == unaged((Problem("a", "b"),))


def test_a_line_for_each_shard_that_moved_with_what_is_known() -> None:
    ready = attrs.evolve(NODE, shards={"m/0/0": ShardReport("m/0/0", 7, state="ready", port=1, pid=2)})
    assert list(shard_lines(None, ready)) == [
        Line("info", "shard ready", {"node": "n1", "shard": "m/0/0", "epoch": 7, "gone": False, "pid": 2, "port": 1})
    ]
    assert list(shard_lines(ready, ready)) == []
    failed = ShardReport("m/0/0", 7, state="failed", cause="signalled", signal=9)
    (line,) = shard_lines(ready, attrs.evolve(NODE, shards={"m/0/0": failed}))
    assert (line.level, line.facts["signal"], line.facts["cause"]) == ("warning", 9, "signalled")
    gone = attrs.evolve(NODE, ended={"m/0/0": attrs.evolve(failed, cause="unknown to its agent")})
    assert list(shard_lines(ready, gone)) == [
        Line("warning", "shard gone", {"node": "n1", "shard": "m/0/0", "cause": "unknown to its agent"})
    ]


def test_a_long_list_of_names_is_cut() -> None:
    assert some_of(["a", "b"]) == "a, b"
    assert some_of(list("abcdefgh")) == "a, b, c, d, e and 3 more"
