"""On which line of a TOML text a key is written: a search for the key, not a second parser.

It is a help for a person. A key inside an inline table gets the line of what it is in, and a text that looks
like a key inside a multi-line array may be taken for one.
"""

import re

from llmgw.strict import Step

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_PART = re.compile(_NAME)
_FENCES = ('"""', "'''")


def key_lines(text: str) -> dict[tuple[Step, ...], int]:
    """Path -> number of its line, from 1, for every table header and key that the search finds."""
    found: dict[tuple[Step, ...], int] = {}
    counts: dict[tuple[Step, ...], int] = {}
    table: tuple[Step, ...] = ()
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if fence in line:
                fence = ""
            continue
        if header := _HEADER.match(line):
            table = _table_path(_parts(header[2]), counts, starts_item=header[1] == "[[")
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            path: tuple[Step, ...] = table
            for part in _parts(key[1]):
                path = (*path, part)
                found.setdefault(path, number)
        fence = next((mark for mark in _FENCES if line.count(mark) % 2), "")
    return found


def line_of(lines: dict[tuple[Step, ...], int], path: tuple[Step, ...]) -> int | None:
    """The line of the setting, or of the nearest table around it; None where not even that is in the text."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None


def _parts(dotted: str) -> list[str]:
    return [part[1:-1] if part[0] in "\"'" else part for part in _PART.findall(dotted)]


def _table_path(parts: list[str], counts: dict[tuple[Step, ...], int], *, starts_item: bool) -> tuple[Step, ...]:
    path: tuple[Step, ...] = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        if starts_item and position == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path
