"""Messages to bytes and back. What is encoded here always decodes here; what is decoded is strict.

A message is one map: `type` (the class's name) and the fields that differ from their defaults. So a default is part
of the protocol and never changes, and a heartbeat has half the length that it would have.
"""

import functools
import math
import typing
from typing import Any, TypeAlias

import attrs
import msgpack

from llmgw.errors import InvariantBroken, PeerError, PeerReason
from llmgw.strict import Flaw, FlawKind, Step, StructureError, dotted, make_converter, seen
from llmgw.wire.frames import frame
from llmgw.wire.messages import Message

NAME_CHARS_MAX = 64
"""Of an unknown message's name, which goes into an answer and into logs."""

SECRET_FIELDS = frozenset({"key", "keys", "env", "token", "csr", "data", "output"})
"""Never shown, nor what is in them, not even where they are of the wrong type."""


@attrs.frozen
class UnknownMessage:
    """A message of a kind that this version does not know. It is answered Unsupported, and the connection lives."""

    name: str
    """Shortened to 64 characters."""
    command_id: int | None = None
    """Where it was a command that waits for an Ack."""


Received: TypeAlias = Message | UnknownMessage

_converter = make_converter(detailed=False)


def _unstructure_float(value: float) -> float:
    if not math.isfinite(value):
        raise InvariantBroken(f"{value} was to be sent; a number on the wire is finite")
    return value


_converter.register_unstructure_hook(float, _unstructure_float)


@functools.cache
def message_classes(union: Any = Message) -> dict[str, type]:
    """The classes of a union by the name that they have on the wire."""
    classes = {cls.__name__: cls for cls in typing.get_args(union)}
    if with_type := [name for name, cls in classes.items() if "type" in attrs.fields_dict(cls)]:
        raise InvariantBroken(f"{with_type}: `type` is the message's name and no field of its own")
    return classes


def encode(message: Message) -> bytes:
    """The frame of a message. InvariantBroken for what no peer takes: a number beyond 64 bits or not finite.

    Text never fails: what is no character (a lone surrogate, from a file name or a broken decoder) is replaced.
    """
    cls = message.__class__
    fields = {"type": cls.__name__, **_converter.unstructure(message, cls)}
    try:
        body = msgpack.packb(fields)
    except UnicodeEncodeError:
        body = msgpack.packb(_with_characters_only(fields))
    except (OverflowError, TypeError) as error:
        raise InvariantBroken(f"{cls.__name__} cannot be sent: {error}") from error
    return frame(body)


def decode(fields: dict[str, Any], union: Any = Message) -> Received:
    """The message that a frame's map holds. Raises PeerError BAD_FIELD that names the path, expected and seen.

    union: what the sender may say; another known class is an UnknownMessage here.
    """
    known = classify(fields, union)
    return known if isinstance(known, UnknownMessage) else structure(fields, known)


def classify(fields: dict[str, Any], union: Any = Message) -> type | UnknownMessage:
    """The class of a frame's map, from its `type` alone. Raises PeerError where it says none."""
    if "type" not in fields:
        raise PeerError(PeerReason.BAD_FIELD, "type: expected the name of a message, and it is missing")
    name = fields["type"]
    if name.__class__ is not str:
        raise PeerError(PeerReason.BAD_FIELD, f"type: expected the name of a message, got {seen(name)}")
    if (cls := message_classes(union).get(name)) is not None:
        return cls
    command_id = fields.get("command_id")
    return UnknownMessage(name[:NAME_CHARS_MAX], command_id if command_id.__class__ is int else None)


def structure(fields: dict[str, Any], cls: type) -> Message:
    """The message of that class. Raises PeerError BAD_FIELD."""
    try:
        message: Message = _hook(cls)(fields, cls)
    except StructureError as error:
        raise PeerError(PeerReason.BAD_FIELD, _shown(cls.__name__, error.flaws[0])) from None
    return message


@functools.cache
def _hook(cls: type) -> Any:
    return _converter.get_structure_hook(cls)


def _shown(name: str, flaw: Flaw) -> str:
    where = f"{name}.{dotted([_short(step) for step in flaw.path])}"
    if flaw.kind is FlawKind.MISSING:
        return f"{where}: expected {flaw.expected}, and it is missing"
    secret = not SECRET_FIELDS.isdisjoint(flaw.path)
    return f"{where}: expected {flaw.expected}, got {type(flaw.value).__name__ if secret else seen(flaw.value)}"


def _short(step: Step) -> Step:
    return step if isinstance(step, int) or len(step) <= NAME_CHARS_MAX else step[:NAME_CHARS_MAX] + "..."


def _with_characters_only(value: Any) -> Any:
    """The same plain data, in which halves of a surrogate pair are joined and lone ones are U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_with_characters_only(key): _with_characters_only(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_characters_only(item) for item in value]
    return value
