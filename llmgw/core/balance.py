"""How many replicas: which are too many, and the one step of a roll-out or of a move that is due.

A replica *leaves* if its profile is outdated or its node is being drained. Leaving replicas go one at a time: another
one is started beside them (surge), and when that is ready one of them is drained. Without room beside them, one goes
first only if `update = "stop-first"` (or an operator drains the node) and as many stay ready as are promised.
"""

import attrs

from llmgw.core.catalog import Update
from llmgw.core.group import Group, Slot, Wake, is_stranger
from llmgw.core.launch_rules import Leave, end, leaving
from llmgw.core.nodes import Memory
from llmgw.core.replicas import ReplicaState
from llmgw.core.restarts import backing_off
from llmgw.core.standing import UP_SOON, Presence, here


def set_count(wake: Wake, group: Group) -> None:
    """Retire what is too much, make room for what is missing."""
    if group.model is None:
        for slot in group.live:
            _retire(wake, slot, f"{group.name} is not in the catalog")
        return
    if wake.recovering:
        if wake.fleet.memory is Memory.LOADED:
            _add_missing(group)
        return
    _retire_surplus(wake, group)
    _add_missing(group)


def leavers(wake: Wake, group: Group) -> dict[str, Leave]:
    """Live replicas that have to make room, by id."""
    found = {}
    for slot in group.live:
        staying = [one for one in slot.standings if not one.launch.ending and one.presence is not Presence.LOST]
        if all(here(one) and not is_stranger(wake, one.launch) for one in staying):
            leaves = [leave for one in staying if (leave := leaving(wake, group, one)) is not None]
            if staying and len(leaves) == len(staying):
                found[slot.replica.id] = leaves[0]
    return found


def surge_wanted(wake: Wake, group: Group) -> dict[str, Leave]:
    """The leavers whose turn has come: another replica should be started beside them. Empty: none, or not yet."""
    if wake.recovering:
        return {}
    leave = leavers(wake, group)
    if group.halt is not None and any(one.outdated for one in leave.values()):
        group.notes.append(f"update halted, the old revision serves: {group.halt.reason}")
        group.change = "change the profile again"
        leave = {id_: one for id_, one in leave.items() if not one.outdated}
    if not leave:
        return {}
    if (busy := _in_progress(wake, group, leave)) is not None:
        group.notes.append(f"{len(leave)} to be replaced ({_first_reason(leave)}): {busy} first")
        return {}
    return leave


def leave_first(wake: Wake, group: Group, leave: dict[str, Leave]) -> None:
    """There is no room beside the leavers: let one go first, if that is allowed."""
    assert group.model is not None
    stop_first = group.model.update is Update.STOP_FIRST
    candidates = {id_: one for id_, one in leave.items() if stop_first or not one.outdated}
    if not candidates:
        wake.fire("wait: no room beside")
        group.notes.append("update blocked, the old revision serves: no room for another replica beside it")
        group.change = 'room for one more replica, or update = "stop-first"'
    elif group.ready - 1 < group.promised:
        wake.fire("wait: promised")
        group.notes.append(
            f"replacement blocked ({_first_reason(candidates)}): no room for another replica, and of {group.ready} "
            f"ready {group.promised} are promised"
        )
        group.change = f"room for one more replica, or ready_min = {max(0, group.ready - 1)}"
    else:
        slot = min((group.slots[id_] for id_ in candidates), key=lambda slot: _badness(wake, slot))
        reason = candidates[slot.replica.id].reason
        for standing in tuple(slot.standings):
            if here(standing) and not standing.launch.ending:
                end(wake, group, slot, standing, reason)
        wake.fire("leave first")
        group.notes.append(f"{slot.replica.id} goes before its successor comes ({reason})")


def _first_reason(leave: dict[str, Leave]) -> str:
    return next(iter(leave.values())).reason


def _add_missing(group: Group) -> None:
    for _ in range(group.desired - len(group.live)):
        group.new_slot()


def _retire_surplus(wake: Wake, group: Group) -> None:
    surplus = len(group.live) - group.desired
    if surplus <= 0:
        return
    leave = leavers(wake, group)
    halted = group.halt is not None
    if leave and not halted and any(_is_coming(wake, group, slot, leave) for slot in group.live):
        surplus -= 1  # it is to take the place of one that leaves, which has to wait for it

    def order(slot: Slot) -> tuple[bool, int, int, int]:
        goes = slot.replica.id in leave
        # A new revision that was halted makes way for the old one, not the other way round.
        first = (not goes and not slot.ready) if halted else goes
        return (bool(leave) and not first, *_badness(wake, slot))

    for slot in sorted(group.live, key=order)[: max(0, surplus)]:
        if not _may_go(group, slot):
            return
        wanted = f"{group.desired} of it {'is' if group.desired == 1 else 'are'} wanted"
        leave_reason = leave.get(slot.replica.id)
        _retire(wake, slot, leave_reason.reason if leave_reason is not None else wanted)


def _may_go(group: Group, slot: Slot) -> bool:
    """Whether the others can do without it."""
    main = slot.main
    if main is None:
        return True
    if main.ready:
        return group.ready - 1 >= group.promised
    if here(main) and main.state in UP_SOON:
        # It may be the replacement of one that is out of sight and would be missed.
        return all(other.main is None or here(other.main) for other in group.live)
    return here(main) or group.ready >= group.desired


def _badness(wake: Wake, slot: Slot) -> tuple[int, int, int]:
    """The failed go first, then the loading, then the least loaded; of equals the highest number."""
    main = slot.main
    if main is None or main.state in (ReplicaState.FAILED, ReplicaState.LOST, ReplicaState.STOPPED):
        return 0, 0, -slot.number
    if main.state in UP_SOON:
        return 1, 0, -slot.number
    load = wake.in_flight(slot.replica.id, main.launch.epoch)
    return (3 if main.ready else 2), load, -slot.number


def _is_coming(wake: Wake, group: Group, slot: Slot, leave: dict[str, Leave]) -> bool:
    if slot.replica.id in leave or slot.ready:
        return False
    main = slot.main
    return backing_off(wake, group, slot) if main is None else here(main) and main.state in UP_SOON


def _in_progress(wake: Wake, group: Group, leave: dict[str, Leave]) -> str | None:
    """What has to end before the next step."""
    for slot in group.slots.values():
        for standing in slot.standings:
            if here(standing) and (standing.launch.ending or not slot.live):
                return f"{slot.replica.id} is to end"
        if slot.live and _is_coming(wake, group, slot, leave):
            return f"{slot.replica.id} is to be ready"
    if len(group.live) > group.desired:
        return f"one of {len(group.live)} replicas is to go"
    return None


def _retire(wake: Wake, slot: Slot, reason: str) -> None:
    slot.replica = attrs.evolve(slot.replica, retired=reason)
    wake.fire("retire")
    if slot.standings:
        wake.say("info", "replica retired", replica=slot.replica.id, reason=reason)
