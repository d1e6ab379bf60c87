"""The demo's client against a server that answers as it is told."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from llmgw.core.address import Address
from llmgw.core.statusdoc import ControlStatus, NodeStatus, Status
from llmgw.demo.talk import TOKENS_MAX, TalkError, ask, question, reached_at, read_status

Serve = Callable[..., Address]


class Handler(BaseHTTPRequestHandler):
    """Answers with what `server.answer` holds and keeps the request."""

    server: "Server"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer()

    def _answer(self) -> None:
        status, body, headers = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        pass


class Server(HTTPServer):
    answer: tuple[int, bytes, dict[str, str]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Any] = []


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def where(server: Server) -> Address:
    return Address("127.0.0.1", server.server_port)


def events(*payloads: str) -> bytes:
    return "".join(f"data: {payload}\n\n" for payload in payloads).encode()


def text(content: str) -> str:
    return json.dumps({"choices": [{"delta": {"content": content}}]})


USAGE = '{"choices": [], "usage": {"completion_tokens": 2}}'


def test_an_answer_is_streamed_with_its_id_and_count(server: Server) -> None:
    role = '{"choices": [{"delta": {"role": "assistant", "content": null}}]}'
    body = b": ping\n\n" + events(role, text("Grüße"), text(" 🎉"), USAGE, "[DONE]")
    server.answer = (200, body, {"x-request-id": "r-1"})
    answer = ask(where(server), question("tiny"))
    assert list(answer.pieces()) == ["Grüße", " 🎉"]
    assert (answer.request_id, answer.tokens, answer.finished) == ("r-1", 2, True)
    assert server.asked == [question("tiny")]
    assert server.asked[0]["max_tokens"] == TOKENS_MAX
    assert server.asked[0]["temperature"] == 0


def test_thoughts_are_shown_too(server: Server) -> None:
    server.answer = (200, events('{"choices": [{"delta": {"reasoning_content": "hm"}}]}', "[DONE]"), {})
    assert list(ask(where(server), {}).pieces()) == ["hm"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (events(text("a")), "without [DONE]"),
        (b"", "without [DONE]"),
        (events(text("a"), '{"error": {"message": "engine died"}}'), "engine died"),
        (events(text("a"), "{"), "no JSON object"),
        (events(text("a"), "[1]"), "no JSON object"),
    ],
)
def test_an_answer_that_is_cut_off_is_no_answer(server: Server, body: bytes, words: str) -> None:
    server.answer = (200, body, {})
    answer = ask(where(server), {})
    with pytest.raises(TalkError) as failure:
        list(answer.pieces())
    assert words in str(failure.value)
    assert not answer.finished


def test_a_broken_stream_says_so(server: Server) -> None:
    server.answer = (200, events(text("a")), {"Content-Length": "5000"})
    with pytest.raises(TalkError):
        list(ask(where(server), {}).pieces())


def test_a_refusal_is_told_in_the_router_s_words(server: Server) -> None:
    server.answer = (503, b'{"error": {"message": "loading"}}', {})
    with pytest.raises(TalkError, match=r'answered 503: \{"error": \{"message": "loading"\}\}$'):
        ask(where(server), {})


def test_nobody_there_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = Address("127.0.0.1", free.getsockname()[1])
    with pytest.raises(TalkError, match="gave no answer: ConnectionRefusedError"):
        ask(gone, {})
    assert read_status(gone) is None


def test_the_status_is_read(server: Server) -> None:
    status = Status(ControlStatus("0.1.0", "serving", 1.0, 1, 1), (NodeStatus("a", "healthy"),))
    server.answer = (200, msgspec.json.encode(status), {})
    assert read_status(where(server)) == status
    server.answer = (503, b"", {})
    assert read_status(where(server)) is None
    server.answer = (200, b"<html>", {})
    with pytest.raises(TalkError, match="is no llmgw-control of this version"):
        read_status(where(server))


def test_a_listener_everywhere_is_reached_on_loopback() -> None:
    assert str(reached_at(Address("0.0.0.0", 1))) == "127.0.0.1:1"
    assert str(reached_at(Address("::", 1))) == "[::1]:1"
    assert str(reached_at(Address("10.0.0.1", 1))) == "10.0.0.1:1"
