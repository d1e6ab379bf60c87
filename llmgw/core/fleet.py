"""The fleet as control knows it: which nodes there are, what they hold, how alive they are.

One machine for all nodes. Input: an event and the time. Output: effects, in order. Its rules:

1. *A connection counts, not a name.* What arrives on a connection that is not the node's present one changes
   nothing, and so does its end (the late close of the old stream would else take the new one down).
2. *The same instance always gets in*, and its older connection is superseded. *Another instance* under the same name
   is refused until the holder is lost, has said Goodbye, or is forgotten: two machines must not take turns.
3. *Silence counts from the last frame, on the hearing clock*, which stands still while control could not hear: it
   starts when control does, and time in which no event at all was applied, not even a tick, does not pass on it.
   A closed stream by itself changes nothing.
4. After `unreachable_after_missed` heartbeats (each 1.2 intervals) a node is `unreachable`, after `lost_after` it is
   `lost`. While control is recovering nobody becomes lost, and nodes that have not come back yet stay `syncing`:
   silence counts meanwhile and acts after.
5. A heartbeat or a Register is the whole truth of a node and makes it `healthy` from any state.
6. Goodbye(stopped): lost at once, nothing left there. Goodbye(kept): `unreachable` with that reason, and alive for
   as long as one of its engines answers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from llmgw.core.fleet_events import (
    Accept,
    Disconnected,
    Effect,
    EngineAnswered,
    Event,
    Farewell,
    Forget,
    Forgotten,
    Heard,
    HeartbeatIn,
    Incompatible,
    KnownNode,
    Line,
    Marked,
    Refuse,
    Registered,
    Registration,
    Remember,
    StartAccepted,
    StatusIn,
    Supersede,
    Tick,
)
from llmgw.core.fleet_lines import problem_lines, shard_lines, some_of, unaged
from llmgw.core.fleet_rows import KEPT, from_row, to_row
from llmgw.core.hardware import NodeHardware
from llmgw.core.lifecycle import Cause, ShardReport, ShardState
from llmgw.core.nodes import FleetView, Memory, Node, NodeState, Pulse, Recovery
from llmgw.core.shard_lists import all_gone, fold_accepted, fold_list, fold_status
from llmgw.core.units import format_seconds

__all__ = ["Fleet", "FleetSettings", "FleetView", "Memory", "Node", "NodeState", "Pulse", "Recovery", "apply"]

TICK_SECONDS = 0.5
"""How often the inventory actor applies a `Tick`: a quarter of the least heartbeat, so that expiry is not late."""

DEAF_AFTER_SECONDS = 2.0
"""So long without any event, though a tick is due every half second, means that control was stalled, not the nodes."""

HEARTBEATS_PER_SECOND_MAX = 500
"""Over all nodes: the interval grows with the fleet, so that the load does not."""

MISSED_INTERVALS = 1.2
"""A heartbeat counts as missed after so many intervals without a frame: agents jitter theirs by 20 %."""

SYNCED_SHARE = 0.95
"""Recovering ends when so many of the known nodes are back: one machine that stays away must not hold up the rest."""

REFUSED_RETRY_SECONDS = 30.0
"""A second machine under a name that is taken asks again this seldom: the holder has to be silent for minutes first."""


@attrs.frozen
class FleetSettings:
    """From `[control]`. Seconds."""

    heartbeat: float = 2.0
    unreachable_after_missed: int = 3
    lost_after: float = 180.0
    recover_for: float = 300.0


class Fleet:
    """The one mutable owner of all nodes. Owned by the inventory actor; only `apply` changes it."""

    def __init__(self, settings: FleetSettings, now: float, memory: Memory, known: tuple[KnownNode, ...] = ()) -> None:
        """Control can hear from `now` on. `known`: the rows of the store."""
        self.settings = settings
        self.memory = memory
        self.started = now
        self.heard_anything = now
        """When the last event was applied."""
        self.deaf_seconds = 0.0
        self.version = 1
        """Of what `snapshot` would return: publish when it differs from the version published last."""
        self.nodes: dict[str, Node] = {row.id: from_row(row, now) for row in sorted(known, key=lambda row: row.id)}
        self.pulses: dict[str, Pulse] = {row.id: Pulse(heard=now) for row in known}
        self.rows: dict[str, KnownNode] = {row.id: row for row in known}
        """What the store holds."""
        self.missing: dict[str, None] = {row.id: None for row in known if not row.lost}
        """Known nodes that have not synced since the start."""
        self.known = len(self.missing)
        self.recovering = memory is Memory.UNREADABLE or self.known > 0
        self._view: FleetView | None = None

    def snapshot(self) -> FleetView:
        """The fleet now. Dicts are copied only where something changed since the last call."""
        old = self._view
        nodes = old.nodes if old is not None and old.version == self.version else dict(sorted(self.nodes.items()))
        self._view = FleetView(
            version=self.version,
            nodes=nodes,
            pulses=dict(self.pulses),
            memory=self.memory,
            recovery=self._recovery(),
            spare_strangers_until=self._spare_strangers_until(),
            deaf_seconds=self.deaf_seconds,
            heartbeat_interval_seconds=self.heartbeat_interval_seconds(),
        )
        return self._view

    def heartbeat_interval_seconds(self) -> float:
        """What agents are told now."""
        return max(self.settings.heartbeat, len(self.nodes) / HEARTBEATS_PER_SECOND_MAX)

    def hearing(self, now: float) -> float:
        """The time on the hearing clock."""
        return now - self.deaf_seconds

    def _recovery(self) -> Recovery | None:
        if not self.recovering:
            return None
        reason = (
            "the file of the control before could not be read"
            if self.memory is Memory.UNREADABLE
            else "waiting for the known nodes: " + some_of(sorted(self.missing))
        )
        until = self.started + self.settings.recover_for + self.deaf_seconds
        return Recovery(known=self.known, synced=self.known - len(self.missing), until=until, reason=reason)

    def _spare_strangers_until(self) -> float | None:
        if self.memory is not Memory.FIRST_START:
            return None
        return self.started + self.settings.recover_for


def apply(fleet: Fleet, event: Event, now: float) -> tuple[Effect, ...]:
    """Change the fleet by one event; return what must be done about it, in order."""
    effects = list(_listen(fleet, now))
    effects.extend(HANDLERS[type(event)](fleet, event, now))
    effects.extend(_leave_recovering(fleet, now))
    return tuple(effects)


# --- the handlers, one for each event ---------------------------------------------------------------------------


def _registered(fleet: Fleet, event: Registered, now: float) -> Iterator[Effect]:
    said = event.registration
    old = fleet.nodes.get(said.node)
    if old is not None and _holds_name(old, said):
        yield from _refuse(fleet, event, old, now)
        return
    if old is not None and old.connection not in (None, event.connection):
        assert old.connection is not None
        yield Supersede(old.connection, said.node)
    same_machine = old is not None and old.instance == said.instance
    base = old if old is not None else Node(id=said.node, state=NodeState.SYNCING, since=now)
    if not same_machine:
        # Another machine under an old name: what it does not report is not assumed to run there.
        base = attrs.evolve(all_gone(base, ShardState.FAILED, Cause.NODE_LOST, now), hardware=NodeHardware())
    node = attrs.evolve(
        fold_list(base, said.shards, now),
        instance=said.instance,
        boot_id=said.boot_id,
        connection=event.connection,
        peer=event.peer,
        agent_version=said.agent_version,
        address=said.address or host_of(event.peer),
        labels=said.labels,
        ports=said.ports,
        hardware=said.hardware if said.hardware_complete else _keep_gpus(base.hardware, said.hardware),
        problems=said.problems,
    )
    pulse = fleet.pulses.get(said.node) if same_machine else None
    acked = pulse.status_acked if pulse is not None else 0
    interval = fleet.heartbeat_interval_seconds()
    fleet.pulses[said.node] = attrs.evolve(pulse or Pulse(), status_acked=acked, interval_seconds=interval)
    fleet.missing.pop(said.node, None)
    _hear(fleet, said.node, now)
    yield Accept(event.connection, said.node, interval, acked)
    if old is None or old.connection != event.connection:
        facts = {"node": said.node, "peer": event.peer, "gpus": len(node.hardware.gpus), "shards": len(node.shards)}
        yield Line("info", "node registered", facts)
    yield from _alive(fleet, node, old, now)


def _heartbeat(fleet: Fleet, event: HeartbeatIn, now: float) -> Iterator[Effect]:
    old = _speaker(fleet, event.node, event.connection)
    if old is None:
        return
    fleet.pulses[old.id] = attrs.evolve(
        fleet.pulses[old.id],
        last_heard=now,
        heard=fleet.hearing(now),
        gpu_memory_used_bytes=event.gpu_memory_used_bytes,
        gpu_memory_stale_seconds=event.stale_seconds,
    )
    node = fold_list(old, event.shards, now)
    if unaged(event.problems) != unaged(old.problems):
        node = attrs.evolve(node, problems=event.problems)
    yield from _alive(fleet, node, old, now)


def _status(fleet: Fleet, event: StatusIn, now: float) -> Iterator[Effect]:
    old = _speaker(fleet, event.node, event.connection)
    if old is None:
        return
    _hear(fleet, old.id, now)
    pulse = fleet.pulses[old.id]
    if event.number <= pulse.status_acked:
        return  # sent again, since our acknowledgement was lost
    fleet.pulses[old.id] = attrs.evolve(pulse, status_acked=event.number)
    yield from _put(fleet, fold_status(old, event.report, event.output, now))


def _start_accepted(fleet: Fleet, event: StartAccepted, now: float) -> Iterator[Effect]:
    old = _speaker(fleet, event.node, event.connection)
    if old is None:
        return
    _hear(fleet, old.id, now)
    report = ShardReport(
        shard=event.shard,
        epoch=event.epoch,
        spec_hash=event.spec_hash,
        port=event.port,
        rendezvous_port=event.rendezvous_port,
        gpus=event.gpus,
    )
    yield from _put(fleet, fold_accepted(old, report, now))


def _heard(fleet: Fleet, event: Heard, now: float) -> Iterator[Effect]:
    if _speaker(fleet, event.node, event.connection) is not None:
        _hear(fleet, event.node, now)
    yield from ()


def _engine_answered(fleet: Fleet, event: EngineAnswered, now: float) -> Iterator[Effect]:
    node = fleet.nodes.get(event.node)
    if node is None or not node.engines_kept:
        return
    _hear(fleet, node.id, now)
    if node.state is NodeState.LOST:
        yield from _enter(fleet, node, NodeState.UNREACHABLE, KEPT, now)


def _disconnected(fleet: Fleet, event: Disconnected, now: float) -> Iterator[Effect]:  # noqa: ARG001 (a table row)
    node = _speaker(fleet, event.node, event.connection)
    if node is not None:
        yield Line("info", "agent disconnected", {"node": node.id, "peer": node.peer})
        yield from _put(fleet, attrs.evolve(node, connection=None))


def _farewell(fleet: Fleet, event: Farewell, now: float) -> Iterator[Effect]:
    node = _speaker(fleet, event.node, event.connection)
    if node is None:
        return
    _hear(fleet, node.id, now)
    node = attrs.evolve(node, connection=None)
    if event.engines == "stopped":
        reason = f"agent and engines stopped{_why(event.reason)}"
        node = attrs.evolve(all_gone(node, ShardState.STOPPED, Cause.AGENT_STOPPED, now), engines_stopped=True)
        yield from _enter(fleet, node, NodeState.LOST, reason, now)
    else:
        node = attrs.evolve(node, engines_kept=True)
        yield from _enter(fleet, node, NodeState.UNREACHABLE, f"{KEPT}{_why(event.reason)}", now)


def _incompatible(fleet: Fleet, event: Incompatible, now: float) -> Iterator[Effect]:
    old = fleet.nodes.get(event.node)
    if old is not None and old.connection is not None:
        return  # the name is held by a machine that we do understand
    node = attrs.evolve(old or Node(id=event.node, state=NodeState.SYNCING, since=now), peer=event.peer)
    fleet.pulses.setdefault(event.node, Pulse())
    _hear(fleet, event.node, now)
    reason = f"its agent speaks protocol {event.theirs}, this control {event.ours}"
    yield from _enter(fleet, node, NodeState.INCOMPATIBLE, reason, now)


def _marked(fleet: Fleet, event: Marked, now: float) -> Iterator[Effect]:  # noqa: ARG001 (a table row)
    node = fleet.nodes.get(event.node)
    if node is None:
        return
    cordoned = node.cordoned if event.cordoned is None else event.cordoned
    draining = node.draining if event.draining is None else event.draining
    if (cordoned, draining) != (node.cordoned, node.draining):
        yield Line("info", "node marked", {"node": node.id, "cordoned": cordoned, "draining": draining})
        yield from _put(fleet, attrs.evolve(node, cordoned=cordoned, draining=draining))


def _forgotten(fleet: Fleet, event: Forgotten, now: float) -> Iterator[Effect]:  # noqa: ARG001 (a table row)
    node = fleet.nodes.get(event.node)
    if node is None:
        return
    if node.connection is not None:
        yield Line("warning", "node not forgotten: it is connected", {"node": node.id, "peer": node.peer})
        return
    yield Line("info", "node forgotten", {"node": node.id})
    yield from _drop(fleet, node)


def _tick(fleet: Fleet, event: Tick, now: float) -> Iterator[Effect]:  # noqa: ARG001 (a table row)
    settings, interval = fleet.settings, fleet.heartbeat_interval_seconds()
    hearing = fleet.hearing(now)
    for node in tuple(fleet.nodes.values()):
        if node.state is NodeState.LOST:
            continue
        pulse = fleet.pulses[node.id]
        silence = hearing - pulse.heard
        if silence < settings.heartbeat:
            continue
        if silence >= settings.lost_after and not fleet.recovering:
            yield from _lose(fleet, node, now)
        elif node.state is NodeState.HEALTHY or (node.state is NodeState.SYNCING and not fleet.recovering):
            missed = settings.unreachable_after_missed
            if silence > missed * MISSED_INTERVALS * max(interval, pulse.interval_seconds):
                reason = f"{missed} heartbeats missed"
                yield from _enter(fleet, node, NodeState.UNREACHABLE, reason, now)


HANDLERS: dict[type, Callable[[Fleet, Any, float], Iterator[Effect]]] = {
    Registered: _registered,
    HeartbeatIn: _heartbeat,
    StatusIn: _status,
    StartAccepted: _start_accepted,
    Heard: _heard,
    EngineAnswered: _engine_answered,
    Disconnected: _disconnected,
    Farewell: _farewell,
    Incompatible: _incompatible,
    Marked: _marked,
    Forgotten: _forgotten,
    Tick: _tick,
}

# --- what they are made of --------------------------------------------------------------------------------------


def _listen(fleet: Fleet, now: float) -> Iterator[Effect]:
    gap = now - fleet.heard_anything
    fleet.heard_anything = now
    if gap > DEAF_AFTER_SECONDS:
        fleet.deaf_seconds += gap
        yield Line("warning", "control was stalled: that time counts as nobody's silence", {"seconds": round(gap, 1)})


def _leave_recovering(fleet: Fleet, now: float) -> Iterator[Effect]:
    if not fleet.recovering:
        return
    synced = fleet.known - len(fleet.missing)
    enough = fleet.memory is Memory.LOADED and synced >= SYNCED_SHARE * fleet.known
    if enough or fleet.hearing(now) - fleet.started >= fleet.settings.recover_for:
        fleet.recovering = False
        fleet.version += 1
        missing = some_of(sorted(fleet.missing))
        yield Line("info", "recovered", {"known": fleet.known, "synced": synced, "missing": missing})


def _speaker(fleet: Fleet, name: str, connection: int) -> Node | None:
    """The node, if that is its present connection."""
    node = fleet.nodes.get(name)
    return node if node is not None and node.connection == connection else None


def _hear(fleet: Fleet, name: str, now: float) -> None:
    fleet.pulses[name] = attrs.evolve(fleet.pulses[name], last_heard=now, heard=fleet.hearing(now))


def _holds_name(old: Node, said: Registration) -> bool:
    if old.instance in ("", said.instance):
        return False
    return old.state is not NodeState.LOST and not old.engines_kept


def _refuse(fleet: Fleet, event: Registered, holder: Node, now: float) -> Iterator[Effect]:
    heard = fleet.pulses[holder.id].last_heard
    age = "not heard since control started" if heard is None else f"heard {format_seconds(now - heard)} ago"
    reason = (
        f"the name {holder.id} is held by another machine at {holder.peer or holder.address} ({age}); free when that "
        f"one is lost or stopped, or by: llmgw forget {holder.id}"
    )
    yield Line(
        "warning", "node refused: its name is taken", {"node": holder.id, "peer": event.peer, "holder": holder.peer}
    )
    yield Refuse(event.connection, holder.id, reason, REFUSED_RETRY_SECONDS)


def _alive(fleet: Fleet, node: Node, old: Node | None, now: float) -> Iterator[Effect]:
    """Its whole truth is in."""
    if old is not None:
        yield from problem_lines(old, node)
    if node.state is not NodeState.HEALTHY:
        node = attrs.evolve(node, engines_kept=False, engines_stopped=False)
        yield from _enter(fleet, node, NodeState.HEALTHY, "", now)
    elif node is not old:
        yield from _put(fleet, node)


def _lose(fleet: Fleet, node: Node, now: float) -> Iterator[Effect]:
    if node.state is NodeState.INCOMPATIBLE and node.id not in fleet.rows:
        yield from _drop(fleet, node)  # never was part of the fleet, and has stopped trying
        return
    silent = f"silent for {format_seconds(fleet.settings.lost_after)}"
    reason = f"{KEPT}, and none of them answered for {format_seconds(fleet.settings.lost_after)}"
    yield from _enter(fleet, node, NodeState.LOST, reason if node.engines_kept else silent, now)


def _enter(fleet: Fleet, node: Node, state: NodeState, reason: str, now: float) -> Iterator[Effect]:
    if node.state is not state:
        level = "info" if state is NodeState.HEALTHY else "warning"
        facts = {"node": node.id, "was": node.state.value}
        yield Line(level, f"node {state}", {**facts, "reason": reason} if reason else facts)
        node = attrs.evolve(node, since=now)
    yield from _put(fleet, attrs.evolve(node, state=state, reason=reason))


def _put(fleet: Fleet, node: Node) -> Iterator[Effect]:
    """The one place where a node is replaced, noticed, and remembered."""
    old = fleet.nodes.get(node.id)
    if node is old:
        return
    fleet.nodes[node.id] = node
    fleet.version += 1
    yield from shard_lines(old, node)
    row = to_row(node)
    if row != fleet.rows.get(node.id) and (node.state is not NodeState.INCOMPATIBLE or node.id in fleet.rows):
        fleet.rows[node.id] = row
        yield Remember(row)


def _drop(fleet: Fleet, node: Node) -> Iterator[Effect]:
    del fleet.nodes[node.id], fleet.pulses[node.id]
    fleet.version += 1
    if node.id in fleet.missing:
        del fleet.missing[node.id]
        fleet.known -= 1
    if fleet.rows.pop(node.id, None) is not None:
        yield Forget(node.id)


def _keep_gpus(known: NodeHardware, said: NodeHardware) -> NodeHardware:
    """What was said, and the GPUs that could not be read this time."""
    missing = tuple(gpu for gpu in known.gpus if said.gpu(gpu.uuid) is None)
    return attrs.evolve(said, gpus=said.gpus + missing)


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""


def host_of(peer: str) -> str:
    """The host of `host:port`, without the brackets of an IPv6 address."""
    return peer.rpartition(":")[0].strip("[]")
