"""Messages over a byte stream: one reader, one writer task, and the limits of both in time.

Used by control, agents and routers alike, over TCP, TLS, a socketpair or an in-memory stream. The rules:

- Only `run` writes while the stream is in use. What is to be sent waits in a bounded queue; a full queue is the
  sender's to deal with (`send_nowait` raises `trio.WouldBlock`).
- A queue out of which nothing has gone for STALL_SECONDS ends the stream: the peer does not read.
- Where nothing else was said for PING_SECONDS a Ping is, so that each side hears the other at least every 30 s.
- An opener must come within OPENER_SECONDS; a side that dialled and heard nothing for SILENCE_SECONDS gives up.
- A violation is raised by `receive`, after the messages before it; `aclose` then still says the reason to the peer.

Whoever opens a MessageStream calls `aclose`, whatever happens: it never waits longer than FLUSH_SECONDS.
"""

import contextlib
from collections.abc import AsyncIterator, Callable

import trio

from llmgw.errors import PeerError, PeerReason
from llmgw.wire.codec import Received
from llmgw.wire.messages import Message, Ping
from llmgw.wire.session import ControlSession, Phase, Session

QUEUE_FRAMES_MAX = 64
"""Frames that wait to be written. More than a healthy peer ever has outstanding; a sick one is noticed by it."""

RECEIVE_BYTES = 64 * 1024
"""Read at once: a hundred heartbeats, and little beside the largest frame."""

WRITE_BYTES = 64 * 1024
"""Written at once: a large frame over a slow line shows its progress, and small frames go together."""

STALL_SECONDS = 30.0
"""Without any progress of a write. A line of 2 KiB/s is still served."""

PING_SECONDS = 20.0
"""After the last write. The promise is 30 s; the rest is for the way and for a busy machine."""

SILENCE_SECONDS = 90.0
"""After the last byte heard: three times what the peer promises."""

OPENER_SECONDS = 10.0
"""For a stranger to say who it is; until then it holds a connection of ours for nothing."""

FLUSH_SECONDS = 2.0
"""For what is queued at the end, the last word included, and for the peer to take it."""


class MessageStream:
    """A session on a stream. One task calls `receive`, `run` is started in a nursery, and anybody may send."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        session: Session,
        *,
        make_ping: Callable[[], Ping] = Ping,
        silence_seconds: float | None = None,
    ) -> None:
        """make_ping: what is said when there is nothing to say (control puts its interval in).

        silence_seconds: how long nothing may be heard; None: SILENCE_SECONDS on the side that dials, any time on
        the other, where silence is judged by whoever knows more than one stream.
        """
        self.session = session
        self._stream = stream
        self._make_ping = make_ping
        accepting = isinstance(session, ControlSession)
        self._silence_seconds = silence_seconds or (float("inf") if accepting else SILENCE_SECONDS)
        self._opener_deadline = trio.current_time() + OPENER_SECONDS if accepting else float("inf")
        self._queue_in, self._queue_out = trio.open_memory_channel[bytes](QUEUE_FRAMES_MAX)
        self._writer_done = trio.Event()
        self._writer_started = False
        self._mid_write = False
        self._ping_at = trio.current_time() + PING_SECONDS
        self._receiving = False
        self._peer_ended = False
        self._closed = False
        self._failure: PeerError | None = None
        self.last_received = trio.current_time()
        """When the last whole frame came, on Trio's clock; at first, when the stream was made."""
        self.last_sent = trio.current_time()
        """When bytes last left us."""

    # --- sending ------------------------------------------------------------------------------------------------

    def send_nowait(self, message: Message) -> None:
        """Queue a message. Raises `trio.WouldBlock` where the queue is full, and then nothing has happened;
        `trio.ClosedResourceError` or `trio.BrokenResourceError` where the stream is over.
        """
        if self._closed:
            raise trio.ClosedResourceError
        if self.queued >= QUEUE_FRAMES_MAX:
            raise trio.WouldBlock
        self._queue_in.send_nowait(self.session.send(message))

    async def send(self, message: Message) -> None:
        """Queue a message as soon as there is room; raises as `send_nowait` where the stream is over.

        For a sender with more to say than the queue holds. Never for one that others wait for.
        """
        if self._closed:
            raise trio.ClosedResourceError
        await self._queue_in.send(self.session.send(message))

    @property
    def queued(self) -> int:
        """Frames that wait to be written."""
        return self._queue_in.statistics().current_buffer_used

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is queued until the stream is over. Returns then; what ended it is raised by `receive`."""
        self._writer_started = True
        task_status.started()
        try:
            while (data := await self._next_write()) is not None:
                await self._write(data)
        except PeerError as error:
            self._failure = error
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reader meets the same end, and knows more about it
        finally:
            self._queue_in.close()
            self._writer_done.set()
        if self._failure is not None:
            await trio.aclose_forcefully(self._stream)

    async def _next_write(self) -> bytes | None:
        """What to write next, small frames together; a Ping after long idling; None: the queue was closed."""
        while True:
            with trio.move_on_at(self._ping_at):
                try:
                    data = await self._queue_out.receive()
                except trio.EndOfChannel:
                    return None
                return self._with_small_ones(data)
            self._ping_at = trio.current_time() + PING_SECONDS
            if self.session.may_send(Ping):
                return self.session.send(self._make_ping())

    def _with_small_ones(self, data: bytes) -> bytes:
        parts, size = [data], len(data)
        while size < WRITE_BYTES:
            try:
                parts.append(self._queue_out.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            size += len(parts[-1])
        return b"".join(parts)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        self._mid_write = True
        for start in range(0, len(view), WRITE_BYTES):
            with trio.move_on_after(STALL_SECONDS) as scope:
                await self._stream.send_all(view[start : start + WRITE_BYTES])
            if scope.cancelled_caught:
                raise PeerError(PeerReason.TIMEOUT, f"nothing could be written for {STALL_SECONDS:.0f} s")
            self.last_sent = trio.current_time()
        self._mid_write = False
        self._ping_at = self.last_sent + PING_SECONDS

    # --- receiving ----------------------------------------------------------------------------------------------

    async def receive(self) -> list[Received]:
        """The next messages, at least one; an empty list: the peer has ended the stream in order, or we have.

        Raises PeerError where the peer broke the protocol, kept silent or does not read, and
        `trio.BrokenResourceError` where the connection broke.
        """
        while True:
            self.session.receive(b"")  # raises what came after the messages given last
            data = await self._receive_some()
            if self._closed:
                return []
            if not data:
                self._peer_ended = True
                self.session.end_of_stream()
                return []
            before = self.session.frames_received
            try:
                messages = self.session.receive(data)
            finally:
                if self.session.frames_received > before:
                    self.last_received = trio.current_time()
                self._queue_replies()
            if messages:
                return messages

    async def __aiter__(self) -> AsyncIterator[Received]:
        """Every message until the peer ends the stream; raises as `receive`."""
        while messages := await self.receive():
            for message in messages:
                yield message

    async def _receive_some(self) -> bytes:
        opening = self.session.phase is Phase.NEW
        deadline = min(trio.current_time() + self._silence_seconds, self._opener_deadline if opening else float("inf"))
        self._receiving = True
        try:
            with trio.move_on_at(deadline):
                return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except trio.ClosedResourceError:
            if self._failure is not None:
                raise self._failure from None
            if self._closed:
                return b""
            raise
        finally:
            self._receiving = False
        said = f"no opening message within {OPENER_SECONDS:.0f} s" if opening else "nothing was heard for too long"
        raise PeerError(PeerReason.TIMEOUT, said)

    def _queue_replies(self) -> None:
        if replies := self.session.replies():
            # No room: the peer reads too little to learn what we do not support. A last Refused is kept for aclose.
            with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
                self._queue_in.send_nowait(replies)

    # --- the end ------------------------------------------------------------------------------------------------

    async def aclose(self, last: Message | None = None) -> None:
        """Write what is queued, then `last` where it is still legal, and close. Also when cancelled; within
        FLUSH_SECONDS, whatever the peer does. A second call does nothing.
        """
        may_say_it = last is not None and not self._closed and self.session.may_send(type(last))
        last_bytes = self.session.send(last) if last is not None and may_say_it else b""
        self._closed = True
        self._queue_in.close()
        with trio.move_on_after(FLUSH_SECONDS) as scope:
            scope.shield = True
            await self._flush(last_bytes)
        await trio.aclose_forcefully(self._stream)

    async def _flush(self, last: bytes) -> None:
        if self._writer_started:
            await self._writer_done.wait()
        if self._mid_write or self._failure is not None:
            return  # half a frame is out there, or nobody reads: nothing can follow
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            rest = self._with_small_ones(b"") + last
            if rest:
                await self._stream.send_all(rest)
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            # Closing a socket that holds unread bytes resets the connection, and the peer would lose the last word.
            while not self._receiving and not self._peer_ended:
                self._peer_ended = not await self._stream.receive_some(RECEIVE_BYTES)
            await self._stream.aclose()
