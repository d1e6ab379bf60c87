"""The admin server over a real loopback socket."""

import socket
from collections.abc import AsyncIterator

import attrs
import msgspec
import pytest
import trio

from llmgw.control.admin import serve_admin
from llmgw.core.statusdoc import ControlStatus, Status

STATUS = Status(ControlStatus("0.1.0", "serving", 1.0, 0, 0))


@attrs.define
class View:
    """What the server shows in these tests."""

    ready: bool = True

    def status(self) -> Status:
        return STATUS

    def readiness(self) -> tuple[bool, str]:
        return self.ready, "serving" if self.ready else "starting"

    def metrics(self) -> bytes:
        return b"llmgw_nodes 1\n"


@attrs.define
class Answer:
    """One HTTP answer, as far as these tests look."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> object:
        return msgspec.json.decode(self.body)


@attrs.define
class Asked:
    """The server under test."""

    view: View
    port: int

    async def ask(self, method: str, path: str) -> Answer:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            await stream.send_all(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            data = b"".join([chunk async for chunk in stream])
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Answer(int(first.split()[1]), headers, body)


@pytest.fixture
async def asked(nursery: trio.Nursery) -> AsyncIterator[Asked]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    view = View()
    await nursery.start(serve_admin, view, listener)
    yield Asked(view, port)
    nursery.cancel_scope.cancel()


async def test_healthz_says_that_the_process_lives(asked: Asked) -> None:
    answer = await asked.ask("GET", "/healthz")
    assert (answer.code, answer.json) == (200, {"status": "alive"})


async def test_readyz(asked: Asked) -> None:
    answer = await asked.ask("GET", "/readyz")
    assert (answer.code, answer.json) == (200, {"ready": True, "state": "serving"})
    asked.view.ready = False
    answer = await asked.ask("GET", "/readyz")
    assert (answer.code, answer.json) == (503, {"ready": False, "state": "starting"})


async def test_status_is_the_document(asked: Asked) -> None:
    answer = await asked.ask("GET", "/api/v1/status")
    assert answer.headers["content-type"] == "application/json"
    assert msgspec.json.decode(answer.body, type=Status) == STATUS


async def test_metrics_are_text_for_prometheus(asked: Asked) -> None:
    answer = await asked.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body == b"llmgw_nodes 1\n"


async def test_an_unknown_path_is_a_json_404_that_names_those_there_are(asked: Asked) -> None:
    answer = await asked.ask("GET", "/api/v1/nope")
    assert answer.code == 404
    assert answer.json == {
        "error": "there is no /api/v1/nope; there are /healthz, /readyz, /metrics and /api/v1/status"
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_wrong_method_is_a_json_405_with_those_allowed(asked: Asked, method: str) -> None:
    answer = await asked.ask(method, "/api/v1/status")
    assert answer.code == 405
    assert answer.json == {"error": f"{method} is not allowed on /api/v1/status"}
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_head_has_no_body(asked: Asked) -> None:
    answer = await asked.ask("HEAD", "/healthz")
    assert (answer.code, answer.body) == (200, b"")


async def test_the_end_closes_the_listener_and_waits_for_nobody_idle() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_admin, View(), listener)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += await stream.receive_some()
        nursery.cancel_scope.cancel()
    assert await stream.receive_some() == b""
    await stream.aclose()
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream("127.0.0.1", port)
