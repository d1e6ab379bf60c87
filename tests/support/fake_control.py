"""A control that a test scripts: it speaks the real framing over streams in memory, and remembers what it heard."""

from collections.abc import Callable
from typing import TypeVar

import trio
from trio.testing import memory_stream_pair

from llmgw.core.address import Address
from llmgw.errors import PeerError
from llmgw.net.framed import MessageStream
from llmgw.wire.codec import UnknownMessage
from llmgw.wire.messages import Message, Refused, Register, Registered, ShardStatus, StatusAck
from llmgw.wire.session import ControlSession

ADDRESS = Address("control.example", 7070)
M = TypeVar("M", bound=Message)


class FakeControl:
    """Listens at `ADDRESS`, through the seam `connect`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.up = True
        self.silent = False
        """Accepts connections and says nothing, ever."""
        self.acknowledges = True
        """Statuses, at once."""
        self.answer: Callable[[Register], Registered | Refused] = lambda _: Registered("c1", 2.0, self.status_acked)
        self.status_acked = 0
        self.dialled: list[float] = []
        self.heard: list[tuple[int, float, Message | UnknownMessage]] = []
        """(connection, when, what)."""
        self.ended: list[str] = []
        """Why each connection ended."""
        self.current: MessageStream | None = None
        self._changed = trio.Event()

    async def connect(self, address: Address) -> trio.abc.Stream:
        """The seam."""
        await trio.lowlevel.checkpoint()
        assert address == ADDRESS
        self.dialled.append(trio.current_time())
        if not self.up:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, len(self.dialled), theirs)
        return ours

    async def _serve(self, connection: int, stream: trio.abc.Stream) -> None:
        messages = MessageStream(stream, ControlSession())
        self.current = messages
        ended = "end of stream"
        try:
            async with trio.open_nursery() as nursery:
                if not self.silent:
                    nursery.start_soon(messages.run)
                try:
                    while received := await messages.receive():
                        for message in received:
                            self._hear(connection, message, messages)
                except (PeerError, trio.BrokenResourceError) as error:
                    ended = str(error) or type(error).__name__
                nursery.cancel_scope.cancel()
        finally:
            self.ended.append(ended)
            self._notify()
            await messages.aclose()

    def _hear(self, connection: int, message: Message | UnknownMessage, messages: MessageStream) -> None:
        self.heard.append((connection, trio.current_time(), message))
        self._notify()
        if self.silent:
            return
        if isinstance(message, Register):
            messages.send_nowait(self.answer(message))
        if isinstance(message, ShardStatus) and self.acknowledges:
            self.status_acked = message.number
            messages.send_nowait(StatusAck(message.number))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def send(self, message: Message) -> None:
        """Say something on the newest connection."""
        assert self.current is not None
        self.current.send_nowait(message)

    async def hang_up(self) -> None:
        """End the newest connection."""
        assert self.current is not None
        await self.current.aclose()

    def of(self, kind: type[M]) -> list[M]:
        """What was heard of that kind, on all connections."""
        return [message for _, _, message in self.heard if isinstance(message, kind)]

    async def next(self, kind: type[M], count: int = 1, seconds: float = 4000) -> M:
        """Wait until `count` of that kind were heard in all; the newest."""
        with trio.fail_after(seconds):
            while len(self.of(kind)) < count:
                await self._changed.wait()
        return self.of(kind)[count - 1]

    async def wait_ended(self, count: int = 1, seconds: float = 4000) -> str:
        """Wait until `count` connections have ended; why the newest of them did."""
        with trio.fail_after(seconds):
            while len(self.ended) < count:
                await self._changed.wait()
        return self.ended[count - 1]
