"""From plain data to the classes, with every mistake at once.

A value that is wrong is reported, taken away, and the rest is read again, so that one slip hides no other and the
rules that compare settings still run over what is right.
"""

import copy
import typing
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
import cattrs

from llmgw.config import values
from llmgw.config.findings import ABSENT, Finding
from llmgw.config.schema import AddressRule
from llmgw.config.settings import settings_of
from llmgw.config.unknown import NAMED_BY, named_hint, quoted_hint, settings_path, unknown_key
from llmgw.core.address import Address
from llmgw.core.hardware import PortRange
from llmgw.core.units import Duration, Size
from llmgw.errors import InvariantBroken
from llmgw.strict import Flaw, FlawKind, Step, StructureError, make_converter

NOTES = "notes"
"""The key that every table may have for the operator's own remarks."""

STAND_INS: dict[str, Any] = {
    "hcas": [],
    "memory": "0B",
    "control": "unset.invalid",
    "state_dir": ".",
    "models_dir": ".",
}
"""For a required setting that is missing or wrong, so that the rest can be read; any other gets an empty string."""

REQUIRED_HINTS: dict[Step, str] = {
    "control": 'write control = "HOST:PORT" in node.toml, or use --server HOST:PORT',
    "state_dir": "there is no HOME to derive it from",
    "models_dir": "there is no HOME to derive it from",
}

ROUNDS_MAX = 10
"""Of taking away what is wrong: each goes at least one level deeper, and no table is nested this deep."""

A_TABLE = "a table"
"""How a flaw calls what should have been one."""

C = TypeVar("C")


@attrs.frozen
class Reading(Generic[C]):
    """What was read. `config` is whole only when there is no finding."""

    config: C
    findings: tuple[Finding, ...]


def read(cls: type[C], data: dict[str, Any], base: Path) -> Reading[C]:
    """Structure `data` strictly as `cls`; relative paths are under `base`. Never raises for what is in `data`."""
    converter = _converter(base)
    left = copy.deepcopy(data)
    findings: list[Finding] = []
    taken: list[tuple[Step, ...]] = []
    for _ in range(ROUNDS_MAX):
        try:
            return Reading(converter.structure(left, cls), tuple(findings))
        except StructureError as error:
            for flaw in error.flaws:
                if not any(flaw.path[: len(gone)] == gone for gone in taken) and (
                    flaw.kind is not FlawKind.UNKNOWN or flaw.path[-1] != NOTES
                ):
                    findings.append(_finding(flaw, cls))
                _take_away(left, flaw)
                if flaw.kind is FlawKind.WRONG:
                    taken.append(flaw.path)
    raise InvariantBroken(f"{cls.__name__} could not be read in {ROUNDS_MAX} rounds: {findings}")


@lru_cache(maxsize=4)  # building one takes longer than reading a file
def _converter(base: Path) -> cattrs.Converter:
    converter = make_converter(detailed=True, forbid_extra_keys=True)
    converter.register_structure_hook(PortRange, _hook(values.ports))
    converter.register_structure_hook(Path, _hook(values.path_under(base)))
    converter.register_structure_hook_func(lambda kind: kind is Duration, _hook(values.duration))
    converter.register_structure_hook_func(lambda kind: kind is Size, _hook(values.size))
    converter.register_structure_hook_func(lambda kind: kind == Duration | None, _hook(values.duration_or_never))
    converter.register_structure_hook_factory(_is_address, _address_hook)
    return converter


def _hook(leaf: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, _: leaf(value)


def _is_address(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Annotated and typing.get_args(kind)[0] is Address


def _address_hook(kind: Any) -> Callable[[Any, Any], Address]:
    rule = typing.get_args(kind)[1]
    if not isinstance(rule, AddressRule):
        raise InvariantBroken(f"{kind} has no AddressRule")
    return lambda value, _: values.address(value, default_port=rule.default_port, listens=rule.listens)


def _finding(flaw: Flaw, cls: type) -> Finding:
    if flaw.kind is FlawKind.UNKNOWN:
        return unknown_key(flaw.path, flaw.value, cls)
    if flaw.kind is FlawKind.MISSING:
        hint = REQUIRED_HINTS.get(flaw.path[0], "") if len(flaw.path) == 1 else ""
        return Finding(flaw.path, "required, and missing", hint=hint)
    expected = flaw.expected
    hint = flaw.hint if isinstance(flaw, values.HintedFlaw) else ""
    where = settings_path(flaw.path)
    for setting in settings_of(cls):
        if setting.table is not None and setting.path[:-1] == where[:-1] and setting.key == where[-1]:
            name = ".".join(part.removesuffix("[]") for part in setting.path)
            many = setting.path[-1].endswith("[]")
            expected = f"tables [[{name}]]" if many else f"a table [{name}]"
            if many and len(where) == 1 and where[0] in NAMED_BY:
                hint = named_hint(where[0], flaw.value)
        elif typing.get_origin(setting.kind) is dict and setting.path == where[:-1]:
            hint = quoted_hint(flaw.path[-1], flaw.value)
    return Finding(flaw.path, f"expected {expected}", ABSENT if flaw.value is None else flaw.value, hint)


def _take_away(data: dict[str, Any], flaw: Flaw) -> None:
    """Remove what the flaw is about from `data`, or put a stand-in where something must be."""
    *above, last = flaw.path
    holders: list[Any] = [data]
    for step in above:
        try:
            holders.append(holders[-1][step])
        except LookupError:
            return  # it went with what is around it
    holder = holders[-1]
    if flaw.kind is FlawKind.MISSING:
        holder[last] = STAND_INS.get(str(last), "")
    elif not isinstance(holder, list):
        holder.pop(last, None)
    elif flaw.expected == A_TABLE:
        holder[int(last)] = {}
    else:
        holders[-2].pop(above[-1], None)  # one bad value spoils a list of values
