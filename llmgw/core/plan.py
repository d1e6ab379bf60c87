"""What goes into a wake of the reconciler, and what comes out: commands, `World`, `Plan`. Only types."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

import attrs

from llmgw.core.catalog import Catalog, Model, Profile
from llmgw.core.explain import Explanation
from llmgw.core.fleet_events import Line
from llmgw.core.nodes import FleetView, Node
from llmgw.core.placement import Need, Unplaceable
from llmgw.core.replicas import Replica, Replicas, ReplicaView


class Rng(Protocol):
    """What is used of `random.Random`."""

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""


# --- commands -------------------------------------------------------------------------------------------------

CommandKey = tuple[str, int, str]
"""(shard, epoch, kind): what makes two commands the same."""


@attrs.frozen
class Start:
    """Launch a shard: a StartShard."""

    kind: ClassVar[str] = "start"

    node: str
    shard: str
    epoch: int
    spec_hash: str
    profile: Profile
    served_name: str
    gpus: tuple[str, ...] = ()
    rank: int = 0


@attrs.frozen
class Stop:
    """End a shard: a StopShard."""

    kind: ClassVar[str] = "stop"

    node: str
    shard: str
    epoch: int
    grace_seconds: float
    reason: str


@attrs.frozen
class DrainShard:
    """Mark a shard draining: a DrainShard."""

    kind: ClassVar[str] = "drain"

    node: str
    shard: str
    epoch: int
    deadline_seconds: float


Command = Start | Stop | DrainShard


def key_of(command: Command) -> CommandKey:
    """What the command is known by while it is in flight."""
    return command.shard, command.epoch, command.kind


# --- inputs ---------------------------------------------------------------------------------------------------

ROUTER_LIVE_SECONDS = 10.0
"""A router that reports every 2 s and missed five is not waited for."""


@attrs.frozen
class RouterSeen:
    """What a live router reported last. Live: its stream is open and a report came within `ROUTER_LIVE_SECONDS`."""

    id: str
    revision: int
    """Of the table that it uses; 0 where it is one of another control."""
    in_flight: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """(replica id, epoch) -> requests; what is not in it has none."""


@attrs.frozen
class Refused:
    """A command that its agent refused since the last wake."""

    shard: str
    epoch: int
    kind: str
    reason: str


@attrs.frozen
class World:
    """Everything that a wake looks at."""

    catalog: Catalog
    fleet: FleetView
    replicas: Replicas
    now: float
    """Monotonic seconds, the clock of the fleet."""
    wall: float
    """Unix seconds."""
    routers: tuple[RouterSeen, ...] = ()
    """The live ones."""
    withdrawn: Mapping[tuple[str, int], int] = attrs.field(factory=dict)
    """(replica id, epoch) -> the first revision since which no table offers it (see `routes.withdrawn`)."""
    in_flight: frozenset[CommandKey] = frozenset()
    """Commands that went out on the stream that is open now, and are not acknowledged. Only asked, never iterated."""
    refused: tuple[Refused, ...] = ()
    served_names: Mapping[str, str] = attrs.field(factory=dict)
    """Model -> the name that its engine is told; absent: the model's own name."""


# --- outputs --------------------------------------------------------------------------------------------------


@attrs.frozen
class Tried:
    """A placement that was refused; it holds until something changes."""

    need: Need
    refuse: Mapping[str, tuple[str, str]]
    answer: Unplaceable


@attrs.frozen(eq=False)
class Settled:
    """A model that was as the catalog says and waited for nothing: made of the very same objects, it still is.

    (What a wake costs follows from what has changed, not from the size of the fleet.)
    """

    model: Model | None
    replicas: tuple[Replica, ...]
    nodes: tuple[Node | None, ...]
    """Of every member of every launch."""
    views: tuple[ReplicaView, ...]


@attrs.frozen
class Plan:
    """The answer. First write `replicas` to the store (if it is not the very object that went in), then send."""

    commands: tuple[Command, ...]
    replicas: Replicas
    explanations: dict[str, Explanation]
    """Of every model that is not as the catalog says."""
    views: dict[str, tuple[ReplicaView, ...]]
    """Model -> its replicas as the status shows them."""
    wake_after: float | None
    """Seconds after which time alone changes the answer: 0: at once (more to decide), None: wake on events only."""
    log: tuple[Line, ...]
    fired: dict[str, int]
    """Rule -> how often it decided."""
    world: World | None = None
    """What it was made from, to see what has changed at the next wake."""
    wanted: tuple[Command, ...] = ()
    """The commands, and those that are in flight already: what is not in flight any more is issued again."""
    settled: Mapping[str, Settled] = attrs.field(factory=dict)
    """By model."""
    tried: tuple[Tried, ...] = ()
    """Placements not to be tried again while nothing has changed."""
    held_back: Mapping[CommandKey, float] = attrs.field(factory=dict)
    """Commands that their agent refused, until when (monotonic) they are not issued again."""
    due: float | None = None
    """The moment of `wake_after` on the monotonic clock."""
