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

import attrs

from llmgw.core.balance import set_count
from llmgw.core.catalog import Model, spec_hash
from llmgw.core.fill import Filling, fill
from llmgw.core.group import Group, Wake, slot_of
from llmgw.core.launch_rules import commands, judge
from llmgw.core.lifecycle import split_replica
from llmgw.core.observe import adopt, notice
from llmgw.core.plan import (
    ROUTER_LIVE_SECONDS,
    Command,
    CommandKey,
    DrainShard,
    Plan,
    Refused,
    Rng,
    RouterSeen,
    Start,
    Stop,
    Tried,
    World,
    key_of,
)
from llmgw.core.replica_views import explain, view
from llmgw.core.replicas import Replicas

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
        again = tuple(command for command in previous.commands if key_of(command) not in world.in_flight)
        return attrs.evolve(previous, commands=again, wake_after=left, log=(), fired={})
    wake = Wake.begin(world, rng, previous)
    groups = _gather(world)
    adopt(wake, groups)
    groups = dict(sorted(groups.items()))
    for group in groups.values():
        notice(wake, group)
        set_count(wake, group)
        for slot in group.slots.values():
            for standing in tuple(slot.standings):
                judge(wake, group, slot, standing)
    filling = Filling(wake, groups, _still_refused(world, previous))
    # A model with nothing ready is placed before one that wants more.
    for group in sorted(groups.values(), key=lambda group: (group.ready > 0, group.name)):
        fill(filling, group)
    return _plan(wake, groups, filling)


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


def _gather(world: World) -> dict[str, Group]:
    models: dict[str, Model] = {
        name: model for name, model in world.catalog.models.items() if model.profile is not None
    }
    groups = {}
    for name, model in models.items():
        assert model.profile is not None
        groups[name] = Group(name, model, spec_hash(model.profile), {}, world.replicas.halts.get(name))
    for replica in sorted(world.replicas.by_id.values(), key=lambda one: (one.model, split_replica(one.id)[1])):
        if replica.model not in groups:
            groups[replica.model] = Group(replica.model, None, "", {}, None)
        groups[replica.model].slots[replica.id] = slot_of(replica, world.fleet)
    return groups


def _plan(wake: Wake, groups: dict[str, Group], filling: Filling) -> Plan:
    found: list[Command] = []
    explanations, views = {}, {}
    for name, group in groups.items():
        group.slots = {id_: slot for id_, slot in group.slots.items() if slot.live or slot.standings}
        for slot in group.slots.values():
            for standing in slot.standings:
                found += commands(wake, group, standing)
        explanation = explain(wake, group)
        if explanation is not None:
            explanations[name] = explanation
        views[name] = tuple(view(wake, group, slot) for slot in group.slots.values())
    now = wake.world.now
    due = now if filling.left_over else wake.due
    return Plan(
        commands=tuple(found),
        replicas=_replicas(wake, groups),
        explanations=explanations,
        views=views,
        wake_after=None if due is None else max(0.0, due - now),
        log=tuple(wake.log),
        fired=wake.fired,
        world=wake.world,
        tried=tuple(one for of_model in filling.tried.values() for one in of_model),
        held_back=wake.held_back,
        due=due,
    )


def _replicas(wake: Wake, groups: dict[str, Group]) -> Replicas:
    old = wake.world.replicas
    new = Replicas(
        by_id={id_: slot.replica for group in groups.values() for id_, slot in group.slots.items()},
        halts={name: group.halt for name, group in groups.items() if group.halt is not None},
        epoch_max=wake.epoch_max,
    )
    return old if new == old else new
