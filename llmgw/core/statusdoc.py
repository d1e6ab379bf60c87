"""The shape of `GET /api/v1/status`: made by control, read by `llmgw status` and by people's own scripts.

A field is only ever added, with a default, so that an older command reads a newer control and the other way
round. Ages and durations are seconds (`_s`), sizes bytes; `None` means "not known". The classes have no slots,
so that the fields are encoded in the order in which they stand here.
"""

import attrs

from llmgw.core.explain import Explanation


@attrs.frozen(slots=False)
class ControlStatus:
    """The control plane itself."""

    version: str
    state: str
    """`recovering` or `serving`."""
    uptime_s: float
    known_nodes: int
    """Nodes that neither were lost nor ended in order."""
    synced_nodes: int
    """Those of them whose whole state is in."""
    reason: str = ""
    """Why it is in that state and what it waits for, in one line; empty when there is nothing to say."""
    incarnation: str = ""
    """Another one after each start."""
    routes_revision: int = 0
    """Of the newest route table."""


@attrs.frozen(slots=False)
class GpuStatus:
    """One GPU of a node."""

    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int | None
    problems: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    """Ids of the shards that are booked on it."""


@attrs.frozen(slots=False)
class FabricStatus:
    """A labelled RDMA network that a node is on."""

    name: str
    hcas: tuple[str, ...] = ()


@attrs.frozen(slots=False)
class NodeStatus:
    """One node."""

    id: str
    state: str
    marks: tuple[str, ...] = ()
    """`cordoned`, `draining`."""
    address: str = ""
    last_heard_s: float | None = None
    """Age of the last frame; None: nothing since this control started."""
    gpus: tuple[GpuStatus, ...] = ()
    fabrics: tuple[FabricStatus, ...] = ()
    labels: dict[str, str] = attrs.field(factory=dict)
    reason: str = ""
    """Why it is in that state; empty when healthy."""
    since_s: float | None = None
    """How long it has been in that state."""
    agent_version: str = ""
    cpus: int = 0
    memory_total_bytes: int = 0
    gpu_memory_age_s: float | None = None
    """Age of `memory_used_bytes` of its GPUs."""
    problems: tuple[str, ...] = ()
    """Of the node as a whole."""


@attrs.frozen(slots=False)
class RouterStatus:
    """One process that follows control's route table."""

    id: str
    revision: int
    """Of the table that it uses; 0: none of this control yet."""
    last_heard_s: float | None
    current: bool = False
    """Whether that is the newest table."""
    in_flight: int = 0
    version: str = ""
    peer: str = ""


@attrs.frozen(slots=False)
class ShardStatus:
    """One engine process of a replica."""

    id: str
    node: str
    state: str
    """As the agent said it, unknown words included."""
    gone: bool = False
    epoch: int = 0
    port: int | None = None
    pid: int | None = None
    error: str = ""
    gpus: tuple[str, ...] = ()
    since_s: float | None = None
    """How long it has been in that state."""
    cause: str = ""
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""
    """The end of what the engine printed, where it explains the state."""


@attrs.frozen(slots=False)
class ReplicaStatus:
    """One running copy of a model, or one that should run."""

    id: str
    state: str
    reason: str = ""
    outdated: bool = False
    """Runs with an earlier profile."""
    shards: tuple[ShardStatus, ...] = ()


@attrs.frozen(slots=False)
class EndpointStatus:
    """What routers may send a model's requests to."""

    id: str
    address: str
    state: str
    reason: str = ""


@attrs.frozen(slots=False)
class ModelStatus:
    """One catalog entry."""

    name: str
    aliases: tuple[str, ...] = ()
    desired: int = 0
    ready: int = 0
    replicas: tuple[ReplicaStatus, ...] = ()
    explanation: Explanation | None = None
    """Why it has fewer replicas than it should; None: it has what it should."""
    endpoints: tuple[EndpointStatus, ...] = ()


@attrs.frozen(slots=False)
class Status:
    """Everything control knows, as one document."""

    control: ControlStatus
    nodes: tuple[NodeStatus, ...] = ()
    routers: tuple[RouterStatus, ...] = ()
    models: tuple[ModelStatus, ...] = ()
