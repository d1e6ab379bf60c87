"""One request at an engine: chosen, sent, answered, passed on to its last byte.

What is changed on the way is this, and nothing else:

* Request head: headers of one hop, and those that `Connection` names, are taken out; so are the client's credentials,
  and any header that repeats its key. Host is the engine's, Authorization its own key if it has one, x-request-id is
  set, Expect is answered here.
* Request body: the model's name, where the engine knows it by another one; chunks become a Content-Length.
* Answer head: headers of one hop are taken out, x-request-id is ours. On event streams: `Cache-Control: no-cache`
  and `X-Accel-Buffering: no`.
* Answer body: for HTTP/1.0, which has no chunks, its content without them. After an engine's death: what completes
  the broken chunk, and one error event.

The order of things protects the client. Nothing is sent to it before the first byte of a body is there, so that an
engine that answers 200 and then nothing is a 502. Once a byte has gone out there is no second attempt. A connection
from the pool that ends without a byte was closed while the request was on its way: that one is sent again, once, on a
new connection.
"""

import contextlib
import socket
from collections.abc import Iterable

import attrs
import trio

from llmgw.core.routing import Refusal, Target, choose
from llmgw.errors import LlmgwError
from llmgw.router.dialects import Problem, Trouble
from llmgw.router.framer import Body, ChunkedBody, CloseBody, FramingError, LengthBody
from llmgw.router.gateway import Client, Gateway
from llmgw.router.http import HeadError, RequestHead, ResponseHead, find_head_end, parse_response
from llmgw.router.paths import Relayed
from llmgw.router.peek import Peeked, renamed
from llmgw.router.pool import UnreachableError, site
from llmgw.router.pump import Outcome, Transfer
from llmgw.router.records import Ending, Record, usage_in
from llmgw.router.table import Route

RECEIVE_BYTES = 64 * 1024
"""Of one read before the pump takes over: most answers fit."""

JOINED_BYTES_MAX = 64 * 1024
"""A request up to this size leaves in one piece; joining a larger one would only copy it."""

SUSPECT_SECONDS = 10.0
"""How long an endpoint that could not be reached is avoided: as long as another can be reached, nobody waits for it."""

RETRY_AFTER_UNREACHABLE_SECONDS = 1.0

KEY_BYTES_MIN = 8
"""A shorter key would be found in headers that have nothing to do with it."""

LAST_WORDS_SECONDS = 1.0
"""For the error event at the end of a broken stream: a client that does not take it is hung up on."""


class SilentEndError(LlmgwError):
    """The engine ended the connection before a byte of an answer."""


@attrs.define(eq=False)
class Exchange:
    """A request with its answer."""

    gateway: Gateway
    client: Client
    request: RequestHead
    path: Relayed
    peeked: Peeked
    body: bytes | bytearray
    route: Route
    key: bytes
    """That the client presented; it reaches no engine."""
    record: Record
    _engine: socket.socket | None = None
    _waiting: bool = False
    _watched: bool = False

    async def run(self) -> bool:
        """Relay it; whether the client's connection can carry another request.

        Raises Problem where nothing was sent to the client yet, OSError where the client is gone.
        """
        gateway, tried = self.gateway, list[str]()
        while True:
            target = choose(self.route.targets, trio.current_time(), gateway.rng, tried)
            if isinstance(target, Refusal):
                raise self._unavailable(target, tried)
            self.record.endpoint, self.record.epoch = target.endpoint.id, target.endpoint.epoch
            target.load.in_flight += 1
            self.client.deadline = trio.current_time() + gateway.settings.first_byte_timeout
            try:
                return await self._at(target)
            except UnreachableError as error:
                self._unreachable(target, str(error))
                tried.append(target.endpoint.id)
                self.route = gateway.table.route(self.route.model.name) or self.route
            finally:
                gateway.table.released(target.load)

    def watch_client(self) -> None:
        """The engine takes its time: notice if the client leaves meanwhile."""
        if self._waiting and not self._watched:  # a second attempt is looked at a second time
            self._watched = True
            self.gateway.pump.watch(self.client.socket, self.client.left)

    async def _at(self, target: Target) -> bool:
        gateway = self.gateway
        self._waiting = True
        gateway.watch.began(self, trio.current_time())
        try:
            head, body, first = await self._answer(target)
            self._waiting = False
            return await self._pass_on(target, head, body, first)
        finally:
            self._waiting = False
            if self._watched:
                self._watched = False
                gateway.pump.unwatch(self.client.socket)
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    # --- until the first byte of a body ---

    async def _answer(self, target: Target) -> tuple[ResponseHead, Body, bytes]:
        url, pool = target.endpoint.address, self.gateway.pool
        request = self._request(target)
        self._engine = pool.take(url, trio.current_time())
        if self._engine is not None:
            try:
                return await self._ask(self._engine, request)
            except SilentEndError:
                self._engine.close()
        self._engine = None
        self._engine = await pool.connect(url)
        try:
            return await self._ask(self._engine, request)
        except SilentEndError as error:
            raise self._died(str(error)) from None

    async def _ask(self, engine: socket.socket, request: list[bytes | bytearray]) -> tuple[ResponseHead, Body, bytes]:
        try:
            for piece in request:
                await send_all(engine, piece)
        except OSError:
            pass  # it has closed; what it said before tells why
        received = await self._receive(engine)
        if not received:
            raise SilentEndError("closed the connection without an answer")
        self.record.first_byte_at = trio.current_time()
        head, received = await self._head(engine, received)
        payload: list[bytes] | None = [] if self.request.minor == 0 and head.chunked else None
        body = _framing(head, payload)
        try:
            used = body.feed(received)
            # An answer without a byte in its body is no answer; so its head waits for the first one.
            while not body.done and not body.content:
                more = await self._receive(engine)
                if not more:
                    if not body.finish():
                        raise self._died("closed the connection before the body of its answer")
                    break
                received += more
                used += body.feed(more)
        except FramingError as error:
            raise self._died(f"broke the framing of its answer: {error}") from None
        if head.status == 200 and not body.content:  # noqa: PLR2004
            raise self._died("answered 200 with an empty body")
        if used != len(received):
            head.keep_alive = False  # what comes after the answer belongs to nobody
        return head, body, received[:used] if payload is None else b"".join(_emptied(payload))

    async def _head(self, engine: socket.socket, received: bytes) -> tuple[ResponseHead, bytes]:
        """The head of the final answer, and what came after it."""
        searched = 0
        try:
            while True:
                end = find_head_end(received, searched)
                if end < 0:
                    searched = len(received)
                    more = await self._receive(engine)
                    if not more:
                        raise self._died("closed the connection within the head of its answer")
                    received += more
                    continue
                head = parse_response(received[:end])
                received, searched = received[end:], 0
                if head.status == 101:  # noqa: PLR2004
                    raise self._died("changed the protocol, which nobody had asked for")
                if head.status >= 200:  # noqa: PLR2004
                    return head, received
        except HeadError as error:
            raise self._died(f"sent what is no HTTP answer: {error}") from None

    async def _receive(self, engine: socket.socket) -> bytes:
        """The next bytes; none: the connection is over."""
        while True:
            await trio.lowlevel.wait_readable(engine)
            try:
                return engine.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    # --- the request as the engine gets it ---

    def _request(self, target: Target) -> list[bytes | bytearray]:
        endpoint, request, peeked = target.endpoint, self.request, self.peeked
        where = site(endpoint.address)
        parts: list[bytes | bytearray] = [self.body]
        if endpoint.upstream_model and endpoint.upstream_model != peeked.model:
            parts = list(renamed(bytes(self.body), peeked.written, endpoint.upstream_model))
        passed = b"\r\n".join(request.passed)
        if len(self.key) >= KEY_BYTES_MIN and self.key in passed:
            passed = b"\r\n".join([line for line in request.passed if self.key not in line])
        length = sum(map(len, parts))
        head = b"POST %b%b HTTP/1.1\r\nHost: %b\r\n%b%bx-request-id: %b\r\nContent-Length: %d\r\n%b\r\n" % (
            where.prefix,
            request.target,
            where.authority,
            passed,
            b"\r\n" if passed else b"",
            self.record.request_id.encode(),
            length,
            b"Authorization: Bearer %b\r\n" % endpoint.key.encode() if endpoint.key else b"",
        )
        return [b"".join((head, *parts))] if length <= JOINED_BYTES_MAX else [head, *parts]

    # --- from the first byte to the last ---

    async def _pass_on(self, target: Target, head: ResponseHead, body: Body, first: bytes) -> bool:
        record, client, engine = self.record, self.client, self._engine
        assert engine is not None
        keep = self._keeps_alive(body)
        record.status = head.status
        client.deadline = float("inf")  # from here on the pump looks after silence
        data = self._response_head(head, body, keep=keep) + first
        sent = send_some(client.socket, data)
        if body.done and sent == len(data):
            record.bytes_sent = len(first)
            self._count_tokens(head, (first,), first.count(b"data:") if head.event_stream else 0)
            self._complete(target, head, body)
            return keep
        moving = Transfer(engine, client.socket, body, payload=body.payload, pending=data[sent:])
        moving.tail.append(first)
        moving.bytes_sent = len(first)
        if head.event_stream:
            moving.counts_events, moving.events = True, first.count(b"data:")
        await self.gateway.pump.transfer(moving)
        record.bytes_sent = moving.bytes_sent
        record.detail = moving.detail
        self._count_tokens(head, moving.tail, moving.events)
        if moving.outcome is Outcome.COMPLETE:
            head.keep_alive = head.keep_alive and not moving.surplus
            self._complete(target, head, body)
            return keep
        await self._cut_off(target, head, moving)
        return False

    def _complete(self, target: Target, head: ResponseHead, body: Body) -> None:
        """The answer was passed on to its last byte."""
        self.record.ending = Ending.DONE
        now = trio.current_time()
        if head.status < 500:  # noqa: PLR2004
            target.load.completed_at = now
            target.load.suspect_until = 0.0
        if head.keep_alive and not isinstance(body, CloseBody):
            assert self._engine is not None
            self.gateway.pool.give(target.endpoint.address, self._engine, now)
            self._engine = None

    async def _cut_off(self, target: Target, head: ResponseHead, moving: Transfer) -> None:
        """The answer has ended before its last byte."""
        record = self.record
        match moving.outcome:
            case Outcome.CLIENT_LEFT:
                record.ending = Ending.CLIENT_LEFT
                return
            case Outcome.ENGINE_DIED:
                leaving = self.gateway.table.is_leaving(target.endpoint)
                record.ending = Ending.DRAINED if leaving else Ending.ENGINE_DIED
                self.gateway.counters.count_failure(self.route.model.name, target.endpoint.id, "died")
                problem = Problem(Trouble.ENGINE_FAILED, f"the engine {moving.detail}")
            case _:
                record.ending = Ending.DEADLINE
                problem = Problem(Trouble.ENGINE_SILENT, moving.detail)
        # The engine goes first: it is of no more use, and the last words may take a moment.
        moving.up.close()
        self._engine = None
        await self._break_off(head, moving, problem)

    async def _break_off(self, head: ResponseHead, moving: Transfer, problem: Problem) -> None:
        """End an answer that cannot be finished so that nobody takes it for a whole one."""
        words = self._last_words(head, moving, problem)
        if words:
            with trio.move_on_after(LAST_WORDS_SECONDS), contextlib.suppress(OSError):
                await send_all(self.client.socket, words)
        elif isinstance(moving.body, CloseBody):
            # The end of the connection is the end of this body; only a reset says that it is not.
            self.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _last_words(self, head: ResponseHead, moving: Transfer, problem: Problem) -> bytes:
        """What completes the broken chunk, and an error event; never the end of the body, which was not reached."""
        if not head.event_stream or head.encoded or moving.pending or not moving.intact:
            return b""
        body = moving.body
        owed = body.owed()
        if owed is None:
            return b""
        # The blank line ends an event that was cut off.
        event = b"\n\n" + self.path.dialect.event(problem)
        if moving.payload is not None:
            return event
        if isinstance(body, LengthBody):
            return event if len(event) < body.left else b""
        return owed + b"%x\r\n%b\r\n" % (len(event), event) if isinstance(body, ChunkedBody) else event

    def _response_head(self, head: ResponseHead, body: Body, *, keep: bool) -> bytes:
        lines = [b"HTTP/1.1 " + head.reason, *head.passed, b"x-request-id: " + self.record.request_id.encode()]
        if head.event_stream:
            lines += (b"cache-control: no-cache", b"x-accel-buffering: no")
        if isinstance(body, ChunkedBody) and body.payload is None:
            lines.append(b"transfer-encoding: chunked")
        elif isinstance(body, LengthBody) and head.length is not None:
            lines.append(b"content-length: %d" % head.length)
        if not keep:
            lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _keeps_alive(self, body: Body) -> bool:
        framed = isinstance(body, LengthBody) or (isinstance(body, ChunkedBody) and body.payload is None)
        return framed and self.request.keep_alive and self.request.minor == 1 and not self.gateway.draining

    # --- what is noted ---

    def _count_tokens(self, head: ResponseHead, tail: Iterable[bytes], events: int) -> None:
        record = self.record
        usage = usage_in(tail) if head.status == 200 else None  # noqa: PLR2004
        if usage is not None:
            record.prompt_tokens, record.completion_tokens = usage
        elif head.event_stream:
            record.completion_tokens, record.exact = events, False

    def _unreachable(self, target: Target, why: str) -> None:
        load, endpoint = target.load, target.endpoint
        load.trouble = f"no connection: {why}"
        load.suspect_until = trio.current_time() + SUSPECT_SECONDS
        self.gateway.counters.count_failure(self.route.model.name, endpoint.id, "unreachable")

    def _unavailable(self, refusal: Refusal, tried: list[str]) -> Problem:
        model, name = self.route.model, self.peeked.model
        unavailable = model.unavailable
        if tried:
            reason, retry_after = f"no endpoint could be reached ({refusal.reason})", RETRY_AFTER_UNREACHABLE_SECONDS
        elif unavailable is not None:
            reason, retry_after = unavailable.reason, unavailable.retry_after_seconds
        else:
            reason, retry_after = refusal.reason or "it has no endpoint", RETRY_AFTER_UNREACHABLE_SECONDS
        message = f"the model `{name}` cannot be served now: {reason}"
        return Problem(Trouble.NOT_READY, message, retry_after_seconds=retry_after)

    def _died(self, how: str) -> Problem:
        self.record.ending = Ending.ENGINE_DIED
        self.record.detail = how
        self.gateway.counters.count_failure(self.route.model.name, self.record.endpoint, "died")
        return Problem(Trouble.ENGINE_FAILED, f"the engine {how}")


_RESET = b"\x01\0\0\0\0\0\0\0"
"""A `struct linger` that is on, with no time: closing resets."""


def _framing(head: ResponseHead, payload: list[bytes] | None) -> Body:
    if head.status in {204, 304}:
        return LengthBody(0)
    if head.chunked:
        return ChunkedBody(payload)
    return LengthBody(head.length) if head.length is not None else CloseBody()


def _emptied(payload: list[bytes]) -> list[bytes]:
    taken = payload[:]
    payload.clear()
    return taken


def send_some(connection: socket.socket, data: bytes) -> int:
    """Send what fits now; how much that was. Raises OSError where the peer is gone."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0


async def send_all(connection: socket.socket, data: bytes | bytearray) -> None:
    """Send everything, waiting where the peer is slow. Raises OSError where it is gone."""
    sent = send_some(connection, bytes(data)) if len(data) <= JOINED_BYTES_MAX else 0
    if sent == len(data):
        return
    rest = memoryview(data)[sent:]
    while rest:
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connection)
