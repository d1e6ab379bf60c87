"""How a node's word about its shards is folded into what control knew.

1. A list (in Register and Heartbeat) is the node's whole truth: what it lacks is gone. A terminal report moves to
   `Node.ended`; anything else moves there as `failed`, cause `unknown to its agent`, so that whoever looks later
   still finds why a launch ended, also when it looks less often than agents report and forget.
2. A status (one transition, sent again until acknowledged) may be older than the list beside it, and never moves a
   shard backwards.
3. An accepted StartShard counts as a report, since the node has written it down: from then on rule 1 holds for it.

Each function returns the very same node where nothing but ages changed.
"""

import operator
from collections.abc import Iterable

import attrs

from llmgw.core.lifecycle import TERMINAL, Cause, ShardReport, ShardState
from llmgw.core.nodes import Node

ENDED_MAX = 64
"""Ended shards remembered per node: more than fail between two wakes of the reconciler on the largest machine."""

OUTPUT_CHARS_MAX = 8192
"""Of the last output of one failed shard: the traceback and what led to it."""

_SAID = operator.attrgetter(*(field.name for field in attrs.fields(ShardReport) if field.name != "since_seconds"))

_ORDER = {state: rank for rank, state in enumerate(ShardState)}


def fold_list(node: Node, reports: tuple[ShardReport, ...], now: float) -> Node:
    """The node after it has listed every shard that it holds."""
    held = {report.shard: report for report in reports}
    if len(held) == len(node.shards) and all(
        (known := node.shards.get(shard)) is not None and same_but_for_age(known, report)
        for shard, report in held.items()
    ):
        return node
    lacking = [report for shard, report in node.shards.items() if shard not in held]
    ended = _ended(node, [_as_ended(report) for report in lacking], held)
    since = {shard: node.shard_since[shard] for shard in ended if shard in node.shard_since}
    since |= {report.shard: now for report in lacking if not _terminal(report)}
    for shard, report in held.items():
        known = node.shards.get(shard)
        same = known is not None and (known.epoch, known.state) == (report.epoch, report.state)
        since[shard] = node.shard_since[shard] if same else now - report.since_seconds
    outputs = {shard: text for shard, text in node.outputs.items() if shard in held or shard in ended}
    return attrs.evolve(node, shards=held, ended=ended, shard_since=since, outputs=outputs)


def fold_status(node: Node, report: ShardReport, output: str, now: float) -> Node:
    """The node after one transition of one shard."""
    known = node.shards.get(report.shard)
    if known is not None and _is_older(report, known):
        return node
    if known is None and (past := node.ended.get(report.shard)) is not None and past.epoch >= report.epoch:
        return node
    shards = {**node.shards, report.shard: report}
    outputs = node.outputs
    if output and report.state == ShardState.FAILED:
        outputs = {**outputs, report.shard: output[-OUTPUT_CHARS_MAX:]}
    elif known is not None and known.epoch != report.epoch and report.shard in outputs:
        outputs = {shard: text for shard, text in outputs.items() if shard != report.shard}
    return attrs.evolve(
        node,
        shards=shards,
        ended={shard: past for shard, past in node.ended.items() if shard != report.shard},
        shard_since={**node.shard_since, report.shard: now - report.since_seconds},
        outputs=outputs,
    )


def fold_accepted(node: Node, report: ShardReport, now: float) -> Node:
    """The node after it has acknowledged a StartShard (`report` in the state `accepted`)."""
    known = node.shards.get(report.shard) or node.ended.get(report.shard)
    if known is not None and known.epoch >= report.epoch:
        return node
    return fold_status(node, report, "", now)


def all_gone(node: Node, state: ShardState, cause: Cause, now: float) -> Node:
    """The node after it is known that nothing of what it held is left there."""
    left = [
        attrs.evolve(report, gone=True)
        if _terminal(report)
        else attrs.evolve(report, state=state.value, gone=True, cause=cause.value, error=f"{cause}", since_seconds=0.0)
        for report in node.shards.values()
    ]
    ended = _ended(node, left, {})
    since = {shard: node.shard_since.get(shard, now) for shard in ended}
    since |= {report.shard: now for report in node.shards.values() if not _terminal(report) and report.shard in since}
    outputs = {shard: text for shard, text in node.outputs.items() if shard in ended}
    return attrs.evolve(node, shards={}, ended=ended, shard_since=since, outputs=outputs)


def same_but_for_age(one: ShardReport, other: ShardReport) -> bool:
    """Whether two reports say the same, their ages apart."""
    return _SAID(one) == _SAID(other)


def _is_older(report: ShardReport, known: ShardReport) -> bool:
    if report.epoch != known.epoch:
        return report.epoch < known.epoch
    if known.gone and not report.gone:
        return True
    new, old = report.known_state, known.known_state
    return new is not None and old is not None and _ORDER[new] < _ORDER[old]


def _terminal(report: ShardReport) -> bool:
    return report.known_state in TERMINAL


def _as_ended(report: ShardReport) -> ShardReport:
    if _terminal(report):
        return attrs.evolve(report, gone=True)
    return attrs.evolve(
        report,
        state=ShardState.FAILED.value,
        gone=True,
        cause=Cause.UNKNOWN_TO_AGENT.value,
        error=f"its agent no longer lists it (it was {report.state})",
        since_seconds=0.0,
    )


def _ended(node: Node, newly: Iterable[ShardReport], held: dict[str, ShardReport]) -> dict[str, ShardReport]:
    ended = {shard: past for shard, past in node.ended.items() if shard not in held}
    for report in newly:
        ended.pop(report.shard, None)  # to the end: the newest stay longest
        ended[report.shard] = report
    return dict(list(ended.items())[-ENDED_MAX:])
