"""The life of a shard: one machine, written by the agent alone, read everywhere else.

A *shard* `<model>/<n>/<rank>` is one engine process of *replica* `<model>/<n>` on one node. Each launch of a
replica has an *epoch*; a shard of another epoch is another process. The rules of this file:

1. Every transition that the agent makes is a row of `TRANSITIONS`. Anything else is `InvariantBroken`.
2. `failed` can be entered from every state but the last two; nothing leaves `stopped` or `failed`.
3. `gone` is no state: it says that no process of this launch is left and that its GPU memory is back. A shard
   is often `failed` first and `gone` later (its workers may still hold the card), and only `gone` frees a GPU.
4. A name that is not in `ShardState` (a newer agent's) is kept raw, shown, and never routed to.
"""

import enum

import attrs

from llmgw.errors import InvariantBroken


class ShardState(enum.StrEnum):
    """What the agent says of a shard."""

    ACCEPTED = "accepted"
    """Recorded on the node; nothing was launched yet."""
    STARTING = "starting"
    """The shim is launched; the engine does not listen yet."""
    LOADING = "loading"
    """The engine lives and has not answered a probe yet."""
    READY = "ready"
    """The listener is ours and a probe of the model's kind gave a real answer."""
    DRAINING = "draining"
    """Serves what it has; routers send nothing new."""
    STOPPING = "stopping"
    """Was sent a signal by us."""
    STOPPED = "stopped"
    """Ended because we stopped it."""
    FAILED = "failed"
    """Ended, or never came up, though nobody stopped it."""


S = ShardState

TRANSITIONS: dict[ShardState, frozenset[ShardState]] = {
    S.ACCEPTED: frozenset({S.STARTING, S.STOPPING, S.STOPPED, S.FAILED}),
    S.STARTING: frozenset({S.LOADING, S.READY, S.STOPPING, S.FAILED}),
    S.LOADING: frozenset({S.READY, S.DRAINING, S.STOPPING, S.FAILED}),
    S.READY: frozenset({S.DRAINING, S.STOPPING, S.FAILED}),
    S.DRAINING: frozenset({S.STOPPING, S.FAILED}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED}),
    S.STOPPED: frozenset(),
    S.FAILED: frozenset(),
}

TERMINAL = frozenset({S.STOPPED, S.FAILED})
COMING_UP = frozenset({S.ACCEPTED, S.STARTING, S.LOADING})
SERVING = frozenset({S.READY, S.DRAINING})


def check_transition(shard: str, old: ShardState, new: ShardState, story: str = "") -> None:
    """Raise `InvariantBroken` with the story unless `old -> new` is a row of the table."""
    if new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(TRANSITIONS[old])) or "nothing"
        raise InvariantBroken(f"{shard}: {old} -> {new} is no transition (from {old}: {allowed}) {story}".rstrip())


def parse_state(raw: str) -> ShardState | None:
    """The state of that name, or None for one that this version does not know."""
    try:
        return ShardState(raw)
    except ValueError:
        return None


class Cause(enum.StrEnum):
    """Why a shard failed, by what should happen next. The wire carries the word; unknown words are kept."""

    NONE = ""
    EXITED = "exited"
    """With a code of its own, unasked."""
    SIGNALLED = "signalled"
    """By a signal whose sender is unknown."""
    HOST_MEMORY = "host memory"
    """Killed by the kernel for memory: said only because of the counter."""
    GPU_MEMORY = "gpu memory"
    START_DEADLINE = "start deadline"
    PORT_TAKEN = "port taken"
    BAD_PROFILE = "bad profile"
    """Refused before anything was launched, or by the engine's own parser: starting again cannot help."""
    LAUNCH = "launch"
    """The process could not be started (no such program, no permission)."""
    SHIM_KILLED = "shim killed"
    UNKNOWN_TO_AGENT = "unknown to its agent"
    NODE_LOST = "node lost"
    AGENT_STOPPED = "agent stopped"


UNRECOVERABLE = frozenset({Cause.BAD_PROFILE})
"""Causes after which the same launch cannot succeed: not tried again until the profile changes or `retry`."""


@attrs.frozen
class ShardReport:
    """What an agent says of one shard. One class, in Register, Heartbeat and ShardStatus alike."""

    shard: str
    epoch: int
    spec_hash: str = ""
    state: str = S.ACCEPTED.value
    """A name of `ShardState`, or one that only a newer agent knows."""
    gone: bool = False
    pid: int | None = None
    """Of the engine, not of its shim."""
    port: int | None = None
    rendezvous_port: int | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs."""
    since_seconds: float = 0.0
    """How long it has been in this state."""
    error: str = ""
    cause: str = ""
    """A value of `Cause`, or one that only a newer agent knows."""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def known_state(self) -> ShardState | None:
        """The state, or None where this version does not know its name."""
        return parse_state(self.state)


def replica_id(model: str, number: int) -> str:
    """`<model>/<n>`."""
    return f"{model}/{number}"


def shard_id(replica: str, rank: int) -> str:
    """`<model>/<n>/<rank>`."""
    return f"{replica}/{rank}"


def split_replica(replica: str) -> tuple[str, int]:
    """(model, number). Split from the right: model names have slashes. ValueError if it is no replica id."""
    model, _, number = replica.rpartition("/")
    if not model:
        raise ValueError(f"{replica!r} is not <model>/<n>")
    return model, int(number)


def split_shard(shard: str) -> tuple[str, int]:
    """(replica, rank). Split from the right. ValueError if it is no shard id."""
    replica, _, rank = shard.rpartition("/")
    split_replica(replica)
    return replica, int(rank)
