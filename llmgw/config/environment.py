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

import re
import tomllib
import typing
from collections.abc import Mapping
from typing import Any

import attrs

from llmgw.config.findings import Finding
from llmgw.config.settings import Setting, settings_of
from llmgw.config.unknown import FILES, nearest

PREFIX = "LLMGW_"
BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OTHER_VARIABLES = {"LLMGW_ADMIN_URL": "the llmgw command"}
"""Variables that are no setting of a file -> who reads them."""

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
    if not text.strip():
        return Finding(setting.path, "expected a value", text, "an empty variable is a mistake: unset it")
    origin = typing.get_origin(setting.kind)
    if setting.kind is bool:
        if text.lower() not in BOOLS:
            return Finding(setting.path, "expected " + " or ".join(BOOLS), text)
        return BOOLS[text.lower()]
    if setting.kind in (int, int | None):
        if not _INTEGER.fullmatch(text):
            return Finding(setting.path, "expected an integer in digits", text)
        return int(text)
    if origin is tuple and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",")]
    if origin in (tuple, dict):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            form = 'a TOML array, as ["a", "b"]' if origin is tuple else 'a TOML inline table, as { zone = "a" }'
            return Finding(setting.path, f"expected {form}", text)
    return text
