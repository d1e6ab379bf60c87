import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config.schema import Log, LogFormat, LogLevel
from llmgw.logs import LEVELS, Redactor, configure, printable, redactor


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(settings: Log, output: io.StringIO | None = None, /, event: str = "engine ready", **facts: Any) -> str:
    """What one line at `info` looks like."""
    output = io.StringIO() if output is None else output
    configure(settings, output)
    structlog.get_logger().info(event, **facts)
    return output.getvalue()


JSON = Log(format=LogFormat.JSON)
HUMAN = Log(format=LogFormat.HUMAN)


def test_json_is_one_object_a_line_with_the_event_first() -> None:
    text = logged(JSON, shard="tiny/0/0", port=20000, gpus=("GPU-a",), peer=None)
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    record = json.loads(text)
    assert list(record) == ["time", "level", "event", "shard", "port", "gpus", "peer"]
    assert (record["level"], record["event"], record["port"]) == ("info", "engine ready", 20000)
    assert record["time"].endswith("Z")


def test_human_is_one_line_with_facts() -> None:
    text = logged(HUMAN, shard="tiny/0/0", port=20000, reason="no room", lag=1.23456)
    assert text[8:] == ' info    engine ready                   shard=tiny/0/0 port=20000 reason="no room" lag=1.235\n'


def test_auto_is_human_only_on_a_terminal() -> None:
    assert json.loads(logged(Log()))
    assert logged(Log(), Terminal()).endswith("engine ready\n")


def test_colours_are_for_terminals() -> None:
    assert "\x1b[32minfo" in logged(HUMAN, Terminal())
    assert "\x1b" not in logged(HUMAN)


@pytest.mark.parametrize("level", list(LogLevel))
def test_the_level_is_the_least_that_is_written(level: LogLevel) -> None:
    output = io.StringIO()
    configure(Log(level=level, format=LogFormat.JSON), output)
    log = structlog.get_logger()
    for name in LEVELS:
        getattr(log, name)("event")
    written = [json.loads(line)["level"] for line in output.getvalue().splitlines()]
    assert written == [name.value for name in LEVELS if LEVELS[name] >= LEVELS[level]]


@pytest.mark.parametrize("shape", [JSON, HUMAN], ids=["json", "human"])
def test_nothing_of_a_peer_leaves_unescaped(shape: Log) -> None:
    """Neither in the event, nor in a fact's name or value, nor below a list: no colour, no line of its own."""
    evil = '\x1b[2J\n{"event": "fake"}\r\u202e\x9b\u2028\udcff'
    text = logged(shape, event=evil, out=evil, inner=[{evil: evil}], **{evil: 1})
    assert text.count("\n") == 1
    assert text.removesuffix("\n").isprintable()
    text.encode("utf-8")


@pytest.mark.parametrize("shape", [JSON, HUMAN], ids=["json", "human"])
def test_a_traceback_is_kept_and_cannot_pose_as_events(shape: Log) -> None:
    output = io.StringIO()
    configure(shape, output)
    try:
        raise ValueError("from a peer\n12:00:00 info    fake event")
    except ValueError:
        structlog.get_logger().exception("connection failed")
    text = output.getvalue()
    assert "ValueError: from a peer" in text
    assert not [line for line in text.splitlines() if line.startswith("12:00:00")]


@pytest.mark.parametrize("shape", [JSON, HUMAN], ids=["json", "human"])
def test_secrets_do_not_get_out(shape: Log) -> None:
    """A registered value is hidden wherever it stands, and what is named like a secret is hidden unregistered."""
    redactor.register("sk-hunter2")
    output = io.StringIO()
    configure(shape, output)
    log = structlog.get_logger()
    log.info("started with sk-hunter2", args=["--key=sk-hunter2"], env={"HF_TOKEN": "hf-12345", "sk-hunter2": 1})
    try:
        raise OSError("sk-hunter2")
    except OSError:
        log.exception("failed", authorization="Bearer abcdef", detail=OSError("sk-hunter2"))
    text = output.getvalue()
    assert "hunter2" not in text
    assert "hf-12345" not in text
    assert "abcdef" not in text
    assert "***" in text


def test_a_secret_that_holds_another_goes_as_a_whole() -> None:
    hidden = Redactor()
    hidden.register("secret", "secret-and-more")
    assert hidden.text("a secret-and-more b") == "a *** b"


def test_a_short_secret_does_not_eat_words() -> None:
    hidden = Redactor()
    hidden.register("", "on")
    assert hidden.text("the control is on") == "the control is on"
    assert hidden.value("token", "on") == "***"


def test_what_a_name_hides_and_what_not() -> None:
    hidden = Redactor()
    assert hidden.value("key", "") == ""
    assert hidden.value("key", None) is None
    assert hidden.value("key_file", "/etc/key") == "/etc/key"
    nested: list[Any] = []
    for _ in range(20):
        nested = [nested]
    assert "..." in str(hidden.value("x", nested))


@settings(max_examples=settings().max_examples // 5)
@given(st.text())
def test_printable_text_is_one_line(text: str) -> None:
    """Property: whatever comes in, and what was printable stays as it was."""
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()
