"""The fleet as control knows it: nodes, what they hold, and how alive they are.

(The machine itself, `apply`, is below the types.)
"""

import enum

import attrs

from llmgw.core.hardware import NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport


class NodeState(enum.StrEnum):
    """How far a node can be believed."""

    SYNCING = "syncing"
    """Known, and its whole state is not in yet."""
    HEALTHY = "healthy"
    UNREACHABLE = "unreachable"
    """Silent for a little while: nothing new is placed, its endpoints are suspect."""
    LOST = "lost"
    """Silent for long, witnessed: its replicas may be replaced."""
    INCOMPATIBLE = "incompatible"
    """Speaks another major version."""


@attrs.frozen
class Node:
    """One node, as published to every reader. Times are of the monotonic clock of this control."""

    id: str
    state: NodeState
    reason: str = ""
    """Why it is in that state, for a person; empty when healthy."""
    instance: str = ""
    boot_id: str = ""
    connection: int | None = None
    """Identity of the live connection; None: none. Never compare nodes' names for this."""
    peer: str = ""
    """Where the connection comes from, `10.0.0.5:43210`."""
    agent_version: str = ""
    address: str = ""
    """Host under which its engines are reached."""
    labels: dict[str, str] = attrs.field(factory=dict)
    ports: PortRange = PortRange(20000, 20999)
    hardware: NodeHardware = NodeHardware()
    problems: tuple[Problem, ...] = ()
    gpu_memory_used_bytes: dict[str, int | None] = attrs.field(factory=dict)
    gpu_memory_stale_seconds: float = 0.0
    shards: dict[str, ShardReport] = attrs.field(factory=dict)
    """By shard id; what it reported last. A terminal, gone shard is forgotten."""
    shard_since: dict[str, float] = attrs.field(factory=dict)
    """When each shard entered its state."""
    outputs: dict[str, str] = attrs.field(factory=dict)
    """The last output of shards that failed, by shard id; bounded."""
    cordoned: bool = False
    draining: bool = False
    engines_kept: bool = False
    """Its agent said Goodbye(kept): the engines go on without it."""
    engines_stopped: bool = False
    """Its agent said Goodbye(stopped): lost at once, and nothing of it is left."""
    last_heard: float | None = None
    """When the last frame arrived; None: not since this control started."""
    since: float = 0.0
    """When it entered its state."""
