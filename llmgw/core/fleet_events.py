"""What can happen to the fleet, and what must be done about it.

Events go into `llmgw.core.fleet.apply`, effects come out of it. The inventory actor turns messages and closed
streams into events and carries the effects out, in the order in which they are given. A connection is an int that
is never used twice while control lives: nodes are told apart by it, never by their names.
"""

from typing import Any

import attrs

from llmgw.core.hardware import NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport

# --- events ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Registration:
    """What an agent says of itself, whole. The fields are those of the message `Register`."""

    node: str
    instance: str
    boot_id: str = ""
    agent_version: str = ""
    address: str = ""
    """Host under which its engines are reached; empty: the host that the connection comes from."""
    labels: dict[str, str] = attrs.field(factory=dict)
    ports: PortRange = PortRange(20000, 20999)
    hardware: NodeHardware = NodeHardware()
    hardware_complete: bool = True
    problems: tuple[Problem, ...] = ()
    shards: tuple[ShardReport, ...] = ()


@attrs.frozen
class Registered:
    """A Register arrived: first on its connection, or again because the hardware changed."""

    connection: int
    peer: str
    """Where the connection comes from: `10.0.0.5:43210`, `[::1]:43210`."""
    registration: Registration


@attrs.frozen
class HeartbeatIn:
    """A Heartbeat arrived."""

    connection: int
    node: str
    gpu_memory_used_bytes: dict[str, int | None] = attrs.field(factory=dict)
    stale_seconds: float = 0.0
    problems: tuple[Problem, ...] = ()
    shards: tuple[ShardReport, ...] = ()


@attrs.frozen
class StatusIn:
    """A ShardStatus arrived. Acknowledge `number` after `apply` has returned."""

    connection: int
    node: str
    number: int
    report: ShardReport
    output: str = ""


@attrs.frozen
class StartAccepted:
    """An agent acknowledged a StartShard: from now on its lists must hold the shard.

    Apply it before the command is taken off the commands in flight; else a wake between the two sends the command
    again (which is harmless).
    """

    connection: int
    node: str
    shard: str
    epoch: int
    spec_hash: str
    gpus: tuple[str, ...] = ()
    port: int | None = None
    rendezvous_port: int | None = None


@attrs.frozen
class Heard:
    """Any other frame arrived (Ack, Ping, LogChunk): the node is not silent."""

    connection: int
    node: str


@attrs.frozen
class EngineAnswered:
    """An engine of a node whose agent said Goodbye(kept) accepted a connection on its port."""

    node: str


@attrs.frozen
class Disconnected:
    """A connection ended, for whatever reason."""

    connection: int
    node: str


@attrs.frozen
class Farewell:
    """A Goodbye arrived."""

    connection: int
    node: str
    engines: str = "kept"
    """`kept` or `stopped`; anything else counts as kept, the careful reading."""
    reason: str = ""


@attrs.frozen
class Incompatible:
    """A Register of another major version was refused."""

    node: str
    peer: str
    theirs: str
    """Its version, as text."""
    ours: str


@attrs.frozen
class Marked:
    """An operator cordons or drains a node, or takes that back. None: as it is."""

    node: str
    cordoned: bool | None = None
    draining: bool | None = None


@attrs.frozen
class Forgotten:
    """An operator declares a silent node gone for good. A node that is connected is not forgotten."""

    node: str


@attrs.frozen
class Tick:
    """Time passed. Due every `fleet.TICK_SECONDS`."""


Event = (
    Registered
    | HeartbeatIn
    | StatusIn
    | StartAccepted
    | Heard
    | EngineAnswered
    | Disconnected
    | Farewell
    | Incompatible
    | Marked
    | Forgotten
    | Tick
)

# --- effects --------------------------------------------------------------------------------------------------


@attrs.frozen
class KnownNode:
    """What of a node outlives this control: one row of its store, JSON-able."""

    id: str
    instance: str = ""
    boot_id: str = ""
    address: str = ""
    peer: str = ""
    labels: dict[str, str] = attrs.field(factory=dict)
    cordoned: bool = False
    draining: bool = False
    lost: bool = False
    """Lost, or gone by Goodbye(stopped): not waited for after a restart of control."""
    engines_kept: bool = False
    shards: tuple[ShardReport, ...] = ()
    """What it held when its agent said Goodbye(kept), since nobody else will report it; else empty."""


@attrs.frozen
class Accept:
    """Answer the Register of this connection: the session is open."""

    connection: int
    node: str
    heartbeat_interval_seconds: float
    status_acked: int
    """Highest status number of this instance that was handled."""


@attrs.frozen
class Refuse:
    """Answer Refused on this connection and close it."""

    connection: int
    node: str
    reason: str
    retry_after_seconds: float


@attrs.frozen
class Supersede:
    """Close this connection: a newer one of the same instance has taken its place."""

    connection: int
    node: str


@attrs.frozen
class Remember:
    """Write this row, in place of the one of the same id."""

    node: KnownNode


@attrs.frozen
class Forget:
    """Delete the row of this node."""

    node: str


@attrs.frozen
class Line:
    """A log line: a short lower-case phrase, and facts."""

    level: str
    """`info` or `warning`."""
    event: str
    facts: dict[str, Any] = attrs.field(factory=dict)


Effect = Accept | Refuse | Supersede | Remember | Forget | Line
