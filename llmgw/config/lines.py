"""On which line of a TOML text each key, table and element of an array is written.

A walk over a text that the TOML parser has accepted already: nothing is checked here, and what a string or a
comment holds is never taken for a key. Keys in inline tables and in arrays over several lines have lines of their
own, as do quoted and dotted ones.
"""

import re
import tomllib
from bisect import bisect_right

from llmgw.strict import Step

Path = tuple[Step, ...]

_BLANKS = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
"""What may stand between two statements, or between two elements of an array."""
_NAME = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_STRING = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:'{0,2})|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''', re.DOTALL
)
_BARE = re.compile(r"[^,\]}\n#]*")
"""A number, a bool or a date."""


def key_lines(text: str) -> dict[Path, int]:
    """Path -> number of its line, from 1. `text` is valid TOML. RecursionError where it is nested absurdly."""
    return _Walk(text).document()


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of the setting, or of the nearest table around it; None where not even that is in the text."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._found: dict[Path, int] = {}
        self._items: dict[Path, int] = {}
        """Path of an array of tables -> index of its last one."""

    def document(self) -> dict[Path, int]:
        table: Path = ()
        self._take(_BETWEEN)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._statement(table)
            self._take(_BETWEEN)
        return self._found

    def _header(self) -> Path:
        line = self._line()
        starts_item = self._text.startswith("[[", self._at)
        self._at += 2 if starts_item else 1
        parts = self._dotted()
        self._at += 2 if starts_item else 1
        path: Path = ()
        for position, part in enumerate(parts):
            path = (*path, part)
            self._found.setdefault(path, line)
            if starts_item and position == len(parts) - 1:
                self._items[path] = self._items.get(path, -1) + 1
            if path in self._items:
                path = (*path, self._items[path])
                self._found.setdefault(path, line)
        return path

    def _statement(self, table: Path) -> None:
        """`key = value`."""
        line = self._line()
        path = table
        for part in self._dotted():
            path = (*path, part)
            self._found.setdefault(path, line)
        self._at += 1  # the =
        self._take(_BLANKS)
        self._value(path)

    def _value(self, path: Path) -> None:
        first = self._text[self._at]
        if first == "{":
            self._inside("}", path, _BETWEEN)
        elif first == "[":
            self._inside("]", path, _BETWEEN)
        elif not self._take(_STRING):
            self._take(_BARE)

    def _inside(self, end: str, path: Path, between: re.Pattern[str]) -> None:
        """An array or an inline table, from its first bracket to its last."""
        self._at += 1
        self._take(between)
        index = 0
        while self._text[self._at] != end:
            if end == "}":
                self._statement(path)
            else:
                self._found[(*path, index)] = self._line()
                self._value((*path, index))
                index += 1
            self._take(between)
            if self._text[self._at] == ",":
                self._at += 1
                self._take(between)
        self._at += 1

    def _dotted(self) -> list[str]:
        """The parts of a key, up to the `=` or the bracket that ends it."""
        self._take(_BLANKS)
        parts = [_unquoted(self._take(_NAME))]
        self._take(_BLANKS)
        while self._text[self._at] == ".":
            self._at += 1
            self._take(_BLANKS)
            parts.append(_unquoted(self._take(_NAME)))
            self._take(_BLANKS)
        return parts

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _line(self) -> int:
        return bisect_right(self._newlines, self._at) + 1


def _unquoted(name: str) -> str:
    if name.startswith('"') and "\\" in name:
        return str(tomllib.loads(f"name = {name}")["name"])
    return name[1:-1] if name[0] in "\"'" else name
