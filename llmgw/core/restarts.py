"""When a launch that failed is repeated, and where: delay, budget of each node, causes that never get better."""

import attrs

from llmgw.core.group import Group, Slot, Wake
from llmgw.core.lifecycle import UNRECOVERABLE, Cause
from llmgw.core.replicas import Failure, Halt, ReplicaState
from llmgw.core.standing import Standing, here

RESTART_FIRST_SECONDS = 10.0
RESTART_MAX_SECONDS = 300.0
"""A failed launch is repeated after 10 s, then 20 s and so on: an engine that dies at once must not fill the log."""

RESTART_JITTER = 0.25
"""Both ways, and after the cap too: ten replicas that died together must not load together for ever."""

BUDGET_FAILURES = 5
BUDGET_SECONDS = 1800.0
"""So many failures on one node within so long, then elsewhere: the fault may be that machine's."""

FAILURES_MAX = 50
"""Remembered per replica: at the delays above it cannot fail more often in half an hour."""

NOT_ITS_FAULT = frozenset({Cause.AGENT_STOPPED.value, Cause.NODE_LOST.value})
"""Causes that say nothing about the launch: it is repeated without delay and without counting."""


def note_end(wake: Wake, group: Group, slot: Slot, standing: Standing) -> None:
    """A launch ended though nobody here wanted it to."""
    launch, replica, wall = standing.launch, slot.replica, wake.world.wall
    if standing.cause in NOT_ITS_FAULT or standing.state is ReplicaState.STOPPED:
        wake.fire("replace")
        wake.say(
            "info", "launch gone", replica=replica.id, epoch=launch.epoch, node=standing.node, cause=standing.cause
        )
        return
    failure = Failure(wall, standing.node, standing.error or standing.cause, launch.spec_hash)
    failures = (*recent(slot, wall), failure)[-FAILURES_MAX:]
    count = sum(one.spec_hash == launch.spec_hash for one in failures)
    delay = min(RESTART_MAX_SECONDS, RESTART_FIRST_SECONDS * 2.0 ** (count - 1))
    delay *= 1.0 + RESTART_JITTER * (2.0 * wake.rng.random() - 1.0)
    slot.replica = attrs.evolve(replica, failures=failures, retry_at=wall + delay)
    wake.fire("back off")
    wake.say(
        "warning",
        "launch failed",
        replica=replica.id,
        epoch=launch.epoch,
        node=standing.node,
        reason=failure.error,
        failures=count,
        again_in_s=round(delay, 1),
    )
    if launch.spec_hash == group.spec_hash:
        _halt(wake, group, slot, standing)


def recent(slot: Slot, wall: float) -> tuple[Failure, ...]:
    """The failures that still count."""
    return tuple(failure for failure in slot.replica.failures if failure.at > wall - BUDGET_SECONDS)


def barred_nodes(wake: Wake, group: Group, slot: Slot) -> dict[str, tuple[str, str]]:
    """Nodes that have used up the budget of this replica: node -> (rule, detail)."""
    failures: dict[str, list[Failure]] = {}
    for failure in recent(slot, wake.world.wall):
        if failure.spec_hash == group.spec_hash:
            failures.setdefault(failure.node, []).append(failure)
    barred = {}
    for node, on_node in failures.items():
        if len(on_node) >= BUDGET_FAILURES:
            wake.at_wall(on_node[-BUDGET_FAILURES].at + BUDGET_SECONDS)
            last = f", the last time: {on_node[-1].error}" if on_node[-1].error else ""
            barred[node] = ("failures", f"{slot.replica.id} failed there {len(on_node)} times in 30 min{last}")
    return barred


def backing_off(wake: Wake, group: Group, slot: Slot) -> bool:
    """Whether its next launch has to wait."""
    failures, wait = slot.replica.failures, slot.replica.retry_at - wake.world.wall
    if not failures or failures[-1].spec_hash != group.spec_hash:
        return False
    # A clock that was set back must not make it wait for hours.
    if not 0 < wait <= RESTART_MAX_SECONDS * (1 + RESTART_JITTER):
        return False
    wake.at_wall(slot.replica.retry_at)
    return True


def _halt(wake: Wake, group: Group, slot: Slot, standing: Standing) -> None:
    entirely = standing.cause in UNRECOVERABLE
    older = any(
        group.outdated(other) and here(other) and not other.gone
        for other_slot in group.live
        for other in other_slot.standings
    )
    if not entirely and not older:
        return
    if group.halt is not None and (group.halt.entirely or not entirely):
        return
    reason = f"{slot.replica.id} on {standing.node}: {standing.error or standing.cause}"
    group.halt = Halt(group.spec_hash, reason, entirely=entirely)
    wake.fire("halt")
    wake.say("warning", "halted", model=group.name, reason=reason, entirely=entirely)
