"""What should change: the difference between the catalog and what agents report, as one `Plan`.

Pure and level-triggered: it is called at every wake with the whole truth, issues the same idempotent commands until
the reports agree, and remembers nothing but what is in `Replicas`.
"""

from collections.abc import Mapping
from typing import Protocol

import attrs

from llmgw.core.catalog import Catalog, Profile
from llmgw.core.explain import Explanation
from llmgw.core.fleet import FleetView
from llmgw.core.fleet_events import Line
from llmgw.core.replicas import Replicas, ReplicaView


class Rng(Protocol):
    """What is used of `random.Random`."""

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""


# --- commands -------------------------------------------------------------------------------------------------


@attrs.frozen
class Start:
    """Launch a shard: a StartShard."""

    node: str
    shard: str
    epoch: int
    spec_hash: str
    profile: Profile
    served_name: str
    gpus: tuple[str, ...] = ()
    rank: int = 0

    kind = "start"


@attrs.frozen
class Stop:
    """End a shard: a StopShard."""

    node: str
    shard: str
    epoch: int
    grace_seconds: float
    reason: str

    kind = "stop"


@attrs.frozen
class DrainShard:
    """Mark a shard draining: a DrainShard."""

    node: str
    shard: str
    epoch: int
    deadline_seconds: float

    kind = "drain"


Command = Start | Stop | DrainShard

CommandKey = tuple[str, int, str]
"""(shard, epoch, kind): what makes two commands the same."""


# --- inputs ---------------------------------------------------------------------------------------------------


@attrs.frozen
class RouterSeen:
    """What a live router reported last. Live: its stream is open and a report came within `ROUTER_LIVE_SECONDS`."""

    id: str
    revision: int
    """Of the table that it uses; 0 where it is one of another control."""
    in_flight: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """(replica id, epoch) -> requests; what is not in it has none."""


ROUTER_LIVE_SECONDS = 10.0
"""A router that reports every 2 s and missed five is not waited for."""


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
    withdrawn: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """(replica id, epoch) -> the first revision since which no table offers it (see `routes.withdrawn`)."""
    in_flight: frozenset[CommandKey] = frozenset()
    """Commands that went out on the stream that is open now, and are not acknowledged."""
    refused: tuple[Refused, ...] = ()
    served_names: Mapping[str, str] = attrs.field(factory=dict)
    """Model -> the name that its engine is told; absent: the model's own name."""


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


def reconcile(world: World, rng: Rng, previous: Plan | None = None) -> Plan:
    """The next step towards the catalog. `previous`: the plan of the last wake, which saves work and decides nothing."""
    raise AssertionError
