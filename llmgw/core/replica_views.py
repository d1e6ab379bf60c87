"""What people are shown of a model: its replicas, and why it is not as the catalog says.

No age is in the words, so that they stay the same until something happens.
"""

from llmgw.core.explain import Explanation, grouped
from llmgw.core.group import Group, Slot, Verdict, Wake
from llmgw.core.lifecycle import shard_id
from llmgw.core.replicas import ReplicaState, ReplicaView, ShardView
from llmgw.core.restarts import backing_off
from llmgw.core.standing import UP_SOON, Presence, Standing, error_of, unreadable_state
from llmgw.core.units import format_seconds

NOTES_MAX = 3
"""In a summary; the rest is a number."""


def explain(wake: Wake, group: Group) -> Explanation | None:
    """Why the model is not as the catalog says; None: it is."""
    if group.model is None:
        return None
    waiting = [note for slot in group.live if (note := _waits_for(wake, group, slot))]
    notes = list(dict.fromkeys([*group.notes, *waiting]))
    if group.ready >= group.desired and not notes:
        return None
    if wake.recovering and not group.live:
        notes.append("control is recovering, and does not know what runs")
    shown = "; ".join(notes[:NOTES_MAX]) + (f"; and {len(notes) - NOTES_MAX} more" if len(notes) > NOTES_MAX else "")
    summary = f"{group.ready} of {group.desired} ready" + (f": {shown}" if shown else "")
    refusals = group.unplaceable.refusals if group.unplaceable is not None else ()
    return Explanation(summary, grouped(refusals), group.change)


def view(wake: Wake, group: Group, slot: Slot) -> ReplicaView:
    """One replica."""
    main = slot.main
    if main is None or (slot.vacant and slot.live):
        trying = backing_off(wake, group, slot)
        state = ReplicaState.BACKING_OFF if trying else ReplicaState.PENDING
        reason = slot.replica.failures[-1].error if trying else ""
        outdated = False
    else:
        state, reason, outdated = main.state, _reason(wake, main), group.model is not None and group.outdated(main)
    shards = tuple(shard for standing in slot.standings for shard in _shards(wake, standing))
    return ReplicaView(slot.replica.id, state.value, reason, outdated=outdated, shards=shards)


def _waits_for(wake: Wake, group: Group, slot: Slot) -> str:
    """What a replica that is not ready is waiting for; empty: nothing, or it has been said."""
    main = slot.main
    if main is None or slot.ready or slot.vacant:
        return ""
    replica, where = slot.replica.id, main.node
    if main.launch.ending:
        return f"{replica} is to end on {where} first"
    if main.state in UP_SOON and main.presence is Presence.HERE:
        verb = "is to start" if main.state is ReplicaState.PENDING else f"is {main.state}"
        return f"{replica} {verb} on {where}"
    if main.presence is Presence.LOST:
        after = group.model.replace_after if group.model is not None else None
        when = (
            "never replaced (replace_after)" if after is None else f"replaced after {format_seconds(after)} of silence"
        )
        if slot.verdicts.get(main.launch.epoch) is Verdict.WAIT and wake.recovering:
            when = "left alone while control is recovering"
        return f"{replica} was on {where}, which is lost: {when}"
    return f"{replica} on {where}: {_reason(wake, main) or main.state}"


def _reason(wake: Wake, standing: Standing) -> str:
    launch, node = standing.launch, wake.fleet.nodes.get(standing.node)
    if standing.presence is not Presence.HERE:
        if node is None:
            return f"{standing.node} is not known"
        return f"{node.id} is {node.state}" + (f" ({node.reason})" if node.reason else "")
    if launch.stop:
        return launch.stop
    if launch.drain is not None:
        return launch.drain.reason
    if raw := unreadable_state(standing, wake.fleet):
        return f"its agent reports the state {raw!r}, which this version does not know"
    return standing.error if standing.state is ReplicaState.FAILED else ""


def _shards(wake: Wake, standing: Standing) -> list[ShardView]:
    views = []
    for rank, member in enumerate(standing.launch.members):
        shard, epoch = shard_id(standing.replica, rank), standing.launch.epoch
        node = wake.fleet.nodes.get(member.node)
        report = node.report(shard, epoch) if node is not None else None
        if report is None or standing.presence is Presence.LOST:
            # Nothing on a lost node is shown as running.
            views.append(ShardView(shard, member.node, standing.state.value, standing.gone, epoch))
        else:
            views.append(
                ShardView(
                    shard, member.node, report.state, report.gone, epoch, report.port, report.pid, error_of(report)
                )
            )
    return views
