"""Answers that the router gives itself, as the bytes of a whole HTTP response."""

import math
from http import HTTPStatus

import msgspec

from llmgw.core.routing import RoutedModel
from llmgw.router.dialects import Dialect, Problem, Trouble

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_PHRASES = {status.value: b"%d %b" % (status.value, status.phrase.encode()) for status in HTTPStatus}


def answer(
    status: int, body: bytes, request_id: str, *, close: bool, without_body: bool = False, lines: tuple[bytes, ...] = ()
) -> bytes:
    """A JSON answer. `without_body`: to HEAD, which gets the head that GET would get."""
    head = [
        b"HTTP/1.1 " + _PHRASES[status],
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"x-request-id: " + request_id.encode(),
        *lines,
    ]
    if close:
        head.append(b"connection: close")
    return b"\r\n".join(head) + b"\r\n\r\n" + (b"" if without_body else body)


def refusal(problem: Problem, dialect: Dialect, request_id: str, *, close: bool, without_body: bool = False) -> bytes:
    """The answer to a request that cannot be served."""
    lines: tuple[bytes, ...] = ()
    if problem.retry_after_seconds is not None:
        # Whole seconds, and never 0: that would ask for a retry at once.
        lines = (b"retry-after: %d" % max(1, math.ceil(problem.retry_after_seconds)),)
    if problem.allow:
        lines = (*lines, b"allow: " + problem.allow)
    if problem.trouble is Trouble.INVALID_KEY:
        lines = (*lines, b"www-authenticate: Bearer")
    body = dialect.body(problem)
    return answer(problem.status, body, request_id, close=close, without_body=without_body, lines=lines)


def _model(model: RoutedModel, name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": model.created, "owned_by": "llmgw"}


def model_list(models: list[RoutedModel]) -> bytes:
    """The body of /v1/models. Catalog names only; whether a model is ready now plays no part."""
    return msgspec.json.encode({"object": "list", "data": [_model(model, model.name) for model in models]})


def model_detail(model: RoutedModel, name: str) -> bytes:
    """The body of /v1/models/NAME, under the name that was asked for, which may be an alias."""
    return msgspec.json.encode(_model(model, name))
