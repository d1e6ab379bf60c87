"""The demo as a client: one streamed chat through the router, and the status from control. Plain HTTP, no library."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import attrs
import msgspec

from llmgw.core.address import Address
from llmgw.core.statusdoc import Status

STATUS_TIMEOUT_SECONDS = 5.0
"""Control answers within milliseconds unless the machine is very busy."""
STATUS_BYTES_MAX = 16 * 1024**2
"""One node and a few models need some kilobytes."""
SILENCE_SECONDS_MAX = 300.0
"""Between two pieces of an answer: a large model on a small machine thinks for long."""
LINE_BYTES_MAX = 1024**2
"""Of one event: a token is a few hundred bytes."""

TOKENS_MAX = 48
"""Of the demo's answer: enough to see it stream."""
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a listener on all addresses is reached from here."""


class TalkError(Exception):
    """No answer, or not the one that was hoped for. `str()` says what came instead."""


def reached_at(listening: Address) -> Address:
    """The address under which this machine reaches what listens there."""
    return Address(LOOPBACK.get(listening.host, listening.host), listening.port)


def question(model: str) -> dict[str, Any]:
    """The request for one short answer, the same every time: nothing is drawn at temperature 0.

    The penalty keeps a model that knows nothing from repeating itself.
    """
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me a short story about a river."}],
        "max_tokens": TOKENS_MAX,
        "temperature": 0,
        "frequency_penalty": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@attrs.define
class Answer:
    """A streamed answer; complete when `pieces` has ended."""

    request_id: str
    _connection: http.client.HTTPConnection
    _response: http.client.HTTPResponse
    tokens: int | None = None
    """As the usage chunk says."""
    finished: bool = False
    """Whether the stream ended as it should, with `[DONE]`."""

    def pieces(self) -> Iterator[str]:
        """The text, as it comes. TalkError where the stream breaks or holds an error."""
        with closing(self._connection), self._response:
            yield from self._pieces()

    def _pieces(self) -> Iterator[str]:
        for data in self._events():
            if data == "[DONE]":
                self.finished = True
                return
            event = _object(data)
            if "error" in event:
                raise TalkError(f"the stream ended with an error: {json.dumps(event['error'], ensure_ascii=False)}")
            if isinstance(event.get("usage"), dict):
                self.tokens = event["usage"].get("completion_tokens")
            for choice in event.get("choices", []):
                delta = choice.get("delta", {})
                # A model that thinks first streams its thoughts under another name.
                text = delta.get("content") or delta.get("reasoning_content")
                if text:
                    yield text
        raise TalkError("the stream ended without [DONE]: the engine or the router was cut off")

    def _events(self) -> Iterator[str]:
        try:
            while line := self._response.readline(LINE_BYTES_MAX):
                if line.startswith(b"data: "):
                    yield line.removeprefix(b"data: ").decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            raise TalkError(f"the stream broke: {type(error).__name__}: {error}") from error


def ask(router: Address, body: dict[str, Any]) -> Answer:
    """Send a chat to the router. TalkError with its words unless it answers 200."""
    there = reached_at(router)
    connection = http.client.HTTPConnection(there.host, there.port, timeout=SILENCE_SECONDS_MAX)
    headers = {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status == http.HTTPStatus.OK:
            return Answer(response.getheader("x-request-id", ""), connection, response)
        with closing(connection), response:
            words = response.read(LINE_BYTES_MAX).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise TalkError(f"the router at {router} gave no answer: {type(error).__name__}: {error}") from error
    raise TalkError(f"the router at {router} answered {response.status}: {words}")


def read_status(admin: Address) -> Status | None:
    """Control's status; None while it does not answer."""
    there = reached_at(admin)
    connection = http.client.HTTPConnection(there.host, there.port, timeout=STATUS_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/api/v1/status")
        with connection.getresponse() as response:
            body = response.read(STATUS_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        return None
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError as error:
        raise TalkError(f"what answers at {admin} is no llmgw-control of this version: {error}") from error


def _object(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise TalkError(f"the stream holds what is no JSON object: {data[:200]}")
    return value
