"""The one description of a model: config reads it from TOML, control places by it, agents and routers obey it.

The attributes have the names of the settings (`conf/cluster.toml`); durations are seconds, sizes are bytes.
"""

import enum
import hashlib
import json
from typing import Any

import attrs

from llmgw.core.units import Duration, Size


class Update(enum.StrEnum):
    """How a changed profile is rolled out."""

    SURGE = "surge"
    """The new replica is ready before the old one is drained."""
    STOP_FIRST = "stop-first"
    """The old replica goes first where there is no room for both."""


class Strategy(enum.StrEnum):
    """Which of the nodes that fit is taken."""

    PACK = "pack"
    SPREAD = "spread"


@attrs.frozen
class Secret:
    """A value that is in a file on the machine that uses it, so that it is in no configuration."""

    file: str


@attrs.frozen
class Profile:
    """How one replica is run. Everything here is part of the spec hash: a change means a new launch.

    A default never changes, since the hash covers only what differs from it.
    """

    engine: str
    """A key of `llmgw.engines.ENGINES`."""
    model: str = ""
    """Path or name on the node: absolute, under its `models_dir`, or a hub id. Control never resolves it."""
    args: tuple[str, ...] = ()
    """Passed to the engine element by element, last."""
    env: dict[str, str | Secret] = attrs.field(factory=dict)
    gpus: int = 0
    """Per shard."""
    nodes: int = 1
    """Shards of a replica, each on a node of its own."""
    gpu_memory: Size | None = None
    """Per GPU; None: whole GPUs."""
    memory: Size = Size(0)
    """Host memory per shard."""
    probe: str = "chat"
    """`chat`, `completion`, `embedding`, `rerank` or `url:/path`."""
    listener_check: bool = True
    port: int | None = None
    """A fixed port; None: one from the node's range."""
    start_deadline: Duration = Duration(1200.0)
    stop_grace: Duration = Duration(20.0)


@attrs.frozen
class Placement:
    """Where a model's replicas may run."""

    labels: dict[str, str] = attrs.field(factory=dict)
    """Each must be on the node with the same value."""
    gpu: str = ""
    """A substring of the GPU's name, letter case aside; empty: any."""
    fabric: str = ""
    """The fabric that the nodes of a replica share; empty: none is needed."""
    strategy: Strategy = Strategy.PACK


@attrs.frozen
class StaticEndpoint:
    """An engine that somebody else runs; routed to, never started or stopped."""

    url: str
    """Base URL without `/v1`."""
    model: str = ""
    """The name that it knows the model by; empty: the catalog name."""
    key_file: str = ""
    """A file with the key to send it; empty: none."""


@attrs.frozen
class Model:
    """A catalog entry: what a client names."""

    name: str
    aliases: tuple[str, ...] = ()
    replicas: int = 1
    replace_after: Duration | None = Duration(180.0)
    """How long a node must be silent before its replicas are started elsewhere; None: never."""
    drain_deadline: Duration = Duration(60.0)
    update: Update = Update.SURGE
    ready_min: int | None = None
    """Never fewer ready replicas than this for a cause of ours; None: replicas - 1, at least 1."""
    exact_usage: bool = False
    profile: Profile | None = None
    placement: Placement = Placement()
    endpoints: tuple[StaticEndpoint, ...] = ()


@attrs.frozen
class Catalog:
    """Everything that should run, by model name."""

    models: dict[str, Model] = attrs.field(factory=dict)


def canonical(value: Any) -> Any:
    """`value` as JSON-ready data with nothing that equals its default, in an order that never varies."""
    if attrs.has(type(value)):
        return {
            field.name: canonical(getattr(value, field.name))
            for field in attrs.fields(type(value))
            if field.default is attrs.NOTHING or getattr(value, field.name) != _default_of(field)
        }
    if isinstance(value, dict):
        return {key: canonical(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return value


def spec_hash(profile: Profile) -> str:
    """16 hex digits that change exactly when a setting that differs from its default does.

    Control computes it; agents only keep it. Pinned values in the tests hold for ever: a hash that moves with
    a release of llmgw would roll every fleet at its upgrade.
    """
    text = json.dumps(canonical(profile), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _default_of(field: "attrs.Attribute[Any]") -> Any:
    return field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type, union-attr]
