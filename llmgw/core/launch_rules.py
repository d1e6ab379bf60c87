"""What is to become of one launch: an ordered table, the first rule that applies decides.

A rule marks a launch (`drain`, `stop`), lets it be, or finds that its place is free. The commands follow from the
marks afterwards, anew at every wake until the reports agree.
"""

from collections.abc import Callable

import attrs

from llmgw.core.group import Group, Slot, Verdict, Wake, is_stranger
from llmgw.core.lifecycle import shard_id
from llmgw.core.plan import Command, DrainShard, Start, Stop, key_of
from llmgw.core.replicas import Drain, ReplicaState
from llmgw.core.standing import UP_SOON, Presence, Standing, here

GONE_WITHIN_SECONDS = 30.0
"""Beyond its grace: what has failed or was stopped and is not gone by then may hold its card for ever, and its replica
is launched on another node. The card itself stays booked."""

DRAIN_UNKNOWN_SECONDS = 60.0
"""For a launch of a model that is no longer in the catalog: the default of `drain_deadline`."""


@attrs.frozen
class Case:
    """One launch to be judged."""

    wake: Wake
    group: Group
    slot: Slot
    standing: Standing


def _recovering(case: Case) -> bool:
    """A new leader compared old stamps with its own clock and gave away work that was still running."""
    return case.wake.recovering and not _unstarted(case)


def _stranger(case: Case) -> bool:
    """A control without its file does not know who wants what it finds, and must not end it in its first minutes."""
    return is_stranger(case.wake, case.standing.launch)


def _silent(case: Case) -> bool:
    """A hiccup of the network is no reason to touch an engine, and a command would not arrive."""
    return case.standing.presence in (Presence.KEPT, Presence.SILENT, Presence.SYNCING)


def _lost_for_good(case: Case) -> bool:
    """The models of a dead node were shown as running for ever and never came back elsewhere."""
    if case.standing.presence is not Presence.LOST or case.group.model is None:
        return False
    after = case.group.model.replace_after
    if after is None:
        return False
    left = after - case.wake.fleet.silence(case.standing.node, case.wake.world.now)
    if left > 0:
        case.wake.at(case.wake.world.now + left)
    return left <= 0


def _lost(case: Case) -> bool:
    """`replace_after` is longer than `lost_after`, or `never`: an operator would rather wait for the machine."""
    return case.standing.presence is Presence.LOST


def _withdrawn_before_start(case: Case) -> bool:
    """Changed twice in a minute: what was decided first had not gone out and must not hold its GPUs for ever."""
    return _unstarted(case) and _is_wanted_gone(case) and not _start_in_flight(case)


def _stopping(case: Case) -> bool:
    """A stop is repeated until the agent says so: a lost message must not leave an engine behind."""
    return bool(case.standing.launch.stop)


def _drained(case: Case) -> bool:
    """Idle on every router that confirmed, or its time is over: a client that never ends must not hold up an update."""
    drain = case.standing.launch.drain
    if drain is None:
        return False
    wake, left = case.wake, drain.until - case.wake.world.wall
    if left > 0 and case.standing.state in (ReplicaState.READY, ReplicaState.DRAINING):
        wake.at(wake.world.now + left)
        return wake.idle(case.slot.replica.id, case.standing.launch.epoch)
    return True


def _draining(case: Case) -> bool:
    """Requests in flight are finished before the engine goes."""
    return case.standing.launch.drain is not None


def _retired(case: Case) -> bool:
    """Removed models and surplus replicas end wherever they turn up, also on a node that was away meanwhile."""
    return not case.slot.live


def _found_draining(case: Case) -> bool:
    """The control before this one was draining it, and its file is lost: the drain goes on."""
    return case.standing.state is ReplicaState.DRAINING


def _stuck(case: Case) -> bool:
    """The card was never given back, and the replica waited for it while other nodes were free."""
    if not _failed(case):
        return False
    left = case.standing.since + case.standing.launch.stop_grace + GONE_WITHIN_SECONDS - case.wake.world.now
    if left > 0:
        case.wake.at(case.wake.world.now + left)
    return left <= 0


def _failed(case: Case) -> bool:
    """Its workers may still hold the card; nothing is launched into it before it is gone."""
    return case.standing.state in (ReplicaState.FAILED, ReplicaState.STOPPED, ReplicaState.STOPPING)


def _doubled(case: Case) -> bool:
    """A node came back after its replica had been replaced, and both ran on, or both were stopped.

    The rule: of launches of one replica the newest *ready* one stays; if none is ready, the newest. But an outdated
    one serves until its successor is ready, and while one of them is out of sight nothing is decided.
    """
    rivals = [one for one in case.slot.standings if not one.launch.ending and one.presence is not Presence.LOST]
    if len(rivals) < 2 or not all(here(one) for one in rivals):  # noqa: PLR2004  (one alone has no rival)
        return False
    rivals = [one for one in rivals if not _failed(attrs.evolve(case, standing=one))]
    keeper = next((one for one in rivals if one.ready), next(iter(rivals), None))
    if keeper is None or keeper is case.standing:
        return False
    coming = case.standing.launch.epoch > keeper.launch.epoch and not case.group.outdated(case.standing)
    return not (coming and case.group.outdated(keeper))


def _useless(case: Case) -> bool:
    """Outdated, or on a node that is being drained, and serving nobody: nothing is lost by ending it now."""
    return (
        here(case.standing) and case.standing.state in UP_SOON and bool(leaving(case.wake, case.group, case.standing))
    )


def _unsent(case: Case) -> bool:
    """Decided, and its node does not list it: the command was never sent, or was lost."""
    return case.standing.state is ReplicaState.PENDING


def _always(_case: Case) -> bool:
    return True


Rule = tuple[str, Callable[[Case], bool], Verdict]

RULES: tuple[Rule, ...] = (
    ("wait: recovering", _recovering, Verdict.WAIT),
    ("wait: silent", _silent, Verdict.WAIT),
    ("move: lost", _lost_for_good, Verdict.MOVE),
    ("wait: lost", _lost, Verdict.WAIT),
    ("keep: stranger", _stranger, Verdict.KEEP),
    ("forget: not started", _withdrawn_before_start, Verdict.FORGET),
    ("move: not gone", _stuck, Verdict.MOVE),
    ("stop: decided", _stopping, Verdict.STOP),
    ("stop: drained", _drained, Verdict.STOP),
    ("drain: decided", _draining, Verdict.WAIT),
    ("wait: ending", _failed, Verdict.WAIT),
    ("drain: retired", _retired, Verdict.DRAIN),
    ("drain: found", _found_draining, Verdict.DRAIN),
    ("drain: doubled", _doubled, Verdict.DRAIN),
    ("stop: useless", _useless, Verdict.STOP),
    ("start", _unsent, Verdict.START),
    ("keep", _always, Verdict.KEEP),
)


def judge(wake: Wake, group: Group, slot: Slot, standing: Standing) -> Verdict:
    """The verdict on one launch; its marks are set accordingly, and a launch to forget is taken out."""
    case = Case(wake, group, slot, standing)
    name, _, verdict = next(rule for rule in RULES if rule[1](case))
    wake.fire(name)
    slot.verdicts[standing.launch.epoch] = verdict
    if verdict is Verdict.FORGET:
        slot.remove(standing)
    elif verdict is Verdict.DRAIN:
        end(wake, group, slot, standing, _why(case, name))
    elif verdict is Verdict.STOP and not standing.launch.stop:
        reason = standing.launch.drain.reason if standing.launch.drain is not None else _why(case, name)
        slot.change(standing, attrs.evolve(standing.launch, stop=reason))
        wake.say("info", "stopping", replica=slot.replica.id, epoch=standing.launch.epoch, reason=reason)
    return verdict


def end(wake: Wake, group: Group, slot: Slot, standing: Standing, reason: str) -> None:
    """Mark a launch to go: drained if it may be serving somebody, else stopped at once."""
    replica, epoch = slot.replica.id, standing.launch.epoch
    if standing.state in UP_SOON:
        slot.change(standing, attrs.evolve(standing.launch, stop=reason))
        wake.say("info", "stopping", replica=replica, epoch=epoch, reason=reason)
        return
    seconds = group.model.drain_deadline if group.model is not None else DRAIN_UNKNOWN_SECONDS
    drain = Drain(reason, wake.world.wall + seconds, seconds)
    slot.change(standing, attrs.evolve(standing.launch, drain=drain))
    wake.at(wake.world.now + seconds)
    wake.say("info", "draining", replica=replica, epoch=epoch, reason=reason, deadline_s=seconds)


@attrs.frozen
class Leave:
    """Why a launch has to make room for another one of its replica."""

    reason: str
    outdated: bool
    """Its profile has changed; else its node is being drained."""


def leaving(wake: Wake, group: Group, standing: Standing) -> Leave | None:
    """Whether a launch has to make room, and why."""
    if group.outdated(standing):
        return Leave("its profile has changed", outdated=True)
    for member in standing.launch.members:
        node = wake.fleet.nodes.get(member.node)
        if node is not None and node.draining:
            return Leave(f"{node.id} is being drained", outdated=False)
    return None


def commands(wake: Wake, group: Group, standing: Standing) -> list[Command]:
    """What has to be said to the agents of a launch, as it is marked and reported, whether or not it is in flight."""
    if not here(standing):
        return []
    found = (
        _command(wake, group, standing, rank)
        for rank, member in enumerate(standing.launch.members)
        if wake.fleet.nodes[member.node].commandable
    )
    return [command for command in found if command is not None and key_of(command) not in wake.held_back]


def _command(wake: Wake, group: Group, standing: Standing, rank: int) -> Command | None:
    launch, state = standing.launch, standing.state
    node, shard = launch.members[rank].node, shard_id(standing.replica, rank)
    if launch.stop:
        if wake.recovering or state in _NOTHING_TO_STOP:
            return None
        return Stop(node, shard, launch.epoch, launch.stop_grace, launch.stop)
    if launch.drain is not None:
        if wake.recovering or state is not ReplicaState.READY:
            return None
        return DrainShard(node, shard, launch.epoch, max(0.0, launch.drain.until - wake.world.wall))
    if state is not ReplicaState.PENDING or group.model is None or group.outdated(standing):
        return None
    profile = group.model.profile
    assert profile is not None
    gpus = launch.members[rank].gpus
    return Start(node, shard, launch.epoch, launch.spec_hash, profile, launch.served_name, gpus, rank)


_NOTHING_TO_STOP = frozenset(
    {ReplicaState.PENDING, ReplicaState.STOPPING, ReplicaState.STOPPED, ReplicaState.FAILED, ReplicaState.LOST}
)


def _unstarted(case: Case) -> bool:
    return case.standing.state is ReplicaState.PENDING and not case.standing.launch.accepted


def _is_wanted_gone(case: Case) -> bool:
    return case.standing.launch.ending or not case.slot.live or case.group.outdated(case.standing)


def _start_in_flight(case: Case) -> bool:
    return (shard_id(case.slot.replica.id, 0), case.standing.launch.epoch, Start.kind) in case.wake.world.in_flight


def _why(case: Case, rule: str) -> str:
    if rule == "drain: retired":
        return case.slot.replica.retired
    if rule == "drain: found":
        return "it was draining when control started"
    if rule == "drain: doubled":
        return "another launch of it is kept"
    leave = leaving(case.wake, case.group, case.standing)
    return leave.reason if leave is not None else ""
