"""What should change: the difference between the catalog and what agents report, as one `Plan`.

Pure and level-triggered: it is called at every wake with the whole truth, issues the same idempotent commands until
the reports agree, and remembers nothing but what is in `Replicas`. The steps, each in a module of its own:

1. `observe`: adopt what agents hold and nobody here knows; note what was accepted, refused, or is gone.
2. `balance`: retire what is too much, make room for what is missing.
3. `launch_rules`: judge each launch; the first rule that applies decides.
4. `fill`: place what has no launch, then the one next step of each roll-out; at most 20 placements.
5. Commands follow from the marks and reports of the launches; explanations and views from all of it.

While control is recovering steps 2 to 5 end, move and retire nothing.
"""

import operator
from collections.abc import Iterable, Mapping

import attrs

from llmgw.core.balance import set_count
from llmgw.core.catalog import spec_hash
from llmgw.core.explain import Explanation
from llmgw.core.fill import Filling, fill
from llmgw.core.group import Group, Wake, slot_of
from llmgw.core.launch_rules import commands, judge
from llmgw.core.lifecycle import split_replica
from llmgw.core.nodes import Node
from llmgw.core.observe import adopt, find, notice
from llmgw.core.plan import (
    ROUTER_LIVE_SECONDS,
    Command,
    CommandKey,
    DrainShard,
    Plan,
    Refused,
    Rng,
    RouterSeen,
    Settled,
    Start,
    Stop,
    Tried,
    World,
    key_of,
)
from llmgw.core.replica_views import explain, view
from llmgw.core.replicas import Replica, Replicas

__all__ = [
    "ROUTER_LIVE_SECONDS",
    "Command",
    "CommandKey",
    "DrainShard",
    "Plan",
    "Refused",
    "Rng",
    "RouterSeen",
    "Start",
    "Stop",
    "World",
    "key_of",
    "reconcile",
]


CLOCK_STEP_SECONDS = 1.0
"""The wall clock against the monotonic one: more is a step, after which every wall-clock time is looked at anew."""


def reconcile(world: World, rng: Rng, previous: Plan | None = None) -> Plan:
    """The next step towards the catalog. `previous`: the plan of the last wake; it saves work and decides nothing."""
    if previous is not None and _nothing_changed(world, previous):
        left = None if previous.due is None else max(0.0, previous.due - world.now)
        return attrs.evolve(
            previous, world=world, commands=_unsent(world, previous.wanted), wake_after=left, log=(), fired={}
        )
    found, epoch_max = find(
        world, previous.world.fleet if previous is not None and previous.world is not None else None
    )
    by_model = _by_model(world)
    touched = {one.model: None for one in found}
    settled = _still_settled(world, previous, by_model, touched)
    wake = Wake.begin(world, rng, previous, epoch_max)
    groups = _gather(world, by_model, settled, touched)
    for one in found:
        adopt(wake, groups[one.model], one)
    for group in groups.values():
        before = wake.waits
        notice(wake, group)
        set_count(wake, group)
        for slot in group.slots.values():
            for standing in tuple(slot.standings):
                judge(wake, group, slot, standing)
        group.waits += wake.waits - before
    filling = Filling(wake, groups, settled.values(), _still_refused(world, previous))
    # A model with nothing ready is placed before one that wants more.
    for group in sorted(groups.values(), key=lambda group: (group.ready > 0, group.name)):
        before = wake.waits
        fill(filling, group)
        group.waits += wake.waits - before
    return _plan(wake, groups, settled, filling)


def _unsent(world: World, wanted: Iterable[Command]) -> tuple[Command, ...]:
    return tuple(command for command in wanted if key_of(command) not in world.in_flight)


def _nothing_changed(world: World, previous: Plan) -> bool:
    before = previous.world
    return (
        before is not None
        and (previous.due is None or world.now < previous.due)
        and abs((world.wall - world.now) - (before.wall - before.now)) < CLOCK_STEP_SECONDS
        and world.fleet.version == before.fleet.version
        and world.replicas is previous.replicas
        and world.catalog is before.catalog
        and not world.refused
        and world.in_flight >= before.in_flight
        and world.routers == before.routers
        and world.withdrawn == before.withdrawn
        and world.served_names == before.served_names
    )


def _still_refused(world: World, previous: Plan | None) -> dict[str, list[Tried]]:
    """Placements that were refused in a fleet, with bookings, that are still the same; by model."""
    if (
        previous is None
        or previous.world is None
        or world.fleet.version != previous.world.fleet.version
        or world.replicas is not previous.replicas
    ):
        return {}
    found: dict[str, list[Tried]] = {}
    for tried in previous.tried:
        found.setdefault(tried.need.model, []).append(tried)
    return found


def _by_model(world: World) -> dict[str, list[Replica]]:
    found: dict[str, list[Replica]] = {}
    for replica in world.replicas.by_id.values():
        found.setdefault(replica.model, []).append(replica)
    return found


def _still_settled(
    world: World, previous: Plan | None, by_model: Mapping[str, list[Replica]], touched: Mapping[str, None]
) -> dict[str, Settled]:
    """Models that need no look, since nothing of them has changed."""
    if previous is None or world.fleet.recovery is not None:
        return {}
    nodes = world.fleet.nodes
    found = {}
    for name, settled in previous.settled.items():
        replicas = by_model.get(name, [])
        if (
            name not in touched
            and settled.model is world.catalog.models.get(name)
            and len(replicas) == len(settled.replicas)
            and all(map(operator.is_, replicas, settled.replicas))
            and all(map(operator.is_, _nodes_of(replicas, nodes), settled.nodes))
        ):
            found[name] = settled
    return found


def _nodes_of(replicas: Iterable[Replica], nodes: Mapping[str, Node]) -> tuple[Node | None, ...]:
    return tuple(
        nodes.get(member.node) for replica in replicas for launch in replica.launches for member in launch.members
    )


def _gather(
    world: World,
    by_model: Mapping[str, list[Replica]],
    settled: Mapping[str, Settled],
    touched: Mapping[str, None],
) -> dict[str, Group]:
    """Every model that needs a look, by name, sorted."""
    groups = {}
    for name in sorted({**world.catalog.models, **by_model, **touched}):
        if name in settled:
            continue
        model = world.catalog.models.get(name)
        profile = model.profile if model is not None else None
        if profile is None and name not in by_model and name not in touched:
            continue  # only static endpoints
        slots = [slot_of(replica, world.fleet) for replica in by_model.get(name, [])]
        groups[name] = Group(
            name=name,
            model=model if profile is not None else None,
            spec_hash=spec_hash(profile) if profile is not None else "",
            slots={slot.replica.id: slot for slot in sorted(slots, key=lambda slot: slot.number)},
            halt=world.replicas.halts.get(name),
        )
    return groups


def _plan(wake: Wake, groups: dict[str, Group], settled: dict[str, Settled], filling: Filling) -> Plan:
    found: list[Command] = []
    explanations: dict[str, Explanation] = {}
    views = {name: one.views for name, one in settled.items()}
    by_id = {replica.id: replica for one in settled.values() for replica in one.replicas}
    now_settled = dict(settled)
    for name, group in groups.items():
        before, sent = wake.waits, len(found)
        group.slots = {id_: slot for id_, slot in group.slots.items() if slot.live or slot.standings}
        for slot in group.slots.values():
            by_id[slot.replica.id] = slot.replica
            for standing in slot.standings:
                found += commands(wake, group, standing)
        explanation = explain(wake, group)
        if explanation is not None:
            explanations[name] = explanation
        views[name] = tuple(view(wake, group, slot) for slot in group.slots.values())
        waits = group.waits + wake.waits - before
        quiet = explanation is None and len(found) == sent and not waits and group.halt is None
        if quiet and not wake.recovering:  # what is put off until control has recovered comes then
            replicas = tuple(slot.replica for slot in group.slots.values())
            now_settled[name] = Settled(
                wake.world.catalog.models.get(name), replicas, _nodes_of(replicas, wake.fleet.nodes), views[name]
            )
    now = wake.world.now
    due = now if filling.left_over else wake.due
    return Plan(
        commands=_unsent(wake.world, found),
        replicas=_replicas(wake, groups, by_id),
        explanations=explanations,
        views=dict(sorted(views.items())),
        wake_after=None if due is None else max(0.0, due - now),
        log=tuple(wake.log),
        fired=wake.fired,
        world=wake.world,
        wanted=tuple(found),
        settled=now_settled,
        tried=tuple(one for of_model in filling.tried.values() for one in of_model),
        held_back=wake.held_back,
        due=due,
    )


def _replicas(wake: Wake, groups: dict[str, Group], by_id: dict[str, Replica]) -> Replicas:
    """The very object that went in where nothing else was decided."""
    old = wake.world.replicas
    halts = {name: group.halt for name, group in groups.items() if group.halt is not None}
    if by_id == old.by_id and halts == old.halts and wake.epoch_max == old.epoch_max:
        return old
    ordered = sorted(by_id.items(), key=lambda item: (item[1].model, split_replica(item[0])[1]))
    return Replicas(by_id=dict(ordered), halts=dict(sorted(halts.items())), epoch_max=wake.epoch_max)
