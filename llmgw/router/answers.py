"""Answers that the router gives itself, as the bytes of a whole HTTP response."""

import math
from http import HTTPStatus

import msgspec

from llmgw.core.routing import ClientKey, RoutedModel
from llmgw.router.dialects import Dialect, Problem, Trouble
from llmgw.router.paths import ModelDetail, ModelList, Operation, Ready
from llmgw.router.table import Table

NAME_SHOWN_CHARS_MAX = 200
"""Of a name that a client made up, in an error."""

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


def own(operation: Operation, table: Table, owner: ClientKey | None, *, draining: bool) -> tuple[int, bytes]:
    """(status, body) for a path that no engine is asked for. Raises Problem for a model that `owner` may not see."""
    match operation:
        case ModelList():
            # All that the catalog has, ready or not, under their catalog names.
            models = [model for model in table.models() if table.keys.allows(owner, model.name)]
            return 200, msgspec.json.encode({"object": "list", "data": [_model(model, model.name) for model in models]})
        case ModelDetail(name=name):
            route = table.route(name)
            if route is None or not table.keys.allows(owner, route.model.name):
                raise unknown_model(name)
            return 200, msgspec.json.encode(_model(route.model, name))
        case Ready():
            if draining or not table.known:
                return 503, b'{"status":"not ready"}'
            return 200, msgspec.json.encode({"status": "ready", "table": "stale" if table.stale else "current"})
        case _:
            return 200, b'{"status":"ok"}'


def unknown_model(name: str) -> Problem:
    """The same whether the model does not exist or the key may not use it."""
    message = f"the model `{name[:NAME_SHOWN_CHARS_MAX]}` does not exist, or your key may not use it"
    return Problem(Trouble.UNKNOWN_MODEL, f"{message} (names are compared exactly)", param="model")
