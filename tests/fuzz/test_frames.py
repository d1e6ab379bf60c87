"""Whatever bytes come: maps or PeerError, at a bounded cost."""

import tracemalloc
from typing import Any

import drawn
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import PeerError, PeerReason
from llmgw.wire.codec import encode
from llmgw.wire.frames import DOWN_BYTES_MAX, FrameDecoder

PLAIN_CLASSES = (dict, list, str, bytes, int, float, bool, type(None))


def outcome(pieces: list[bytes], bytes_max: int = DOWN_BYTES_MAX) -> tuple[list[Any], PeerReason | None]:
    """The maps that a stream holds, and the violation that ends it. Any other exception is a bug."""
    decoder = FrameDecoder(bytes_max)
    maps: list[Any] = []
    try:
        for piece in pieces:
            decoder.add(piece)
            while (fields := decoder.next_map()) is not None:
                maps.append(fields)
        decoder.finish()
    except PeerError as error:
        return maps, error.reason
    return maps, None


def flat(value: Any) -> list[Any]:
    """Everything inside decoded data, in order, without recursion; asserts that it is as plain as rule 4 says."""
    todo: list[Any] = [value]
    seen: list[Any] = []
    while todo:
        item = todo.pop()
        assert item.__class__ in PLAIN_CLASSES
        if isinstance(item, dict):
            assert all(key.__class__ is str for key in item)
            seen.append(tuple(item))
            todo.extend(item.values())
        elif isinstance(item, list):
            seen.append(len(item))
            todo.extend(item)
        else:
            assert not isinstance(item, int) or -(2**63) <= item < 2**64
            seen.append(repr(item))  # nan does not equal itself, its repr does
    return seen


@given(st.data(), drawn.streams())
def test_any_bytes_in_any_chunks_give_maps_of_plain_data_or_a_peer_error(data: st.DataObject, stream: bytes) -> None:
    maps, reason = outcome([stream])
    assert all(isinstance(fields, dict) for fields in maps)
    in_chunks = outcome(data.draw(drawn.chunks(stream)))
    assert in_chunks[1] is reason
    assert flat(in_chunks[0]) == flat(maps)


@given(st.binary())
def test_any_bytes_at_all_give_maps_or_a_peer_error(data: bytes) -> None:
    outcome([data])
    outcome([drawn.framed(data)])


@given(st.data(), st.lists(drawn.messages().map(encode), min_size=1, max_size=2))
def test_valid_frames_in_any_chunks_all_come_out_and_a_cut_one_is_truncated(
    data: st.DataObject, frames: list[bytes]
) -> None:
    """The last one is cut somewhere; the others are concatenated and cut into whatever pieces."""
    *whole, last = frames
    cut = last[: data.draw(st.integers(0, len(last) - 1))]
    maps, reason = outcome(data.draw(drawn.chunks(b"".join(whole) + cut)))
    assert maps == [outcome([frame])[0][0] for frame in whole]
    assert reason is (PeerReason.TRUNCATED if cut else None)


@given(st.one_of(drawn.ANNOUNCING, drawn.MANY, drawn.DEEP, drawn.MSGPACK))
def test_what_is_decoded_has_a_bounded_size_whatever_it_announces_and_however_deep_it_is(body: bytes) -> None:
    """The peak while it is decoded is at most 32 times the frame and 16 MiB; what comes is one map or one PeerError."""
    stream = drawn.framed(body)
    tracemalloc.start()
    try:
        maps, reason = outcome([stream])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(maps) + (reason is not None) == 1
    assert peak <= 32 * len(stream) + 16 * 2**20


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=8))
def test_a_frame_longer_than_the_limit_is_refused_before_it_is_there(length: int, bytes_max: int, more: bytes) -> None:
    _, reason = outcome([length.to_bytes(4, "big") + more[:length]], bytes_max)
    assert (reason is PeerReason.FRAME_TOO_LARGE) == (length > bytes_max)
