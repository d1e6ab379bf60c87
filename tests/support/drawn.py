"""What the fuzz tests draw: messages, derived from their classes, and streams of bytes, from right to hostile."""

import enum
import functools
import types
import typing
from typing import Any, NewType

import attrs
import msgpack
from hypothesis import strategies as st

from llmgw.wire.codec import encode, message_classes
from llmgw.wire.frames import CONTAINERS_MAX, FIRST_BYTES_MAX
from llmgw.wire.messages import PROTOCOL, Follow, Message, Register, RenewRequest

Drawn = st.SearchStrategy

ITEMS_MAX = 2
"""Of a drawn list or mapping: more finds nothing that two do not."""

TEXT = st.text(st.characters(), max_size=8)
"""Every character, and lone surrogates, which are none."""

INTEGERS = st.integers(-(2**63), 2**64 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)

SCALARS: dict[Any, Drawn[Any]] = {
    str: TEXT,
    int: INTEGERS,
    float: FINITE,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
}


@functools.cache
def of(cls: Any) -> Drawn[Any]:
    """Values of a class as its annotations say. Raises TypeError for an annotation that it does not know."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if cls in SCALARS:
        return SCALARS[cls]
    if isinstance(cls, NewType):
        return of(cls.__supertype__)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of(arg) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of(args[0]), max_size=ITEMS_MAX).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, args))
    if origin is dict:
        return st.dictionaries(of(args[0]), of(args[1]), max_size=ITEMS_MAX)
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return st.sampled_from(cls)
    if isinstance(cls, type) and attrs.has(cls):
        return _of_fields(cls)
    raise TypeError(f"no strategy for {cls}")


def _of_fields(cls: Any) -> Drawn[Any]:
    attrs.resolve_types(cls)
    required = {f.name: of(f.type) for f in attrs.fields(cls) if f.default is attrs.NOTHING}
    optional = {f.name: of(f.type) for f in attrs.fields(cls) if f.default is not attrs.NOTHING}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: cls(**fields))


def messages() -> Drawn[Message]:
    """Every message."""
    return st.one_of([of(cls) for cls in message_classes().values()])


def openers() -> Drawn[Message]:
    """Messages that open a session of this version."""
    versions = st.tuples(st.just(PROTOCOL[0]), st.integers(0, 9))
    ours = st.one_of(of(Register), of(Follow))
    return st.one_of(of(RenewRequest), st.builds(lambda m, p: attrs.evolve(m, protocol=p), ours, versions))


# --- plain data and msgpack ---------------------------------------------------------------------------------------


def _no_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


SCALAR_DATA = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), TEXT, st.binary(max_size=8))

PLAIN = st.recursive(
    SCALAR_DATA,
    lambda inner: st.one_of(
        st.lists(inner, max_size=ITEMS_MAX), st.dictionaries(TEXT.map(_no_surrogates), inner, max_size=ITEMS_MAX)
    ),
    max_leaves=8,
)
"""Whatever a map can hold."""


def _packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


def _header(count: int, short: int, long: int) -> bytes:
    return bytes([short + count]) if count < 16 else bytes([long]) + count.to_bytes(4, "big")


def array(items: list[bytes]) -> bytes:
    """An array of packed items."""
    return _header(len(items), 0x90, 0xDD) + b"".join(items)


def mapping(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """A map of packed pairs, with whatever keys, also the same twice."""
    return _header(len(pairs), 0x80, 0xDF) + b"".join(key + item for key, item in pairs)


ODD = st.one_of(
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4)),
    st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 999_999_999)),
)
LEAVES = st.one_of(SCALAR_DATA, ODD).map(_packed)
KEYS = st.one_of(st.sampled_from(["a", "b", "type"]).map(_packed), LEAVES)

MSGPACK = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=ITEMS_MAX).map(array),
        st.lists(st.tuples(KEYS, inner), max_size=ITEMS_MAX).map(mapping),
    ),
    max_leaves=12,
)
"""Well-formed msgpack of every kind, also the kinds that are not taken."""

DEEP = st.builds(
    lambda layers, depth, end: b"".join(layers) * depth + end,
    st.lists(st.sampled_from([b"\x91", b"\x81\xa1a", b"\x92\xc0", b"\xdd\x00\x00\x00\x01"]), min_size=1, max_size=4),
    st.integers(1, 1500),
    st.sampled_from([b"\xc0", b""]),
)
"""Nested, up to far beyond any limit; some of it ends in the middle."""

ANNOUNCING = st.builds(
    lambda kind, size, width, times, filler: (
        (kind + size.to_bytes(4, "big"))[: 1 + width].ljust(1 + width, b"\xff") * times + filler * 1000
    ),
    st.sampled_from([b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9", b"\xdc", b"\xde"]),
    st.sampled_from([2**32 - 1, 2**31, 2**24, 65_536, 60_000, 4096, 1000]),
    st.sampled_from([2, 4]),
    st.integers(1, 1200),
    st.sampled_from([b"", b"\x90", b"\xc0", b"\xa1x\xc0"]),
)
"""Headers that announce far more than there is, one within another."""

MANY = st.builds(
    lambda item, count: b"\x81\xa1a\xdd" + count.to_bytes(4, "big") + item * count,
    st.sampled_from([b"\x90", b"\x80", b"\x91\xc0", b"\x81\xa1a\xc0"]),
    st.sampled_from([0, 10, 100, 1000, 2000, 4000, CONTAINERS_MAX - 2, CONTAINERS_MAX]),
)
"""As many containers as are allowed, and a few more."""


class Shown(bytes):
    """Bytes that a failing test shows shortened: the line that draws them again is beside them."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, {self[:40]!r}>"


# --- streams ------------------------------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    """A frame around any body."""
    return len(body).to_bytes(4, "big") + body


@st.composite
def damaged(draw: st.DrawFn, whole: Drawn[bytes]) -> bytes:
    """A stream with bytes changed, removed, doubled or put in, or cut off."""
    data = bytearray(draw(whole))
    for kind in draw(st.lists(st.sampled_from(["set", "cut", "insert", "remove", "double"]), min_size=1, max_size=3)):
        at = draw(st.integers(0, len(data)))
        if kind == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=6))
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 6))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


def streams_of_messages() -> Drawn[bytes]:
    """Valid frames, most of them after a valid opener."""
    later = st.lists(messages().map(encode), max_size=2).map(b"".join)
    return st.builds(lambda first, rest: first + rest, st.one_of(st.just(b""), openers().map(encode)), later)


NOVELTIES = st.builds(
    lambda name, more: framed(_packed({"type": name, **more})),
    st.sampled_from(["snapshot", "", "register"]),
    st.dictionaries(st.sampled_from(["command_id", "x"]), INTEGERS),
)
"""Messages of kinds that nobody knows yet."""

VERSIONS = st.builds(
    lambda kind, protocol: framed(_packed({"type": kind, **protocol})),
    st.sampled_from(["Register", "Follow", "Registered", "Refused"]),
    st.fixed_dictionaries({}, optional={"protocol": st.one_of(st.lists(st.integers(0, 3), max_size=3), SCALAR_DATA)}),
)
"""Openers and answers of whatever version."""


def streams() -> Drawn[bytes]:
    """Everything that a peer may send, from right to hostile."""
    bodies = st.one_of(MSGPACK, st.binary(max_size=60), DEEP, ANNOUNCING, MANY)
    kinds = st.one_of(
        streams_of_messages(),
        damaged(streams_of_messages()),
        st.builds(lambda a, b: a + b, openers().map(encode), st.one_of(NOVELTIES, bodies.map(framed))),
        bodies.map(framed),
        VERSIONS,
        st.binary(max_size=60),
        st.integers(FIRST_BYTES_MAX - 1, 2**32 - 1).map(lambda length: length.to_bytes(4, "big") + b"\x80"),
    )
    return kinds.map(Shown)


@st.composite
def chunks(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` in pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
