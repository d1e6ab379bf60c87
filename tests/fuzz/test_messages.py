"""Whatever a map holds: a message whose every field is of its type, or PeerError; and every message comes back."""

import enum
import types
import typing
from typing import Any, NewType

import attrs
import drawn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import PeerError, PeerReason
from llmgw.wire.codec import Received, UnknownMessage, decode, encode, message_classes
from llmgw.wire.frames import FrameDecoder
from llmgw.wire.messages import Message


def conforms(value: Any, cls: Any) -> bool:
    """Whether a value is exactly of its annotation, all the way down."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if isinstance(cls, NewType):
        return conforms(value, cls.__supertype__)
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, arg) for arg in args)
    if origin is tuple and args[-1] is Ellipsis:
        return type(value) is tuple and all(conforms(item, args[0]) for item in value)
    if origin is tuple:
        return type(value) is tuple and len(value) == len(args) and all(map(conforms, value, args))
    if origin is dict:
        return type(value) is dict and all(conforms(k, args[0]) and conforms(v, args[1]) for k, v in value.items())
    if attrs.has(cls):
        return type(value) is cls and all(conforms(getattr(value, f.name), f.type) for f in attrs.fields(cls))
    assert not (isinstance(cls, type) and issubclass(cls, enum.Enum)) or isinstance(value, cls)
    return type(value) is cls


def decoded(fields: dict[str, Any]) -> Received | None:
    """The message, whose every field is of its type; None: a PeerError that names a field."""
    try:
        message = decode(fields)
    except PeerError as error:
        named = error.reason is PeerReason.BAD_FIELD and "expected" in error.detail
    else:
        assert isinstance(message, UnknownMessage) or conforms(message, type(message))
        return message
    assert named
    return None


def plain(message: Message) -> dict[str, Any]:
    (fields,) = FrameDecoder().feed(encode(message))
    return fields


def is_text(value: Any) -> bool:
    """Whether no lone surrogate is in it."""
    try:
        repr(value).encode().decode("unicode_escape").encode()
    except UnicodeError:
        return False
    return True


@pytest.mark.parametrize("name", message_classes())
def test_every_message_class_has_a_strategy(name: str) -> None:
    """Derived from its annotations; one that the derivation does not know fails here."""
    drawn.of(message_classes()[name]).validate()


def test_a_class_without_a_strategy_is_found() -> None:
    with pytest.raises(TypeError, match="no strategy for"):
        drawn.of(attrs.make_class("Odd", {"value": attrs.field(type=complex)}))


@given(drawn.messages())
def test_every_message_comes_back(message: Message) -> None:
    """Whole, where its text is text; where a lone surrogate was replaced, the same at every further trip."""
    back = decode(plain(message))
    assert conforms(back, type(message))
    assert not isinstance(back, UnknownMessage)
    if is_text(message):
        assert back == message
    assert is_text(back)
    assert decode(plain(back)) == back


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside plain data."""
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    else:
        return [at]
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """Plain data with another value in one place."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


@given(st.data(), drawn.messages().map(plain), drawn.PLAIN)
def test_a_wrong_type_in_any_field_gives_a_right_message_or_a_bad_field(
    data: st.DataObject, fields: dict[str, Any], new: Any
) -> None:
    at = data.draw(st.sampled_from(places(fields)[1:]))
    message = decoded(put(fields, at, new))
    if message is not None and not isinstance(message, UnknownMessage):
        assert decode(plain(message)) == message


@given(st.data(), drawn.messages().map(plain), st.dictionaries(st.text(max_size=4), drawn.PLAIN, max_size=2))
def test_a_field_left_out_is_a_default_or_a_bad_field_and_one_that_nobody_knows_changes_nothing(
    data: st.DataObject, fields: dict[str, Any], more: dict[str, Any]
) -> None:
    known = attrs.fields_dict(message_classes()[fields["type"]])
    name = data.draw(st.sampled_from(sorted(fields)))
    less = {key: value for key, value in fields.items() if key != name}
    optional = name != "type" and known[name].default is not attrs.NOTHING
    message = decoded(less)
    assert (message is not None) == optional
    new = {key: value for key, value in more.items() if key not in known and key != "type"}
    assert decoded({**new, **less}) == message


@given(
    st.dictionaries(st.sampled_from(["type", "number", "shards"]), drawn.PLAIN), st.sampled_from([*message_classes()])
)
def test_any_map_gives_a_message_or_a_bad_field(fields: dict[str, Any], name: str) -> None:
    decoded(fields)
    decoded({**fields, "type": name})
