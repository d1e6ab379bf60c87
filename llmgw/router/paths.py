"""The paths that the router knows: which are relayed to an engine, which it answers itself.

Another path of an engine is one more row, as long as its body is a JSON object with a `model`.
"""

import re
from urllib.parse import unquote_to_bytes

import attrs

from llmgw.router.dialects import OPENAI, Dialect, Problem, Trouble


@attrs.frozen
class Relayed:
    """Sent to an engine that serves the model which the body names."""

    path: bytes
    dialect: Dialect = OPENAI


@attrs.frozen
class ModelList:
    """The models that the client may use."""


@attrs.frozen
class ModelDetail:
    """One of them."""

    name: str


@attrs.frozen
class Health:
    """The process lives."""


@attrs.frozen
class Ready:
    """It has a table and takes requests."""


Operation = Relayed | ModelList | ModelDetail | Health | Ready

RELAYED: dict[bytes, Relayed] = {
    path: Relayed(path)
    for path in (
        b"/v1/chat/completions",
        b"/v1/completions",
        b"/v1/embeddings",
        b"/v1/rerank",
        b"/v1/score",
        b"/v1/responses",
        b"/tokenize",
        b"/detokenize",
    )
}
"""POST, JSON in."""

ANSWERED: dict[bytes, Operation] = {
    b"/v1/models": ModelList(),
    b"/v1/models/": ModelList(),
    b"/health": Health(),
    b"/ready": Ready(),
}
"""GET (and HEAD)."""

_MODEL = b"/v1/models/"


def find(method: bytes, target: bytes) -> Operation:
    """What is asked for. Raises Problem: an unknown path, with the one that was meant where that can be told, or a
    method that the path does not have.
    """
    if method == b"POST":
        relayed = RELAYED.get(target)
        if relayed is not None:
            return relayed
    path = target.partition(b"?")[0]
    operation = _at(path)
    if operation is None:
        raise Problem(Trouble.UNKNOWN_PATH, _unknown(method, path))
    methods = (b"POST",) if isinstance(operation, Relayed) else (b"GET", b"HEAD")
    if method not in methods:
        allow = b", ".join(methods)
        message = f"{path.decode('ascii', 'replace')} takes {allow.decode()}, not {method.decode('ascii', 'replace')}"
        raise Problem(Trouble.WRONG_METHOD, message, allow=allow)
    return operation


def _at(path: bytes) -> Operation | None:
    found = RELAYED.get(path) or ANSWERED.get(path)
    if found is None and path.startswith(_MODEL):
        # Names have slashes, and clients quote them or do not. A name is compared exactly, as in a request's body.
        return ModelDetail(unquote_to_bytes(path[len(_MODEL) :]).decode("utf-8", "replace"))
    return found


def _unknown(method: bytes, path: bytes) -> str:
    """What to say of an unknown path: the known one that differs only by slashes or by `/v1`, if there is one."""
    tidy = re.sub(rb"/+", b"/", path).rstrip(b"/")
    tidy = re.sub(rb"^(/v1)+(?=/|$)", b"/v1", tidy)
    shown = f"unknown path: {method.decode('ascii', 'replace')} {path.decode('ascii', 'replace')}"
    for meant in (tidy, b"/v1" + tidy, tidy.removeprefix(b"/v1")):
        if meant and _at(meant) is not None:
            return f"{shown} (did you mean {meant.decode('ascii', 'replace')}?)"
    return shown


def path_of(operation: Operation) -> str:
    """The path for records: one for all models, since names come from clients."""
    match operation:
        case Relayed(path=path):
            return path.decode("ascii")
        case ModelList():
            return "/v1/models"
        case ModelDetail():
            return "/v1/models/{model}"
        case Health():
            return "/health"
        case Ready():
            return "/ready"
