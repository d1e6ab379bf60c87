"""A valid configuration to spoil, and the two loaders with everything else fixed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from llmgw.config.load import Loaded, Source, load_cluster, load_node
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.errors import ConfigError, Mistake

BASE = Path("/etc/llmgw")
STATE = Path("/var/lib/llmgw")

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]
Mistakes: TypeAlias = Callable[..., list[Mistake]]


def cluster(text: str = "", environ: Mapping[str, str] | None = None, **changes: Any) -> Loaded[ClusterConfig]:
    settings = {"engines": ("llamacpp", "vllm"), "state_base": STATE, **changes}
    return load_cluster(Source("cluster.toml", BASE, text), environ or {}, **settings)


def node(text: str = "", environ: Mapping[str, str] | None = None, **changes: Any) -> Loaded[NodeConfig]:
    settings = {"options": {}, "host_name": "gpu-a", "state_base": STATE, **changes}
    return load_node(Source("node.toml", BASE, text), environ or {}, **settings)


def mistakes_of(load: Callable[..., Any], text: str = "", environ: Mapping[str, str] | None = None) -> list[Mistake]:
    try:
        load(text, environ)
    except ConfigError as error:
        return list(error.mistakes)
    return []


@pytest.fixture
def load_cluster_text() -> LoadCluster:
    """(text, environ) -> the loaded cluster.toml of /etc/llmgw."""
    return cluster


@pytest.fixture
def load_node_text() -> LoadNode:
    """(text, environ) -> the loaded node.toml of /etc/llmgw."""
    return node


@pytest.fixture
def cluster_mistakes() -> Mistakes:
    """(text, environ) -> every mistake of that cluster.toml; none: it is right."""
    return lambda text="", environ=None: mistakes_of(cluster, text, environ)


@pytest.fixture
def node_mistakes() -> Mistakes:
    """(text, environ) -> every mistake of that node.toml, which need not say `control`."""
    return lambda text="", environ=None: mistakes_of(node, f'control = "head:7070"\n{text}', environ)
