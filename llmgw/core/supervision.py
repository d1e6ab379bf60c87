"""The agent's side of a shard's life: commands and what happens to processes go in, decisions come out.

`step(supervision, event, now)` returns the supervision after the event and the actions to perform, in order. It
neither waits nor looks at anything: the agent's supervisor performs the actions and feeds back what came of them
as further events. Rules of this file:

1. One `Held` per shard id. Its state moves along `llmgw.core.lifecycle.TRANSITIONS` and nowhere else.
2. Commands are idempotent and fenced by epoch. Of a start: an older epoch is refused, the same one is a no-op that
   is answered again, a newer one is refused until the older is `gone`. Of a stop or a drain: an older epoch is
   refused, and one of which nothing is here is a no-op.
3. A start is answered when its launch is on disk (`Launched`) or will never be (`Unprepared`); until then its
   command waits in `Held.waiting`. Every other command is answered at once, after the state it led to was saved.
4. `Save`, `Tell`, `Probe` and `EndProbe` follow from how a `Held` changed and are derived in one place, `_effects`.
   A handler returns only the new `Held`s and the actions that do not follow from them.
5. Nothing here stops an engine but a StopShard, the start deadline and the agent's own orderly end (`StopAll`).
6. Events about an epoch that is not held are ignored: their task outlived the decision to forget.
7. A terminal shard is forgotten when it is gone and its last status was acknowledged (`StatusSettled`). Its epoch
   stays in `ended` for a while, so that a late copy of its StartShard cannot launch it again.

Event            -> what it may lead to
StartAsked          accepted, or a refusal
Prepared            Launch; or stopped, where a stop came first
Unprepared          failed and gone (stopped, where a stop came first)
Launched            starting; and Stop, where a stop came first
EngineStarted       loading
ProbeSucceeded      ready
ProbeFailed         remembered, for the start deadline's error
DrainAsked          draining
StopAsked, StopAll  stopping
EngineExited        stopped where a stop was asked for, else failed
ShimEnded           failed
EngineGone          gone
Tick                failed, where the start deadline is over
"""

from collections.abc import Callable
from typing import Any

import attrs

from llmgw.core.held import Held, Supervision, report
from llmgw.core.lifecycle import COMING_UP, Cause, ShardState, check_transition
from llmgw.core.shard_events import (
    Action,
    Answer,
    DrainAsked,
    EndProbe,
    EngineExited,
    EngineGone,
    EngineStarted,
    Event,
    Forget,
    Launch,
    Launched,
    Prepare,
    Prepared,
    Probe,
    ProbeFailed,
    ProbeSucceeded,
    Save,
    ShimEnded,
    StartAsked,
    StatusSettled,
    Stop,
    StopAll,
    StopAsked,
    Tell,
    Tick,
    Unprepared,
)
from llmgw.core.units import format_seconds
from llmgw.errors import InvariantBroken

S = ShardState

Step = tuple[Supervision, tuple[Action, ...]]

KILL_GRACE_SECONDS = 5.0
"""From SIGTERM to SIGKILL for an engine that missed its start deadline: it may still have to free shared memory."""

PORT_AVOIDED_SECONDS = 300.0
"""How long a port on which an engine found somebody else is not chosen again."""

ENDED_MAX = 4096
"""Epochs remembered of forgotten shards: far more than one node starts while a command could still be under way."""

OUTPUT_CHARACTERS_MAX = 16384
"""Of a terminal shard's last output, sent with its status: the traceback of a deep stack fits in."""


# --- the step -------------------------------------------------------------------------------------------------


def step(supervision: Supervision, event: Event, now: float) -> Step:
    """The supervision after `event`, and what to do, in this order. InvariantBroken: we have a bug."""
    after, actions = _HANDLERS[type(event)](supervision, event, now)
    return after, (*_effects(supervision, after, now), *actions)


def restore(held: tuple[Held, ...], now: float) -> Step:
    """The supervision of a starting agent, from what its predecessor recorded (at most one of each shard id).

    Recorded states stand: a ready engine stays ready. What was under way is taken up again.
    """
    supervision = Supervision({one.spec.shard: one for one in held})
    actions: list[Action] = []
    for one in held:
        shard, epoch = one.spec.shard, one.spec.epoch
        if one.terminal:
            actions.append(Tell(report(one, now)))
        if one.state is S.FAILED and not one.gone:
            actions.append(Stop(shard, epoch, KILL_GRACE_SECONDS))
        elif one.state is S.STOPPING:
            grace = one.spec.stop_grace if one.stop_grace is None else one.stop_grace
            actions.append(Stop(shard, epoch, grace))
        elif one.state is S.LOADING:
            actions.append(Probe(one.spec))
    return supervision, tuple(actions)


def _effects(before: Supervision, after: Supervision, now: float) -> list[Action]:
    """What follows from how shards changed."""
    actions: list[Action] = []
    for shard, held in after.held.items():
        old = before.held.get(shard)
        if old is held:
            continue
        same = old if old is not None and old.spec.epoch == held.spec.epoch else None
        was = same.state if same is not None else None
        moved = same is not None and (held.state is not was or held.gone is not same.gone)
        explained = same is not None and held.terminal and held.output != same.output
        if moved and held.launched:
            actions.append(Save(held))
        if moved or explained:
            actions.append(Tell(report(held, now), held.output if held.terminal else ""))
        if held.state is S.LOADING and was is not S.LOADING:
            actions.append(Probe(held.spec))
        if held.state is not S.LOADING and was is S.LOADING:
            actions.append(EndProbe(shard, held.spec.epoch))
    return actions


def _move(held: Held, state: ShardState, now: float, **changes: Any) -> Held:
    """`held` in another state. InvariantBroken where the table has no such row."""
    check_transition(held.spec.shard, held.state, state, f"(epoch {held.spec.epoch}; {', '.join(held.story)})")
    deadline = held.deadline if state in COMING_UP else None
    story = (*held.story, f"{state} at {now:.3f}")
    return attrs.evolve(held, **{"state": state, "since": now, "deadline": deadline, "story": story, **changes})


def _put(supervision: Supervision, held: Held) -> Supervision:
    return attrs.evolve(supervision, held={**supervision.held, held.spec.shard: held})


def _find(supervision: Supervision, shard: str, epoch: int) -> Held | None:
    held = supervision.held.get(shard)
    return held if held is not None and held.spec.epoch == epoch else None


# --- commands -------------------------------------------------------------------------------------------------


def _start_asked(supervision: Supervision, event: StartAsked, now: float) -> Step:
    spec, held = event.spec, supervision.held.get(event.spec.shard)
    if held is not None and held.spec.epoch == spec.epoch:
        return _start_repeated(supervision, held, event)
    for rule in _START_RULES:
        refusal = rule(supervision, event)
        if refusal:
            return supervision, (Answer(event.connection, event.command_id, accepted=False, reason=refusal),)
    accepted = Held(
        spec,
        since=now,
        waiting=((event.connection, event.command_id),),
        story=(f"accepted at {now:.3f}",),
    )
    forget = (Forget(held.spec.shard, held.spec.epoch),) if held is not None and held.launched else ()
    return _put(supervision, accepted), (*forget, Prepare(spec))


def _start_repeated(supervision: Supervision, held: Held, event: StartAsked) -> Step:
    if held.waiting:
        waiting = (*held.waiting, (event.connection, event.command_id))
        return _put(supervision, attrs.evolve(held, waiting=waiting)), ()
    return supervision, (_start_answer(held, event.connection, event.command_id),)


def _start_answer(held: Held, connection: int, command_id: int) -> Answer:
    if not held.launched:
        return Answer(connection, command_id, accepted=False, reason=held.error)
    return Answer(connection, command_id, True, "", held.spec.port or None, held.spec.rendezvous_port)


def _older_than_held(supervision: Supervision, event: StartAsked) -> str:
    held = supervision.held.get(event.spec.shard)
    if held is not None and held.spec.epoch > event.spec.epoch:
        return f"epoch {event.spec.epoch} is older than {held.spec.epoch}, which this node has"
    return ""


def _ended_already(supervision: Supervision, event: StartAsked) -> str:
    """A copy of a command that was delayed must not launch again what has ended and was reported."""
    ended = supervision.ended.get(event.spec.shard)
    if ended is not None and ended >= event.spec.epoch:
        return f"epoch {event.spec.epoch} is over: epoch {ended} has ended on this node"
    return ""


def _older_not_gone(supervision: Supervision, event: StartAsked) -> str:
    """Its processes may still hold the GPUs."""
    held = supervision.held.get(event.spec.shard)
    if held is not None and not held.gone:
        return f"epoch {held.spec.epoch} is {held.state} and not gone yet"
    return ""


def _agent_stopping(supervision: Supervision, _event: StartAsked) -> str:
    return supervision.stopping


def _no_port(_supervision: Supervision, event: StartAsked) -> str:
    return event.refusal


_START_RULES: tuple[Callable[[Supervision, StartAsked], str], ...] = (
    _older_than_held,
    _ended_already,
    _older_not_gone,
    _agent_stopping,
    _no_port,
)
"""Each says why the start of an epoch that is not held is refused, or nothing; the first word counts."""


def _stop_asked(supervision: Supervision, event: StopAsked, now: float) -> Step:
    answered, held = _fenced(supervision, event)
    if held is None or held.terminal or held.state is S.STOPPING:
        return supervision, (answered,)
    stopping, actions = _stop(held, event.grace_seconds, event.reason, now)
    return _put(supervision, stopping), (answered, *actions)


def _stop(held: Held, grace_seconds: float, reason: str, now: float) -> tuple[Held, tuple[Action, ...]]:
    stopping = _move(held, S.STOPPING, now, stop_grace=grace_seconds, error=reason)
    if not held.launched:
        return stopping, ()  # `Prepared` or `Launched` will find the stop
    return stopping, (Stop(held.spec.shard, held.spec.epoch, grace_seconds),)


def _drain_asked(supervision: Supervision, event: DrainAsked, now: float) -> Step:
    answered, held = _fenced(supervision, event)
    if held is None or held.terminal or held.state in {S.STOPPING, S.DRAINING}:
        return supervision, (answered,)
    if held.state not in {S.LOADING, S.READY}:
        refused = f"it is {held.state}: there is nothing to drain yet"
        return supervision, (Answer(event.connection, event.command_id, accepted=False, reason=refused),)
    return _put(supervision, _move(held, S.DRAINING, now)), (answered,)


def _fenced(supervision: Supervision, event: StopAsked | DrainAsked) -> tuple[Answer, Held | None]:
    """The answer, and the launch that the command is about; None: there is none, or it is fenced off."""
    held = supervision.held.get(event.shard)
    if held is None:
        return Answer(event.connection, event.command_id, accepted=True, reason="nothing of it is here"), None
    if held.spec.epoch > event.epoch:
        reason = f"epoch {event.epoch} is older than {held.spec.epoch}, which this node has"
        return Answer(event.connection, event.command_id, accepted=False, reason=reason), None
    if held.spec.epoch < event.epoch:
        reason = f"nothing of epoch {event.epoch} is here, only epoch {held.spec.epoch}"
        return Answer(event.connection, event.command_id, accepted=True, reason=reason), None
    return Answer(event.connection, event.command_id, accepted=True, port=held.spec.port or None), held


def _stop_all(supervision: Supervision, event: StopAll, now: float) -> Step:
    after = attrs.evolve(supervision, stopping=event.reason)
    actions: list[Action] = []
    for shard in sorted(supervision.held):
        held = supervision.held[shard]
        if not held.terminal and held.state is not S.STOPPING:
            stopping, stops = _stop(held, held.spec.stop_grace, event.reason, now)
            after = _put(after, stopping)
            actions.extend(stops)
    return after, tuple(actions)


# --- the launch -----------------------------------------------------------------------------------------------


def _prepared(supervision: Supervision, event: Prepared, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        return supervision, ()
    if held.state is S.STOPPING:
        return _never_launched(supervision, held, S.STOPPED, now, error="stopped before it was launched")
    return supervision, (Launch(held.spec),)


def _unprepared(supervision: Supervision, event: Unprepared, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        return supervision, ()
    if held.state is S.STOPPING:
        error = f"stopped before it was launched: {event.error}"
        return _never_launched(supervision, held, S.STOPPED, now, error=error)
    return _never_launched(supervision, held, S.FAILED, now, error=event.error, cause=event.cause.value)


def _never_launched(supervision: Supervision, held: Held, state: ShardState, now: float, **changes: str) -> Step:
    ended = _move(held, state, now, gone=True, waiting=(), **changes)
    answers = tuple(_start_answer(ended, connection, command_id) for connection, command_id in held.waiting)
    return _put(supervision, ended), answers


def _launched(supervision: Supervision, event: Launched, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        raise InvariantBroken(f"{event.shard}: epoch {event.epoch} was launched and is not held")
    launched = attrs.evolve(held, launched=True, waiting=())
    answers = tuple(_start_answer(launched, connection, command_id) for connection, command_id in held.waiting)
    if held.state is S.STOPPING:
        grace = held.spec.stop_grace if held.stop_grace is None else held.stop_grace
        stop = Stop(event.shard, event.epoch, grace)
        return _put(supervision, launched), (Save(launched), *answers, stop)
    starting = _move(launched, S.STARTING, now, deadline=now + held.spec.start_deadline)
    return _put(supervision, starting), answers


def _engine_started(supervision: Supervision, event: EngineStarted, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        return supervision, ()
    held = attrs.evolve(held, pid=event.pid)
    if held.state is S.STARTING:
        held = _move(held, S.LOADING, now)
    return _put(supervision, held), ()


def _probe_failed(supervision: Supervision, event: ProbeFailed, _now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None or held.state is not S.LOADING:
        return supervision, ()
    return _put(supervision, attrs.evolve(held, probe_failure=event.reason)), ()


def _probe_succeeded(supervision: Supervision, event: ProbeSucceeded, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None or held.state is not S.LOADING:
        return supervision, ()
    return _put(supervision, _move(held, S.READY, now, probe_failure="", error=event.note)), ()


def _tick(supervision: Supervision, _event: Tick, now: float) -> Step:
    after = supervision
    actions: list[Action] = []
    for shard in sorted(supervision.held):
        held = supervision.held[shard]
        if held.deadline is None or held.deadline > now:
            continue
        asked = f": {held.probe_failure}" if held.probe_failure else ""
        error = f"not ready within {format_seconds(held.spec.start_deadline)} of its start{asked}"
        failed = _move(held, S.FAILED, now, error=error, cause=Cause.START_DEADLINE.value)
        after = _put(after, failed)
        actions.append(Stop(shard, held.spec.epoch, KILL_GRACE_SECONDS))
    return after, tuple(actions)


# --- the end --------------------------------------------------------------------------------------------------


def _engine_exited(supervision: Supervision, event: EngineExited, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        return supervision, ()
    output = event.output[-OUTPUT_CHARACTERS_MAX:]
    held = attrs.evolve(held, exit_code=event.code, signal=event.signal, output=output or held.output)
    if held.state is S.STOPPING:
        held = _move(held, S.STOPPED, now, since=now - event.age_seconds)
    elif not held.terminal:
        changes = {"error": event.error, "cause": event.cause, "since": now - event.age_seconds}
        held = _move(held, S.FAILED, now, **changes)
    after = _put(supervision, held)
    if event.cause == Cause.PORT_TAKEN and held.spec.port:
        avoided = {port: until for port, until in supervision.ports_avoided.items() if until > now}
        after = attrs.evolve(after, ports_avoided={**avoided, held.spec.port: now + PORT_AVOIDED_SECONDS})
    return after, ()


def _shim_ended(supervision: Supervision, event: ShimEnded, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        return supervision, ()
    held = attrs.evolve(held, output=event.output[-OUTPUT_CHARACTERS_MAX:] or held.output)
    if not held.terminal:
        held = _move(held, S.FAILED, now, error=event.error, cause=Cause.SHIM_KILLED.value)
    return _put(supervision, held), ()


def _engine_gone(supervision: Supervision, event: EngineGone, now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None:
        return supervision, ()
    if not held.terminal:
        error = "its processes vanished, and nothing says how it ended"
        held = _move(held, S.FAILED, now, error=error, cause=Cause.SHIM_KILLED.value)
    return _put(supervision, attrs.evolve(held, gone=True)), ()


def _status_settled(supervision: Supervision, event: StatusSettled, _now: float) -> Step:
    held = _find(supervision, event.shard, event.epoch)
    if held is None or not (held.terminal and held.gone):
        return supervision, ()
    remaining = {shard: one for shard, one in supervision.held.items() if shard != event.shard}
    ended = {shard: epoch for shard, epoch in supervision.ended.items() if shard != event.shard}
    ended[event.shard] = event.epoch
    for shard in tuple(ended)[: len(ended) - ENDED_MAX]:
        del ended[shard]
    forget = (Forget(event.shard, event.epoch),) if held.launched else ()
    return attrs.evolve(supervision, held=remaining, ended=ended), forget


_HANDLERS: dict[type[Any], Callable[[Supervision, Any, float], Step]] = {
    StartAsked: _start_asked,
    StopAsked: _stop_asked,
    DrainAsked: _drain_asked,
    Prepared: _prepared,
    Unprepared: _unprepared,
    Launched: _launched,
    EngineStarted: _engine_started,
    EngineExited: _engine_exited,
    ShimEnded: _shim_ended,
    EngineGone: _engine_gone,
    ProbeSucceeded: _probe_succeeded,
    ProbeFailed: _probe_failed,
    StatusSettled: _status_settled,
    StopAll: _stop_all,
    Tick: _tick,
}
