"""Every message of the protocol, as attrs classes. A message on the wire is one map whose `type` is the class's name.

The rules for changing them: a field is only ever added, with a default; a field is never renamed, retyped or
reused; unknown fields are ignored; a message the other side does not know is answered `Unsupported` and the
connection lives. Times are ages in seconds, never wall clocks. Recorded bytes of version 1 in the tests decode
for ever.

Who sends what is in the four unions at the end; which of them opens a session, and in what order, is
`llmgw.wire.session`.
"""

import attrs

from llmgw.core.catalog import Profile
from llmgw.core.hardware import NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.routing import ClientKey, Endpoint, RoutedModel

PROTOCOL = (1, 0)
"""(major, minor) of this version. Another major is refused; another minor only lacks or adds fields and messages."""


# --- an agent, up ---------------------------------------------------------------------------------------------


@attrs.frozen
class Register:
    """First message of an agent; again on a live stream when its hardware changed. Holds its whole truth."""

    protocol: tuple[int, int]
    node: str
    instance: str
    """Random, kept in the agent's state_dir and bound to the machine: tells two machines with one name apart."""
    boot_id: str = ""
    agent_version: str = ""
    address: str = ""
    """Where engines are reached; empty: the address that this connection comes from."""
    labels: dict[str, str] = attrs.field(factory=dict)
    ports: PortRange = PortRange(20000, 20999)
    hardware: NodeHardware = NodeHardware()
    hardware_complete: bool = True
    """False while the hardware could not be read fully: it never takes away a GPU that control knows."""
    problems: tuple[Problem, ...] = ()
    shards: tuple[ShardReport, ...] = ()
    """Every shard it holds. A shard that control knows and this lacks is gone."""


@attrs.frozen
class Heartbeat:
    """What is true now, whole: it mends whatever a lost event left wrong."""

    number: int
    """Rises by one per heartbeat of a connection."""
    gpu_memory_used_bytes: dict[str, int | None] = attrs.field(factory=dict)
    """By UUID; None: not available."""
    stale_seconds: float = 0.0
    """Age of the GPU numbers."""
    problems: tuple[Problem, ...] = ()
    shards: tuple[ShardReport, ...] = ()


@attrs.frozen
class ShardStatus:
    """One transition of one shard, at once. Sent again after a new registration until acknowledged."""

    number: int
    """Rises per instance of an agent."""
    report: ShardReport
    output: str = ""
    """The end of what the engine printed, where it explains the state."""


@attrs.frozen
class Ack:
    """The answer to a command."""

    command_id: int
    accepted: bool
    reason: str = ""
    port: int | None = None
    rendezvous_port: int | None = None
    """Of rank 0 of a replica over several nodes."""


@attrs.frozen
class LogChunk:
    """Part of an engine's output."""

    request_id: int
    data: bytes


@attrs.frozen
class LogEnd:
    """The end of a LogRequest."""

    request_id: int
    reason: str = ""
    """Empty: all was sent."""
    dropped_bytes: int = 0


@attrs.frozen
class RenewRequest:
    """A certificate is asked for; on a connection of its own, or on a live stream."""

    csr: str
    """PEM."""
    token: str = ""
    """A join token; empty: the certificate of this connection vouches."""


@attrs.frozen
class Goodbye:
    """The sender ends in order."""

    engines: str = "kept"
    """`kept` or `stopped`; a router says neither."""
    reason: str = ""


@attrs.frozen
class Unsupported:
    """The answer to a message whose type the receiver does not know. The connection lives."""

    name: str
    command_id: int | None = None


# --- control, down to an agent --------------------------------------------------------------------------------


@attrs.frozen
class Registered:
    """The answer to Register: the session is open."""

    control_incarnation: str
    heartbeat_interval_seconds: float
    status_acked: int = 0
    """Highest ShardStatus number of this instance that control has handled."""
    protocol: tuple[int, int] = PROTOCOL
    control_version: str = ""


@attrs.frozen
class Refused:
    """The session is not opened; the sender closes after this."""

    reason: str
    retry_after_seconds: float = 0.0
    protocol: tuple[int, int] = PROTOCOL


@attrs.frozen
class StatusAck:
    """Every ShardStatus up to this number was handled."""

    number: int


@attrs.frozen
class StartShard:
    """Launch a shard. Repeated for the same epoch: a no-op, acknowledged again."""

    command_id: int
    shard: str
    epoch: int
    spec_hash: str
    profile: Profile
    served_name: str
    gpus: tuple[str, ...] = ()
    """UUIDs, decided by control."""
    fabric: str = ""
    peers: tuple[str, ...] = ()
    """Of a replica over several nodes: `address:rendezvous_port` of rank 0 first, then the others' addresses."""
    rank: int = 0
    key: str = ""
    """What the engine must ask of its clients; empty: nothing. Secret."""


@attrs.frozen
class StopShard:
    """End a shard: SIGTERM, the grace, then SIGKILL to every descendant."""

    command_id: int
    shard: str
    epoch: int
    grace_seconds: float = 20.0
    reason: str = ""


@attrs.frozen
class DrainShard:
    """Mark a shard draining, so that a new control finds the drain. The agent stops nothing by it."""

    command_id: int
    shard: str
    epoch: int
    deadline_seconds: float = 60.0


@attrs.frozen
class LogRequest:
    """Send a shard's output as LogChunk, then LogEnd."""

    request_id: int
    shard: str
    previous: bool = False
    follow: bool = False
    bytes_max: int = 65536


@attrs.frozen
class LogCancel:
    """Stop following a log."""

    request_id: int


@attrs.frozen
class Certificate:
    """The answer to RenewRequest."""

    chain: str
    """PEM, leaf first."""


@attrs.frozen
class Ping:
    """Says that the sender lives, where it has nothing else to say."""

    heartbeat_interval_seconds: float | None = None
    """From control: the interval from now on; the fleet may have grown."""


# --- routers --------------------------------------------------------------------------------------------------


@attrs.frozen
class Follow:
    """First message of a router."""

    protocol: tuple[int, int]
    router: str
    """Its id, for the status."""
    version: str = ""
    incarnation_held: str = ""
    revision_held: int = 0
    """Of the table it serves now; 0: none."""


@attrs.frozen
class EndpointReport:
    """What a router saw of one endpoint."""

    id: str
    epoch: int
    in_flight: int
    completion_age_seconds: float | None = None
    """Since the last answer that ended well; None: none yet."""
    state: str = ""
    """`suspect` or `unreachable` as seen from here; empty: fine."""
    reason: str = ""


@attrs.frozen
class RouterReport:
    """What a router saw, every 2 s and at once when a draining endpoint has become idle."""

    incarnation: str
    revision: int
    """Of the table in use."""
    endpoints: tuple[EndpointReport, ...] = ()
    queued: dict[str, int] = attrs.field(factory=dict)
    """By model."""
    counters: dict[str, float] = attrs.field(factory=dict)
    """Prometheus samples, `name{label="value"}` -> value, summed by the parent of several workers."""


@attrs.frozen
class RouteTable:
    """The whole table, in `parts` parts (numbered from 0); applied when all of one revision are in."""

    incarnation: str
    """Of the control that made it: revisions compare only within one."""
    revision: int
    part: int = 0
    parts: int = 1
    complete: bool = True
    """False while control is recovering: a router adds and changes, and never removes."""
    models: tuple[RoutedModel, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    keys: tuple[ClientKey, ...] = ()


@attrs.frozen
class RouteSet:
    """Entries to add or to replace, by name and by id."""

    models: tuple[RoutedModel, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()


@attrs.frozen
class RouteRemoved:
    """Names and ids to take away."""

    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


@attrs.frozen
class RouteChange:
    """The step from the revision before to this one. A receiver that lacks the one before follows anew."""

    incarnation: str
    revision: int
    complete: bool = True
    set: RouteSet = RouteSet()
    removed: RouteRemoved = RouteRemoved()


# --- who may send what ----------------------------------------------------------------------------------------

AgentUp = Register | Heartbeat | ShardStatus | Ack | LogChunk | LogEnd | RenewRequest | Goodbye | Unsupported | Ping
AgentDown = (
    Registered
    | Refused
    | StatusAck
    | StartShard
    | StopShard
    | DrainShard
    | LogRequest
    | LogCancel
    | Certificate
    | Ping
    | Unsupported
)
RouterUp = Follow | RouterReport | Goodbye | Unsupported | Ping
RouterDown = RouteTable | RouteChange | Refused | Ping | Unsupported

Message = AgentUp | AgentDown | RouterUp | RouterDown
