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


def outcome(data: bytes, pieces: list[bytes] | None = None) -> tuple[list[Any], PeerReason | None]:
    """The maps that a stream holds, and the violation that ends it. Any other exception is a bug."""
    decoder = FrameDecoder(DOWN_BYTES_MAX)
    maps: list[Any] = []
    try:
        for piece in [data] if pieces is None else pieces:
            decoder.add(piece)
            while (fields := decoder.next_map()) is not None:
                maps.append(fields)
        decoder.finish()
    except PeerError as error:
        assert "\n" not in str(error)
        return maps, error.reason
    return maps, None


def assert_plain(value: Any) -> None:
    """Only what rule 4 of the frames allows, at any depth."""
    todo = [value]
    while todo:
        item = todo.pop()
        assert item.__class__ in PLAIN_CLASSES
        if isinstance(item, dict):
            assert all(key.__class__ is str for key in item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, int):
            assert -(2**63) <= item < 2**64


@given(drawn.streams())
def test_any_bytes_give_maps_of_plain_data_or_a_peer_error(data: bytes) -> None:
    maps, _ = outcome(data)
    for fields in maps:
        assert isinstance(fields, dict)
        assert_plain(fields)


@given(st.binary())
def test_any_bytes_at_all_give_maps_or_a_peer_error(data: bytes) -> None:
    outcome(data)
    outcome(drawn.framed(data))


@given(st.data(), drawn.streams())
def test_any_chunking_gives_the_same(data: st.DataObject, stream: bytes) -> None:
    assert repr(outcome(stream, data.draw(drawn.chunks(stream)))) == repr(outcome(stream))  # repr: nan equals itself


@given(st.data(), st.lists(drawn.messages().map(encode), max_size=4))
def test_any_chunking_of_valid_frames_gives_them_all(data: st.DataObject, frames: list[bytes]) -> None:
    stream = b"".join(frames)
    maps, reason = outcome(stream, data.draw(drawn.chunks(stream)))
    assert reason is None
    assert maps == [outcome(frame)[0][0] for frame in frames]


@given(st.data(), drawn.messages().map(encode))
def test_a_frame_that_is_cut_off_is_truncated_and_gives_nothing(data: st.DataObject, frame: bytes) -> None:
    at = data.draw(st.integers(1, len(frame) - 1))
    assert outcome(frame[:at]) == ([], PeerReason.TRUNCATED)


@given(drawn.DEEP.map(drawn.framed))
def test_any_depth_gives_maps_or_a_peer_error(stream: bytes) -> None:
    maps, reason = outcome(stream)
    assert len(maps) + (reason is not None) == 1


@given(st.one_of(drawn.ANNOUNCING, drawn.MANY, drawn.DEEP, drawn.MSGPACK))
def test_what_is_decoded_has_a_bounded_size(body: bytes) -> None:
    """The peak while it is decoded is at most 32 times the frame and 16 MiB, whatever lengths it announces."""
    stream = drawn.framed(body)
    decoder = FrameDecoder(DOWN_BYTES_MAX)
    tracemalloc.start()
    try:
        decoder.feed(stream)
    except PeerError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= 32 * len(stream) + 16 * 2**20
