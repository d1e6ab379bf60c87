"""Bodies: any chunking gives the same, the end is where llhttp sees it, and what is owed makes room for an event."""

from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.framer import (
    CHUNK_LINE_BYTES_MAX,
    OWED_BYTES_MAX,
    TRAILER_BYTES_MAX,
    Body,
    ChunkedBody,
    CloseBody,
    FramingError,
    LengthBody,
)

QUARTER = settings(max_examples=settings().max_examples // 4)
"""Of the profile in force: each example feeds several bodies."""


class Seen:
    """What llhttp made of a body."""

    def __init__(self, data: bytes) -> None:
        self.payload = b""
        self.done = False
        self.refused = False
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            self.refused = not self.done  # after the end: another message, which is not asked about

    def on_body(self, data: bytes) -> None:
        self.payload += data

    def on_message_complete(self) -> None:
        self.done = True


def fed(body: Body, pieces: list[bytes]) -> int:
    """Feed until the body has ended; the bytes that belong to it."""
    taken = 0
    for piece in pieces:
        used = body.feed(piece)
        taken += used
        if body.done:
            break
        assert used == len(piece)
    return taken


def ended(body: Body) -> bool:
    return body.done


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def until_done(pieces: list[bytes], end: int) -> list[bytes]:
    """The pieces up to the one in which byte `end - 1` is."""
    kept, size = [], 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size >= end:
            break
    return kept


extensions = st.sampled_from([b"", b";a", b";a=b", b';name="x y"', b";a;b=c"])
sizes_written = st.sampled_from(["{:x}", "{:X}", "{:04x}"])
trailers = st.lists(st.sampled_from([b"X-Checksum: 1\r\n", b"a:\r\n", b"Server-Timing: x;y\r\n"]), max_size=3)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """(a valid body, its content)."""
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    written = b""
    for part in parts:
        size = draw(sizes_written).format(len(part)).encode()
        written += size + draw(extensions) + b"\r\n" + part + b"\r\n"
    return written + b"0\r\n" + b"".join(draw(trailers)) + b"\r\n", b"".join(parts)


places = st.lists(st.integers(0, 10_000), max_size=12)


@QUARTER
@given(chunked(), places, st.binary(max_size=20))
def test_property_any_chunking_finds_the_same_end_and_content(
    body: tuple[bytes, bytes], where: list[int], rest: bytes
) -> None:
    data, content = body
    payload: list[bytes] = []
    reading, passing = ChunkedBody(payload), ChunkedBody()
    pieces = cut(data + rest, where)
    assert fed(reading, pieces) == fed(passing, pieces) == len(data)
    assert reading.done
    assert passing.done
    assert b"".join(payload) == content


@QUARTER
@given(chunked())
def test_property_a_valid_body_is_what_llhttp_reads(body: tuple[bytes, bytes]) -> None:
    seen = Seen(body[0])
    assert (seen.done, seen.payload) == (True, body[1])


nasty = st.sampled_from(
    [
        *[
            b"0",
            b"00",
            b"5",
            b"\r\n",
            b"\n",
            b"\r",
            b"\r\n\r\n",
            b"0x5",
            b"+5",
            b"1_0",
            b"5 ",
            b" 5",
            b";",
            b"-1",
            b"G",
        ],
        *[
            b"X: y\r\n",
            b": y\r\n",
            b"X y\r\n",
            b"X : y\r\n",
            b" X: y\r\n",
            b"f" * 16,
            b"\0",
            b"hello",
            b"5\r\nhello\r\n",
        ],
    ]
)


@QUARTER
@given(st.lists(st.one_of(nasty, st.binary(max_size=5)), max_size=10).map(b"".join), places)
def test_property_what_we_take_llhttp_takes_the_same_way(data: bytes, where: list[int]) -> None:
    """Safety: no bytes are a body for us and another body, or none, for the strictest parser in use."""
    payload: list[bytes] = []
    body = ChunkedBody(payload)
    try:
        end = fed(body, cut(data, where))
    except FramingError:
        return
    if body.done:
        seen = Seen(data[:end])
        assert (seen.refused, seen.done, seen.payload) == (False, True, b"".join(payload))


@QUARTER
@given(chunked(), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3), places)
def test_property_mutated_bodies_end_the_same_whatever_the_chunking(
    body: tuple[bytes, bytes], changes: list[tuple[int, int]], where: list[int]
) -> None:
    data = bytearray(body[0])
    for place, byte in changes:
        data[place % len(data)] = byte

    def outcome(pieces: list[bytes]) -> tuple[object, ...]:
        payload: list[bytes] = []
        framer = ChunkedBody(payload)
        try:
            return fed(framer, pieces), framer.done, b"".join(payload)
        except FramingError:
            return ("refused",)

    assert outcome(cut(bytes(data), where)) == outcome([bytes(data)])


@QUARTER
@given(chunked(), st.integers(0, 10_000))
def test_property_after_what_is_owed_a_new_chunk_can_follow(body: tuple[bytes, bytes], place: int) -> None:
    """Wherever an engine dies, its client can still be given a well-framed event, or it is known that it cannot."""
    data = body[0]
    sent = data[: place % len(data)]
    framer = ChunkedBody()
    framer.feed(sent)
    owed = framer.owed()
    if owed is None:
        last_chunk_began = b"0\r\n" in sent or b"0;" in sent or sent.endswith(b"0\r")
        assert last_chunk_began or b";" in sent.rpartition(b"\n")[2]
        return
    event = b"data: {}\n\n"
    seen = Seen(sent + owed + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
    assert not seen.refused
    assert seen.done
    assert seen.payload.endswith(event)


def test_chunked_bodies_that_are_refused_say_why() -> None:
    for data, reason in [
        (b"5\r\nhelloX\r\n", "does not end in CR LF"),
        (b"5\nhello\r\n", "CR LF"),
        (b"0x5\r\nhello\r\n", "size in hex"),
        (b"1_0\r\n", "size in hex"),
        (b" 5\r\n", "size in hex"),
        (b"\r\n", "size in hex"),
        (b"nonsense", "size in hex"),
        (b"f" * 16 + b"\r\n", "size in hex"),
        (b"5;" + b"x" * CHUNK_LINE_BYTES_MAX + b"\r\n", "too long"),
        (b"5;" + b"x" * CHUNK_LINE_BYTES_MAX, "longer than"),
        (b"0\r\nX: " + b"y" * TRAILER_BYTES_MAX, "longer than"),
        (b"0\r\n" + b"X: y\r\n" * 4000, "trailers"),
        (b"0\r\nno colon\r\n", "trailer"),
    ]:
        with pytest.raises(FramingError, match=reason):
            ChunkedBody().feed(data)


@QUARTER
@given(st.integers(0, 50), st.binary(max_size=80), places)
def test_property_a_length_is_kept_whatever_the_chunking(length: int, data: bytes, where: list[int]) -> None:
    payload: list[bytes] = []
    body = LengthBody(length, payload)
    taken = 0 if body.done else fed(body, cut(data, where))
    assert taken == min(length, len(data))
    assert body.done == (len(data) >= length) == body.finish()
    assert b"".join(payload) == data[:taken]
    assert body.left == length - taken
    assert body.owed() == (None if body.done else b"")


def test_a_body_to_the_end_of_the_connection() -> None:
    payload: list[bytes] = []
    body = CloseBody(payload)
    assert body.feed(b"abc") == 3
    assert not ended(body)
    assert body.owed() == b""
    assert body.finish()
    assert ended(body)
    assert payload == [b"abc"]


def test_too_much_is_not_filled_up() -> None:
    body = ChunkedBody()
    body.feed(b"%x\r\n" % (OWED_BYTES_MAX + 1))
    assert body.owed() is None
    body = ChunkedBody()
    body.feed(b"%x" % (OWED_BYTES_MAX + 1))
    assert body.owed() is None
    body = ChunkedBody()
    body.feed(b"0\r\n")
    assert body.owed() is None
    assert not body.finish()
