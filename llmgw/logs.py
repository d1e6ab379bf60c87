"""Logs: one event a line, a short phrase with facts as keywords; human on a terminal, JSON otherwise.

Everything that is written passes `redact` and leaves as printable characters: no secret gets out, and nothing that a
peer sent can move a cursor, change a colour or begin a line of its own.
"""

import json
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from llmgw.config.schema import Log, LogFormat, LogLevel
from llmgw.core.secrecy import REDACTED, names_secret

LEVELS = {LogLevel.DEBUG: 10, LogLevel.INFO: 20, LogLevel.WARNING: 30, LogLevel.ERROR: 40}
"""As the standard library numbers them."""

SECRET_CHARS_MIN = 6
"""A shorter secret would take pieces out of ordinary words; what short ones are worth, their names hide."""

NESTING_MAX = 8
"""Of lists and tables in one fact: deeper is shown as `...`."""

COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
PLAIN = "\x1b[0m"
EVENT_WIDTH = 30
"""Columns that an event fills up to, so that the facts of several lines stand below each other."""


class Redactor:
    """Knows the secret values of this process, and takes them out of everything that is logged."""

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}
        self._pattern: re.Pattern[str] | None = None

    def register(self, *secrets: str) -> None:
        """From now on these values are shown as `***`, wherever they turn up."""
        for secret in secrets:
            if len(secret) >= SECRET_CHARS_MIN:
                self._secrets[secret] = None
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """`text` without any registered secret."""
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def value(self, name: str, value: Any, depth: int = 0) -> Any:
        """A fact without secrets: neither registered ones nor what stands under the name of one."""
        if names_secret(name) and value not in (None, "", ()):
            return REDACTED
        if depth > NESTING_MAX:
            return "..."
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(str(key), item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.value("", item, depth + 1) for item in value]
        return self.text(str(value))

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """As a processor of structlog."""
        return {key: self.value(key, value) for key, value in event.items()}


redactor = Redactor()
"""The one of this process: a secret that is read from a file or a message is registered here."""


def configure(settings: Log, output: TextIO | None = None) -> None:
    """Set up structlog for this process, to standard error unless told otherwise. Called once, by main."""
    stream = sys.stderr if output is None else output
    human = settings.format is LogFormat.HUMAN or (settings.format is LogFormat.AUTO and stream.isatty())
    render: Processor = _Human(colours=stream.isatty()) if human else _to_json
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human, key="time"),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            redactor,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )


def printable(text: str) -> str:
    r"""`text` with everything that is no printable character spelled out, as `\n` or `\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    # ASCII only: controls, line separators and bidirectional marks leave as escapes.
    first = {key: event[key] for key in ("time", "level", "event") if key in event}
    return json.dumps({**first, **event}, ensure_ascii=True, default=str)


class _Human:
    def __init__(self, *, colours: bool) -> None:
        self._colours = colours

    def __call__(self, _logger: WrappedLogger, method: str, event: MutableMapping[str, Any]) -> str:
        time, level = event.pop("time", ""), str(event.pop("level", method))
        phrase = printable(str(event.pop("event", "")))
        traces = [str(event.pop(key)) for key in ("stack", "exception") if key in event]
        facts = " ".join(f"{printable(key)}={_fact(value)}" for key, value in event.items())
        word = f"{level:<7}"
        if self._colours:
            word = f"{COLOURS.get(level, '')}{word}{PLAIN}"
        line = f"{time} {word} {phrase:<{EVENT_WIDTH}} {facts}".rstrip()
        # A traceback has lines of its own; each is indented, so that none can pose as another event.
        rest = [f"    {printable(text)}" for trace in traces for text in trace.splitlines()]
        return "\n".join([line, *rest])


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str) and (not value or any(letter in ' "=' or not letter.isprintable() for letter in value)):
        text = json.dumps(value, ensure_ascii=False)
    return printable(text)
