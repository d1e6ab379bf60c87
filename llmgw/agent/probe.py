"""Whether an engine really serves: the listener is its own, and a probe of its model's kind got a real answer.

A small HTTP/1.1 client of our own, one request per connection, with every read bounded. `Exchange` is the sans-I/O
half. That an engine takes long is no failure here: `probe_until_answered` asks until it is cancelled.
"""

from collections.abc import Awaitable, Callable

import attrs
import httptools
import trio

from llmgw.agent.launch import Listener, Ours, Stranger, Unknown
from llmgw.agent.ports import host_to_dial
from llmgw.core.address import Address
from llmgw.core.held import Spec
from llmgw.core.units import format_seconds
from llmgw.engines.probes import ProbeRequest, names_failure, names_request, probe_failure, probe_request
from llmgw.errors import LlmgwError

NAMES_SECONDS = 2.0
"""For `/v1/models`, which no engine has to think about."""

ANSWER_SECONDS = 120.0
"""For a first token: engines compile and capture graphs at their first request. A shorter one would give up, over and
over, on what the engine was about to say."""

PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 1.0
"""Between probes, doubling: a small engine is ready at once, a large one loads for minutes."""

RESPONSE_BYTES_MAX = 4 * 1024 * 1024
"""A vector of 16,384 numbers is a third of a MB."""

READ_BYTES = 65536

OpenEngine = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""The seam: a connection to an engine. OSError."""


class ProbeError(LlmgwError):
    """There was no answer, or none that can be understood."""


@attrs.frozen
class Response:
    """What an engine answered."""

    status: int
    body: bytes


class Exchange:
    """One request and its response, without I/O: send `request`, feed what comes, `end` at the end of the stream."""

    def __init__(self, request: ProbeRequest, host: str, port: int) -> None:
        headers = {"Host": str(Address(host, port)), "Connection": "close", **request.headers}
        if request.body:
            headers["Content-Length"] = str(len(request.body))
        lines = [f"{request.method} {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.request = "\r\n".join([*lines, "", ""]).encode() + request.body
        self._parser = httptools.HttpResponseParser(self)
        self._bytes = 0
        self._body: list[bytes] = []
        self._ends_with_stream = True
        self._in_body = False
        self._complete = False

    def feed(self, data: bytes) -> Response | None:
        """The response once it is complete; None: more is to come. ProbeError."""
        self._bytes += len(data)
        if self._bytes > RESPONSE_BYTES_MAX:
            raise ProbeError(f"answered more than {RESPONSE_BYTES_MAX} bytes")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ProbeError(f"answered something other than HTTP/1.1: {error}") from None
        return self._response() if self._complete else None

    def end(self) -> Response:
        """The response that the end of the stream completed. ProbeError."""
        if self._in_body and self._ends_with_stream:
            return self._response()
        raise ProbeError(
            "closed the connection in the middle of its answer" if self._bytes else "closed the connection"
        )

    def _response(self) -> Response:
        return Response(self._parser.get_status_code(), b"".join(self._body))

    # Called by the parser.

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._ends_with_stream = False

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._complete = True


async def ask(open_engine: OpenEngine, host: str, port: int, request: ProbeRequest, seconds: float) -> Response:
    """The engine's answer. ProbeError, as a phrase with the engine as its subject, where there is none in time."""
    exchange = Exchange(request, host, port)
    with trio.move_on_after(seconds):
        try:
            stream = await open_engine(host, port)
        except OSError as error:
            raise ProbeError(f"does not accept connections on port {port}: {error.strerror or error}") from None
        async with stream:
            try:
                await stream.send_all(exchange.request)
                while data := await stream.receive_some(READ_BYTES):
                    response = exchange.feed(bytes(data))
                    if response is not None:
                        return response
            except trio.BrokenResourceError:
                raise ProbeError("reset the connection") from None
            return exchange.end()
    raise ProbeError(f"gave no answer to {request.method} {request.path} within {format_seconds(seconds)}")


async def probe(spec: Spec, listener: Callable[[int], Listener], open_engine: OpenEngine) -> str:
    """Ask once. Returns how the listener was recognised where that is less than certain; ProbeError: not ready."""
    host = host_to_dial(spec.host)
    note = ""
    if spec.listener_check:
        note = _ours(listener(spec.port), spec.port)
    else:
        named = await ask(open_engine, host, spec.port, names_request(spec.key), NAMES_SECONDS)
        _must_not(names_failure(spec.served_name, named.status, named.body))
    request = probe_request(spec.probe, spec.served_name, spec.key)
    answer = await ask(open_engine, host, spec.port, request, ANSWER_SECONDS)
    _must_not(probe_failure(spec.probe, answer.status, answer.body))
    return note


async def probe_until_answered(
    spec: Spec,
    listener: Callable[[int], Listener],
    open_engine: OpenEngine,
    failed: Callable[[str], Awaitable[None]],
) -> str:
    """Probe until it succeeds; returns as `probe`. `failed` is told each reason that is not the one before."""
    pause, told = PAUSE_SECONDS, ""
    while True:
        try:
            return await probe(spec, listener, open_engine)
        except ProbeError as error:
            reason = str(error)
        if reason != told:
            await failed(reason)
            told = reason
        await trio.sleep(pause)
        pause = min(PAUSE_SECONDS_MAX, pause * 2)


def _ours(listener: Listener, port: int) -> str:
    match listener:
        case None:
            raise ProbeError(f"does not listen on port {port} yet")
        case Stranger(pid, command, shared):
            who = f"{command} (pid {pid})" if pid is not None else command or "somebody"
            also = "also " if shared else ""
            raise ProbeError(f"port {port} is {also}listened on by {who}, which is not of this shard")
        case Unknown(reason):
            raise ProbeError(f"port {port} is listened on, and it cannot be told by whom: {reason}")
        case Ours(note):
            return note


def _must_not(failure: str) -> None:
    if failure:
        raise ProbeError(failure)
