"""The question that tells whether an engine really serves, and whether what came back is an answer.

An engine that answers `/health` can still be unable to produce a token, so each kind of model is asked for the
smallest piece of its real work. Random models answer with empty text: what counts is that something was computed
(`usage.completion_tokens`, a vector, a score).
"""

import json
from http import HTTPStatus
from typing import Any

import attrs

from llmgw.errors import Mistake

URL_PREFIX = "url:"
KINDS = ("chat", "completion", "embedding", "rerank", "url:/path")

SHOWN_CHARACTERS_MAX = 200
"""Of a body that was no answer: enough for an engine's error sentence, little enough for one log line."""


@attrs.frozen
class ProbeRequest:
    """One HTTP request to an engine."""

    method: str
    path: str
    headers: dict[str, str]
    """All but Host, Content-Length and Connection."""
    body: bytes = b""


def check_probe(probe: str) -> tuple[Mistake, ...]:
    """What is wrong with the setting `probe`."""
    path = probe.removeprefix(URL_PREFIX)
    if probe in KINDS[:-1]:
        return ()
    if (
        probe.startswith(URL_PREFIX)
        and path.startswith("/")
        and path.isascii()
        and path.isprintable()
        and " " not in path
    ):
        return ()
    return (Mistake("", "probe", f"one of {', '.join(KINDS)}", repr(probe)),)


def probe_request(probe: str, served_name: str, key: str = "") -> ProbeRequest:
    """The request for a profile's `probe`. `key` is the engine's own; empty: it asks for none."""
    headers = {"Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if probe.startswith(URL_PREFIX):
        return ProbeRequest("GET", probe.removeprefix(URL_PREFIX), headers)
    path, body = _QUESTIONS[probe]
    headers["Content-Type"] = "application/json"
    return ProbeRequest("POST", path, headers, json.dumps({"model": served_name, **body}).encode())


def probe_failure(probe: str, status: int, body: bytes) -> str:
    """Why this is no real answer to `probe_request(probe, ...)`; empty: it is one."""
    if status != HTTPStatus.OK:
        return f"answered {status}: {_shown(body)}"
    if probe.startswith(URL_PREFIX):
        return ""
    answer = _object(body)
    if answer is None:
        return f"answered 200 without a JSON object: {_shown(body)}"
    lacking = _LACKING[probe](answer)
    return f"answered 200 without {lacking}: {_shown(body)}" if lacking else ""


def names_request(key: str = "") -> ProbeRequest:
    """Asks for the names that an engine serves: what stands in for the listener check where that is off."""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return ProbeRequest("GET", "/v1/models", headers)


def names_failure(served_name: str, status: int, body: bytes) -> str:
    """Why this answer to `names_request` does not show that `served_name` is served; empty: it does."""
    if status != HTTPStatus.OK:
        return f"/v1/models answered {status}: {_shown(body)}"
    answer = _object(body)
    entries = answer.get("data") if answer is not None else None
    if not isinstance(entries, list):
        return f"/v1/models answered without a list: {_shown(body)}"
    names = [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    if served_name in names:
        return ""
    return f"{served_name!r} is not served there, but {', '.join(map(repr, names)) or 'nothing'}"


_QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 1, "temperature": 0},
    ),
    "completion": ("/v1/completions", {"prompt": "ping", "max_tokens": 1, "temperature": 0}),
    "embedding": ("/v1/embeddings", {"input": "ping"}),
    "rerank": ("/v1/rerank", {"query": "ping", "documents": ["pong"]}),
}


def _lacks_tokens(answer: dict[str, Any]) -> str:
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return "" if isinstance(tokens, int) and tokens >= 1 else "usage.completion_tokens of at least 1"


def _lacks_vector(answer: dict[str, Any]) -> str:
    vector = _first(answer.get("data")).get("embedding")
    # Some engines send base64; a model gone wrong computes NaN, which JSON shows as null.
    numbers = isinstance(vector, list) and all(isinstance(item, (int, float)) for item in vector)
    return "" if vector and (numbers or isinstance(vector, str)) else "a vector"


def _lacks_score(answer: dict[str, Any]) -> str:
    score = _first(answer.get("results")).get("relevance_score")
    return "" if isinstance(score, (int, float)) and not isinstance(score, bool) else "a score"


_LACKING = {
    "chat": _lacks_tokens,
    "completion": _lacks_tokens,
    "embedding": _lacks_vector,
    "rerank": _lacks_score,
}


def _first(items: Any) -> dict[str, Any]:
    item = items[0] if isinstance(items, list) and items else None
    return item if isinstance(item, dict) else {}


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _shown(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    if not text:
        return "an empty body"
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
