"""A node as control sees it, and the fleet at one moment: types only, what decisions read. `fleet` changes them."""

import enum

import attrs

from llmgw.core.hardware import NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport


class NodeState(enum.StrEnum):
    """How far a node can be believed."""

    SYNCING = "syncing"
    """Known, and its whole state is not in yet."""
    HEALTHY = "healthy"
    UNREACHABLE = "unreachable"
    """Silent for a little while: nothing new is placed, its endpoints are suspect."""
    LOST = "lost"
    """Silent for long, witnessed: its replicas may be replaced."""
    INCOMPATIBLE = "incompatible"
    """Speaks another major version."""


@attrs.frozen
class Node:
    """One node, as published to every reader: all that a decision looks at. Times are of the monotonic clock.

    A heartbeat that changes nothing here leaves the very same object in place; what every heartbeat renews is in
    `Pulse`.
    """

    id: str
    state: NodeState
    reason: str = ""
    """Why it is in that state, for a person; empty when healthy."""
    instance: str = ""
    boot_id: str = ""
    connection: int | None = None
    """Identity of the live connection; None: none. Never compare nodes' names for this."""
    peer: str = ""
    """Where the connection comes from, `10.0.0.5:43210`."""
    agent_version: str = ""
    address: str = ""
    """Host under which its engines are reached."""
    labels: dict[str, str] = attrs.field(factory=dict)
    ports: PortRange = PortRange(20000, 20999)
    hardware: NodeHardware = NodeHardware()
    problems: tuple[Problem, ...] = ()
    shards: dict[str, ShardReport] = attrs.field(factory=dict)
    """By shard id: what it reported last."""
    ended: dict[str, ShardReport] = attrs.field(factory=dict)
    """By shard id: the last report of shards that it holds no more, all of them gone (one that was not terminal
    counts as `failed`, cause `unknown to its agent`). Bounded; the oldest fall out."""
    shard_since: dict[str, float] = attrs.field(factory=dict)
    """When each shard, held or ended, entered its state."""
    outputs: dict[str, str] = attrs.field(factory=dict)
    """The last output of shards that failed, by shard id; bounded."""
    cordoned: bool = False
    draining: bool = False
    engines_kept: bool = False
    """Its agent said Goodbye(kept): the engines go on without it."""
    engines_stopped: bool = False
    """Its agent said Goodbye(stopped): lost at once, and nothing of it is left."""
    since: float = 0.0
    """When it entered its state."""

    def report(self, shard: str, epoch: int) -> ShardReport | None:
        """What it said last of that launch of that shard, held or ended; None: nothing."""
        for reports in (self.shards, self.ended):
            found = reports.get(shard)
            if found is not None and found.epoch == epoch:
                return found
        return None

    @property
    def commandable(self) -> bool:
        """Whether commands can reach it now."""
        return self.state is NodeState.HEALTHY and self.connection is not None


@attrs.frozen
class Pulse:
    """What every heartbeat of a node renews, and no decision looks at but for the silence."""

    last_heard: float | None = None
    """When the last frame arrived, on the monotonic clock; None: not since this control started."""
    heard: float = 0.0
    """The same on the hearing clock, which stands still while control is deaf; for a node that was not heard
    since control started: when control could first hear."""
    gpu_memory_used_bytes: dict[str, int | None] = attrs.field(factory=dict)
    gpu_memory_stale_seconds: float = 0.0
    """Age of these numbers when they arrived."""
    status_acked: int = 0
    """Highest status number of this instance that was handled."""
    interval_seconds: float = 0.0
    """The heartbeat interval that it was told last."""


class Memory(enum.StrEnum):
    """What this control remembers of the one before it."""

    FIRST_START = "first start"
    """No file: nothing is known, and nothing was."""
    LOADED = "loaded"
    UNREADABLE = "unreadable"
    """There is a file, and nobody knows what it says: never taken for `nothing should run`."""


@attrs.frozen
class Recovery:
    """Control is recovering: no stop, no expiry, no removal."""

    known: int
    """Nodes that are waited for."""
    synced: int
    """Those of them whose whole state is in."""
    until: float
    """When it is over at the latest, on the monotonic clock (later if control is deaf meanwhile)."""
    reason: str


@attrs.frozen
class FleetView:
    """The fleet at one moment. Immutable: whoever has it may keep it."""

    version: int = 0
    """Rises with every change that a decision could depend on; heartbeats that bring nothing new leave it."""
    nodes: dict[str, Node] = attrs.field(factory=dict)
    """By id, sorted by it."""
    pulses: dict[str, Pulse] = attrs.field(factory=dict)
    memory: Memory = Memory.FIRST_START
    recovery: Recovery | None = None
    """None: serving."""
    spare_strangers_until: float | None = None
    """Until then (monotonic) no shard is stopped that this control did not start itself: set for `recover_for`
    after a first start; None: over, or never."""
    deaf_seconds: float = 0.0
    """By how much the hearing clock is behind the monotonic one."""
    heartbeat_interval_seconds: float = 2.0
    """What agents are told now."""

    def silence(self, node: str, now: float) -> float:
        """Seconds of witnessed silence: since the last frame, without the time in which control was deaf."""
        return max(0.0, now - self.deaf_seconds - self.pulses[node].heard)
