"""Frames: what is taken, what is refused, and what it costs."""

import itertools
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest

from llmgw.errors import InvariantBroken, PeerError, PeerReason
from llmgw.wire.frames import (
    CONTAINERS_MAX,
    DOWN_BYTES_MAX,
    ENTRIES_MAX,
    FIRST_BYTES_MAX,
    FrameDecoder,
    decode_body,
    frame,
)

A_LIST = b"\x81\xa1a"
"""The start of {"a": ...}."""


def array_of(count: int, item: bytes) -> bytes:
    return A_LIST + b"\xdd" + struct.pack(">I", count) + item * count


def reason_of(body: bytes) -> PeerReason:
    with pytest.raises(PeerError) as caught:
        decode_body(body)
    return caught.value.reason


def test_a_map_of_every_plain_type_comes_back() -> None:
    value = {
        "map": {"": {}},
        "list": [1, [], "ü\0", b"\xff", None, True, 1.5, -(2**63), 2**64 - 1],
    }
    assert FrameDecoder().feed(frame(msgpack.packb(value))) == [value]


def test_any_chunking_gives_the_same() -> None:
    maps: list[dict[str, Any]] = [{}, {"a": [1, 2]}, {"b": "x" * 5000}]
    data = b"".join(frame(msgpack.packb(fields)) for fields in maps)
    for size in (1, 2, 3, 5, 1000, len(data)):
        decoder = FrameDecoder()
        assert [found for at in range(0, len(data), size) for found in decoder.feed(data[at : at + size])] == maps
        decoder.finish()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", PeerReason.NOT_MSGPACK),
        (b"\xc1", PeerReason.NOT_MSGPACK),
        (A_LIST, PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xa1\xff", PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xa3\xed\xa0\x80", PeerReason.NOT_MSGPACK),  # a surrogate, as UTF-8 forbids it
        (A_LIST + b"\xdd\xff\xff\xff\xff", PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xdf\xff\xff\xff\xff", PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xc6\xff\xff\xff\xff", PeerReason.NOT_MSGPACK),
        (A_LIST * 400_000, PeerReason.NOT_MSGPACK),
        (b"\x91" * 1025, PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xd4\x05\x00", PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xd6\xff\x00\x00\x00\x00", PeerReason.NOT_MSGPACK),
        (A_LIST + b"\x91\xd7\xff" + bytes(8), PeerReason.NOT_MSGPACK),
        (A_LIST + b"\x81\xa1b\xc7\x0c\xff" + bytes(12), PeerReason.NOT_MSGPACK),
        (A_LIST + b"\xd7\xff" + b"\xff" * 8, PeerReason.NOT_MSGPACK),  # nanoseconds beyond a second
        (b"\x90", PeerReason.NOT_A_MAP),
        (b"\xc0", PeerReason.NOT_A_MAP),
        (b"\x80\x80", PeerReason.NOT_A_MAP),
        (A_LIST + b"\xc0" * 2000, PeerReason.NOT_A_MAP),
        (b"\x81\x01\x01", PeerReason.BAD_KEY),
        (b"\x81\xc0\x01", PeerReason.BAD_KEY),
        (b"\x81\xc4\x04type\x01", PeerReason.BAD_KEY),
        (b"\x81\x80\x01", PeerReason.BAD_KEY),
        (b"\x81\x90\x01", PeerReason.BAD_KEY),
        (b"\x81\xd6\xff\x00\x00\x00\x00\x01", PeerReason.BAD_KEY),
        (b"\x82\xa1a\x01\xa1a\x02", PeerReason.BAD_KEY),
        (A_LIST + b"\x81\x01\x01", PeerReason.BAD_KEY),
        (array_of(CONTAINERS_MAX, b"\x90"), PeerReason.TOO_MANY_CONTAINERS),
        (array_of(CONTAINERS_MAX, b"\x80"), PeerReason.TOO_MANY_CONTAINERS),
    ],
    ids=lambda value: value[:12].hex() if isinstance(value, bytes) else None,
)
def test_what_is_not_one_map_of_plain_data_is_refused(body: bytes, reason: PeerReason) -> None:
    assert reason_of(body) is reason


def test_as_many_containers_as_allowed_are_taken() -> None:
    assert len(decode_body(array_of(CONTAINERS_MAX - 2, b"\x90"))["a"]) == CONTAINERS_MAX - 2


def test_the_limit_holds_for_the_next_frame_and_before_it_is_there() -> None:
    decoder = FrameDecoder(100)
    decoder.add(frame(msgpack.packb({"a": "x" * 90})))
    assert decoder.next_map() is not None
    decoder.add(struct.pack(">I", 101))
    with pytest.raises(PeerError, match=r"^frame too large: 101 bytes announced, at most 100 are taken now$") as caught:
        decoder.next_map()
    assert caught.value.reason is PeerReason.FRAME_TOO_LARGE


def test_a_raised_limit_holds_at_once() -> None:
    decoder = FrameDecoder(10)
    data = frame(msgpack.packb({"a": "x" * 90}))
    decoder.add(data[:50])
    decoder.bytes_max = 100
    assert decoder.feed(data[50:]) == [{"a": "x" * 90}]


@pytest.mark.parametrize(
    ("start", "said"), [(b"GET / HTTP/1.1\r\n", r"\(it speaks HTTP\)"), (b"\x16\x03\x01\x02\x00", r"\(it speaks TLS\)")]
)
def test_a_stranger_is_named(start: bytes, said: str) -> None:
    with pytest.raises(PeerError, match=said):
        FrameDecoder().feed(start)


def test_an_end_inside_a_frame_is_a_violation() -> None:
    decoder = FrameDecoder()
    decoder.finish()
    decoder.feed(frame(b"\x80") + b"\x00\x00")
    with pytest.raises(PeerError) as caught:
        decoder.finish()
    assert caught.value.reason is PeerReason.TRUNCATED


def test_a_frame_of_ours_has_a_limit_too() -> None:
    assert len(frame(bytes(DOWN_BYTES_MAX))) == 4 + DOWN_BYTES_MAX
    with pytest.raises(InvariantBroken):
        frame(bytes(DOWN_BYTES_MAX + 1))


ROOM = DOWN_BYTES_MAX - 8
SMALL_ROOM = 128 * 1024

KEYS = [chr(code).encode() for code in range(256, 2000)]
SHORT_KEYS = b"\xde" + struct.pack(">H", len(KEYS)) + b"".join(b"\xa2" + key + b"\xc0" for key in KEYS)
THREE = itertools.islice(itertools.product(range(33, 127), repeat=3), ENTRIES_MAX)
WIDE = b"\xdf" + struct.pack(">I", ENTRIES_MAX) + b"".join(b"\xa3" + bytes(key) + b"\xc0" for key in THREE)

REFUSED_EARLY = {
    "empty arrays": array_of(ROOM, b"\x90"),
    "empty maps": array_of(ROOM, b"\x80"),
    "announced, nested, and not there": (A_LIST + b"\xdd\x00\x3f\xff\x00" * 1000).ljust(ROOM, b"\x00"),
    "announced in 20 KB": A_LIST + b"\xdd\x00\x00\x40\x00" * 1000 + b"\xc0" * 15_000,
    "announced in 1 KiB": A_LIST + b"\xdd\x00\x00\x03\xe0" * 200,
    "announced maps in 1 KiB": A_LIST + b"\xde\xff\xff" * 210,
    "announced maps": A_LIST + b"\xdf\x00\x00\x40\x00" * 1000 + b"\xa1" * 15_000,
    "one map with too many entries": A_LIST + b"\xdf" + struct.pack(">I", 800_000) + b"\xa1x\xc0" * 800_000,
}

GROWING = {
    "maps of one": array_of(2000, b"\x81\xa1a\xc0"),
    "maps of short keys": array_of(SMALL_ROOM // len(SHORT_KEYS), SHORT_KEYS),
    "short strings": array_of(SMALL_ROOM // 3, b"\xa2\xc4\x80"),
    "floats": array_of(SMALL_ROOM // 5, b"\xca\x3f\x8c\xcc\xcd"),
    "integers": array_of(SMALL_ROOM // 3, b"\xcd\x7f\x7f"),
    "short bytes": array_of(SMALL_ROOM // 4, b"\xc4\x02ab"),
    "deep": A_LIST * 1_000 + b"\xc0",
}


def peak_of(body: bytes) -> int:
    """Bytes allocated at most while a frame with that body is taken or refused."""
    decoder = FrameDecoder(DOWN_BYTES_MAX)
    whole = len(body).to_bytes(4, "big") + body
    tracemalloc.start()
    try:
        decoder.feed(whole)
    except PeerError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", REFUSED_EARLY)
def test_a_frame_made_to_grow_is_refused_before_it_has(name: str) -> None:
    """Within 32 times its length and 16 MiB, though msgpack alone would take a hundred times that for some."""
    body = REFUSED_EARLY[name]
    reason_of(body)
    assert peak_of(body) <= 32 * len(body) + 16 * 2**20


@pytest.mark.parametrize("name", GROWING)
def test_a_frame_that_is_taken_grows_in_proportion(name: str) -> None:
    """These grow as much as a frame can. Small ones, so that the constant part of the bound hides nothing."""
    body = GROWING[name]
    decode_body(body)
    assert peak_of(body) <= 32 * len(body) + 2**20


def test_what_the_entries_of_maps_take_is_the_constant_of_the_bound() -> None:
    """An entry takes up to 280 bytes (the pair, the key, its place in a table that has just doubled), however short it
    is in the frame: 40 to 56 times here, by what Python has kept from before. So their number is limited, and what
    that many take is within the 16 MiB.
    """
    body = A_LIST + WIDE
    decode_body(body)
    assert peak_of(body) <= 32 * len(body) + 16 * 2**20


def test_limits_are_those_of_the_protocol() -> None:
    assert (FIRST_BYTES_MAX, DOWN_BYTES_MAX, CONTAINERS_MAX) == (256 * 1024, 4 * 1024 * 1024, 65_536)
