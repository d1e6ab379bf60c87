"""Launches for the replicas that have none: whether each may be launched now, and where."""

from collections.abc import Callable, Iterable, Mapping

import attrs

from llmgw.core.balance import leave_first, surge_wanted
from llmgw.core.books import Books
from llmgw.core.explain import Refusal
from llmgw.core.group import Group, Slot, Wake
from llmgw.core.lifecycle import shard_id
from llmgw.core.nodes import Memory, Node, NodeState
from llmgw.core.observe import new_launch
from llmgw.core.placement import Need, Placed, Unplaceable, place
from llmgw.core.plan import Settled, Tried
from llmgw.core.replicas import Member
from llmgw.core.restarts import backing_off, barred_nodes

DECISIONS_MAX = 20
"""Placements tried in one wake; the rest follows in the next, at once: a storm must not keep control from listening."""


@attrs.define
class Filling:
    """What the placements of one wake share."""

    wake: Wake
    groups: Mapping[str, Group]
    settled: Iterable[Settled]
    tried: dict[str, list[Tried]]
    """By model: refused since anything changed last. What was refused stays refused while others take more."""
    decisions: int = 0
    left_over: bool = False
    """Whether there was more to decide."""
    _books: Books | None = None

    @property
    def books(self) -> Books:
        """The bookings, made when the first placement needs them."""
        if self._books is None:
            moving = [slot.replica for group in self.groups.values() for slot in group.slots.values()]
            quiet = [replica for settled in self.settled for replica in settled.replicas]
            self._books = Books(self.wake.fleet.nodes, moving + quiet)
        return self._books

    def place(self, need: Need, refuse: Mapping[str, tuple[str, str]], prefer: str = "") -> Placed | Unplaceable | None:
        """As `placement.place`; None: not in this wake."""
        for tried in self.tried.get(need.model, ()):
            if tried.need == need and tried.refuse == refuse:
                return tried.answer
        if self.decisions >= DECISIONS_MAX:
            self.left_over = True
            return None
        self.decisions += 1
        answer = place(need, self.wake.fleet.nodes, self.books, refuse=refuse, prefer=prefer)
        if isinstance(answer, Unplaceable):
            self.tried.setdefault(need.model, []).append(Tried(need, refuse, answer))
        return answer


def fill(filling: Filling, group: Group) -> None:
    """Launch what is missing of one model, then the next step of its roll-out."""
    model, wake = group.model, filling.wake
    if model is None:
        return
    need = Need.of(model)
    for slot in group.live:
        if slot.vacant:
            _fill_slot(filling, group, need, slot)
    leave = surge_wanted(wake, group)
    if not leave:
        return
    answer = filling.place(need, {})
    if isinstance(answer, Placed):
        slot = group.new_slot()
        _launch(filling, group, slot, answer, "surge")
        reason = next(iter(leave.values())).reason
        group.notes.append(f"{slot.replica.id} is to take the place of one that goes ({reason})")
    elif isinstance(answer, Unplaceable):
        leave_first(wake, group, leave)
        group.unplaceable = group.unplaceable or answer


# --- whether: the first rule that says why not ------------------------------------------------------------------


def _blind(wake: Wake, _group: Group, _slot: Slot) -> str | None:
    """Nobody knows what runs already: the file was not readable and the agents are not all back."""
    if wake.recovering and wake.fleet.memory is Memory.UNREADABLE:
        return "not launched while control is recovering without its file"
    return None


def _halted(_wake: Wake, group: Group, _slot: Slot) -> str | None:
    """The same launch cannot succeed: repeating it would only hide the reason under newer output."""
    if group.halt is None or not group.halt.entirely:
        return None
    group.change = "change the profile"
    return f"cannot run: {group.halt.reason}"


def _backing_off(wake: Wake, group: Group, slot: Slot) -> str | None:
    """A launch that dies at once must not be repeated as fast as it dies."""
    if not backing_off(wake, group, slot):
        return None
    failures = slot.replica.failures
    return f"backing off after {len(failures)} failed launches, the last on {failures[-1].node}: {failures[-1].error}"


RULES: tuple[tuple[str, Callable[[Wake, Group, Slot], str | None]], ...] = (
    ("wait: blind", _blind),
    ("wait: halted", _halted),
    ("wait: backing off", _backing_off),
)


# --- where ------------------------------------------------------------------------------------------------------


def _fill_slot(filling: Filling, group: Group, need: Need, slot: Slot) -> None:
    for name, why_not in RULES:
        reason = why_not(filling.wake, group, slot)
        if reason is not None:
            filling.wake.fire(name)
            group.notes.append(f"{slot.replica.id}: {reason}")
            return
    refuse = barred_nodes(filling.wake, group, slot)
    for standing in slot.standings:
        for member in standing.launch.members:
            # The replacement clashed with the old copy when both were on one node.
            refuse[member.node] = ("replica", f"launch {standing.launch.epoch} of {slot.replica.id} may still be there")
    answer = filling.place(need, refuse, prefer=slot.replica.last_node)
    if isinstance(answer, Placed):
        if slot.standings or slot.replica.last_node not in ("", answer.node):
            rule = "move"
        else:
            rule = "restart here" if slot.replica.last_node else "place"
        _launch(filling, group, slot, answer, rule)
    elif isinstance(answer, Unplaceable):
        filling.wake.fire("pending")
        group.unplaceable = answer
        group.notes.append(f"{slot.replica.id}: {_nowhere(need, filling.wake.fleet.nodes, answer)}")
    else:
        group.notes.append(f"{slot.replica.id}: is about to be placed")


def _launch(filling: Filling, group: Group, slot: Slot, placed: Placed, rule: str) -> None:
    wake, model = filling.wake, group.model
    assert model is not None
    launch = new_launch(wake, group, model, Member(placed.node, placed.gpus), wake.next_epoch())
    slot.add(launch, wake.fleet)
    filling.books.add(group.name, shard_id(slot.replica.id, 0), launch, 0)
    wake.fire(rule)
    facts = {"replica": slot.replica.id, "epoch": launch.epoch, "node": placed.node, "gpus": len(placed.gpus)}
    wake.say("info", "placed", **facts, rule=rule)


def _nowhere(need: Need, nodes: Mapping[str, Node], answer: Unplaceable) -> str:
    """Why there is no node, in one phrase."""
    if not nodes:
        return "no node has registered"
    if need.labels:
        meant = [node for node in nodes.values() if need.labels.items() <= node.labels.items()]
        if meant and all(node.state is NodeState.LOST for node in meant):
            verb = "is" if len(meant) == 1 else "are"
            return f"pinned to {', '.join(node.id for node in meant)}, which {verb} lost"
    if len(answer.refusals) == 1:
        refusal: Refusal = answer.refusals[0]
        return f"fits nowhere: {refusal}"
    return f"fits on none of {len(answer.refusals)} nodes"
