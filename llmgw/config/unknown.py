"""What to say of a key that does not exist: the key that was probably meant, and where it belongs."""

import difflib
from collections.abc import Iterable
from typing import Any

import attrs

from llmgw.config.findings import Finding
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import Setting, settings_of, table_name
from llmgw.core.catalog import Model
from llmgw.strict import Step

FILES: dict[type, str] = {ClusterConfig: "cluster.toml", NodeConfig: "node.toml"}

NEAR = 0.6
"""difflib's ratio from which a name is called near: `gpu_memroy`, `heartbeat_intervall` (to `heartbeat`)."""


def unknown_key(path: tuple[Step, ...], value: Any, config: type) -> Finding:
    """The finding for an unknown key at `path` of a file of that class."""
    key = str(path[-1])
    table = settings_path(path)[:-1]
    siblings = [setting for setting in settings_of(config) if setting.path[:-1] == table]
    hint = (
        _a_model_by_its_name(path, value)
        or _spelt_otherwise(key, siblings)
        or _in_another_table(key, table, config)
        or _near(key, siblings)
        or _near_elsewhere(key, table, config)
        or "known here: " + ", ".join(setting.key for setting in siblings)
    )
    return Finding(path, "unknown table" if isinstance(value, dict) else "unknown key", value, hint)


def settings_path(path: tuple[Step, ...]) -> tuple[str, ...]:
    """`("models", 0, "name")` as settings spell it: `("models[]", "name")`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts[-1] += "[]"
        else:
            parts.append(step)
    return tuple(parts)


def nearest(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, or empty when none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=NEAR)
    return close[0] if close else ""


def models_hint(value: Any) -> str:
    """For `[models.qwen2.5-7b]`: how a model is written, with the name that was probably meant."""
    names: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        if not isinstance(value, dict) or name in {field.name for field in attrs.fields(Model)}:
            break
        names.append(name)
    name = ".".join(names) or "NAME"
    return f'write [[models]] with name = "{name}" in it: an unquoted dot in a table name makes a table in a table'


def _a_model_by_its_name(path: tuple[Step, ...], value: Any) -> str:
    """`[models.qwen2.5-7b]` after a `[[models]]` is a table in that model."""
    if len(path) == 3 and path[0] == "models" and isinstance(value, dict):  # noqa: PLR2004  models, 0, key
        inner = next(iter(value.values()), None)
        if "." in str(path[2]) or isinstance(inner, dict):
            return models_hint({path[2]: value})
    return ""


def _spelt_otherwise(key: str, siblings: list[Setting]) -> str:
    for setting in siblings:
        if setting.key == key.lower().replace("-", "_"):
            return f'did you mean "{setting.key}"? names are in lower case, with _'
    return ""


def _in_another_table(key: str, table: tuple[str, ...], config: type) -> str:
    here = [table_name(s.path) for s in settings_of(config) if s.key == key and s.path[:-1] != table]
    if here:
        return f'"{key}" is known in ' + ", ".join(dict.fromkeys(here))
    for other, file in FILES.items():
        if other is not config and any(s.key == key for s in settings_of(other)):
            return f'"{key}" is known in {file}'
    return ""


def _near(key: str, siblings: list[Setting]) -> str:
    found = nearest(key, [setting.key for setting in siblings])
    return f'did you mean "{found}"?' if found else ""


def _near_elsewhere(key: str, table: tuple[str, ...], config: type) -> str:
    others = {s.key: table_name(s.path) for s in settings_of(config) if s.path[:-1] != table}
    found = nearest(key, others)
    return f'did you mean "{found}" in {others[found]}?' if found else ""
