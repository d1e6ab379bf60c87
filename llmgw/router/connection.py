"""One client's connection: requests in, one after the other, each answered before the next is looked at.

Theory of operation. One task and one cancel scope a connection. The task is cancelled from outside in three cases, and
a flag says which: the client left while its answer was awaited (`left`), a deadline passed (`expire`), or an idle
connection is to end because the router does (`drain`). What the request held (an engine's connection, a place in a
load) is given back on the way out, and its record is written in one `finally`; so each request ends exactly once.

An answer that is given before the whole request was read ends the connection, since what follows is not a request.
It ends gently: a close with unread bytes is a reset, which can overtake the answer on its way to the client.
"""

import contextlib
import socket

import trio

from llmgw.core.routing import ClientKey
from llmgw.core.units import format_bytes
from llmgw.router import answers
from llmgw.router.dialects import OF_HEADS, OPENAI, Dialect, Problem, Trouble
from llmgw.router.framer import ChunkedBody, FramingError
from llmgw.router.gateway import Gateway
from llmgw.router.http import HeadError, RequestHead, find_head_end, parse_request
from llmgw.router.limits import presented
from llmgw.router.paths import Health, Operation, Ready, Relayed, find, path_of
from llmgw.router.peek import peek
from llmgw.router.records import Ending, Record
from llmgw.router.relay import Exchange, send_all

RECEIVE_BYTES = 64 * 1024
"""Of one read: a head at most, or a request as most are."""

UPLOAD_BYTES = 256 * 1024
"""Of one read within a large body."""

IDLE_SECONDS = 75.0
"""How long a connection is kept without a request: longer than clients keep theirs, so that they close it."""

HEAD_SECONDS = 30.0
"""For a head, from its first byte on."""

BODY_SECONDS = 60.0
"""Without a byte of a body that is under way."""

SEND_SECONDS = 60.0
"""For an answer of our own; it fits into any socket's buffer."""

FRESH_SECONDS = 5.0
"""For the first request of a connection that was accepted just before the router drains."""

LINGER_SECONDS = 30.0
"""For a client that goes on sending what was refused: until it has read the answer."""

LINGER_BYTES_MAX = 256 * 1024 * 1024
"""And how much of it is thrown away."""

DETAIL_CHARS_MAX = 200
"""Of an error, in the record."""

FOREVER = float("inf")


class ClientGoneError(OSError):
    """The client has closed the connection in the middle of a request."""


class Connection:
    """A client, from its being accepted until the end."""

    def __init__(self, gateway: Gateway, client: socket.socket) -> None:
        self.gateway = gateway
        self.socket = client
        self.deadline = FOREVER
        self._scope = trio.CancelScope()
        self._buffer: bytes | bytearray = b""
        """What was received and not yet looked at."""
        self._served = 0
        """Requests so far."""
        self._idle = False
        """Between two requests."""
        self._unread = False
        """Part of the present request has not been received."""
        self._in_request = False
        self._has_left = False
        self._expired = False
        self._parting = b""
        """What an interrupted request is answered with."""

    # --- called from outside ---

    def left(self) -> None:
        """The client has gone, while its answer was awaited."""
        self._has_left = True
        self._scope.cancel()

    def expire(self) -> None:
        """The deadline has passed."""
        self._expired = True
        self.deadline = FOREVER
        self._scope.cancel()

    def drain(self) -> None:
        """End as soon as nothing is in flight; who has just come may still ask once."""
        if self._idle and self._served:
            self._scope.cancel()
        elif self._idle:
            self.deadline = min(self.deadline, trio.current_time() + FRESH_SECONDS)

    # --- the task ---

    async def run(self) -> None:
        """Serve the client until the end, and close its connection."""
        number = self.gateway.add(self)
        try:
            with contextlib.suppress(OSError):  # the client is gone; the request's record says so
                with self._scope:
                    await self._serve()
                if self._expired:
                    await self._part()
        finally:
            self.gateway.remove(number)
            self.socket.close()

    async def _serve(self) -> None:
        while True:
            head = await self._next_head()
            if head is None:
                return
            keep = await self._handle(head)
            self._served += 1
            if not keep:
                await self._linger()
                return
            if self._buffer:
                await trio.lowlevel.checkpoint()  # a client that sends many at once does not keep the others waiting

    async def _part(self) -> None:
        """A deadline has passed: say so to a client whose request was interrupted, or came in part."""
        with trio.move_on_after(LINGER_SECONDS):
            if self._parting:
                await send_all(self.socket, self._parting)
                await self._linger()
            elif self._buffer and not self._in_request:
                problem = Problem(Trouble.SLOW_REQUEST, f"the request's head took longer than {HEAD_SECONDS:g} s")
                await self._refuse_head(problem)

    async def _next_head(self) -> bytes | None:
        """The next request's head; None: the client has closed the connection."""
        searched = 0
        self._in_request = False
        self.deadline = trio.current_time() + HEAD_SECONDS
        while True:
            if self._buffer[:1] in (b"\r", b"\n"):
                self._buffer = self._buffer.lstrip(b"\r\n")  # line ends between requests, which some clients send
            try:
                end = find_head_end(self._buffer, searched)
            except HeadError as error:
                await self._refuse_head(Problem(OF_HEADS[error.status], str(error)))
                return None
            if end >= 0:
                head, self._buffer = bytes(self._buffer[:end]), self._buffer[end:]
                return head
            searched = len(self._buffer)
            if not await self._receive_head():
                return None

    async def _receive_head(self) -> bool:
        """Receive some of a head; whether there was anything."""
        if self._buffer:
            received = await self._receive(RECEIVE_BYTES)
            self._buffer += received
            return bool(received)
        if self.gateway.draining and self._served:
            return False
        self._idle = True
        self.deadline = trio.current_time() + (FRESH_SECONDS if self.gateway.draining else IDLE_SECONDS)
        self._buffer = await self._receive(RECEIVE_BYTES)
        self._idle = False
        self.deadline = trio.current_time() + HEAD_SECONDS
        return bool(self._buffer)

    async def _receive(self, size: int) -> bytes:
        """The next bytes; none: the client has closed the connection. Raises OSError where it broke."""
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(size)
            except BlockingIOError:
                continue

    # --- one request ---

    async def _handle(self, head: bytes) -> bool:
        """Answer one request; whether the connection can carry another."""
        gateway = self.gateway
        record = Record(trio.current_time())
        self._in_request = True
        keep = False
        try:
            request = parse_request(head)
            record.request_id = request.request_id or gateway.new_request_id()
            keep = await self._answer(request, record)
        except HeadError as error:
            record.request_id = gateway.new_request_id()
            self._unread = True
            await self._refuse(Problem(OF_HEADS[error.status], str(error)), OPENAI, record, keep=False)
        except OSError as error:
            record.ending = Ending.CLIENT_LEFT
            record.detail = error.strerror or ""
            raise
        finally:
            if record.ending is None:
                self._interrupted(record)
            gateway.finish(record, trio.current_time())
        return keep

    async def _answer(self, request: RequestHead, record: Record) -> bool:
        self._unread = request.chunked or request.length > 0
        dialect: Dialect = OPENAI
        try:
            operation = find(request.method, request.target)
            record.method = request.method.decode("ascii")
            record.path = path_of(operation)
            key = presented(request)
            owner = None
            if not isinstance(operation, (Health, Ready)):
                owner = self.gateway.table.keys.check(key)
                record.client = owner.name if owner is not None else ""
            if isinstance(operation, Relayed):
                dialect = operation.dialect
                return await self._relay(operation, request, key, owner, record)
            return await self._answer_here(operation, request, owner, record)
        except Problem as problem:
            self._skip_body(request)
            keep = self._can_keep(request)
            await self._refuse(problem, dialect, record, keep=keep, without_body=request.method == b"HEAD")
            return keep

    async def _relay(
        self, path: Relayed, request: RequestHead, key: bytes, owner: ClientKey | None, record: Record
    ) -> bool:
        gateway = self.gateway
        body = await self._read_body(request)
        peeked = peek(body)
        record.stream = peeked.stream
        route = gateway.table.route(peeked.model)
        if route is None or not gateway.table.keys.allows(owner, route.model.name):
            raise answers.unknown_model(peeked.model)
        record.model = route.model.name
        return await Exchange(gateway, self, request, path, peeked, body, route, key, record).run()

    async def _answer_here(
        self, operation: Operation, request: RequestHead, owner: ClientKey | None, record: Record
    ) -> bool:
        status, body = answers.own(operation, self.gateway.table, owner, draining=self.gateway.draining)
        self._skip_body(request)
        keep = self._can_keep(request)
        record.status, record.ending = status, Ending.DONE
        without_body = request.method == b"HEAD"
        await self._send(answers.answer(status, body, record.request_id, close=not keep, without_body=without_body))
        return keep

    async def _read_body(self, request: RequestHead) -> bytes | bytearray:
        """The whole body, without chunks. Raises Problem where it is too large, or no body of its framing."""
        limit = self.gateway.settings.body_max
        if request.expect not in {b"", b"100-continue"}:
            raise Problem(Trouble.EXPECTATION, "expected no Expect header but `100-continue`")
        if request.content_encoding not in {b"", b"identity"}:
            raise Problem(Trouble.ENCODED_BODY, "expected a body without Content-Encoding")
        if request.length > limit:
            raise _too_large(limit)
        if request.expect and len(self._buffer) < max(request.length, 1):
            await self._send(answers.CONTINUE)
        if request.chunked:
            return await self._read_chunks(limit)
        length, received = request.length, self._buffer
        if len(received) < length:
            received = bytearray(received)
            while len(received) < length:
                received += await self._receive_body(min(UPLOAD_BYTES, length - len(received)))
        self._unread = False
        self._buffer = received[length:]
        return received if len(received) == length else received[:length]

    async def _read_chunks(self, limit: int) -> bytearray:
        payload: list[bytes] = []
        framing, body = ChunkedBody(payload), bytearray()
        data = bytes(self._buffer)
        while True:
            try:
                used = framing.feed(data)
            except FramingError as error:
                raise Problem(Trouble.MALFORMED, f"malformed body: {error}") from None
            if framing.content > limit:
                raise _too_large(limit)
            body += b"".join(payload)
            payload.clear()
            if framing.done:
                break
            data = await self._receive_body(UPLOAD_BYTES)
        self._unread = False
        self._buffer = data[used:]
        return body

    async def _receive_body(self, size: int) -> bytes:
        self.deadline = trio.current_time() + BODY_SECONDS
        received = await self._receive(size)
        if not received:
            raise ClientGoneError("closed the connection within a request")
        return received

    def _can_keep(self, request: RequestHead) -> bool:
        return request.keep_alive and request.minor == 1 and not self._unread and not self.gateway.draining

    def _skip_body(self, request: RequestHead) -> None:
        """Pass over a body that nobody wants, if it is here already; what has not come yet ends the connection."""
        if self._unread and not request.chunked and request.length <= len(self._buffer):
            self._buffer = self._buffer[request.length :]
            self._unread = False

    # --- answers of our own ---

    async def _refuse(
        self, problem: Problem, dialect: Dialect, record: Record, *, keep: bool, without_body: bool = False
    ) -> None:
        record.status = problem.status
        record.detail = record.detail or problem.message[:DETAIL_CHARS_MAX]
        record.ending = record.ending or Ending.REFUSED
        await self._send(
            answers.refusal(problem, dialect, record.request_id, close=not keep, without_body=without_body)
        )

    async def _refuse_head(self, problem: Problem) -> None:
        """Answer what is no request: nothing of it is known, and nothing after it can be told apart."""
        self._unread = True
        record = Record(trio.current_time(), request_id=self.gateway.new_request_id())
        try:
            await self._refuse(problem, OPENAI, record, keep=False)
        finally:
            self.gateway.finish(record, trio.current_time())
        await self._linger()

    async def _send(self, data: bytes) -> None:
        self.deadline = trio.current_time() + SEND_SECONDS
        await send_all(self.socket, data)

    def _interrupted(self, record: Record) -> None:
        """The request was cancelled: note why, and what its client is told. A bug comes by here too, on its way up."""
        if self._has_left:
            record.ending = Ending.CLIENT_LEFT
            return
        if not self._expired:
            record.ending = Ending.DRAINED
            return
        record.ending = Ending.DEADLINE
        if record.status:
            return  # its answer was under way
        if record.endpoint:
            problem = Problem(Trouble.ENGINE_SILENT, "the engine has not answered in time")
        else:
            problem = Problem(Trouble.SLOW_REQUEST, f"the request's body stopped for {BODY_SECONDS:g} s")
        record.status, record.detail = problem.status, problem.message
        self._parting = answers.refusal(problem, OPENAI, record.request_id, close=True)

    async def _linger(self) -> None:
        """Close our half, and read what still comes until the client has closed its own."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        if not (self._unread or self._buffer):
            return
        self.deadline = trio.current_time() + LINGER_SECONDS
        dropped = 0
        while dropped < LINGER_BYTES_MAX:
            received = await self._receive(UPLOAD_BYTES)
            if not received:
                return
            dropped += len(received)


def _too_large(limit: int) -> Problem:
    message = f"the request's body is larger than {format_bytes(limit)} ({limit} bytes)"
    return Problem(Trouble.LARGE_BODY, message)
