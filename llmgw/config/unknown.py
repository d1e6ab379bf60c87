"""What to say of a key that does not exist: the key that was probably meant, and where it belongs.

Names that have a dot in them and are not quoted get a hint of their own: in TOML they are tables in tables.
"""

import difflib
from collections.abc import Iterable
from typing import Any

import attrs

from llmgw.config.engine_options import option_hint
from llmgw.config.findings import Finding
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import Setting, settings_of, table_name
from llmgw.core.catalog import Model
from llmgw.strict import Step

FILES: dict[type, str] = {ClusterConfig: "cluster.toml", NodeConfig: "node.toml"}

NAMED_BY = {"models": "name", "keys": "name", "fabrics": "name", "gpus": "uuid"}
"""Arrays of tables -> the key that names one."""

DOT = "a name that contains a dot must be quoted"

NEAR = 0.6
"""difflib's ratio from which a name is called near: `gpu_memroy`, `heartbeat_intervall` (to `heartbeat`)."""


def unknown_key(path: tuple[Step, ...], value: Any, config: type) -> Finding:
    """The finding for an unknown key at `path` of a file of that class."""
    key = str(path[-1])
    table = settings_path(path)[:-1]
    siblings = [setting for setting in settings_of(config) if setting.path[:-1] == table]
    hint = (
        _an_item_by_its_name(path, value)
        or _a_node(path, value)
        or (option_hint(key, value) if table == ("models[]", "profile") else "")
        or _of_a_secret(path)
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


def named_hint(array: str, value: Any) -> str:
    """For `[models.qwen2.5-7b]`: how an item of that array is written, with the name that was probably meant."""
    names: list[str] = []
    known = {field.name for field in attrs.fields(Model)}
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        if not isinstance(value, dict) or name in known:
            break
        names.append(name)
    name = ".".join(names) or "NAME"
    reason = DOT if len(names) > 1 else "each has a table of its own"
    return f'write [[{array}]] with {NAMED_BY[array]} = "{name}" in it: {reason}'


def quoted_hint(name: Step, value: Any) -> str:
    """For a table where a text belongs, under a name of the operator's: `zone.a = "x"` is a table `zone`."""
    names = [str(name)]
    while isinstance(value, dict) and len(value) == 1:
        inner, value = next(iter(value.items()))
        names.append(str(inner))
    return f'{DOT}: "{".".join(names)}"' if isinstance(value, str) and len(names) > 1 else ""


def _an_item_by_its_name(path: tuple[Step, ...], value: Any) -> str:
    """`[models.qwen2.5-7b]` after a `[[models]]` is a table in that model."""
    if len(path) == 3 and path[0] == "models" and isinstance(value, dict):  # noqa: PLR2004  models, 0, key
        inner = next(iter(value.values()), None)
        if "." in str(path[2]) or isinstance(inner, dict):
            return named_hint("models", {path[2]: value})
    return ""


def _a_node(path: tuple[Step, ...], value: Any) -> str:
    """`[nodes.gpu1.example.org]`: elsewhere nodes are listed, and a dot in a host's name is no table."""
    if path[:1] not in (("nodes",), ("node",)):
        return ""
    names: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        names += [str(name)] if isinstance(value, dict) else []
    name = ".".join(names) or "gpu1.example.org"
    return f'no file lists nodes: each registers by its node.toml, as node_id = "{name}": {DOT}'


def _of_a_secret(path: tuple[Step, ...]) -> str:
    return 'write a text, or { file = "/a/path" }' if path[2:4] == ("profile", "env") else ""


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
