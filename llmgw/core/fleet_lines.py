"""What the log says of a fleet that changes: the story of a node, from two of its states."""

from collections.abc import Iterator
from typing import Any

from llmgw.core.fleet_events import Line
from llmgw.core.hardware import Problem
from llmgw.core.lifecycle import ShardState
from llmgw.core.nodes import Node

SHOWN_MAX = 5
"""Names in one line; the rest is a number."""

SHARD_FACTS = ("pid", "port", "cause", "error", "exit_code", "signal")


def unaged(problems: tuple[Problem, ...]) -> tuple[tuple[str, str, str], ...]:
    """Problems without their ages: what tells whether a list says anything new."""
    return tuple((problem.code, problem.gpu, problem.detail) for problem in problems)


def problem_lines(old: Node, new: Node) -> Iterator[Line]:
    """A line for each problem that opened or cleared."""
    if old.problems is new.problems:
        return
    before = {(problem.code, problem.gpu): problem for problem in old.problems}
    after = {(problem.code, problem.gpu): problem for problem in new.problems}
    for (code, gpu), problem in after.items():
        if (code, gpu) not in before:
            facts = {"node": new.id, "problem": code, "gpu": gpu, "detail": problem.detail}
            yield Line("warning", "problem opened", facts)
    for code, gpu in before:
        if (code, gpu) not in after:
            yield Line("info", "problem cleared", {"node": new.id, "problem": code, "gpu": gpu})


def shard_lines(old: Node | None, new: Node) -> Iterator[Line]:
    """A line for each shard that entered another state."""
    before = old.shards if old is not None else {}
    for shard, report in new.shards.items():
        known = before.get(shard)
        if known is not None and (known.epoch, known.state, known.gone) == (report.epoch, report.state, report.gone):
            continue
        facts: dict[str, Any] = {"node": new.id, "shard": shard, "epoch": report.epoch, "gone": report.gone}
        facts |= {name: value for name in SHARD_FACTS if (value := getattr(report, name)) not in ("", None)}
        yield Line("warning" if report.state == ShardState.FAILED else "info", f"shard {report.state}", facts)
    for shard, report in before.items():
        if shard not in new.shards and (ended := new.ended.get(shard)) is not None and ended.cause != report.cause:
            yield Line("warning", "shard gone", {"node": new.id, "shard": shard, "cause": ended.cause})


def some_of(names: list[str]) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
