"""The inventory actor: only writer of the fleet.

It reads one channel, into which every node actor sends; sending there may block, and that is the brake on agents
that talk too much. Nothing that it does itself can block: what leaves it is published (`Latest`), queued without
waiting, or written to the store. So arrows into it and arrows out of it cannot form a cycle that waits.

What agents say is handled in batches: one published version for all of a batch, and a checkpoint between two, so
that a storm of reports never makes control deaf to new connections.
"""

from collections.abc import Callable
from typing import NoReturn

import attrs
import structlog
import trio

from llmgw.control.commands import Commands, Link, Links
from llmgw.control.metrics import HeartbeatLag
from llmgw.control.store import Store, StoreError
from llmgw.core.fleet import TICK_SECONDS, Fleet, apply
from llmgw.core.fleet_events import (
    Accept,
    Disconnected,
    Effect,
    Event,
    Forget,
    Heard,
    HeartbeatIn,
    KnownNode,
    Line,
    Refuse,
    Remember,
    StartAccepted,
    StatusIn,
    Supersede,
    Tick,
)
from llmgw.core.nodes import FleetView
from llmgw.core.reconcile import Start
from llmgw.latest import Latest
from llmgw.wire import messages as wire

log = structlog.get_logger()

CHANNEL_MAX = 256
"""Messages from all agents that wait to be handled; then their streams are read no further, and TCP slows them."""

BATCH_MAX = 64
"""Messages between two publications: a few milliseconds of work."""

SAVE_AGAIN_SECONDS = 5.0
"""After a write that failed (a full disk): nodes are remembered later, and nothing else waits for it."""


@attrs.frozen
class AckIn:
    """An agent's answer to a command arrived (an Ack, or Unsupported with the command's number)."""

    connection: int
    node: str
    ack: wire.Ack


Input = Event | AckIn


@attrs.define
class Inventory:
    """The actor's state. `latest` is read by everybody, the rest only by itself."""

    fleet: Fleet
    links: Links
    commands: Commands
    store: Store
    lag: HeartbeatLag
    answered: Callable[[], None]
    """Wakes the reconciler: a command was settled or its stream has ended."""
    latest: Latest[FleetView] = attrs.field(
        default=attrs.Factory(lambda self: Latest(self.fleet.snapshot()), takes_self=True)
    )
    _unsaved: dict[str, KnownNode | None] = attrs.field(factory=dict)
    """None: to be deleted."""
    _save_after: float = 0.0

    def view(self) -> FleetView:
        """The fleet at this moment: `latest` with the pulses of this instant, for ages and silences."""
        return self.fleet.snapshot()

    async def run(self, inputs: trio.MemoryReceiveChannel[Input]) -> NoReturn:
        """Handle inputs and ticks for ever."""
        next_tick = trio.current_time() + TICK_SECONDS
        while True:
            with trio.move_on_at(next_tick):
                self.handle(await inputs.receive(), trio.current_time())
            for _ in range(BATCH_MAX - 1):
                try:
                    self.handle(inputs.receive_nowait(), trio.current_time())
                except trio.WouldBlock:
                    break
            now = trio.current_time()
            if now >= next_tick:
                self.handle(Tick(), now)
                next_tick = now + TICK_SECONDS
            self.save(now)
            self.publish()
            await trio.lowlevel.checkpoint()

    def handle(self, item: Input, now: float) -> None:
        """One input, and what follows from it."""
        match item:
            case AckIn():
                self._acknowledged(item, now)
            case Disconnected():
                self._apply(item, now)
                self.commands.connection_ended(item.connection, item.node)
                self.lag.ended(item.connection)
                self.answered()
            case StatusIn():
                self._apply(item, now)
                node = self.fleet.nodes.get(item.node)
                if node is not None and node.connection == item.connection:
                    # What came on a stream that is superseded was not handled, and is sent again on the new one.
                    number = self.fleet.pulses[node.id].status_acked
                    self._link(item.connection, lambda link: link.acknowledge(number))
            case HeartbeatIn():
                self._apply(item, now)
                self.lag.heartbeat(item.connection, now)
            case _:
                self._apply(item, now)

    def publish(self) -> None:
        """Wake the readers if anything changed that a decision could depend on."""
        if self.fleet.version != self.latest.value.version:
            self.latest.publish(self.fleet.snapshot())

    def save(self, now: float) -> None:
        """Write the nodes that changed."""
        if not self._unsaved or now < self._save_after:
            return
        try:
            self.store.save_nodes(self._unsaved)
        except StoreError as error:
            self._save_after = now + SAVE_AGAIN_SECONDS
            log.error("nodes are not remembered", reason=str(error), again_in_s=SAVE_AGAIN_SECONDS)  # noqa: TRY400
        else:
            self._unsaved = {}

    def _acknowledged(self, item: AckIn, now: float) -> None:
        ack = item.ack
        command = self.commands.peek(ack.command_id, item.connection)
        event: Event = Heard(item.connection, item.node)
        if isinstance(command, Start) and ack.accepted:
            event = StartAccepted(
                item.connection,
                item.node,
                command.shard,
                command.epoch,
                command.spec_hash,
                command.gpus,
                ack.port,
                ack.rendezvous_port,
            )
        # The fleet holds the shard before the command stops being on its way: at no moment is it in neither.
        self._apply(event, now)
        if command is not None:
            self.commands.settle(ack.command_id, accepted=ack.accepted, reason=ack.reason)
            self.answered()

    def _apply(self, event: Event, now: float) -> None:
        for effect in apply(self.fleet, event, now):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Accept():
                self._link(
                    effect.connection,
                    lambda link: link.accept(effect.heartbeat_interval_seconds, effect.status_acked),
                )
            case Refuse():
                self._link(effect.connection, lambda link: link.refuse(effect.reason, effect.retry_after_seconds))
            case Supersede():
                self._link(effect.connection, lambda link: link.supersede())
            case Remember():
                self._unsaved[effect.node.id] = effect.node
            case Forget():
                self._unsaved[effect.node] = None
            case Line():
                (log.warning if effect.level == "warning" else log.info)(effect.event, **effect.facts)

    def _link(self, connection: int, use: Callable[[Link], None]) -> None:
        link = self.links.get(connection)
        if link is not None:  # it may have ended while its message waited
            use(link)
