"""The working state of one wake of the reconciler: made at its start, thrown away at its end."""

import enum

import attrs

from llmgw.core.catalog import Model, Update
from llmgw.core.fleet_events import Line
from llmgw.core.lifecycle import split_replica
from llmgw.core.nodes import FleetView
from llmgw.core.placement import Unplaceable
from llmgw.core.plan import CommandKey, Plan, Rng, World
from llmgw.core.replicas import Halt, Launch, Replica
from llmgw.core.standing import Standing, read, routed

COMMAND_AGAIN_SECONDS = 5.0
"""A command that its agent refused is issued again after this: at once, it would be refused as fast as it is sent."""


@attrs.define
class Wake:
    """What the steps of one wake share."""

    world: World
    rng: Rng
    epoch_max: int
    held_back: dict[CommandKey, float]
    log: list[Line] = attrs.field(factory=list)
    fired: dict[str, int] = attrs.field(factory=dict)
    due: float | None = None
    """The earliest moment (monotonic) at which time alone changes something."""
    waits: int = 0
    """How often `due` was asked for."""

    @classmethod
    def begin(cls, world: World, rng: Rng, previous: Plan | None, epoch_max: int) -> "Wake":
        """An empty one."""
        held_back = dict(previous.held_back) if previous is not None else {}
        held_back |= {(no.shard, no.epoch, no.kind): world.now + COMMAND_AGAIN_SECONDS for no in world.refused}
        wake = cls(world, rng, epoch_max, {k: at for k, at in held_back.items() if at > world.now})
        for at in wake.held_back.values():
            wake.at(at)
        return wake

    @property
    def fleet(self) -> FleetView:
        """The fleet."""
        return self.world.fleet

    @property
    def recovering(self) -> bool:
        """Whether nothing may be stopped, moved or taken away."""
        return self.world.fleet.recovery is not None

    def fire(self, rule: str) -> None:
        """Count a rule that decided."""
        self.fired[rule] = self.fired.get(rule, 0) + 1

    def say(self, level: str, event: str, **facts: object) -> None:
        """Log a decision."""
        self.log.append(Line(level, event, facts))

    def at(self, moment: float) -> None:
        """Wake at that moment of the monotonic clock."""
        self.waits += 1
        self.due = moment if self.due is None else min(self.due, moment)

    def at_wall(self, moment: float) -> None:
        """Wake at that moment of the wall clock."""
        self.at(self.world.now + moment - self.world.wall)

    def next_epoch(self) -> int:
        """Never used before, also when the file that knew the last one is lost: it follows the clock."""
        self.epoch_max = max(self.epoch_max + 1, int(self.world.wall))
        return self.epoch_max

    def in_flight(self, replica: str, epoch: int) -> int:
        """Requests that routers have on that launch."""
        return sum(router.in_flight.get((replica, epoch), 0) for router in self.world.routers)

    def idle(self, replica: str, epoch: int) -> bool:
        """Whether every live router has confirmed a table without that launch, and has nothing left on it.

        (Before the confirmation a router may still be sending: 0 in flight then says nothing.)
        """
        withdrawn = self.world.withdrawn.get((replica, epoch))
        return withdrawn is not None and all(
            router.revision >= withdrawn and not router.in_flight.get((replica, epoch), 0)
            for router in self.world.routers
        )


class Verdict(enum.Enum):
    """What is to become of one launch (`launch_rules`)."""

    WAIT = "wait"
    """Nothing is known or nothing can be done now; it keeps its place."""
    KEEP = "keep"
    MOVE = "move"
    """Its place is free: the replica may be launched elsewhere. It is itself left alone, since it cannot be reached."""
    START = "start"
    DRAIN = "drain"
    """Mark it draining; or, where it serves nobody, stop it at once."""
    STOP = "stop"
    FORGET = "forget"
    """It was decided and never reached its node."""


@attrs.define
class Slot:
    """One replica while it is worked on."""

    replica: Replica
    number: int
    standings: list[Standing]
    """Newest epoch first; as many as `replica.launches`."""
    verdicts: dict[int, Verdict] = attrs.field(factory=dict)
    """By epoch."""

    @property
    def live(self) -> bool:
        """Whether it is to stay."""
        return not self.replica.retired

    @property
    def main(self) -> Standing | None:
        """The launch that stands for it: the one that routers see, else the newest that is not ending, else any."""
        seen = routed(self.standings)
        if seen is not None:
            return seen
        staying = [standing for standing in self.standings if not standing.launch.ending]
        return next(iter(staying or self.standings), None)

    @property
    def vacant(self) -> bool:
        """Whether nothing holds its place: no launch, or only such as may be replaced while out of reach."""
        return all(self.verdicts.get(one.launch.epoch) is Verdict.MOVE for one in self.standings)

    @property
    def ready(self) -> bool:
        """Whether it counts towards what the model is promised."""
        main = self.main
        return main is not None and main.ready

    def change(self, standing: Standing, launch: Launch) -> None:
        """Something else is decided of one launch."""
        self.standings[self.standings.index(standing)] = attrs.evolve(standing, launch=launch)
        launches = tuple(launch if old is standing.launch else old for old in self.replica.launches)
        self.replica = attrs.evolve(self.replica, launches=launches)

    def remove(self, standing: Standing) -> None:
        """Nothing of that launch is left."""
        self.standings = [one for one in self.standings if one.launch is not standing.launch]
        launches = tuple(launch for launch in self.replica.launches if launch is not standing.launch)
        self.replica = attrs.evolve(self.replica, launches=launches, last_node=standing.launch.members[0].node)

    def add(self, launch: Launch, fleet: FleetView) -> None:
        """A launch was decided or found."""
        launches = sorted((*self.replica.launches, launch), key=lambda one: -one.epoch)
        self.replica = attrs.evolve(self.replica, launches=tuple(launches))
        self.standings.append(read(self.replica, launch, fleet))
        self.standings.sort(key=lambda standing: -standing.launch.epoch)


@attrs.define
class Group:
    """One model and all its replicas."""

    name: str
    model: Model | None
    """None: nothing of that name is to run here (any more)."""
    spec_hash: str
    """Of the present profile."""
    slots: dict[str, Slot]
    """By replica id, sorted by number."""
    halt: Halt | None
    notes: list[str] = attrs.field(factory=list)
    """What to tell of it, most important first."""
    unplaceable: Unplaceable | None = None
    change: str = ""
    """What would help."""
    waits: int = 0
    """How often it asked to be woken at some moment."""

    @property
    def desired(self) -> int:
        """Replicas that should be ready."""
        return self.model.replicas if self.model is not None else 0

    @property
    def live(self) -> list[Slot]:
        """Those that are to stay."""
        return [slot for slot in self.slots.values() if slot.live]

    @property
    def ready(self) -> int:
        """How many are ready."""
        return sum(slot.ready for slot in self.live)

    @property
    def promised(self) -> int:
        """Never fewer ready than this for a cause of ours, and never more than desired.

        Without a word of the operator one may be missing, and the last one only where `update = "stop-first"` says
        that an outage is wanted rather than a second copy.
        """
        assert self.model is not None
        if self.model.ready_min is not None:
            return min(self.model.ready_min, self.desired)
        least = 0 if self.model.update is Update.STOP_FIRST else 1
        return max(min(least, self.desired), self.desired - 1)

    def outdated(self, standing: Standing) -> bool:
        """Whether it runs another profile than the present one."""
        return standing.launch.spec_hash != self.spec_hash

    def new_slot(self) -> Slot:
        """An empty one with the lowest free number."""
        taken = {slot.number for slot in self.slots.values()}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        slot = Slot(Replica(f"{self.name}/{number}", self.name), number, [])
        self.put(slot)
        return slot

    def put(self, slot: Slot) -> None:
        """Add a slot, keeping the order."""
        self.slots[slot.replica.id] = slot
        self.slots = dict(sorted(self.slots.items(), key=lambda item: item[1].number))


def slot_of(replica: Replica, fleet: FleetView) -> Slot:
    """The slot of a replica that is known."""
    number = split_replica(replica.id)[1]
    return Slot(replica, number, [read(replica, launch, fleet) for launch in replica.launches])


def is_stranger(wake: Wake, launch: Launch) -> bool:
    """Whether it is spared: found after a start without a file, by a control that cannot know who wants it."""
    until = wake.fleet.spare_strangers_until
    if launch.ours or until is None or wake.world.now >= until:
        return False
    wake.at(until)
    return True
