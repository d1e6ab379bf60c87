"""Commands on their way: from the moment they are queued on a stream until the agent's Ack, or the stream's end.

Two actors call this, the reconciler (which sends) and the inventory (which hears the answers); each call is one
synchronous step, so neither ever sees the other's half-done work. Nothing here is kept over a restart: what was
on its way is decided again from what the agents report.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import structlog
import trio

from llmgw.core.nodes import Node
from llmgw.core.reconcile import Command, CommandKey, DrainShard, Refused, Start, Stop
from llmgw.wire import messages as wire

log = structlog.get_logger()

REASON_LETTERS_MAX = 1000
"""Of an agent's refusal: it is shown in explanations."""

RETRY_SECONDS = 1.0
"""After a full queue the reconciler looks again at the latest so much later; the agent had room for nothing before."""

SAID_EVERY_SECONDS = 30.0
"""How often a node that does not keep up is logged."""

Count = Callable[[str, str], None]
"""(kind of the command, its result), for the metric."""


class Link(Protocol):
    """The live connection of a node, as far as the other actors use it. No call blocks."""

    connection: int

    def send_nowait(self, message: wire.AgentDown) -> None:
        """Queue it. trio.WouldBlock when the queue is full, and when the connection is ending."""

    def accept(self, heartbeat_interval_seconds: float, status_acked: int) -> None:
        """Answer its Register: the session is open."""

    def refuse(self, reason: str, retry_after_seconds: float) -> None:
        """Answer Refused, and close when that is out."""

    def supersede(self) -> None:
        """Close: a newer connection has taken its place."""

    def acknowledge(self, number: int) -> None:
        """Tell it that every status up to `number` was handled, if not now then soon."""


Links = dict[int, Link]
"""By connection. A node actor adds itself before it passes its Register on, and takes itself out when it ends."""


@attrs.frozen
class InFlight:
    """One command that was queued on a stream."""

    command: Command
    connection: int


@attrs.define
class Commands:
    """All of them."""

    count: Count
    _next_id: int = 1
    _in_flight: dict[int, InFlight] = attrs.field(factory=dict)
    _refused: list[Refused] = attrs.field(factory=list)
    """Since the reconciler asked last; no more than were in flight."""
    _busy_since: dict[str, float] = attrs.field(factory=dict)
    _busy_said: dict[str, float] = attrs.field(factory=dict)

    @property
    def busy_since(self) -> Mapping[str, float]:
        """Nodes whose queue was full at the last attempt, and since when."""
        return self._busy_since

    def send(self, command: Command, link: Link, now: float) -> bool:
        """Queue it on `link`; False when it does not keep up (counted, and logged now and then)."""
        command_id = self._next_id
        try:
            link.send_nowait(to_wire(command, command_id))
        except trio.WouldBlock:
            self.count(command.kind, "unsent")
            self._not_keeping_up(command.node, now)
            return False
        self._next_id += 1
        self._busy_since.pop(command.node, None)
        self._in_flight[command_id] = InFlight(command, link.connection)
        return True

    def peek(self, command_id: int, connection: int) -> Command | None:
        """The command of that id if it went out on that connection and is not settled."""
        found = self._in_flight.get(command_id)
        return found.command if found is not None and found.connection == connection else None

    def settle(self, command_id: int, *, accepted: bool, reason: str) -> None:
        """The agent has answered."""
        command = self._in_flight.pop(command_id).command
        self.count(command.kind, "accepted" if accepted else "refused")
        if not accepted:
            said = reason[:REASON_LETTERS_MAX] or "refused without a reason"
            self._refused.append(Refused(command.shard, command.epoch, command.kind, said))
            log.warning(
                "command refused",
                node=command.node,
                command=command.kind,
                shard=command.shard,
                epoch=command.epoch,
                reason=said,
            )

    def connection_ended(self, connection: int, node: str) -> None:
        """What was on its way there is not any more: it is decided again."""
        for command_id in [id_ for id_, entry in self._in_flight.items() if entry.connection == connection]:
            self.count(self._in_flight.pop(command_id).command.kind, "unanswered")
        self._busy_since.pop(node, None)
        self._busy_said.pop(node, None)

    def keys(self, nodes: Mapping[str, Node]) -> frozenset[CommandKey]:
        """Those that went out on the stream that is their node's now."""
        return frozenset(
            (entry.command.shard, entry.command.epoch, entry.command.kind)
            for entry in self._in_flight.values()
            if (node := nodes.get(entry.command.node)) is not None and node.connection == entry.connection
        )

    def take_refused(self) -> tuple[Refused, ...]:
        """What agents refused since the last call."""
        refused, self._refused = tuple(self._refused), []
        return refused

    def _not_keeping_up(self, node: str, now: float) -> None:
        self._busy_since.setdefault(node, now)
        if now >= self._busy_said.get(node, -SAID_EVERY_SECONDS) + SAID_EVERY_SECONDS:
            self._busy_said[node] = now
            log.warning("not keeping up", node=node, reason="its queue of commands is full")


def to_wire(command: Command, command_id: int) -> wire.StartShard | wire.StopShard | wire.DrainShard:
    """The message for an agent."""
    match command:
        case Start():
            return wire.StartShard(
                command_id,
                command.shard,
                command.epoch,
                command.spec_hash,
                command.profile,
                command.served_name,
                gpus=command.gpus,
                rank=command.rank,
            )
        case Stop():
            return wire.StopShard(command_id, command.shard, command.epoch, command.grace_seconds, command.reason)
        case DrainShard():
            return wire.DrainShard(command_id, command.shard, command.epoch, command.deadline_seconds)
