"""Where a message body ends, and what it still owes. No I/O, and the bytes themselves are never changed.

A body has one of three framings (RFC 9112 section 6): a length that was announced, chunks, or everything until the
connection ends. Each has the same surface:

* `feed(data)` -> how many bytes of `data` belong to this body. Fewer than all of them: the body ended, and the rest
  belongs to whatever comes next.
* `done`: the last byte of the body has been fed; `content`: how many bytes of it were no framing.
* `finish()`: the connection ended; whether the body is complete.
* `owed()`: bytes that bring a body that was cut off to a place where something of ours can follow, or None.

With `payload` (a list) the content without its framing is collected there: for what must be read, and for clients
that know no chunks. What breaks the framing raises FramingError; where the strict and the lenient reading of a body
differ, a lenient relay can be made to disagree with what stands behind it.
"""

import re
from typing import Protocol

from llmgw.errors import LlmgwError

CHUNK_SIZE_DIGITS_MAX = 15
"""Of a chunk's size in hex: no body is a petabyte, and no sum of them overflows anything."""

CHUNK_LINE_BYTES_MAX = 1024
"""A chunk's size with its extensions, which nobody uses."""

TRAILER_BYTES_MAX = 16 * 1024
"""All trailers of one body."""

OWED_BYTES_MAX = 256 * 1024
"""More is not filled up to make room for an error event: the connection just ends."""

_HEX = b"0123456789abcdefABCDEF"

_EXTENSIONS = re.compile(rb'[\w.-]+(?:=(?:[\w.-]+|"[ !#-\[\]-~]*"))?(?:;[\w.-]+(?:=(?:[\w.-]+|"[ !#-\[\]-~]*"))?)*')
"""After the first semicolon: names, with values or without."""

_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~\w-]+:[\t -~\x80-\xff]*\r\n")

_SIZE, _DATA, _TRAILER, _DONE = range(4)


class FramingError(LlmgwError):
    """The bytes are no body of the announced framing."""


class Body(Protocol):
    """One body on its way."""

    done: bool
    content: int
    """Bytes of content so far, without the framing; of a chunk from its first line on."""
    payload: list[bytes] | None
    """Where the content goes, as well as being counted."""

    def feed(self, data: bytes) -> int: ...

    def finish(self) -> bool: ...

    def owed(self) -> bytes | None: ...


class LengthBody:
    """A body of a length that was announced."""

    __slots__ = ("_left", "content", "done", "payload")

    def __init__(self, length: int, payload: list[bytes] | None = None) -> None:
        self._left = length
        self.payload = payload
        self.content = 0
        self.done = length == 0

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        return self._left

    def feed(self, data: bytes) -> int:
        size = len(data)
        if size >= self._left:
            size = self._left
            self.done = True
        self._left -= size
        self.content += size
        if self.payload is not None and size:
            self.payload.append(data[:size])
        return size

    def finish(self) -> bool:
        return self.done

    def owed(self) -> bytes | None:
        """Whatever is written now counts as its content."""
        return None if self.done else b""


class CloseBody:
    """A body that ends with the connection."""

    __slots__ = ("content", "done", "payload")

    def __init__(self, payload: list[bytes] | None = None) -> None:
        self.payload = payload
        self.content = 0
        self.done = False

    def feed(self, data: bytes) -> int:
        self.content += len(data)
        if self.payload is not None:
            self.payload.append(data)
        return len(data)

    def finish(self) -> bool:
        self.done = True
        return True

    def owed(self) -> bytes | None:
        return b""


class ChunkedBody:
    """A body in chunks.

    States: `_SIZE` (in or before the line with a chunk's size; `_line` holds its beginning), `_DATA` (in a chunk or
    the line end after it; `_left` counts both), `_TRAILER` (after the last chunk; `_line` holds the beginning of a
    trailer), `_DONE`.
    """

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes", "content", "done", "payload")

    def __init__(self, payload: list[bytes] | None = None) -> None:
        self._state = _SIZE
        self._left = 0
        self._line = b""
        self.payload = payload
        self._trailer_bytes = 0
        self.content = 0
        self.done = False

    def feed(self, data: bytes) -> int:
        position, size = 0, len(data)
        if self._state == _DATA:
            position = self._feed_chunk(data, 0)
        while position < size and self._state == _SIZE:
            line_end = data.find(b"\n", position)
            if line_end < 0:
                self._hold(data[position:])
                return size
            line = data[position : line_end + 1]
            position = line_end + 1
            if self._line:
                line, self._line = self._line + line, b""
            length = _chunk_size(line)
            if length == 0:
                self._state = _TRAILER
                break
            self._left = length + 2
            self.content += length
            if position + self._left <= size and self.payload is None:  # the whole chunk is here
                position += self._left
                if data[position - 2 : position] != b"\r\n":
                    raise FramingError("a chunk does not end in CR LF where its size says")
                continue
            self._state = _DATA
            position = self._feed_chunk(data, position)
        if self._state == _TRAILER:
            position = self._feed_trailer(data, position)
        return position

    def _feed_chunk(self, data: bytes, position: int) -> int:
        """In `_DATA`: as much of the chunk and its line end as is there."""
        taken = data[position : position + self._left]
        content = max(0, min(len(taken), self._left - 2))
        ending = taken[content:]
        if ending and ending != b"\r\n"[2 - min(2, self._left) :][: len(ending)]:
            raise FramingError("a chunk does not end in CR LF where its size says")
        if self.payload is not None and content:
            self.payload.append(taken[:content])
        self._left -= len(taken)
        if self._left == 0:
            self._state = _SIZE
        return position + len(taken)

    def _feed_trailer(self, data: bytes, position: int) -> int:
        while True:
            line_end = data.find(b"\n", position)
            if line_end < 0:
                self._hold(data[position:])
                return len(data)
            line = self._line + data[position : line_end + 1]
            self._line = b""
            position = line_end + 1
            self._trailer_bytes += len(line)
            if line == b"\r\n":
                self._state = _DONE
                self.done = True
                return position
            _check_trailer(line, self._trailer_bytes)

    def _hold(self, beginning: bytes) -> None:
        self._line += beginning
        limit = CHUNK_LINE_BYTES_MAX if self._state == _SIZE else TRAILER_BYTES_MAX
        if len(self._line) > limit:
            raise FramingError(f"a line between chunks is longer than {limit} bytes")
        if self._state == _SIZE:
            _check_size_beginning(self._line)

    def finish(self) -> bool:
        return self.done

    def owed(self) -> bytes | None:
        if self._state == _DATA:
            if self._left <= 2:  # noqa: PLR2004  only of the line end
                return b"\r\n"[2 - self._left :]
            return None if self._left > OWED_BYTES_MAX else b"\n" * (self._left - 2) + b"\r\n"
        if self._state != _SIZE:
            return None
        return b"" if not self._line else _rest_of_chunk(self._line)


def _chunk_size(line: bytes) -> int:
    """The size in a chunk's first line, which ends in a line feed."""
    if not line.endswith(b"\r\n") or len(line) > CHUNK_LINE_BYTES_MAX:
        raise FramingError("a line with a chunk's size does not end in CR LF, or is too long")
    digits, semicolon, extension = line[:-2].partition(b";")
    if semicolon and not _EXTENSIONS.fullmatch(extension):
        raise FramingError("malformed chunk extension")
    if not digits or len(digits) > CHUNK_SIZE_DIGITS_MAX or digits.strip(_HEX):
        raise FramingError(f"expected a chunk's size in hex, got {digits[:20]!r}")
    return int(digits, 16)


def _check_size_beginning(line: bytes) -> None:
    """Refuse at once what can become no size, instead of waiting for the end of its line."""
    digits = line.partition(b";")[0].removesuffix(b"\r")
    if len(digits) > CHUNK_SIZE_DIGITS_MAX or digits.strip(_HEX):
        raise FramingError(f"expected a chunk's size in hex, got {digits[:20]!r}")


def _check_trailer(line: bytes, trailer_bytes: int) -> None:
    if trailer_bytes > TRAILER_BYTES_MAX:
        raise FramingError(f"trailers are larger than {TRAILER_BYTES_MAX} bytes")
    if not _TRAILER_LINE.fullmatch(line):
        raise FramingError("malformed trailer")


def _rest_of_chunk(line: bytes) -> bytes | None:
    """What completes a chunk of which only the beginning of the first line went out."""
    digits = line.removesuffix(b"\r")
    length = 0 if digits.strip(_HEX) or not digits else int(digits, 16)
    if length > OWED_BYTES_MAX:
        return None
    if length == 0:
        # A size of 0 would end the body; another digit makes it a chunk of one byte.
        return b"1\r\n\n\r\n" if not line.strip(b"0") else None
    return b"\r\n"[len(line) - len(digits) :] + b"\n" * length + b"\r\n"
