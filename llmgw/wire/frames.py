"""Frames: a 4-byte big-endian length, then exactly one msgpack map. Bytes in, maps out; no I/O.

Every limit is checked before anything is built, because the sender may be anybody:

1. The announced length is compared with `bytes_max` when its fourth byte is in; nothing of a longer frame is kept.
2. msgpack allocates the whole list when it reads an array's announced length, so that 20 KB of nested headers take
   80 MB. A frame that could do so is first walked without building anything: what is announced is then really there.
3. Arrays and maps are counted while they are built. 4 MiB of empty arrays would otherwise grow to 285 MiB.
4. Map keys are str and unique; text is UTF-8; extension types, timestamps among them, do not exist here.

What comes out holds only dict, list, str, bytes, int (64 bits), float, bool and None. Whatever comes in, the only
exception is `PeerError`, and after one the decoder is of no more use: the stream has lost its step.
"""

import struct
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack

from llmgw.errors import InvariantBroken, PeerError, PeerReason

FIRST_BYTES_MAX = 256 * 1024
"""Of a frame before the session is accepted: a Register of a thousand shards fits, a stranger costs us little."""

UP_BYTES_MAX = 1024 * 1024
"""Of a frame to control afterwards. Log chunks and the largest Register are far below."""

DOWN_BYTES_MAX = 4 * 1024 * 1024
"""Of a frame from control. Larger route tables go in parts."""

CONTAINERS_MAX = 65_536
"""Arrays and maps in one frame: each costs up to 250 bytes of memory for as little as one byte of frame."""

ENTRIES_MAX = 65_536
"""Of one map: while it is built each entry costs 130 bytes more than afterwards."""

HARMLESS_BYTES = 1024
"""Frames up to this length need no walk: msgpack nests 1,024 deep and takes no array or map longer than its frame, so
that at most 8 MiB can be allocated. Every heartbeat of an ordinary node is below."""

LENGTH = struct.Struct(">I")

_TIMESTAMPS = (b"\xd6\xff", b"\xd7\xff", b"\x0c\xff")
"""How the three forms of a timestamp begin (or, of the third, go on)."""


def frame(body: bytes) -> bytes:
    """The frame around one packed map. InvariantBroken where it is longer than any receiver takes."""
    if len(body) > DOWN_BYTES_MAX:
        raise InvariantBroken(f"a frame of {len(body)} bytes, at most {DOWN_BYTES_MAX} are allowed")
    return LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a stream of bytes into frames and decodes each. Holds at most one incomplete frame and what came with it."""

    def __init__(self, bytes_max: int = FIRST_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """Applies from the next frame on; may be raised at any time."""
        self._buffer = bytearray()

    def add(self, data: bytes | bytearray) -> None:
        """Take bytes as they came; `next_map` gives what they hold."""
        self._buffer += data

    def next_map(self) -> dict[str, Any] | None:
        """The map of the next complete frame; None: more bytes are needed. Raises PeerError."""
        buffer = self._buffer
        if len(buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(buffer)
        if length > self.bytes_max:
            raise PeerError(
                PeerReason.FRAME_TOO_LARGE,
                f"{length} bytes announced, at most {self.bytes_max} are taken now{_hint(bytes(buffer[:4]))}",
            )
        end = LENGTH.size + length
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[LENGTH.size : end])
        del buffer[:end]
        return decode_body(body)

    def feed(self, data: bytes | bytearray) -> list[dict[str, Any]]:
        """The maps of all frames that `data` completes. Raises PeerError; the frames before the bad one are lost."""
        self.add(data)
        maps = []
        while (fields := self.next_map()) is not None:
            maps.append(fields)
        return maps

    def finish(self) -> None:
        """The stream has ended. Raises PeerError where that was inside a frame."""
        if self._buffer:
            raise PeerError(PeerReason.TRUNCATED, f"after {len(self._buffer)} bytes of it")


def decode_body(body: bytes) -> dict[str, Any]:
    """The map that a frame's body holds. Raises PeerError."""
    if len(body) > HARMLESS_BYTES:
        _walk(body)
    build_map, build_array = _builders()
    try:
        value = msgpack.unpackb(
            body,
            strict_map_key=False,  # the hook judges keys, so that a bad one is told from other mistakes
            object_pairs_hook=build_map,
            list_hook=build_array,
            ext_hook=_refuse_extension,
            max_map_len=min(ENTRIES_MAX, len(body)),
        )
    except msgpack.ExtraData as error:
        raise PeerError(PeerReason.NOT_A_MAP, f"{len(error.extra)} bytes follow the first value") from None
    except ValueError as error:
        raise _not_msgpack(error) from None
    if value.__class__ is not dict:
        raise PeerError(PeerReason.NOT_A_MAP, f"it holds {type(value).__name__}")
    if any(start in body for start in _TIMESTAMPS) and _holds_timestamp(value):
        _refuse_extension(-1, b"")
    fields: dict[str, Any] = value
    return fields


def _builders() -> tuple[Callable[[list[Any]], Any], Callable[[list[Any]], Any]]:
    """What msgpack calls for each map and each array of one frame, once it is complete."""
    left = CONTAINERS_MAX

    def build_map(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise _too_many_containers()
        try:
            fields = dict(pairs)
        except TypeError:
            raise PeerError(PeerReason.BAD_KEY, "expected a str, got an array or a map") from None
        for key in fields:
            if key.__class__ is not str:
                raise PeerError(PeerReason.BAD_KEY, f"expected a str, got {type(key).__name__}")
        if len(fields) != len(pairs):
            raise PeerError(PeerReason.BAD_KEY, f"a map of {len(pairs)} entries has only {len(fields)} different keys")
        return fields

    def build_array(items: list[Any]) -> list[Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise _too_many_containers()
        return items

    return build_map, build_array


def _too_many_containers() -> PeerError:
    return PeerError(PeerReason.TOO_MANY_CONTAINERS, f"at most {CONTAINERS_MAX} are taken")


def _walk(body: bytes) -> None:
    """Raise PeerError unless `body` is one whole value; builds nothing."""
    unpacker = msgpack.Unpacker(read_size=len(body), max_buffer_size=len(body))
    unpacker.feed(body)
    try:
        unpacker.skip()
    except ValueError as error:
        raise _not_msgpack(error) from None
    except msgpack.OutOfData:
        raise PeerError(PeerReason.NOT_MSGPACK, "it ends inside a value") from None
    if (end := unpacker.tell()) < len(body):
        raise PeerError(PeerReason.NOT_A_MAP, f"{len(body) - end} bytes follow the first value")


def _not_msgpack(error: ValueError) -> PeerError:
    return PeerError(PeerReason.NOT_MSGPACK, str(error) or type(error).__name__)


def _refuse_extension(code: int, _: bytes) -> NoReturn:
    raise PeerError(PeerReason.NOT_MSGPACK, f"extension type {code} is not taken")


def _holds_timestamp(value: Any) -> bool:
    """Msgpack builds timestamps without asking; this looks for them, without recursion."""
    todo = [value]
    while todo:
        item = todo.pop()
        if item.__class__ is dict:
            todo.extend(item.values())
        elif item.__class__ is list:
            todo.extend(item)
        elif item.__class__ is msgpack.Timestamp:
            return True
    return False


def _hint(start: bytes) -> str:
    """What a stranger probably speaks, for the person who pointed it at the wrong port."""
    if start[:3] == b"\x16\x03\x01":
        return " (it speaks TLS)"
    return " (it speaks HTTP)" if start in (b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"OPTI") else ""
