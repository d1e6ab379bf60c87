"""The first step of a wake: what the reports say of every launch is noted before anything is decided.

Found (an agent holds a shard that nobody here knows), accepted, refused, gone. What is gone without our wish counts
against the restart budget.
"""

import attrs

from llmgw.core.catalog import Model
from llmgw.core.group import Group, Slot, Wake
from llmgw.core.lifecycle import COMING_UP, SERVING, ShardReport, split_replica, split_shard
from llmgw.core.nodes import Node, NodeState
from llmgw.core.replicas import Launch, Member, Replica, ReplicaState
from llmgw.core.restarts import note_end, recent
from llmgw.core.standing import Standing


def adopt(wake: Wake, groups: dict[str, Group]) -> None:
    """Take up what agents hold and nobody here has decided. No command follows from it.

    (After a restart of the control plane, running models were invisible and were deployed a second time.)
    """
    known = {
        (slot.replica.id, launch.epoch)
        for group in groups.values()
        for slot in group.slots.values()
        for launch in slot.replica.launches
    }  # only asked, never iterated
    for node in wake.fleet.nodes.values():
        if node.state is not NodeState.HEALTHY:
            continue
        for report in node.shards.values():
            try:
                replica, rank = split_shard(report.shard)
                model, number = split_replica(replica)
            except ValueError:
                continue  # no shard of ours; its GPUs are booked all the same
            wake.epoch_max = max(wake.epoch_max, report.epoch)
            if rank != 0 or (replica, report.epoch) in known or not _adoptable(report):
                continue
            if model not in groups:
                groups[model] = Group(name=model, model=None, spec_hash="", slots={}, halt=None)
            group = groups[model]
            if replica not in group.slots:
                group.put(Slot(Replica(replica, model), number, []))
            _adopt(wake, group, group.slots[replica], node, report)


def notice(wake: Wake, group: Group) -> None:
    """Note what became of the launches of one model."""
    refused = {(no.shard, no.epoch): no.reason for no in wake.world.refused if no.kind == "start"}
    if group.halt is not None and (group.model is None or group.halt.spec_hash != group.spec_hash):
        group.halt = None  # another profile: worth another try
    for slot in group.slots.values():
        if slot.replica.failures and (still := recent(slot, wake.world.wall)) != slot.replica.failures:
            slot.replica = attrs.evolve(slot.replica, failures=still)
        for standing in tuple(slot.standings):
            launch, refusal = standing.launch, refused.get((f"{slot.replica.id}/0", standing.launch.epoch))
            if standing.gone:
                _remove(wake, group, slot, standing)
            elif standing.state is ReplicaState.PENDING and refusal is not None:
                _remove(wake, group, slot, attrs.evolve(standing, error=f"its agent refused it: {refusal}"))
            elif not launch.accepted and standing.reported:
                slot.change(standing, attrs.evolve(launch, accepted=True))
            elif launch.drain is not None and launch.drain.until - wake.world.wall > launch.drain.seconds:
                # The clock was set back: it gets no more than it was given.
                drain = attrs.evolve(launch.drain, until=wake.world.wall + launch.drain.seconds)
                slot.change(standing, attrs.evolve(launch, drain=drain))


def new_launch(wake: Wake, group: Group, model: Model, member: Member, epoch: int) -> Launch:
    """A launch of the present profile, with all that is booked for it."""
    profile = model.profile
    assert profile is not None
    return Launch(
        epoch=epoch,
        spec_hash=group.spec_hash,
        members=(member,),
        decided_at=wake.world.wall,
        gpu_memory=profile.gpu_memory,
        memory=profile.memory,
        port=profile.port,
        served_name=wake.world.served_names.get(group.name, group.name),
        stop_grace=profile.stop_grace,
    )


def _remove(wake: Wake, group: Group, slot: Slot, standing: Standing) -> None:
    """A launch is no more. It counts as failed if nobody wanted that and no newer one has taken its place."""
    newest = slot.standings[0].launch.epoch == standing.launch.epoch
    if not standing.launch.ending and newest:
        note_end(wake, group, slot, standing)
    else:
        wake.say("info", "launch ended", replica=slot.replica.id, epoch=standing.launch.epoch, node=standing.node)
    slot.remove(standing)


def _adoptable(report: ShardReport) -> bool:
    """What has ended or is being ended needs nobody's care; its GPUs are booked until it is gone."""
    state = report.known_state
    return not report.gone and (state is None or state in COMING_UP or state in SERVING)


def _adopt(wake: Wake, group: Group, slot: Slot, node: Node, report: ShardReport) -> None:
    member = Member(node.id, report.gpus)
    if group.model is not None and report.spec_hash == group.spec_hash:
        launch = new_launch(wake, group, group.model, member, report.epoch)
        launch = attrs.evolve(launch, ours=False, accepted=True)
    else:
        # Of a profile that nobody here knows any more: its GPUs count as wholly taken.
        launch = Launch(
            epoch=report.epoch,
            spec_hash=report.spec_hash,
            members=(member,),
            decided_at=wake.world.wall,
            served_name=wake.world.served_names.get(group.name, group.name),
            ours=False,
            accepted=True,
        )
    slot.add(launch, wake.fleet)
    wake.fire("adopt")
    wake.say("info", "adopted", shard=report.shard, node=node.id, epoch=report.epoch, state=report.state)
