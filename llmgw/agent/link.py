"""The link actor: dials control for ever, and carries what supervisor, hardware and control have to say to each other.

A connection goes: ask the supervisor for its list; Register with it and the whole hardware; wait for Registered. From
then on the supervisor's answers and statuses go up as they come, a Heartbeat with a fresh list at every interval, and
a Register again where the hardware changed. Commands go to the supervisor in the order in which they came. All that
outlives a connection is the supervisor's; the link only remembers what it would say in a Goodbye.
"""

from collections.abc import Mapping

import attrs
import structlog
import trio

import llmgw
from llmgw.agent.hardware import HardwareReading, HardwareView, worth_registering
from llmgw.agent.log_sender import LogSender
from llmgw.agent.uplink import (
    Accepted,
    Acked,
    Commanded,
    LinkEvent,
    ListAsked,
    Opened,
    Output,
    OutputAsked,
    ShardList,
    Upward,
    open_uplink,
)
from llmgw.core.address import Address
from llmgw.core.backoff import Uniform
from llmgw.core.hardware import PortRange
from llmgw.core.lifecycle import ShardReport
from llmgw.latest import Latest
from llmgw.net.dial import Attempt, Connect, keep_dialling
from llmgw.net.framed import MessageStream
from llmgw.wire.codec import Received, UnknownMessage
from llmgw.wire.messages import (
    PROTOCOL,
    DrainShard,
    Goodbye,
    Heartbeat,
    LogCancel,
    LogRequest,
    Ping,
    Refused,
    Register,
    Registered,
    StartShard,
    StatusAck,
    StopShard,
    Unsupported,
)
from llmgw.wire.session import AgentSession

log = structlog.get_logger()

INTERVAL_SECONDS_MIN = 0.05
INTERVAL_SECONDS_MAX = 60.0
"""Of heartbeats, whatever control says: neither flooding it for its mistake nor silence that ends the connection."""

JITTER = 0.2
"""A heartbeat comes up to this share early, so that a fleet does not beat as one; never late, since lateness is what
control counts."""


@attrs.frozen
class Identity:
    """What a node says of itself that does not change while its agent lives."""

    node: str
    instance: str
    boot_id: str = ""
    address: str = ""
    """Under which its engines are reached; empty: the local address of the connection."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    ports: PortRange = PortRange(20000, 20999)


@attrs.frozen
class Supplies:
    """What the link works with."""

    identity: Identity
    inbox: "trio.MemorySendChannel[LinkEvent]"
    """The supervisor's."""
    hardware: Latest[HardwareView]
    rng: Uniform


class Link:
    """See the module."""

    def __init__(self, supplies: Supplies) -> None:
        self._with = supplies
        self._connections = 0
        self._goodbye: Goodbye | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, control: Address, connect: Connect) -> None:
        """Dial and converse until `say_goodbye`."""
        try:
            with self._scope:
                await keep_dialling(control, self._converse, rng=self._with.rng, connect=connect)
        finally:
            self._ended.set()

    async def say_goodbye(self, engines: str, reason: str) -> None:
        """End the link, with a Goodbye to control if it is there. Returns within seconds."""
        self._goodbye = Goodbye(engines, reason)
        self._scope.cancel()
        await self._ended.wait()

    async def _converse(self, stream: trio.abc.Stream, attempt: Attempt) -> None:
        self._connections += 1
        address = self._with.identity.address or local_address(stream)
        messages = MessageStream(stream, AgentSession())
        uplink, from_supervisor = open_uplink()
        try:
            # The channel is closed after the nursery: carry_up must not meet its end before it is cancelled.
            with from_supervisor:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(messages.run)
                    # Without an address of its own (a stream in memory) an engine is reached where its agent is.
                    await self._with.inbox.send(Opened(self._connections, uplink, address or "127.0.0.1"))
                    shards = await from_supervisor.receive()
                    assert isinstance(shards, ShardList)
                    conversation = Conversation(self._with, self._connections, address, messages, nursery)
                    conversation.register(shards.shards)
                    nursery.start_soon(conversation.carry_up, from_supervisor)
                    await conversation.listen(attempt)
                    nursery.cancel_scope.cancel()
        finally:
            await messages.aclose(self._goodbye)


class Conversation:
    """One connection, from the first Register on."""

    def __init__(
        self, supplies: Supplies, connection: int, address: str, messages: MessageStream, nursery: trio.Nursery
    ) -> None:
        self._with = supplies
        self._connection = connection
        self._address = address
        self._messages = messages
        self._nursery = nursery
        self._logs = LogSender(messages, nursery)
        self._interval_seconds = INTERVAL_SECONDS_MAX
        self._heartbeats = 0
        self._told = HardwareReading()
        """What control was told of the hardware last."""
        self._register_due = False
        """The next list is for a Register, since the hardware changed."""

    def register(self, shards: tuple[ShardReport, ...]) -> None:
        """Say everything."""
        view = self._with.hardware.value
        self._told = view.reading
        self._register_due = False
        self._messages.send_nowait(
            Register(
                protocol=PROTOCOL,
                node=self._with.identity.node,
                instance=self._with.identity.instance,
                boot_id=self._with.identity.boot_id,
                agent_version=llmgw.__version__,
                address=self._address,
                labels=dict(self._with.identity.labels),
                ports=self._with.identity.ports,
                hardware=view.reading.hardware,
                hardware_complete=view.reading.complete,
                problems=view.problems.aged(trio.current_time()),
                shards=shards,
            )
        )

    # --- down -------------------------------------------------------------------------------------------------

    async def listen(self, attempt: Attempt) -> None:
        """Obey until control ends the connection or refuses it. Raises as `MessageStream.receive`."""
        while messages := await self._messages.receive():
            for message in messages:
                if isinstance(message, Refused):
                    attempt.refused(f"refused: {message.reason}", message.retry_after_seconds)
                    return
                await self._hear(message, attempt)

    async def _hear(self, message: Received, attempt: Attempt) -> None:
        match message:
            case Registered():
                await self._registered(message, attempt)
            case StatusAck(number):
                await self._with.inbox.send(Acked(number))
            case StartShard() | StopShard() | DrainShard():
                await self._with.inbox.send(Commanded(self._connection, message))
            case Ping(heartbeat_interval_seconds):
                if heartbeat_interval_seconds is not None:
                    self._set_interval(heartbeat_interval_seconds)
            case LogRequest(request_id):
                if self._logs.open(request_id):
                    await self._with.inbox.send(OutputAsked(message))
            case LogCancel(request_id):
                self._logs.cancel(request_id)
            case UnknownMessage(name):
                log.warning("unsupported command", name=name)
            case Unsupported(name):
                log.warning("control does not support a message of ours", name=name)
            case _:
                log.warning("message without a use for an agent", name=type(message).__name__)

    async def _registered(self, registered: Registered, attempt: Attempt) -> None:
        self._set_interval(registered.heartbeat_interval_seconds)
        if attempt.accepted_at is None:
            attempt.accepted()
            log.info("registered", control=registered.control_incarnation, heartbeat_s=self._interval_seconds)
            self._nursery.start_soon(self._beat)
            self._nursery.start_soon(self._watch_hardware)
        await self._with.inbox.send(Accepted(self._connection, registered.status_acked))

    def _set_interval(self, seconds: float) -> None:
        self._interval_seconds = min(max(seconds, INTERVAL_SECONDS_MIN), INTERVAL_SECONDS_MAX)

    # --- up ---------------------------------------------------------------------------------------------------

    async def carry_up(self, from_supervisor: "trio.MemoryReceiveChannel[Upward]") -> None:
        """Send what the supervisor says, in its order. Ends the connection where the supervisor hung up."""
        async for upward in from_supervisor:
            match upward:
                case ShardList(shards):
                    if self._register_due:
                        self.register(shards)
                    else:
                        self._heartbeat(shards)
                case Output():
                    self._logs.send(upward)
                case _:
                    # Waits where control reads slowly; so do the heartbeats, which must not overtake.
                    await self._messages.send(upward)
        self._nursery.cancel_scope.cancel()

    def _heartbeat(self, shards: tuple[ShardReport, ...]) -> None:
        view = self._with.hardware.value
        now = trio.current_time()
        self._heartbeats += 1
        heartbeat = Heartbeat(
            number=self._heartbeats,
            gpu_memory_used_bytes=view.reading.gpu_memory_used_bytes,
            stale_seconds=view.stale_seconds(now),
            problems=view.problems.aged(now),
            shards=shards,
        )
        try:
            self._messages.send_nowait(heartbeat)
        except trio.WouldBlock:
            log.warning("heartbeat left out, control reads too slowly", number=self._heartbeats)

    async def _beat(self) -> None:
        while True:
            await trio.sleep(self._interval_seconds * self._with.rng.uniform(1.0 - JITTER, 1.0))
            await self._with.inbox.send(ListAsked())

    async def _watch_hardware(self) -> None:
        with self._with.hardware.subscribe() as changes:
            async for _ in changes:
                if not self._register_due and worth_registering(self._told, self._with.hardware.value.reading):
                    self._register_due = True
                    await self._with.inbox.send(ListAsked())


def local_address(stream: trio.abc.Stream) -> str:
    """The IP address that a connection leaves this machine from; empty where it has none."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream):
        return ""
    name = stream.socket.getsockname()
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else ""
