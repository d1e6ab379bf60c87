"""What an agent knows of its shards: one `Held` per launch, what the wire says of it and what its record on disk says.

Times in memory are of the agent's monotonic clock, which starts anew with each boot; the record has wall-clock
times. It is read by later versions of the agent too, so it only ever gains fields, each with a default.
"""

from typing import Any, TypeVar

import attrs

from llmgw.core.lifecycle import COMING_UP, TERMINAL, ShardReport, ShardState, parse_state

T = TypeVar("T", str, int, bool)

RESUMED_START_SECONDS_MIN = 60.0
"""What is left of the start deadline for a shard that is found still coming up: a restart of the agent, or a wall
clock that jumped meanwhile, must not fail an engine that is about to answer."""


@attrs.frozen
class Spec:
    """What is kept of a StartShard: all that is needed to see the launch through, over restarts of the agent too."""

    shard: str
    epoch: int
    spec_hash: str = ""
    engine: str = ""
    served_name: str = ""
    probe: str = "chat"
    listener_check: bool = True
    gpus: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    """Address that the engine binds."""
    port: int = 0
    rendezvous_port: int | None = None
    start_deadline: float = 1200.0
    stop_grace: float = 20.0
    key: str = attrs.field(default="", repr=False)
    """What the engine asks of its clients. Secret."""


@attrs.frozen
class Held:
    """One launch, as this agent knows it. Times are of its monotonic clock."""

    spec: Spec
    since: float
    """When it entered its state."""
    state: ShardState = ShardState.ACCEPTED
    launched: bool = False
    """There is a record of it on disk, and maybe processes."""
    gone: bool = False
    deadline: float | None = None
    """When it must be ready; None: it has been, or need not be any more."""
    pid: int | None = None
    error: str = ""
    cause: str = ""
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""
    """The end of what it printed, once it has ended."""
    probe_failure: str = ""
    """Why the latest probe was no answer."""
    stop_grace: float | None = None
    """Of the stop that was asked for; None: none was."""
    waiting: tuple[tuple[int, int], ...] = ()
    """(connection, command id) of the StartShards that wait for an answer."""
    story: tuple[str, ...] = ()
    """Each transition and its time, for the error of an illegal one."""

    @property
    def terminal(self) -> bool:
        """Nothing leaves its state."""
        return self.state in TERMINAL


@attrs.frozen
class Supervision:
    """Everything that the agent knows about its shards."""

    held: dict[str, Held] = attrs.field(factory=dict)
    """By shard id."""
    ended: dict[str, int] = attrs.field(factory=dict)
    """Highest epoch of forgotten shards, by id, latest last."""
    ports_avoided: dict[int, float] = attrs.field(factory=dict)
    """Until when a port is not to be chosen."""
    stopping: str = ""
    """Why nothing is started any more; empty: it is."""


def report(held: Held, now: float) -> ShardReport:
    """What is said of it on the wire."""
    spec = held.spec
    return ShardReport(
        shard=spec.shard,
        epoch=spec.epoch,
        spec_hash=spec.spec_hash,
        state=held.state.value,
        gone=held.gone,
        pid=held.pid,
        port=spec.port or None,
        rendezvous_port=spec.rendezvous_port,
        gpus=spec.gpus,
        since_seconds=max(0.0, now - held.since),
        error=held.error,
        cause=held.cause,
        exit_code=held.exit_code,
        signal=held.signal,
    )


def reports(supervision: Supervision, now: float) -> tuple[ShardReport, ...]:
    """Every shard, by id: the agent's whole truth."""
    return tuple(report(supervision.held[shard], now) for shard in sorted(supervision.held))


def ports_in_use(supervision: Supervision) -> frozenset[int]:
    """Ports of shards that are not gone."""
    used: set[int] = set()
    for held in supervision.held.values():
        if not held.gone:
            used.update(port for port in (held.spec.port, held.spec.rendezvous_port) if port)
    return frozenset(used)


def ports_avoided(supervision: Supervision, now: float) -> frozenset[int]:
    """Ports on which somebody else was found lately."""
    return frozenset(port for port, until in supervision.ports_avoided.items() if until > now)


def next_deadline(supervision: Supervision) -> float | None:
    """When a `Tick` is due; None: only after further events."""
    return min((held.deadline for held in supervision.held.values() if held.deadline is not None), default=None)


def not_gone(supervision: Supervision) -> tuple[str, ...]:
    """Ids of the shards of which processes may be left."""
    return tuple(shard for shard in sorted(supervision.held) if not supervision.held[shard].gone)


# --- the record -----------------------------------------------------------------------------------------------


def saved(held: Held, now: float, unix_now: float) -> dict[str, Any]:
    """The record of `held`, as JSON-ready data."""
    return {
        "spec": attrs.asdict(held.spec),
        "state": held.state.value,
        "since_unix": unix_now - (now - held.since),
        "deadline_unix": None if held.deadline is None else unix_now + (held.deadline - now),
        "gone": held.gone,
        "pid": held.pid,
        "error": held.error,
        "cause": held.cause,
        "exit_code": held.exit_code,
        "signal": held.signal,
        "stop_grace": held.stop_grace,
    }


def restored(shard: str, epoch: int, record: dict[str, Any], now: float, unix_now: float) -> Held:
    """What `saved` wrote, by whatever version. Whatever is missing or odd has its default: an engine that lives is
    never given up for its record.

    A state that this version does not know becomes `loading`: the probe then tells.
    """
    state = parse_state(_get(record, "state", "")) or ShardState.LOADING
    age = max(0.0, unix_now - _seconds(record, "since_unix", unix_now))
    deadline = None
    if state in COMING_UP:
        left = _seconds(record, "deadline_unix", unix_now) - unix_now
        deadline = now + max(left, RESUMED_START_SECONDS_MIN)
    return Held(
        _restored_spec(shard, epoch, record.get("spec")),
        since=now - age,
        state=state,
        launched=True,
        gone=_get(record, "gone", False),
        deadline=deadline,
        pid=_number(record, "pid"),
        error=_get(record, "error", ""),
        cause=_get(record, "cause", ""),
        exit_code=_number(record, "exit_code"),
        signal=_number(record, "signal"),
        stop_grace=None if record.get("stop_grace") is None else _seconds(record, "stop_grace", 0.0),
        story=(f"{state} found at {now:.3f}",),
    )


def _restored_spec(shard: str, epoch: int, value: Any) -> Spec:
    record = value if isinstance(value, dict) else {}
    default = Spec(shard, epoch)
    gpus = record.get("gpus")
    return Spec(
        shard,
        epoch,
        spec_hash=_get(record, "spec_hash", default.spec_hash),
        engine=_get(record, "engine", default.engine),
        served_name=_get(record, "served_name", default.served_name),
        probe=_get(record, "probe", default.probe),
        listener_check=_get(record, "listener_check", default.listener_check),
        gpus=tuple(gpu for gpu in gpus if isinstance(gpu, str)) if isinstance(gpus, list | tuple) else (),
        host=_get(record, "host", default.host),
        port=_get(record, "port", default.port),
        rendezvous_port=_number(record, "rendezvous_port"),
        start_deadline=_seconds(record, "start_deadline", default.start_deadline),
        stop_grace=_seconds(record, "stop_grace", default.stop_grace),
        key=_get(record, "key", default.key),
    )


def _get(record: dict[str, Any], name: str, default: T) -> T:
    value = record.get(name)
    return value if type(value) is type(default) else default


def _seconds(record: dict[str, Any], name: str, default: float) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _number(record: dict[str, Any], name: str) -> int | None:
    value = record.get(name)
    return value if type(value) is int else None
