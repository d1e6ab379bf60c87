"""The access log: a line for each request, whole lines in a write, nothing that could pose as something else."""

import io
import json
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from llmgw.config.schema import Log, LogFormat, LogLevel
from llmgw.router.access import (
    FLUSH_SECONDS,
    KEPT_BYTES_MAX,
    PIECE_BYTES_MAX,
    BatchedLines,
    LoggedLines,
    NoLines,
    open_access_log,
)
from llmgw.router.records import Ending, Record


class Written(list[bytes]):
    """The writes."""

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in b"".join(self).splitlines()]


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def batched(written: Written) -> BatchedLines:
    return BatchedLines(written.append, lambda: 1_700_000_000.25)


def record(**more: Any) -> Record:
    return Record(10.0, "id-1", **{"status": 200, "ending": Ending.DONE, **more})


def test_a_line_looks_like_any_other_and_says_nothing_twice(batched: BatchedLines, written: Written) -> None:
    full = record(
        method="POST",
        path="/v1/completions",
        client="team",
        model="tiny",
        endpoint="tiny/0",
        epoch=7,
        stream=True,
        first_byte_at=10.1,
        bytes_sent=99,
        prompt_tokens=3,
        completion_tokens=5,
        exact=False,
    )
    batched.write(full, 10.5)
    batched.write(Record(10.0, "id-2", ending=Ending.CLIENT_LEFT), 10.0)
    batched.flush()
    first, second = written.lines
    assert first == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "info",
        "event": "request",
        "request_id": "id-1",
        "status": 200,
        "total_ms": 500.0,
        "method": "POST",
        "path": "/v1/completions",
        "client": "team",
        "model": "tiny",
        "endpoint": "tiny/0",
        "epoch": 7,
        "stream": True,
        "ending": "done",
        "first_byte_ms": 100.0,
        "bytes": 99,
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "estimated": True,
    }
    assert set(second) == {"time", "level", "event", "request_id", "status", "total_ms", "ending"}


def test_what_is_not_ascii_leaves_as_an_escape(batched: BatchedLines, written: Written) -> None:
    batched.write(record(model="模型", detail="a\u202eb\nc"), 11.0)
    batched.flush()
    assert b"".join(written).isascii()
    assert (written.lines[0]["model"], written.lines[0]["detail"]) == ("模型", "a\u202eb\nc")


async def test_lines_are_written_together_after_a_moment(
    batched: BatchedLines, written: Written, autojump_clock: Any
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batched.run)
        for _ in range(3):
            batched.write(record(), 11.0)
        await trio.sleep(FLUSH_SECONDS / 2)
        assert not written
        await trio.sleep(FLUSH_SECONDS)
        assert len(written) == 1
        assert len(written.lines) == 3
        batched.write(record(), 11.0)
        nursery.cancel_scope.cancel()
    assert len(written.lines) == 4


def test_a_write_is_whole_lines_and_no_more_than_a_pipe_takes_whole(batched: BatchedLines, written: Written) -> None:
    for number in range(100):
        batched.write(record(detail="x" * (number * 7)), 11.0)
    batched.write(record(detail="x" * 5000), 11.0)
    batched.flush()
    assert all(piece.endswith(b"\n") for piece in written)
    assert all(len(piece) <= PIECE_BYTES_MAX or piece.count(b"\n") == 1 for piece in written)
    assert len(written.lines) == 101


def test_no_more_is_kept_than_the_limit(batched: BatchedLines, written: Written) -> None:
    while not written:
        batched.write(record(detail="x" * 1000), 11.0)
    assert KEPT_BYTES_MAX < len(b"".join(written)) < KEPT_BYTES_MAX + 2000


def test_a_person_gets_events_of_the_ordinary_log() -> None:
    with structlog.testing.capture_logs() as logs:
        LoggedLines().write(record(model="tiny"), 10.5)
    assert logs == [
        {
            "event": "request",
            "log_level": "info",
            "request_id": "id-1",
            "status": 200,
            "total_ms": 500.0,
            "model": "tiny",
            "ending": "done",
        }
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("settings", "stream", "kind"),
    [
        (Log(), io.StringIO(), BatchedLines),
        (Log(), Terminal(), LoggedLines),
        (Log(format=LogFormat.JSON), Terminal(), BatchedLines),
        (Log(format=LogFormat.HUMAN), io.StringIO(), LoggedLines),
        (Log(level=LogLevel.WARNING), Terminal(), NoLines),
        (Log(level=LogLevel.DEBUG), io.StringIO(), BatchedLines),
    ],
)
async def test_which_log_is_kept(settings: Log, stream: io.StringIO, kind: type, autojump_clock: MockClock) -> None:
    opened = open_access_log(settings, stream, lambda: 0.0)
    assert type(opened) is kind
    opened.write(record(), 11.0)
    if not isinstance(opened, BatchedLines):
        await opened.run()
        assert stream.getvalue() == ""


def test_lines_go_to_the_stream_and_a_stream_that_is_gone_costs_them_alone() -> None:
    stream = io.StringIO()
    for to in (stream, Gone()):
        opened = open_access_log(Log(), to, lambda: 0.0)
        assert isinstance(opened, BatchedLines)
        opened.write(record(), 11.0)
        opened.flush()
    assert json.loads(stream.getvalue())["request_id"] == "id-1"
