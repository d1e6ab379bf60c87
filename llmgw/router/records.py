"""What is known of one request when it has ended: one record, in the access log and in the counters."""

import enum
import re
from collections.abc import Iterable
from typing import Protocol

import attrs

TAIL_BYTES = 4096
"""Of an answer's end, where its usage stands."""

TAIL_PIECES = 8
"""Reads that the tail is put together from: the usage, `[DONE]` and the last chunk often come each on its own."""


class Ending(enum.StrEnum):
    """Why a request ended. Each has exactly one."""

    DONE = "done"
    """The engine's answer was passed on to its last byte, whatever it said."""
    REFUSED = "refused"
    """Answered here: no engine gave an answer."""
    CLIENT_LEFT = "client left"
    ENGINE_DIED = "engine died"
    """It broke off in the middle of an answer, or without one."""
    DEADLINE = "deadline"
    """A limit of time was over: the request's, the engine's first byte, silence in a stream, or a client that does
    not read."""
    DRAINED = "drained"
    """It was cut off because its engine, or this router, had to go."""


@attrs.define
class Record:
    """One request. Times are of Trio's clock."""

    began_at: float
    request_id: str = ""
    method: str = ""
    path: str = ""
    client: str = ""
    """The name of its key."""
    model: str = ""
    """Catalog name; empty while it names none that exists."""
    endpoint: str = ""
    epoch: int = 0
    status: int = 0
    """Of the answer; 0: none was sent."""
    stream: bool = False
    ending: Ending | None = None
    detail: str = ""
    first_byte_at: float | None = None
    bytes_sent: int = 0
    """Of the answer's body."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    exact: bool = True
    """The engine said the tokens; else they are the events that were counted."""


class AccessLog(Protocol):
    """Where records go."""

    def write(self, record: Record, now: float) -> None:
        """Take one that has ended. Never blocks."""


class Counters:
    """What this process has counted since it started, by name and labels as Prometheus writes them."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._endings: dict[tuple[str, str], int] = {}
        self._tokens: dict[tuple[str, str, str], int] = {}
        self._failures: dict[tuple[str, str, str], int] = {}

    def count(self, record: Record) -> None:
        """A request has ended."""
        requests, endings = self._requests, self._endings
        key = record.model, record.status
        requests[key] = requests.get(key, 0) + 1
        ended = record.model, str(record.ending)
        endings[ended] = endings.get(ended, 0) + 1
        exact = "exact" if record.exact else "estimated"
        for kind, tokens in (("prompt", record.prompt_tokens), ("completion", record.completion_tokens)):
            if tokens:
                told = record.model, kind, exact
                self._tokens[told] = self._tokens.get(told, 0) + tokens

    def count_failure(self, model: str, endpoint: str, kind: str) -> None:
        """An endpoint was `unreachable`, or `died` before the end of an answer."""
        key = model, endpoint, kind
        self._failures[key] = self._failures.get(key, 0) + 1

    def samples(self) -> dict[str, float]:
        """`name{label="value"}` -> value."""
        found: dict[str, float] = {}
        for (model, code), number in self._requests.items():
            found[f"llmgw_router_requests_total{_labels(model=model, code=str(code))}"] = number
        for (model, ending), number in self._endings.items():
            found[f"llmgw_router_endings_total{_labels(model=model, ending=ending)}"] = number
        for (model, kind, exact), number in self._tokens.items():
            found[f"llmgw_router_tokens_total{_labels(model=model, kind=kind, counted=exact)}"] = number
        for (model, endpoint, kind), number in self._failures.items():
            found[f"llmgw_router_failures_total{_labels(model=model, endpoint=endpoint, kind=kind)}"] = number
        return found


def _labels(**labels: str) -> str:
    written = (
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in labels.items()
    )
    return "{" + ",".join(written) + "}"


_USAGE = re.compile(rb'"usage"\s*:\s*\{')
"""A null usage, as engines put it into every event but the last, is none."""
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,12})\s*[,}]')
_COMPLETION = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,12})\s*[,}]')


def usage_in(pieces: Iterable[bytes]) -> tuple[int | None, int | None] | None:
    """(prompt tokens, completion tokens) as an engine said them in the last of these bytes; None: it did not.

    The bytes may begin anywhere and have chunk framing between them; a number that is cut by it is not taken, since
    what follows it is neither a comma nor a brace.
    """
    tail = b"".join(pieces)[-TAIL_BYTES:]
    start, found = len(tail), None
    while found is None:
        start = tail.rfind(b'"usage"', 0, start)
        if start < 0:
            return None
        found = _USAGE.match(tail, start)
    prompt, completion = _PROMPT.search(tail, found.end()), _COMPLETION.search(tail, found.end())
    if prompt is None and completion is None:
        return None
    return (
        int(prompt[1]) if prompt is not None else None,
        int(completion[1]) if completion is not None else None,
    )
