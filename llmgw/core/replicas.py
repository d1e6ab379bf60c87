"""What control has decided and remembers: the launches of each replica. Everything here is JSON-able.

A *replica* `<model>/<n>` is a position; its *launches* are told apart by their epochs. Mostly there is one. There
are two while a replacement of a launch on a lost node is up and that node returns; routers only ever see one.
Times are wall clock (unix seconds), since they outlive the process.
"""

import enum

import attrs


@attrs.frozen
class Member:
    """One shard of a launch: where it runs and what is booked for it. Its rank is its place in `Launch.members`."""

    node: str
    gpus: tuple[str, ...] = ()
    """UUIDs."""


@attrs.frozen
class Drain:
    """Routers are told to send nothing new; StopShard follows when they are idle, or at the deadline."""

    reason: str
    until: float
    """Wall clock."""
    seconds: float = 60.0
    """How long it was given: a clock that is set back must not stretch it."""


@attrs.frozen
class Launch:
    """One launch of a replica, from the decision until every shard of it is gone."""

    epoch: int
    spec_hash: str
    members: tuple[Member, ...]
    """By rank."""
    decided_at: float
    gpu_memory: int | None = None
    """Bytes booked on each GPU; None: the whole GPU."""
    memory: int = 0
    """Bytes of host memory booked on each member's node."""
    port: int | None = None
    """The fixed port of its profile."""
    served_name: str = ""
    """The name that the engine knows the model by."""
    stop_grace: float = 20.0
    ours: bool = True
    """Started by this control or one whose file it read; False: found on an agent and adopted."""
    accepted: bool = False
    """An agent has acknowledged or reported it: a list without it says that it is gone."""
    drain: Drain | None = None
    stop: str = ""
    """Why it is being stopped; empty: it is not."""

    @property
    def ending(self) -> bool:
        """Whether it has been decided that it goes."""
        return self.drain is not None or bool(self.stop)


@attrs.frozen
class Failure:
    """One failed launch, for the restart budget."""

    at: float
    node: str
    error: str = ""
    spec_hash: str = ""
    """Of the launch: another profile starts with a clean slate."""


@attrs.frozen
class Replica:
    """One position `<model>/<n>`."""

    id: str
    model: str
    launches: tuple[Launch, ...] = ()
    """Newest epoch first."""
    failures: tuple[Failure, ...] = ()
    """Those of the last 30 minutes, oldest first; bounded."""
    retry_at: float = 0.0
    """Not launched again before this time."""
    last_node: str = ""
    """Where it ran last: its files may still be in that node's page cache."""
    retired: str = ""
    """Why it is to vanish once its launches are gone; empty: it is to stay."""


@attrs.frozen
class Halt:
    """Launches of this revision of a model are stopped until its profile changes or an operator says `retry`."""

    spec_hash: str
    reason: str
    entirely: bool = False
    """True: it cannot run at all (`bad profile`); False: it does not take the place of what still runs."""


@attrs.frozen
class Replicas:
    """All of it. The reconciler actor is the only writer; written to the store before any command is sent."""

    by_id: dict[str, Replica] = attrs.field(factory=dict)
    """Sorted by model and number."""
    halts: dict[str, Halt] = attrs.field(factory=dict)
    """By model."""
    epoch_max: int = 0
    """The highest epoch ever used or seen."""


class ReplicaState(enum.StrEnum):
    """What a replica or launch amounts to, from its shards. The shards' own states, and:"""

    PENDING = "pending"
    BACKING_OFF = "backing off"
    ACCEPTED = "accepted"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Its node is not back yet after a start of control, or reports a state that only a newer agent knows."""
    LOST = "lost"
    """Its node is lost."""


@attrs.frozen
class ShardView:
    """One shard as `/api/v1/status` shows it."""

    id: str
    node: str
    state: str
    gone: bool
    epoch: int
    port: int | None = None
    pid: int | None = None
    error: str = ""


@attrs.frozen
class ReplicaView:
    """One replica as `/api/v1/status` shows it."""

    id: str
    state: str
    """A value of `ReplicaState`."""
    reason: str = ""
    outdated: bool = False
    shards: tuple[ShardView, ...] = ()
    """Of every launch, newest first."""


def retried(replicas: Replicas, model: str) -> Replicas:
    """Take back halts, failures and waiting of a model: an operator says that it is worth another try."""
    by_id = {
        id_: attrs.evolve(replica, failures=(), retry_at=0.0) if replica.model == model else replica
        for id_, replica in replicas.by_id.items()
    }
    halts = {name: halt for name, halt in replicas.halts.items() if name != model}
    return attrs.evolve(replicas, by_id=by_id, halts=halts)
