"""The tree of settings, read from the classes: what exists, in which table, with which type and default.

Everything that must know all names asks here: the environment, the search for the nearest name, and whoever
shows a configuration.
"""

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

import attrs

from llmgw.core.address import Address
from llmgw.core.hardware import PortRange

VALUES = (Address, PortRange)
"""Classes that are written as one string and so are values, not tables."""


@attrs.frozen
class Setting:
    """One setting, or a table or an array of tables of them."""

    path: tuple[str, ...]
    """`("models[]", "profile", "gpus")`: a part that ends in `[]` is an array of tables."""
    kind: Any
    """The type, as annotated."""
    default: Any
    """`attrs.NOTHING` where it is required."""
    table: type | None = None
    """The class of a table's (or of each table's) settings; None: a value."""

    @property
    def key(self) -> str:
        """As it is written in its table."""
        return self.path[-1].removesuffix("[]")

    @property
    def in_array(self) -> bool:
        """It is an array of tables, or in one."""
        return any(part.endswith("[]") for part in self.path)


@cache
def settings_of(cls: type) -> tuple[Setting, ...]:
    """Every setting of that configuration, depth first, in the order of the classes."""
    return tuple(_walk(cls, ()))


def table_name(path: tuple[str, ...]) -> str:
    """The table that a setting is in, as its header is written: `[router]`, `[[models]]`, `the top level`."""
    parents = path[:-1]
    if not parents:
        return "the top level"
    name = ".".join(part.removesuffix("[]") for part in parents)
    return f"[[{name}]]" if parents[-1].endswith("[]") else f"[{name}]"


def _walk(cls: type, above: tuple[str, ...]) -> Iterator[Setting]:
    for field in attrs.fields(cls):
        table, many = _table_of(field.type)
        path = (*above, field.name + "[]" if many else field.name)
        default = field.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory()
        yield Setting(path, field.type, default, table)
        if table is not None:
            yield from _walk(table, path)


def _table_of(kind: Any) -> tuple[type | None, bool]:
    """(the class of the table or tables that a field of this type holds, whether there are many)."""
    for member in _members(kind):
        if typing.get_origin(member) is tuple:
            item = typing.get_args(member)[0]
            if attrs.has(item):
                return item, True
        if isinstance(member, type) and attrs.has(member) and member not in VALUES:
            return member, False
    return None, False


def _members(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)
