"""Values as people write them: `"180s"`, `"40GiB"`, `"20000-20999"`, `"[::1]:7070"`, `"../var"`.

Each function takes what TOML gave and returns the value, or raises `BadValueError`, which says what would have been
right. Nothing is guessed: a number without its unit, a unit of two meanings or a path with a `~` is refused.
"""

import math
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from llmgw.core.address import PORT_MAX, Address, parse_address
from llmgw.core.hardware import PortRange
from llmgw.core.units import Duration, Size
from llmgw.strict import Flaw, FlawKind, StructureError

DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_MAX_SECONDS = 3650 * 86400.0
"""Ten years: longer is a slip of the unit, and far longer would overflow clocks."""
SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
SIZE_MAX_BYTES = 2**60
"""1 EiB: more than any machine, and within 64 bits."""
DECIMAL_UNITS = {"K": 1, "KB": 1, "M": 2, "MB": 2, "G": 3, "GB": 3, "T": 4, "TB": 4}
"""Units that mean a power of 1000 to some and of 1024 to others, with that power."""

DURATION_EXPECTED = 'a duration with its unit, as "500ms", "5s", "20m", "2h" or "1d"'
SIZE_EXPECTED = 'a size with its unit, as "512MiB" or "40GiB"'
GIB_MEANT_BELOW = 10_000
"""A size without a unit below this was meant in GiB (`80`), above it in bytes (`85899345920`)."""

PORTS_EXPECTED = f'a range of ports, as "20000-20999", within 1 to {PORT_MAX}'
PATH_EXPECTED = "a path"
ADDRESS_EXPECTED = '"host:port"'

_NUMBER_UNIT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]*)")
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


@attrs.frozen
class HintedFlaw(Flaw):
    """A flaw that also knows what to write instead."""

    hint: str = ""


class BadValueError(StructureError):
    """A value is not what its setting needs: what would be right as a phrase, and a hint for this value."""

    def __init__(self, expected: str, value: Any, hint: str = "") -> None:
        super().__init__(HintedFlaw(FlawKind.WRONG, (), expected, value, hint=hint))
        self.hint = hint


def duration(value: Any) -> Duration:
    """Seconds, 0 included."""
    number, unit = _number_and_unit(value, DURATION_EXPECTED)
    if unit not in DURATION_UNITS:
        close = [known for known in DURATION_UNITS if known[0] == unit[:1].lower()]
        hint = f'write "{number}s" or "{number}ms"' if not unit else f'write "{number}{close[-1]}"' if close else ""
        raise BadValueError(DURATION_EXPECTED, value, hint)
    seconds = float(number) * DURATION_UNITS[unit]
    if seconds > DURATION_MAX_SECONDS:
        raise BadValueError(DURATION_EXPECTED, value, "that is more than ten years")
    return Duration(seconds)


def duration_or_never(value: Any) -> Duration | None:
    """Seconds, or None for `"never"`."""
    if value == "never":
        return None
    try:
        return duration(value)
    except BadValueError as error:
        raise BadValueError(f'{DURATION_EXPECTED}, or "never"', value, error.hint) from None


def size(value: Any) -> Size:
    """Bytes. `GB` and its like are refused: they mean 10^9 to some and 2^30 to others."""
    number, unit = _number_and_unit(value, SIZE_EXPECTED)
    if unit not in SIZE_UNITS:
        raise BadValueError(SIZE_EXPECTED, value, _size_hint(number, unit))
    count = float(number) * SIZE_UNITS[unit]
    if count > SIZE_MAX_BYTES:
        raise BadValueError(SIZE_EXPECTED, value, "that is more than any machine has")
    return Size(round(count))


def ports(value: Any) -> PortRange:
    """Both ends included."""
    match = _PORTS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadValueError(PORTS_EXPECTED, value)
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= last <= PORT_MAX:
        raise BadValueError(PORTS_EXPECTED, value)
    return PortRange(first, last)


def address(value: Any, *, default_port: int | None, listens: bool) -> Address:
    """A host and a port; `listens` allows port 0, any that is free."""
    if not isinstance(value, str):
        raise BadValueError(ADDRESS_EXPECTED, value)
    try:
        return parse_address(value, default_port=default_port, free_port=listens)
    except ValueError as error:
        # Its message has the value in it, and the value is shown beside ours.
        found = re.search(r"\(.*\)$", str(error))
        raise BadValueError(ADDRESS_EXPECTED, value, found[0][1:-1] if found else "") from None


def path_under(base: Path) -> Callable[[Any], Path]:
    """A reader of paths relative to `base`, which is absolute. Neither `~` nor variables are expanded."""

    def path(value: Any) -> Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise BadValueError(PATH_EXPECTED, value)
        if value.startswith("~"):
            raise BadValueError(PATH_EXPECTED, value, "~ is not expanded here: write the whole path")
        if "$" in value:
            raise BadValueError(PATH_EXPECTED, value, "variables are not expanded here: write the whole path")
        return Path(posixpath.normpath(base / value))

    return path


def _number_and_unit(value: Any, expected: str) -> tuple[str, str]:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadValueError(expected, value)
    if isinstance(value, (int, float)) and not math.isfinite(value):
        raise BadValueError(expected, value)
    match = _NUMBER_UNIT.fullmatch(str(value))
    if match is None:
        raise BadValueError(expected, value)
    return match[1], match[2]


def _size_hint(number: str, unit: str) -> str:
    if not unit:
        return f'write "{number}GiB"' if float(number) < GIB_MEANT_BELOW else f'write "{number}B"'
    power = DECIMAL_UNITS.get(unit.upper())
    if power is None:
        return ""
    binary = ["KiB", "MiB", "GiB", "TiB"][power - 1]
    decimal = float(number) * 1000**power / 1024**power
    return f'{unit} has two meanings: write "{number}{binary}", or "{decimal:.4g}{binary}" for powers of 1000'
