"""A router process in the test's own Trio run, with scripted engines and raw clients on loopback sockets.

Every test that uses `rig` ends with a check of the invariants: nothing in flight, nothing on its way, no connection of
a client left, and exactly one record with exactly one ending for each request that was begun.
"""

import contextlib
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Self

import attrs
import httptools
import trio

from llmgw.config.schema import Router
from llmgw.core.address import Address
from llmgw.core.routing import ClientKey, Endpoint, RoutedModel
from llmgw.net.listening import bind
from llmgw.router.app import serve_clients
from llmgw.router.gateway import Gateway
from llmgw.router.pool import Pool
from llmgw.router.records import Record
from llmgw.router.table import Table
from llmgw.wire.messages import RouteTable


class EndedError(Exception):
    """The other end closed, or reset, the connection."""


@attrs.define
class Wire:
    """A socket with what a test needs of one."""

    stream: trio.SocketStream
    buffer: bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self, size: int = 65536) -> bytes:
        """Some bytes; none: the peer has closed. Raises trio.BrokenResourceError for a reset."""
        if self.buffer:
            data, self.buffer = self.buffer[:size], self.buffer[size:]
            return data
        return bytes(await self.stream.receive_some(size))

    async def until(self, end: bytes) -> bytes:
        """Everything up to and with `end`."""
        while end not in self.buffer:
            more = await self.stream.receive_some(65536)
            if not more:
                raise EndedError(self.buffer)
            self.buffer += bytes(more)
        index = self.buffer.index(end) + len(end)
        data, self.buffer = self.buffer[:index], self.buffer[index:]
        return data

    async def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            more = await self.stream.receive_some(65536)
            if not more:
                raise EndedError(self.buffer)
            self.buffer += bytes(more)
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    async def rest(self) -> bytes:
        """Everything until the peer closes or resets."""
        data = b""
        with contextlib.suppress(trio.BrokenResourceError):
            while more := await self.receive():
                data += more
        return data

    async def wait_closed(self) -> float:
        """When the peer closed or reset it, by Trio's clock."""
        await self.rest()
        return trio.current_time()

    def reset(self) -> None:
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()

    def close(self) -> None:
        self.stream.socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


@attrs.define
class Reply:
    """A response as a strict parser reads it."""

    status: int = 0
    headers: list[tuple[str, str]] = attrs.field(factory=list)
    body: bytes = b""
    complete: bool = False
    """The body came to its end, by its own framing."""
    keep_alive: bool = False
    head: bytes = b""

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    # as httptools' protocol
    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode().lower(), value.decode()))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = self.status >= 200


@attrs.define
class Asked:
    """A request as an engine got it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    wire: Wire

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def answer(self, body: bytes, status: str = "200 OK", *headers: str, kind: str = "application/json") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
        await self.wire.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def begin_stream(self, *headers: str) -> None:
        lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *headers]
        await self.wire.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.wire.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, text: str) -> None:
        await self.chunk(f"data: {text}\n\n".encode())

    async def end_stream(self) -> None:
        await self.wire.send(b"0\r\n\r\n")


Script = Callable[[Asked], Awaitable[None]]


async def answers_ok(asked: Asked) -> None:
    await asked.answer(b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}')


class Engine:
    """Listens, and runs its script for each request on each connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections = 0
        self._plain = bind(Address("127.0.0.1", 0))
        self.listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._plain))
        self.url = f"http://127.0.0.1:{self._plain.getsockname()[1]}"
        self.port = self._plain.getsockname()[1]
        self.scope = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            try:
                await trio.serve_listeners(self._serve, [self.listener], task_status=task_status)  # type: ignore[arg-type]
            except* trio.ClosedResourceError:
                await trio.sleep_forever()  # `stop_listening`; the port stays refused

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        wire = Wire(stream)
        with contextlib.suppress(EndedError, trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                head = await wire.until(b"\r\n\r\n")
                line, *lines = head[:-4].decode().split("\r\n")
                headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
                length = int(next((value for name, value in headers if name == "content-length"), "0"))
                asked = Asked(line, headers, await wire.exactly(length), wire)
                self.asked.append(asked)
                await self.script(asked)

    async def stop_listening(self) -> None:
        """From now on connections are refused."""
        await self.listener.aclose()


class Records:
    """An access log that keeps everything, and checks it."""

    def __init__(self) -> None:
        self.all: list[Record] = []

    def write(self, record: Record, now: float) -> None:
        assert record.ending is not None
        assert all(record is not other for other in self.all), "a request ended twice"
        assert record.began_at <= now
        self.all.append(record)

    @property
    def last(self) -> Record:
        return self.all[-1]


class Rig:
    """The router and what is around it."""

    def __init__(self, nursery: trio.Nursery, settings: Router, seed: int) -> None:
        self.nursery = nursery
        self.records = Records()
        rng = random.Random(seed)
        self.table = Table()
        self.gateway = Gateway(settings, self.table, self.records, rng, Pool(settings.connect_timeout))
        self.listener = bind(Address("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.stop = trio.Event()
        self.ended = trio.Event()
        self.engines: list[Engine] = []
        self.revision = 0

    async def run(self) -> None:
        await serve_clients(self.gateway, self.listener, self.stop)
        self.ended.set()

    async def engine(self, script: Script = answers_ok) -> Engine:
        engine = Engine(script)
        await self.nursery.start(engine.run)
        self.engines.append(engine)
        return engine

    def publish(
        self,
        *endpoints: Endpoint,
        models: tuple[RoutedModel, ...] = (RoutedModel("tiny", ("gpt",), created=7),),
        keys: tuple[ClientKey, ...] = (),
        complete: bool = True,
    ) -> None:
        """Put a whole table into use."""
        self.revision += 1
        self.table.put(
            RouteTable("c1", self.revision, complete=complete, models=models, endpoints=endpoints, keys=keys)
        )

    async def serve(self, *scripts: Script, **table: Any) -> list[Engine]:
        """Start an engine for each script (one that says ok for none), all as replicas of `tiny`, and publish them."""
        engines = [await self.engine(script) for script in scripts or (answers_ok,)]
        self.publish(*(self.endpoint(number, engine) for number, engine in enumerate(engines)), **table)
        return engines

    def endpoint(self, number: int, engine: Engine, **more: Any) -> Endpoint:
        return Endpoint(f"tiny/{number}", "tiny", engine.url, 1, **more)

    async def connect(self) -> Wire:
        return Wire(await trio.open_tcp_stream("127.0.0.1", self.port))

    def request(
        self,
        body: Any = None,
        *headers: str,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        version: str = "1.1",
    ) -> bytes:
        """The bytes of a request; a body that is no bytes is written as JSON."""
        if body is None:
            body = {"model": "tiny", "messages": []} if method == "POST" else b""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "Host: gateway", *headers]
        if data:
            lines.append(f"Content-Length: {len(data)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    async def read(self, wire: Wire, *, head_only: bool = False) -> Reply:
        """The next response; to its end, or to that of the connection."""
        head = await wire.until(b"\r\n\r\n")
        reply = Reply(head=head)
        parser = httptools.HttpResponseParser(reply)
        reply.status = int(head.split(b" ", 2)[1][:3])
        parser.feed_data(head)
        reply.keep_alive = parser.should_keep_alive()
        if head_only:
            assert wire.buffer == b""
            return reply
        while not reply.complete:
            try:
                data = await wire.receive(1 if reply.header("content-length") is None else 65536)
            except trio.BrokenResourceError:
                return reply
            if not data:
                reply.complete = reply.header("content-length") is None and reply.header("transfer-encoding") is None
                return reply
            length = reply.header("content-length")
            if length is not None:
                wanted = int(length) - len(reply.body)
                data, wire.buffer = data[:wanted], data[wanted:] + wire.buffer
            parser.feed_data(data)
        return reply

    async def ask(self, body: Any = None, *headers: str, **how: Any) -> Reply:
        """One request on a connection of its own."""
        async with await self.connect() as wire:
            await wire.send(self.request(body, *headers, **how))
            return await self.read(wire, head_only=how.get("method") == "HEAD")

    async def settled(self) -> None:
        """Wait until the router has noticed that its clients are gone."""
        while self.gateway.clients:  # noqa: ASYNC110  the product has no event for this, and needs none
            await trio.sleep(0.25)

    def check(self) -> None:
        """What holds when nobody asks anything."""
        assert self.table.in_flight() == 0
        assert self.gateway.pump.transfers == 0
        assert self.gateway.pump.watched == 0
        assert not self.gateway.clients
