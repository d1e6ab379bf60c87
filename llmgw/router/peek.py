"""What routing needs of a JSON body, and the one edit that is made in it: another name for the model.

The body is never decoded as a whole or written anew; unknown fields, the order of keys and the spelling of numbers
reach the engine as they came. msgspec skips what is not asked for, in C.
"""

import re
from typing import Any

import attrs
import msgspec

from llmgw.router.dialects import Problem, Trouble


class _Fields(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"")
    stream: Any = None
    stream_options: Any = None


_FIELDS = msgspec.json.Decoder(_Fields)
_NAME = msgspec.json.Decoder(str)

MODEL_SHOWN_CHARS_MAX = 200
"""Of a model's name in an error."""


@attrs.define
class Peeked:
    """What a body says about itself."""

    model: str
    written: bytes
    """The model's name as it stands in the body, with its quotes."""
    stream: bool
    exact_usage: bool
    """It is a stream whose client asked for the usage."""


def peek(body: bytes | bytearray) -> Peeked:
    """What is in the body of a request. Raises Problem, naming `model` where that is what is wrong."""
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        # Not an object at its top is a ValidationError, which is a DecodeError too.
        raise Problem(Trouble.INVALID_BODY, f"the body is not a JSON object: {error}") from None
    written = bytes(fields.model)
    if not written:
        raise Problem(Trouble.INVALID_BODY, "expected `model`, a string, got none", param="model")
    try:
        model = _NAME.decode(written)
    except msgspec.DecodeError:
        shown = written[:MODEL_SHOWN_CHARS_MAX].decode("utf-8", "replace")
        raise Problem(Trouble.INVALID_BODY, f"expected `model`, a string, got {shown}", param="model") from None
    stream = fields.stream is True
    options = fields.stream_options
    return Peeked(model, written, stream, stream and isinstance(options, dict) and options.get("include_usage") is True)


def renamed(body: bytes, written: bytes, name: str) -> tuple[bytes, bytes, bytes]:
    """(what stands before the model's name, `name` as JSON, what stands after it); together the edited body.

    `written` is `Peeked.written`. Of several top-level keys `model`, which only a confused client sends, the last
    one counts for us and for every JSON parser in use, and it is the one that is replaced.
    """
    start = body.find(written)
    if body.find(written, start + 1) >= 0:  # it occurs elsewhere too: look where it is the value of the key
        start = _value_of_model(body)
    assert start >= 0, "peek found the name in the body"
    return body[:start], msgspec.json.encode(name), body[start + len(written) :]


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
"""What nests and what may hide it. Everything between (numbers, commas, blanks) says nothing about depth."""
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


def _value_of_model(body: bytes) -> int:
    """Where the value of the last top-level key `model` begins. The body is valid JSON, an object."""
    depth, found, position = 0, -1, 0
    while (token := _TOKEN.search(body, position)) is not None:
        position = token.end()
        first = body[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and (colon := _COLON.match(body, position)) is not None:
            # A string before a colon is a key, so its value is no key.
            if _is_model(token[0]):
                found = colon.end()
            position = colon.end()
            value = _TOKEN.match(body, position)
            if value is not None and body[position] == ord('"'):
                position = value.end()
    return found


def _is_model(key: bytes) -> bool:
    return key == b'"model"' or (b"\\" in key and _NAME.decode(key) == "model")
