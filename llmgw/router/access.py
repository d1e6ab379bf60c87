"""The access log: one line for each request, written at its end, many at a time.

A line of the ordinary log costs as much as a whole small request, so here a line is encoded in C, kept, and written
with those of the last moment. It looks like every other line of JSON; for a person at a terminal, who reads no
thousands of them, it goes through the ordinary log.
"""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TextIO

import msgspec
import structlog
import trio

from llmgw.config.schema import Log, LogFormat, LogLevel
from llmgw.router.records import AccessLog, Record

log = structlog.get_logger()

FLUSH_SECONDS = 0.25
"""How long a line is kept: what a killed process loses of its log."""

PIECE_BYTES_MAX = 4096
"""Of one write: what a pipe takes whole (PIPE_BUF), so that lines of several processes do not mix."""

KEPT_BYTES_MAX = 256 * 1024
"""Of lines; when there are more they are written at once."""


class Line(msgspec.Struct, omit_defaults=True):
    """A line. What says nothing (a default) is left out."""

    time: str
    request_id: str
    status: int
    total_ms: float
    level: str
    event: str
    method: str = ""
    path: str = ""
    client: str = ""
    model: str = ""
    endpoint: str = ""
    epoch: int = 0
    stream: bool = False
    ending: str = ""
    detail: str = ""
    first_byte_ms: float | None = None
    bytes: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False


def line_of(record: Record, now: float, time: str) -> Line:
    """The line of a request that ended at `now` (Trio's clock), `time` for a person."""
    first = record.first_byte_at
    return Line(
        time,
        record.request_id,
        record.status,
        round((now - record.began_at) * 1000, 1),
        "info",
        "request",
        record.method,
        record.path,
        record.client,
        record.model,
        record.endpoint,
        record.epoch,
        record.stream,
        record.ending or "",
        record.detail,
        None if first is None else round((first - record.began_at) * 1000, 1),
        record.bytes_sent,
        record.prompt_tokens,
        record.completion_tokens,
        not record.exact,
    )


class BatchedLines:
    """Lines of JSON, written every FLUSH_SECONDS."""

    def __init__(self, write: Callable[[bytes], object], wall_clock: Callable[[], float]) -> None:
        """`write` takes whole lines, PIECE_BYTES_MAX at most unless one is longer."""
        self._write = write
        self._wall_clock = wall_clock
        self._encode = msgspec.json.Encoder().encode
        self._kept: list[bytes] = []
        self._size = 0
        self._came = trio.Event()

    def write(self, record: Record, now: float) -> None:
        """Keep the line of a request; what is too much is written at once."""
        time = datetime.fromtimestamp(self._wall_clock(), UTC).isoformat().replace("+00:00", "Z")
        line = line_of(record, now, time)
        data = self._encode(line)
        if not data.isascii():  # only escapes leave: what turns writing round, or looks like another name, does not
            data = json.dumps(msgspec.to_builtins(line), ensure_ascii=True).encode()
        if not self._kept:
            self._came.set()
        self._kept.append(data + b"\n")
        self._size += len(data)
        if self._size > KEPT_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is kept."""
        kept, self._kept, self._size = self._kept, [], 0
        piece = b""
        for line in kept:
            if piece and len(piece) + len(line) > PIECE_BYTES_MAX:
                self._write(piece)
                piece = b""
            piece += line
        if piece:
            self._write(piece)

    async def run(self) -> None:
        """Write now and then, for ever; the rest on cancellation."""
        try:
            while True:
                await self._came.wait()
                await trio.sleep(FLUSH_SECONDS)
                self._came = trio.Event()
                self.flush()
        finally:
            self.flush()


class LoggedLines:
    """Each request as an event of the ordinary log."""

    def write(self, record: Record, now: float) -> None:
        """Log it."""
        facts = msgspec.to_builtins(line_of(record, now, ""))
        del facts["time"], facts["level"], facts["event"]
        log.info("request", **facts)

    async def run(self) -> None:
        """Nothing is kept."""


class NoLines:
    """The log is for warnings and errors."""

    def write(self, record: Record, now: float) -> None:
        """Nothing."""

    async def run(self) -> None:
        """Nothing is kept."""


class RunningLog(AccessLog, Protocol):
    """What each of them is."""

    async def run(self) -> None:
        """Runs while it is used."""


def open_access_log(settings: Log, stream: TextIO, wall_clock: Callable[[], float]) -> RunningLog:
    """What `[log]` asks for, on the stream that the ordinary log goes to."""
    if settings.level in {LogLevel.WARNING, LogLevel.ERROR}:
        return NoLines()
    if settings.format is LogFormat.HUMAN or (settings.format is LogFormat.AUTO and stream.isatty()):
        return LoggedLines()

    def write(lines: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads the log any more; requests are served all the same
            stream.write(lines.decode("ascii"))
            stream.flush()

    return BatchedLines(write, wall_clock)
