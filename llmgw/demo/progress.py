"""What a person wants to see while a model comes up: each fact once, when it is true. Pure: status in, lines out."""

import attrs

from llmgw.core.explain import Explanation
from llmgw.core.lifecycle import UNRECOVERABLE, ShardState
from llmgw.core.statusdoc import ModelStatus, NodeStatus, ReplicaStatus, ShardStatus, Status
from llmgw.core.units import format_bytes

FAILURES_MAX = 2
"""Launches that may fail before the demo gives up: a port can be taken in the wrong moment, once."""


@attrs.frozen
class Serving:
    """A replica that is ready."""

    replica: str
    node: str
    pid: int
    port: int


@attrs.define
class Progress:
    """Follows one model from status to status."""

    model: str
    _said: dict[str, str] = attrs.field(factory=dict)
    """What was said last of each subject."""
    _failed: set[tuple[str, int]] = attrs.field(factory=set)
    """Launches seen to fail: shard and epoch."""

    def new_lines(self, status: Status) -> list[str]:
        """What has changed since the last status, as lines to show."""
        # The reason counts seconds down: only another state is news.
        facts = {"control": f"control is {status.control.state}"}
        # A node that control remembers from an earlier run is none that one waits for.
        nodes = [node for node in status.nodes if node.state != "lost"]
        facts |= {f"node {node.id}": _node_line(node) for node in nodes}
        for model in self._models(status):
            for replica in model.replicas:
                facts |= {f"shard {shard.id}": _shard_line(replica, shard) for shard in replica.shards}
            # Without reasons it says in other words what the lines above say.
            if nodes and model.explanation is not None and model.explanation.reasons:
                facts["explanation"] = "\n".join(_explanation_lines(model.explanation))
        new = [line for subject, line in facts.items() if line != self._said.get(subject)]
        self._said |= facts
        return [line for text in new for line in text.splitlines()]

    def serving(self, status: Status) -> Serving | None:
        """The first replica that is ready, once a router knows it."""
        for model in self._models(status):
            usable = {endpoint.id for endpoint in model.endpoints if endpoint.state == ShardState.READY}
            for replica in model.replicas:
                if replica.state != ShardState.READY or replica.id not in usable:
                    continue
                for shard in replica.shards[:1]:
                    if shard.pid is not None and shard.port is not None:
                        return Serving(replica.id, shard.node, shard.pid, shard.port)
        return None

    def hopeless(self, status: Status) -> list[str]:
        """Why waiting on is useless, with the engine's last words; empty: it is not."""
        for model in self._models(status):
            for shard in (shard for replica in model.replicas for shard in replica.shards):
                if shard.state != ShardState.FAILED:
                    continue
                self._failed.add((shard.id, shard.epoch))
                if shard.cause in UNRECOVERABLE or len(self._failed) >= FAILURES_MAX:
                    return [f"{shard.id} failed: {shard.error or shard.cause}", *shard.output.splitlines()]
        return []

    def pids(self, status: Status) -> list[int]:
        """The engines that live now, of any model."""
        shards = [shard for model in status.models for replica in model.replicas for shard in replica.shards]
        return [shard.pid for shard in shards if shard.pid is not None and not shard.gone]

    def _models(self, status: Status) -> list[ModelStatus]:
        return [model for model in status.models if model.name == self.model]


def _node_line(node: NodeStatus) -> str:
    gpus = ", ".join(sorted({gpu.name or "unnamed" for gpu in node.gpus}))
    cards = f"{len(node.gpus)} GPUs ({gpus})" if len(node.gpus) > 1 else f"1 GPU ({gpus})" if gpus else "no GPU"
    facts = f"{node.cpus} CPUs, {format_bytes(node.memory_total_bytes)}, {cards}"
    return f"node {node.id} is {node.state}: {node.reason or facts}"


def _shard_line(replica: ReplicaStatus, shard: ShardStatus) -> str:
    name = replica.id if len(replica.shards) == 1 else shard.id
    line = f"{name} is {shard.state} on node {shard.node}"
    if shard.state == ShardState.READY:
        return f"{line}: engine pid {shard.pid}, port {shard.port}"
    return f"{line}: {shard.error}" if shard.error else line


def _explanation_lines(explanation: Explanation) -> list[str]:
    reasons = [f"  {', '.join(reason.nodes)}: {reason.rule}: {reason.detail}" for reason in explanation.reasons]
    return [
        explanation.summary,
        *reasons,
        *([f"  what would help: {explanation.change}"] if explanation.change else []),
    ]
