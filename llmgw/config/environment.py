"""`LLMGW_` variables: `LLMGW_CONTROL__LISTEN` stands for `[control] listen`, and beats the file.

The rules, for whoever sets one:

- What is in an array of tables (`[[models]]`, `[[keys]]`) cannot be set this way.
- A bool is one of `BOOLS`, letter case aside. An integer is written with digits only. Durations, sizes, addresses
  and paths are written as in the file, without quotes; relative paths are relative to the file.
- A list is separated by commas, or a TOML array when it begins with `[`. A table of strings is a TOML inline
  table: `LLMGW_LABELS={ zone = "a" }`.
- An empty variable is a mistake: unset it, so that nobody has to guess between "none" and "the default".
- A variable that only another llmgw command reads, and those that Kubernetes injects for a service whose name
  begins with llmgw, are ignored with a note. Any other name is a mistake.
"""

import enum
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from llmgw.config.findings import Finding
from llmgw.config.settings import Setting, settings_of
from llmgw.config.unknown import FILES, nearest
from llmgw.config.values import ADDRESS_EXPECTED, DURATION_EXPECTED, PATH_EXPECTED, PORTS_EXPECTED, SIZE_EXPECTED
from llmgw.core.address import Address
from llmgw.core.hardware import PortRange
from llmgw.core.units import Duration, Size
from llmgw.errors import InvariantBroken

PREFIX = "LLMGW_"
BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OTHER_VARIABLES = {"LLMGW_ADMIN_URL": "the llmgw command"}
"""Variables that are no setting of a file -> who reads them."""

LIST_EXPECTED = 'a list, as a,b or ["a", "b"]'
TABLE_EXPECTED = 'a TOML inline table, as { zone = "a" }'
INTEGER_EXPECTED = "an integer in digits"
INTEGERS = (int, int | None)

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_KUBERNETES = re.compile(
    r"LLMGW(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP)(_[A-Z]+)?)"
)
_KUBERNETES_PORT = re.compile(r"LLMGW(_[A-Z0-9_]+)?_PORT")


@attrs.frozen
class Override:
    """One setting from one variable, as TOML would have given it."""

    path: tuple[str, ...]
    value: Any
    variable: str


@attrs.frozen
class FromEnvironment:
    """What the environment says."""

    overrides: tuple[Override, ...] = ()
    findings: tuple[tuple[str, Finding], ...] = ()
    """(variable, what is wrong with it)."""
    notes: tuple[str, ...] = ()
    """What was ignored, and why: for the log."""


def variable_name(setting: Setting) -> str:
    """The variable that sets it, where one can."""
    return PREFIX + "__".join(part.removesuffix("[]").upper() for part in setting.path)


def read_environment(environ: Mapping[str, str], config: type) -> FromEnvironment:
    """Every `LLMGW_` variable, in alphabetical order, for a configuration of that class."""
    mine = {variable_name(setting): setting for setting in settings_of(config)}
    overrides: list[Override] = []
    findings: list[tuple[str, Finding]] = []
    notes: list[str] = []
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        text = environ[name]
        setting = mine.get(name)
        if setting is not None and setting.table is None and not setting.in_array:
            value = _value(text, setting)
            if isinstance(value, Finding):
                findings.append((name, value))
            else:
                overrides.append(Override(setting.path, value, name))
        elif note := _why_ignored(name, text, config):
            notes.append(f"{name}: ignored: {note}")
        else:
            findings.append((name, _not_settable(name, mine)))
    return FromEnvironment(tuple(overrides), tuple(findings), tuple(notes))


def _why_ignored(name: str, text: str, config: type) -> str:
    if name in OTHER_VARIABLES:
        return f"only {OTHER_VARIABLES[name]} reads it"
    for other, file in FILES.items():
        known = (s for s in settings_of(other) if other is not config and s.table is None and not s.in_array)
        if any(variable_name(setting) == name for setting in known):
            return f"it is a setting of {file}"
    if _KUBERNETES.fullmatch(name) or (_KUBERNETES_PORT.fullmatch(name) and text.startswith(("tcp://", "udp://"))):
        return "it looks like one that Kubernetes injects for a service"
    return ""


def _not_settable(name: str, mine: dict[str, Setting]) -> Finding:
    settable = [known for known, setting in mine.items() if setting.table is None and not setting.in_array]
    for known, setting in mine.items():
        if setting.path[-1].endswith("[]") and (name == known or name.startswith(known + "_")):
            return Finding((), f"[[{setting.key}]] cannot be set by a variable", hint="write it in the file")
    if name in mine:
        keys = [known for known in settable if known.startswith(name + "__")]
        return Finding((), "this is a table, not a setting", hint="known here: " + ", ".join(keys))
    found = nearest(name, settable)
    return Finding((), "unknown variable", hint=f"did you mean {found}?" if found else "no setting has this name")


def _value(text: str, setting: Setting) -> Any:
    """The value as TOML would have given it, or the finding."""
    kind, origin = setting.kind, typing.get_origin(setting.kind)
    wrong = Finding(setting.path, f"expected {expected_of(kind)}", text)
    if not text.strip():
        return attrs.evolve(wrong, hint="an empty variable is a mistake: unset it")
    if kind is bool:
        return BOOLS.get(text.lower(), wrong)
    if kind in INTEGERS:
        return int(text) if _INTEGER.fullmatch(text) else wrong
    if origin is tuple and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",")]
    if origin in (tuple, dict):
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return wrong
        return value if isinstance(value, dict) == (origin is dict) else wrong
    return text


def expected_of(kind: Any) -> str:
    """What a variable for a setting of that type must hold, as a phrase."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if typing.get_origin(kind) is dict:
        return TABLE_EXPECTED
    if typing.get_origin(kind) is tuple:
        return LIST_EXPECTED
    for member in _members(kind):
        if member in _EXPECTED:
            return _EXPECTED[member]
    raise InvariantBroken(f"no phrase for {kind}")


def _members(kind: Any) -> Iterator[Any]:
    """The type itself and every one inside a union or an annotation."""
    yield kind
    for inner in typing.get_args(kind):
        yield from _members(inner)


_EXPECTED: dict[Any, str] = {
    bool: " or ".join(BOOLS),
    int: INTEGER_EXPECTED,
    str: "a text",
    Path: PATH_EXPECTED,
    Address: ADDRESS_EXPECTED,
    PortRange: PORTS_EXPECTED,
    Duration: DURATION_EXPECTED,
    Size: SIZE_EXPECTED,
}
