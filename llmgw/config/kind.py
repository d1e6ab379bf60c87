"""Which of the two files a text is, from what is in it."""

import re
import tomllib
from collections.abc import Collection

import attrs

from llmgw.config.schema import ClusterConfig, NodeConfig

_NAMES = {cls: frozenset(field.name for field in attrs.fields(cls)) for cls in (ClusterConfig, NodeConfig)}
_KEY = re.compile(r"^\s*(?:\[+\s*)?([A-Za-z0-9_-]+)", re.MULTILINE)


def kind_of(text: str) -> type[ClusterConfig] | type[NodeConfig] | None:
    """The class of the file, by the tables and keys that only one of the two has; None where that says nothing.

    A text that is no TOML is told by its words, so that its mistakes are those of the right file.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        names: Collection[str] = _KEY.findall(text)
    else:
        if "control" in data:
            return ClusterConfig if isinstance(data["control"], dict) else NodeConfig
        names = data
    cluster = sum(name in _NAMES[ClusterConfig] and name not in _NAMES[NodeConfig] for name in names)
    node = sum(name in _NAMES[NodeConfig] and name not in _NAMES[ClusterConfig] for name in names)
    return None if cluster == node else ClusterConfig if cluster > node else NodeConfig
