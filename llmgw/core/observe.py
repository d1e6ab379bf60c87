"""The first step of a wake: what the reports say of every launch is noted before anything is decided.

Found (an agent holds a shard that nobody here knows), accepted, refused, gone. What is gone without our wish counts
against the restart budget.
"""

import attrs

from llmgw.core.catalog import Model
from llmgw.core.group import Group, Slot, Wake
from llmgw.core.lifecycle import COMING_UP, SERVING, ShardReport, split_replica, split_shard
from llmgw.core.nodes import FleetView, Node, NodeState
from llmgw.core.plan import World
from llmgw.core.replicas import Launch, Member, Replica, ReplicaState
from llmgw.core.restarts import note_end, recent
from llmgw.core.standing import Standing


@attrs.frozen
class Found:
    """A shard that an agent holds and nobody here has decided."""

    model: str
    replica: str
    number: int
    node: Node
    report: ShardReport


def find(world: World, before: FleetView | None) -> tuple[list[Found], int]:
    """What is to be adopted, and the highest epoch seen. `before`: the fleet at the last wake, what differs is read.

    (After a restart of the control plane, running models were invisible and were deployed a second time.)
    """
    found, epoch_max = [], world.replicas.epoch_max
    for node in world.fleet.nodes.values():
        if node.state is not NodeState.HEALTHY or (before is not None and before.nodes.get(node.id) is node):
            continue
        for report in node.shards.values():
            try:
                id_, rank = split_shard(report.shard)
                model, number = split_replica(id_)
            except ValueError:
                continue  # no shard of ours; its GPUs are booked all the same
            epoch_max = max(epoch_max, report.epoch)
            replica = world.replicas.by_id.get(id_)
            known = replica is not None and any(launch.epoch == report.epoch for launch in replica.launches)
            if rank == 0 and not known and _adoptable(report):
                found.append(Found(model, id_, number, node, report))
    return found, epoch_max


def adopt(wake: Wake, group: Group, found: Found) -> None:
    """Take up what an agent holds. No command follows from it."""
    slot = group.slots.get(found.replica)
    if slot is None:
        slot = Slot(Replica(found.replica, found.model), found.number, [])
        group.put(slot)
    report, member = found.report, Member(found.node.id, found.report.gpus)
    if any(launch.epoch == report.epoch for launch in slot.replica.launches):
        return  # a second machine with the same folder: its GPUs are booked, and it is left alone
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
    wake.say("info", "adopted", shard=report.shard, node=member.node, epoch=report.epoch, state=report.state)


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
