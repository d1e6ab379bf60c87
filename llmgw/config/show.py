"""A configuration as it is in force: every setting with its value and where that came from, secrets hidden.

`rows` is the data, `as_toml` the text. A setting that has no value is a comment there, since TOML has no null; what a
model without a profile does not have is left out.
"""

import typing
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import tomli_w

from llmgw.config.cluster_rules import OF_PROFILES
from llmgw.config.findings import SECRET_TABLES
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig
from llmgw.config.settings import VALUES
from llmgw.config.values import DURATION_UNITS, SIZE_UNITS
from llmgw.core.address import Address
from llmgw.core.catalog import Model
from llmgw.core.hardware import PortRange
from llmgw.core.secrecy import REDACTED, hide_in_args, names_secret
from llmgw.core.units import Duration, Size
from llmgw.strict import Step, dotted

DEFAULT = "default"
"""The origin of what nobody set."""

COMMENT_COLUMN = 46
"""Where the origins stand below each other; behind a longer line two blanks follow."""

LINE_CHARS_MAX = 100
"""Of a list on one line; a longer one has a line for each item."""

SECRET_SETTINGS = ("sha256",)
"""Whoever writes the key itself there, which may look like a hash, must not find it in a terminal's history."""


@attrs.frozen
class Row:
    """One setting."""

    path: tuple[Step, ...]
    value: Any
    """As TOML has it; None: not set; an empty dict: a table with nothing in it."""
    origin: str
    """`FILE:LINE`, a variable or an option, or `default`."""
    raw: Any = attrs.field(default=None, repr=False, eq=False)
    """The value itself, which may be secret: to compare, never to show."""


def rows(loaded: Loaded[Any]) -> tuple[Row, ...]:
    """Every setting in the order of the classes, each table's own settings before its tables."""
    found = tuple(_class_rows(loaded.config, (), loaded.origins))
    if not isinstance(loaded.config, ClusterConfig):
        return found
    return tuple(_not_before_lost(row, loaded.config) for row in found)


def rows_of(holder: Any, path: tuple[Step, ...] = ()) -> tuple[Row, ...]:
    """The settings of a part of a configuration, as one model, without their origins."""
    return tuple(_class_rows(holder, path, {}))


def as_json(row: Row) -> dict[str, Any]:
    """`{"path": "models[0].name", "value": "tiny", "origin": "cluster.toml:7"}`."""
    return {"path": dotted(row.path), "value": row.value, "origin": row.origin}


def as_toml(shown: tuple[Row, ...]) -> str:
    """The rows as a document, with the origin of each in a comment. Nothing in it can steer a terminal."""
    lines: list[str] = []
    table: tuple[Step, ...] = ()
    for row in shown:
        above, key = row.path[:-1], str(row.path[-1])
        if isinstance(row.value, dict):
            above, key = row.path, ""
        if above != table:
            lines += ["", _header(above)]
            table = above
        if row.value is None:
            lines.append(_with_comment(f"# {key} is not set", row.origin))
        elif not key:
            lines[-1] = _with_comment(lines[-1], f"{row.origin}: empty")
        else:
            lines += _assignment(key, row.value, row.origin)
    return "\n".join(_plain(line) for line in lines).lstrip("\n") + "\n"


def text_of(value: Any) -> str:
    """A value of a row as TOML, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")


def duration_text(seconds: float) -> str:
    """As it can be written in a file: `500ms`, `90s`, `20m`, `2h`, in the largest unit of which it is two or more."""
    for unit in ("d", "h", "m", "s", "ms"):
        count = round(seconds / DURATION_UNITS[unit])
        if (count >= 2 or unit == "s") and count * DURATION_UNITS[unit] == seconds:  # noqa: PLR2004
            return f"{count}{unit}"
    return f"{Decimal(repr(float(seconds))):.15f}".rstrip("0").rstrip(".") + "s"


def size_text(size: int) -> str:
    """As it can be written in a file: `40GiB`, in the largest unit of which it is a whole number."""
    unit = next(unit for unit in reversed(SIZE_UNITS) if size % SIZE_UNITS[unit] == 0 and (size or unit == "B"))
    return f"{size // SIZE_UNITS[unit]}{unit}"


# --- from classes to rows -------------------------------------------------------------------------------------


def _class_rows(holder: Any, path: tuple[Step, ...], origins: Mapping[str, str]) -> Iterator[Row]:
    tables = []
    for field in attrs.fields(type(holder)):
        value = getattr(holder, field.name)
        where = (*path, field.name)
        if isinstance(holder, Model) and holder.profile is None and field.name in OF_PROFILES:
            continue
        if _is_table(value):
            tables.append((where, value))
        else:
            yield Row(where, _as_data(value, field.type, field.name), _origin(where, origins), value)
    for where, value in tables:
        yield from _table_rows(value, where, origins)


def _table_rows(value: Any, path: tuple[Step, ...], origins: Mapping[str, str]) -> Iterator[Row]:
    if isinstance(value, dict):
        if not value:
            yield Row(path, {}, _origin(path, origins), {})
        for name, item in value.items():
            if attrs.has(type(item)):
                continue
            hidden = path[-1] in SECRET_TABLES or names_secret(name)
            yield Row((*path, name), REDACTED if hidden else item, _origin((*path, name), origins), item)
        for name, item in value.items():
            if attrs.has(type(item)):
                yield from _class_rows(item, (*path, name), origins)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _class_rows(item, (*path, index), origins)
    else:
        yield from _class_rows(value, path, origins)


def _is_table(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and _is_table(value[0])
    return isinstance(value, dict) or (attrs.has(type(value)) and not isinstance(value, VALUES))


def _as_data(value: Any, kind: Any, key: str) -> Any:
    kinds = (kind, *typing.get_args(kind))
    if Duration in kinds:
        return "never" if value is None else duration_text(value)
    if Size in kinds:
        return None if value is None else size_text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, PortRange):
        return f"{value.first}-{value.last}"
    if isinstance(value, (Address, Path)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(hide_in_args(value)) if key == "args" else list(value)
    return REDACTED if value and (key in SECRET_SETTINGS or names_secret(key)) else value


def _not_before_lost(row: Row, config: ClusterConfig) -> Row:
    """A `replace_after` that nobody set waits for `lost_after`, where that is longer."""
    if row.origin != DEFAULT or row.path[0] != "models" or row.path[2:] != ("replace_after",):
        return row
    after, lost_after = config.models[int(row.path[1])].replace_after, config.control.lost_after
    if after is None or after >= lost_after:
        return row
    return attrs.evolve(row, value=duration_text(lost_after), origin=f"{DEFAULT}: not before control.lost_after")


def _origin(path: tuple[Step, ...], origins: Mapping[str, str]) -> str:
    return origins.get(dotted(path), DEFAULT)


# --- from rows to text ----------------------------------------------------------------------------------------


def _header(table: tuple[Step, ...]) -> str:
    """`[control]`, `[[models]]`, `[models.profile]`."""
    names = ".".join(_key(step) for step in table if isinstance(step, str))
    return f"[[{names}]]" if isinstance(table[-1], int) else f"[{names}]"


def _assignment(key: str, value: Any, origin: str) -> list[str]:
    line = f"{_key(key)} = {text_of(value)}"
    if isinstance(value, list) and len(line) > LINE_CHARS_MAX:
        return [_with_comment(f"{_key(key)} = [", origin), *(f"    {text_of(item)}," for item in value), "]"]
    return [_with_comment(line, origin)]


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def _with_comment(line: str, comment: str) -> str:
    return f"{line:<{COMMENT_COLUMN - 2}}  # {comment}"


def _plain(line: str) -> str:
    """Whatever is not printable as an escape that TOML reads in a string."""
    if line.isprintable():
        return line
    spelt = (c if c.isprintable() else f"\\u{ord(c):04X}" if ord(c) < 0x10000 else f"\\U{ord(c):08X}" for c in line)  # noqa: PLR2004
    return "".join(spelt)
