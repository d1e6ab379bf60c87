"""The pump: moves the bytes of every answer that has begun, for all of them in one task.

Theory of operation. All sockets of running transfers are in one epoll object, whose own file descriptor a single
Trio task waits on. Each wake drains what is ready in a tight loop (receive, let the framing find the end, send), so
that the price of a task switch is paid for a batch and not for a token. A transfer's own task sleeps until it is over.

1. A transfer is in one of two states. *Reading*: its engine's socket is registered for input. *Writing*: the client
   took less than there was; the rest (at most one read) is kept, the client's socket is registered for output, and
   the engine's socket is taken out of the set altogether, since a dead peer is reported whatever one asks for. So
   a slow client costs one read of memory, and holds up its engine and nobody else.
2. A client's socket is always registered for its end (EPOLLRDHUP): a client that leaves is noticed at once, though
   nothing is read from it. The same serves requests whose engine has not answered yet (`watch`).
3. It never closes a socket. What has ended is taken out of the set, and its task is told why; so no file descriptor
   is reused within a batch, and an event for one that is not in the books is of a transfer that ended in this batch.
4. A wake handles a bounded number of events and polls again a bounded number of times before Trio gets its turn.
   The kernel reports ready sockets in turn, so a busy one does not starve the others.
"""

import collections
import enum
import select
import socket
from collections.abc import Callable
from typing import NoReturn

import attrs
import trio

from llmgw.router.framer import Body, FramingError
from llmgw.router.records import TAIL_BYTES, TAIL_PIECES

READ_BYTES = 16 * 1024
"""Of one read: a token is 300 bytes; a fast bulk answer is moved at 16 KiB a turn."""

EVENTS_PER_POLL = 64
"""With READ_BYTES at most 1 MiB is moved before anything else is looked at."""

POLLS_PER_WAKE = 4
"""Further polls cost a system call each and save a task switch where more is ready."""

_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Outcome(enum.Enum):
    """How a transfer ended."""

    COMPLETE = "complete"
    CLIENT_LEFT = "client left"
    ENGINE_DIED = "engine died"
    STALLED = "stalled"
    """Neither side moved a byte for the idle time."""


@attrs.define(eq=False)
class Transfer:
    """One answer on its way from an engine's socket to a client's."""

    up: socket.socket
    down: socket.socket
    body: Body
    payload: list[bytes] | None = None
    """Where `body` puts the content; then that is sent, without its framing. None: sent as it came."""
    pending: bytes = b""
    """What the client has not taken yet."""
    counts_events: bool = False
    tail: "collections.deque[bytes]" = attrs.field(factory=lambda: collections.deque(maxlen=TAIL_PIECES))
    """The last reads, for the usage in them."""
    events: int = 0
    bytes_sent: int = 0
    outcome: Outcome | None = None
    detail: str = ""
    """Why, where that says more than the outcome."""
    intact: bool = True
    """What was sent agrees with where `body` stands, so that something of ours could follow."""
    surplus: bool = False
    """The engine sent more than its answer: nothing else may be read from that connection."""
    # What follows is the pump's own.
    up_fd: int = -1
    down_fd: int = -1
    moved_at: float = 0.0
    task: trio.lowlevel.Task | None = None


class Pump:
    """All running transfers, and the clients that are watched for their end."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._reading: dict[int, Transfer] = {}
        """By the engine's file descriptor."""
        self._clients: dict[int, Transfer] = {}
        self._watched: dict[int, Callable[[], None]] = {}

    def close(self) -> None:
        """At the end of the process."""
        self._epoll.close()

    @property
    def transfers(self) -> int:
        """Answers on their way."""
        return len(self._clients)

    @property
    def watched(self) -> int:
        """Clients that wait for an answer and are watched."""
        return len(self._watched)

    # --- for the tasks of requests ---

    def watch(self, client: socket.socket, left: Callable[[], None]) -> None:
        """Call `left` once when the client has gone. Ends by `unwatch`, or when a transfer to it begins."""
        descriptor = client.fileno()
        self._watched[descriptor] = left
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def unwatch(self, client: socket.socket) -> None:
        """The client is no longer watched, if it was."""
        descriptor = client.fileno()
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def transfer(self, moving: Transfer) -> None:
        """Move the answer until it has ended; `moving.outcome` says how. On cancellation it is just taken out."""
        up, down = moving.up_fd, moving.down_fd = moving.up.fileno(), moving.down.fileno()
        moving.moved_at = trio.current_time()
        moving.task = trio.lowlevel.current_task()
        wanted = select.EPOLLRDHUP | (select.EPOLLOUT if moving.pending else 0)
        if self._watched.pop(down, None) is None:
            self._epoll.register(down, wanted)
        else:
            self._epoll.modify(down, wanted)
        self._clients[down] = moving
        if not moving.pending:
            self._epoll.register(up, select.EPOLLIN)
            self._reading[up] = moving

        def abort(_: object) -> trio.lowlevel.Abort:
            self._take_out(moving)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def sweep(self, now: float, idle_seconds: float) -> None:
        """End the transfers that have not moved for so long."""
        for moving in list(self._clients.values()):
            if now - moving.moved_at >= idle_seconds:
                who = "the client takes nothing" if moving.pending else "the engine sends nothing"
                self._end(moving, Outcome.STALLED, f"{who} for {idle_seconds:g} s")

    # --- the task ---

    async def run(self) -> NoReturn:
        """Move bytes for ever."""
        poll, descriptor = self._epoll.poll, self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            for _ in range(POLLS_PER_WAKE):
                ready = poll(0, EVENTS_PER_POLL)
                if not ready:
                    break
                self._handle(ready)

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        now = trio.current_time()
        reading, clients = self._reading, self._clients
        for descriptor, flags in ready:
            moving = reading.get(descriptor)
            if moving is not None:
                self._from_engine(moving, now)
                continue
            moving = clients.get(descriptor)
            if moving is not None:
                if flags & _GONE:
                    self._end(moving, Outcome.CLIENT_LEFT)
                else:
                    self._to_client(moving, now)
                continue
            left = self._watched.pop(descriptor, None)
            if left is not None:
                self._epoll.unregister(descriptor)
                left()

    def _from_engine(self, moving: Transfer, now: float) -> None:
        try:
            data = moving.up.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(moving, Outcome.ENGINE_DIED, error.strerror or "connection lost")
            return
        body = moving.body
        if not data:
            if body.finish():
                moving.surplus = True  # the connection is over
                self._end(moving, Outcome.COMPLETE)
            else:
                self._end(moving, Outcome.ENGINE_DIED, "closed the connection before the end of its answer")
            return
        moving.moved_at = now
        try:
            used = body.feed(data)
        except FramingError as error:
            moving.intact = False
            self._end(moving, Outcome.ENGINE_DIED, f"broke the framing of its answer: {error}")
            return
        if used != len(data):
            moving.surplus = True
            data = data[:used]
        if moving.counts_events:
            moving.events += data.count(b"data:")
        moving.tail.append(data if used <= TAIL_BYTES else data[-TAIL_BYTES:])
        if moving.payload is not None:
            data = b"".join(moving.payload)
            moving.payload.clear()
        try:
            sent = moving.down.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(moving, Outcome.CLIENT_LEFT)
            return
        moving.bytes_sent += sent
        if sent != len(data):
            moving.pending = data[sent:]
            self._epoll.unregister(moving.up_fd)
            del self._reading[moving.up_fd]
            self._epoll.modify(moving.down_fd, select.EPOLLRDHUP | select.EPOLLOUT)
        elif body.done:
            self._end(moving, Outcome.COMPLETE)

    def _to_client(self, moving: Transfer, now: float) -> None:
        try:
            sent = moving.down.send(moving.pending)
        except BlockingIOError:
            return
        except OSError:
            self._end(moving, Outcome.CLIENT_LEFT)
            return
        moving.moved_at = now
        moving.bytes_sent += sent
        moving.pending = moving.pending[sent:]
        if moving.pending:
            return
        if moving.body.done:
            self._end(moving, Outcome.COMPLETE)
            return
        self._epoll.modify(moving.down_fd, select.EPOLLRDHUP)
        self._epoll.register(moving.up_fd, select.EPOLLIN)
        self._reading[moving.up_fd] = moving

    def _end(self, moving: Transfer, how: Outcome, detail: str = "") -> None:
        self._take_out(moving)
        moving.outcome, moving.detail = how, detail
        assert moving.task is not None
        trio.lowlevel.reschedule(moving.task)

    def _take_out(self, moving: Transfer) -> None:
        if self._reading.pop(moving.up_fd, None) is not None:
            self._epoll.unregister(moving.up_fd)
        del self._clients[moving.down_fd]
        self._epoll.unregister(moving.down_fd)
