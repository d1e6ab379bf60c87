"""The node actor: one per connection of an agent, a reader (this file) beside the stream's one writer task.

It turns messages into events for the inventory and decides nothing: whether the agent gets in, is refused or takes
an older connection's place comes back from the inventory through the `Link` of this connection. A connection is a
number that is never used twice; of a node's name nothing is ever concluded here.
"""

import contextlib
import functools
from collections.abc import Iterable, Sequence

import attrs
import structlog
import trio

from llmgw.control.commands import Links
from llmgw.control.inventory import AckIn, Input
from llmgw.core.fleet_events import (
    Disconnected,
    Farewell,
    Heard,
    HeartbeatIn,
    Registered,
    Registration,
    StatusIn,
)
from llmgw.core.lifecycle import ShardReport, replica_id, shard_id, split_replica, split_shard
from llmgw.errors import PeerError, PeerReason
from llmgw.net.framed import MessageStream
from llmgw.wire import messages as wire
from llmgw.wire.codec import Received, UnknownMessage

log = structlog.get_logger()

NODE_LETTERS_MAX = 253
"""Of a node's name: the length of the longest host name."""

SHARD_LETTERS_MAX = 1024
"""Of a shard's id: more than any model's name."""

SHARD_NAMES_KEPT = 65_536
"""Ids that were judged already: every heartbeat repeats them."""

EPOCH_MAX = 2**48
"""Epochs are unix seconds or one more than an earlier one: none that was ever given comes near."""

UNKNOWN_SAID_MAX = 10
"""Kinds of unknown messages that are logged of one connection."""


@attrs.define(eq=False)
class NodeLink:
    """A connection as the inventory and the reconciler use it; a `Link`."""

    connection: int
    stream: MessageStream
    control_incarnation: str
    control_version: str
    last_word: wire.Refused | None = None
    """Said after what is queued, when the stream is closed."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Of the reader; cancelled to end the connection."""
    _acknowledged: int = 0
    _to_acknowledge: int = 0

    def send_nowait(self, message: wire.AgentDown) -> None:
        """As Link."""
        # A peer that broke the protocol was answered Refused already; its reader is about to learn of it.
        if self.scope.cancel_called or not self.stream.session.may_send(type(message)):
            raise trio.WouldBlock
        try:
            self.stream.send_nowait(message)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise trio.WouldBlock from None

    def accept(self, heartbeat_interval_seconds: float, status_acked: int) -> None:
        """As Link."""
        self._acknowledged = self._to_acknowledge = status_acked
        answer = wire.Registered(
            self.control_incarnation,
            heartbeat_interval_seconds,
            status_acked,
            control_version=self.control_version,
        )
        with contextlib.suppress(trio.WouldBlock):  # it is ending, or reads so little that it soon will be
            self.send_nowait(answer)

    def refuse(self, reason: str, retry_after_seconds: float) -> None:
        """As Link."""
        self._end(wire.Refused(reason, retry_after_seconds))

    def supersede(self) -> None:
        """As Link."""
        self._end(wire.Refused("superseded: the same agent has connected anew"))

    def acknowledge(self, number: int) -> None:
        """As Link."""
        self._to_acknowledge = max(self._to_acknowledge, number)
        self.acknowledge_now()

    def acknowledge_now(self) -> bool:
        """Send what is to be acknowledged; False where there was no room for it."""
        if self._to_acknowledge > self._acknowledged:
            try:
                self.send_nowait(wire.StatusAck(self._to_acknowledge))
            except trio.WouldBlock:
                return False
            self._acknowledged = self._to_acknowledge
        return True

    def _end(self, last_word: wire.Refused) -> None:
        if self.last_word is None:
            self.last_word = last_word
        self.scope.cancel()


async def serve_node(
    link: NodeLink,
    register: wire.Register,
    others: Sequence[Received],
    *,
    peer: str,
    inventory: trio.MemorySendChannel[Input],
    links: Links,
) -> None:
    """Read the stream of one agent until it ends or is ended.

    `register` is its first message; `others` came with it. Raises PeerError and trio.BrokenResourceError as the stream
    does. The inventory is told of the end in any case.
    """
    reader = _Reader(link, register.node, register.instance, peer, inventory)
    reader.check(register)
    links[link.connection] = link
    try:
        with link.scope:
            await reader.read([register, *others])
    finally:
        del links[link.connection]
        await inventory.send(Disconnected(link.connection, register.node))


@attrs.define
class _Reader:
    link: NodeLink
    node: str
    instance: str
    peer: str
    inventory: trio.MemorySendChannel[Input]
    unknown: dict[str, None] = attrs.field(factory=dict)

    async def read(self, messages: list[Received]) -> None:
        while messages:
            for message in messages:
                await self.inventory.send(self.event(message))
                if isinstance(message, wire.Goodbye):
                    return
            self.link.acknowledge_now()
            messages = await self.link.stream.receive()

    def event(self, message: Received) -> Input:
        """What the inventory is told."""
        connection, node = self.link.connection, self.node
        match message:
            case wire.Register():
                self.check(message)
                check_reports(message.shards)
                return Registered(connection, self.peer, registration(message))
            case wire.Heartbeat():
                check_reports(message.shards)
                return HeartbeatIn(
                    connection,
                    node,
                    message.gpu_memory_used_bytes,
                    message.stale_seconds,
                    message.problems,
                    message.shards,
                )
            case wire.ShardStatus():
                check_reports((message.report,))
                return StatusIn(connection, node, message.number, message.report, message.output)
            case wire.Ack():
                return AckIn(connection, node, message)
            case wire.Unsupported(command_id=int(command_id)):
                return AckIn(connection, node, wire.Ack(command_id, False, f"unsupported command {message.name}"))
            case wire.Goodbye():
                return Farewell(connection, node, message.engines, message.reason)
            case wire.RenewRequest():
                with contextlib.suppress(trio.WouldBlock):  # it asks again
                    self.link.send_nowait(wire.Unsupported("RenewRequest"))
            case UnknownMessage():
                self._say_unknown(message.name)
            case _:
                pass
        return Heard(connection, node)

    def check(self, register: wire.Register) -> None:
        """Raise PeerError for a name that is none, or that is another one than this connection's."""
        if not 0 < len(register.node) <= NODE_LETTERS_MAX or not register.node.isprintable():
            expected = f"node: expected 1 to {NODE_LETTERS_MAX} printable characters"
            raise PeerError(PeerReason.BAD_FIELD, f"{expected}, got {register.node[:80]!a}")
        if (register.node, register.instance) != (self.node, self.instance):
            raise PeerError(
                PeerReason.OUT_OF_TURN,
                f"Register of {register.node!a} on the stream of {self.node!a}, or of another instance",
            )

    def _say_unknown(self, name: str) -> None:
        if name not in self.unknown and len(self.unknown) < UNKNOWN_SAID_MAX:
            self.unknown[name] = None
            log.warning("unknown message answered unsupported", node=self.node, peer=self.peer, message=name)


def check_reports(reports: Iterable[ShardReport]) -> None:
    """Raise PeerError for a shard that no control has ever started: its name or epoch would spoil what is decided."""
    for report in reports:
        if not is_shard_id(report.shard):
            raise PeerError(PeerReason.BAD_FIELD, f"shard: expected <model>/<n>/<rank>, got {report.shard[:80]!a}")
        if not 0 <= report.epoch <= EPOCH_MAX:
            raise PeerError(PeerReason.BAD_FIELD, f"epoch: expected 0 to {EPOCH_MAX}, got {report.epoch}")


@functools.lru_cache(SHARD_NAMES_KEPT)
def is_shard_id(text: str) -> bool:
    """Whether it is `<model>/<n>/<rank>`, written as we write it."""
    try:
        replica, rank = split_shard(text)
        model, number = split_replica(replica)
    except ValueError:
        return False
    written = shard_id(replica_id(model, number), rank)
    return number >= 0 and rank >= 0 and written == text and len(text) <= SHARD_LETTERS_MAX


def registration(message: wire.Register) -> Registration:
    """What of a Register the fleet keeps."""
    return Registration(
        node=message.node,
        instance=message.instance,
        boot_id=message.boot_id,
        agent_version=message.agent_version,
        address=message.address,
        labels=message.labels,
        ports=message.ports,
        hardware=message.hardware,
        hardware_complete=message.hardware_complete,
        problems=message.problems,
        shards=message.shards,
    )
