"""What a launch amounts to now: what control decided, beside what agents report and whether they can be believed.

The one reading of reports that the reconciler, the route table and the status share.
"""

import enum
from collections.abc import Iterable

import attrs

from llmgw.core.lifecycle import COMING_UP, TERMINAL, Cause, ShardReport, shard_id
from llmgw.core.nodes import FleetView, Node, NodeState
from llmgw.core.replicas import Launch, Replica, ReplicaState


class Presence(enum.IntEnum):
    """How far the nodes of a launch can be believed and commanded; of several, the worst counts."""

    HERE = 0
    KEPT = 1
    """Its agent stopped in order and left the engines running."""
    SILENT = 2
    SYNCING = 3
    """Not back yet since control started."""
    LOST = 4


_PRESENCE = {
    NodeState.HEALTHY: Presence.HERE,
    NodeState.UNREACHABLE: Presence.SILENT,
    NodeState.INCOMPATIBLE: Presence.SILENT,
    NodeState.SYNCING: Presence.SYNCING,
    NodeState.LOST: Presence.LOST,
}

R = ReplicaState

_WORST_FIRST = (
    R.FAILED,
    R.LOST,
    R.STOPPED,
    R.STOPPING,
    R.UNKNOWN,
    R.PENDING,
    R.ACCEPTED,
    R.STARTING,
    R.LOADING,
    R.DRAINING,
    R.READY,
)
"""A launch over several nodes is as good as its worst shard."""

_RANK = {state: rank for rank, state in enumerate(_WORST_FIRST)}

UP_SOON = frozenset({R.PENDING, *(ReplicaState(state) for state in COMING_UP)})
"""On its way to ready."""


@attrs.frozen
class Standing:
    """One launch, read."""

    replica: str
    launch: Launch
    state: ReplicaState
    gone: bool
    """Nothing of it is left anywhere: what it held is free."""
    presence: Presence
    node: str
    """The node of the shard that decides."""
    cause: str = ""
    """Why it failed: a value of `Cause`, or a newer agent's word."""
    error: str = ""
    port: int | None = None
    """Of rank 0."""
    reported: bool = False
    """Whether its agent has said something of it."""
    since: float = 0.0
    """When it entered that state, on the monotonic clock; meaningful where it is reported."""

    @property
    def serving(self) -> bool:
        """Whether a client can get an answer from it now, as far as anybody knows."""
        return self.state in (R.READY, R.DRAINING) and self.presence <= Presence.SILENT

    @property
    def ready(self) -> bool:
        """Whether it counts towards the replicas that a model is promised."""
        return self.state is R.READY and self.presence <= Presence.KEPT and not self.launch.ending


def read(replica: Replica, launch: Launch, fleet: FleetView) -> Standing:
    """What that launch amounts to."""
    standings = [_read_shard(replica.id, launch, rank, fleet) for rank in range(len(launch.members))]
    if len(standings) == 1:
        return standings[0]
    worst = min(standings, key=lambda standing: _RANK[standing.state])
    return attrs.evolve(
        worst,
        gone=all(standing.gone for standing in standings),
        presence=max(standing.presence for standing in standings),
        port=standings[0].port,
        reported=all(standing.reported for standing in standings),
    )


def routed(standings: Iterable[Standing]) -> Standing | None:
    """The one launch of a replica that routers see: a ready one before others, on a node that is here before one that
    is silent, staying before ending, then the newest. None: none can serve.

    (Two epochs in one table were two engines under one name: load was counted once and sent twice.)
    """
    serving = [standing for standing in standings if standing.serving]
    return min(serving, key=_routing_rank, default=None)


def here(standing: Standing) -> bool:
    """Whether all its nodes are healthy."""
    return standing.presence is Presence.HERE


def unreadable_state(standing: Standing, fleet: FleetView) -> str:
    """The raw name of a state that only a newer agent knows; empty: it is known."""
    for rank, member in enumerate(standing.launch.members):
        node = fleet.nodes.get(member.node)
        report = node.report(shard_id(standing.replica, rank), standing.launch.epoch) if node is not None else None
        if report is not None and report.known_state is None:
            return report.state
    return ""


def _routing_rank(standing: Standing) -> tuple[bool, bool, bool, int]:
    return (
        standing.launch.ending or standing.state is not R.READY,
        standing.presence is Presence.SILENT,
        standing.state is not R.READY,
        -standing.launch.epoch,
    )


def _read_shard(replica: str, launch: Launch, rank: int, fleet: FleetView) -> Standing:
    name = launch.members[rank].node
    node = fleet.nodes.get(name)
    if node is None:
        # Forgotten by an operator, unless control has just started and its store knew less of nodes than of replicas.
        presence = Presence.SYNCING if fleet.recovery is not None else Presence.LOST
        gone = fleet.recovery is None
        return Standing(replica, launch, R.LOST if gone else R.UNKNOWN, gone, presence, name, Cause.NODE_LOST)
    presence = Presence.KEPT if _is_kept(node) else _PRESENCE[node.state]
    report = node.report(shard_id(replica, rank), launch.epoch)
    if report is None:
        return _read_silence(replica, launch, node, presence)
    known = report.known_state
    gone = report.gone and known in TERMINAL
    state = R.UNKNOWN if known is None else ReplicaState(known.value)
    if presence is Presence.LOST and not gone:
        state = R.LOST
    return Standing(
        replica=replica,
        launch=launch,
        state=state,
        gone=gone,
        presence=presence,
        node=name,
        cause=report.cause,
        error=error_of(report),
        port=report.port,
        reported=True,
        since=node.shard_since.get(report.shard, 0.0),
    )


def _read_silence(replica: str, launch: Launch, node: Node, presence: Presence) -> Standing:
    """Its node says nothing of it."""
    if node.engines_stopped:
        return Standing(
            replica, launch, R.STOPPED, gone=True, presence=presence, node=node.id, cause=Cause.AGENT_STOPPED
        )
    if presence is not Presence.HERE:
        state = R.LOST if presence is Presence.LOST else R.UNKNOWN
        return Standing(replica, launch, state, gone=False, presence=presence, node=node.id)
    if not launch.accepted:
        return Standing(replica, launch, R.PENDING, gone=False, presence=presence, node=node.id)
    cause, error = Cause.UNKNOWN_TO_AGENT, "its agent does not list it"
    return Standing(replica, launch, R.FAILED, gone=True, presence=presence, node=node.id, cause=cause, error=error)


def _is_kept(node: Node) -> bool:
    return node.engines_kept and node.state is NodeState.UNREACHABLE


def error_of(report: ShardReport) -> str:
    """What went wrong, in one phrase: the agent's words, else code or signal."""
    if report.error:
        return report.error
    if report.signal is not None:
        return f"signal {report.signal}"
    if report.exit_code is not None:
        return f"exit code {report.exit_code}"
    return report.cause
