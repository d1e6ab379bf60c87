"""Who holds what on which node: GPUs, host memory, ports, from the decision until `gone`.

A GPU carries either one whole booking or shares whose sum is at most its memory. It stays booked while the launch is
failed and not gone (its workers may still hold the card), while its node is away, and while an agent reports a shard
that nobody here has decided.
"""

from collections.abc import Callable, Iterable, Mapping

import attrs

from llmgw.core.explain import Refusal
from llmgw.core.hardware import Gpu
from llmgw.core.lifecycle import shard_id, split_shard
from llmgw.core.nodes import Node
from llmgw.core.replicas import Launch, Replica


@attrs.define
class NodeBooks:
    """What is booked on one node, and what that leaves."""

    node: Node | None
    """None: it is not part of the fleet any more."""
    whole: dict[str, str] = attrs.field(factory=dict)
    """GPU UUID -> the shard that has all of it."""
    shares: dict[str, int] = attrs.field(factory=dict)
    """GPU UUID -> the sum of the shares on it, in bytes."""
    memory: int = 0
    """Host memory in bytes; shares of GPUs that use the host's memory are in it."""
    ports: dict[int, str] = attrs.field(factory=dict)
    """Port -> shard."""
    launches: int = 0
    models: dict[str, int] = attrs.field(factory=dict)
    """Model -> its shards here."""
    _shareable: tuple[Gpu, ...] | None = None
    _free: tuple[Gpu, ...] | None = None

    @property
    def shareable(self) -> tuple[Gpu, ...]:
        """GPUs without a fault that nobody has wholly, in the order of the inventory."""
        if self._shareable is None:
            gpus = self.node.hardware.gpus if self.node is not None else ()
            self._shareable = tuple(gpu for gpu in gpus if gpu.uuid not in self.whole and not self.fault(gpu))
        return self._shareable

    @property
    def free(self) -> tuple[Gpu, ...]:
        """Those of them on which nothing is booked."""
        if self._free is None:
            self._free = tuple(gpu for gpu in self.shareable if gpu.uuid not in self.shares)
        return self._free

    def free_bytes(self, gpu: Gpu) -> int:
        """What shares may still take of a GPU."""
        return 0 if gpu.uuid in self.whole else gpu.memory_total_bytes - self.shares.get(gpu.uuid, 0)

    def fault(self, gpu: Gpu) -> str:
        """Why nothing may be placed on that GPU; empty: it is sound."""
        if gpu.problems:
            return gpu.problems[0]
        if self.node is None or not self.node.problems:
            return ""
        return next((problem.code for problem in self.node.problems if problem.gpu == gpu.uuid), "")

    def book(
        self,
        shard: str,
        model: str,
        *,
        gpus: Iterable[str],
        gpu_memory: int | None,
        memory: int,
        port: int | None,
    ) -> None:
        """Add one shard."""
        self._shareable = self._free = None
        self.launches += 1
        self.models[model] = self.models.get(model, 0) + 1
        self.memory += memory
        if port is not None:
            self.ports[port] = shard
        for uuid in gpus:
            if gpu_memory is None:
                self.whole[uuid] = shard
                continue
            self.shares[uuid] = self.shares.get(uuid, 0) + gpu_memory
            gpu = self.node.hardware.gpu(uuid) if self.node is not None else None
            if gpu is not None and gpu.memory_unified:
                self.memory += gpu_memory


class Books:
    """The bookings of every node. Made anew at each wake that places something."""

    def __init__(self, nodes: Mapping[str, Node], replicas: Iterable[Replica]) -> None:
        self.by_node: dict[str, NodeBooks] = {}
        self._nodes = nodes
        self._unfit: dict[str, Refusal | None] = {}
        decided: set[tuple[str, str, int]] = set()  # asked, never iterated
        for replica in replicas:
            for launch in replica.launches:
                for rank, member in enumerate(launch.members):
                    shard = shard_id(replica.id, rank)
                    decided.add((member.node, shard, launch.epoch))
                    self.add(replica.model, shard, launch, rank)
        for node in nodes.values():
            for shard, report in node.shards.items():
                if report.gone or (node.id, shard, report.epoch) in decided:
                    continue
                self.on(node.id).book(
                    shard, _model_of(shard), gpus=report.gpus, gpu_memory=None, memory=0, port=report.port
                )

    def on(self, node: str) -> NodeBooks:
        """What is booked there."""
        found = self.by_node.get(node)
        if found is None:
            found = self.by_node[node] = NodeBooks(self._nodes.get(node))
        return found

    def unfit(self, node: Node, ask: Callable[[Node], Refusal | None]) -> Refusal | None:
        """What `ask` says of a node, asked once: nodes do not change while these books are kept."""
        if node.id not in self._unfit:
            self._unfit[node.id] = ask(node)
        return self._unfit[node.id]

    def add(self, model: str, shard: str, launch: Launch, rank: int) -> None:
        """Book one shard of a launch, unless it is known to be gone."""
        member = launch.members[rank]
        node = self._nodes.get(member.node)
        report = node.report(shard, launch.epoch) if node is not None else None
        if report is not None and report.gone:
            return
        port = launch.port if report is None else report.port
        gpus = member.gpus if report is None else dict.fromkeys((*member.gpus, *report.gpus))
        self.on(member.node).book(
            shard, model, gpus=gpus, gpu_memory=launch.gpu_memory, memory=launch.memory, port=port
        )


def _model_of(shard: str) -> str:
    try:
        return split_shard(shard)[0].rpartition("/")[0]
    except ValueError:
        return ""
