"""Where one shard can run: ordered rules that refuse with numbers, and the choice among the nodes that are left."""

from collections.abc import Callable, Mapping

import attrs

from llmgw.core.books import Books, NodeBooks
from llmgw.core.catalog import Model, Strategy
from llmgw.core.explain import Refusal
from llmgw.core.hardware import Gpu
from llmgw.core.nodes import Node, NodeState
from llmgw.core.units import format_bytes

UUID_SHOWN = 12
"""Letters of a GPU's UUID in a message: `GPU-` and eight hex digits, enough to tell it from its neighbours."""


@attrs.frozen
class Need:
    """What one shard needs of a node."""

    model: str
    gpus: int = 0
    gpu_memory: int | None = None
    """Bytes on each GPU; None: whole GPUs."""
    memory: int = 0
    labels: dict[str, str] = attrs.field(factory=dict)
    gpu: str = ""
    fabric: str = ""
    port: int | None = None
    strategy: Strategy = Strategy.PACK

    @classmethod
    def of(cls, model: Model) -> "Need":
        """What a shard of that model needs. The model has a profile."""
        profile, placement = model.profile, model.placement
        assert profile is not None
        return cls(
            model=model.name,
            gpus=profile.gpus,
            gpu_memory=profile.gpu_memory,
            memory=profile.memory,
            labels=placement.labels,
            gpu=placement.gpu,
            fabric=placement.fabric,
            port=profile.port,
            strategy=placement.strategy,
        )


@attrs.frozen
class Placed:
    """The answer yes."""

    node: str
    gpus: tuple[str, ...] = ()


@attrs.frozen
class Unplaceable:
    """The answer no: every node of the fleet, with the first rule that refused it."""

    refusals: tuple[Refusal, ...] = ()
    """Sorted by node."""


def place(
    need: Need,
    nodes: Mapping[str, Node],
    books: Books,
    *,
    refuse: Mapping[str, tuple[str, str]],
    prefer: str = "",
) -> Placed | Unplaceable:
    """The best node for it, or why there is none.

    `refuse`: nodes that the caller rules out, with rule and detail. `prefer`: taken if it fits. Nothing is booked.
    """
    refusals: list[Refusal] = []
    best: tuple[tuple[object, ...], Placed] | None = None
    rules = [(name, rule) for name, asked_for, rule in FIT_RULES if asked_for(need)]
    score = _SCORES[need.strategy]
    for node in nodes.values():
        refusal = books.unfit(node, _unfit)
        if refusal is None and node.id in refuse:
            refusal = Refusal(node.id, *refuse[node.id])
        if refusal is None:
            booked = books.on(node.id)
            refusal = _misfit(need, node, booked, rules)
        if refusal is not None:
            refusals.append(refusal)
            continue
        gpus = _choose_gpus(need, booked)
        rank = (node.id != prefer, *score(need, booked, gpus), node.id)
        if best is None or rank < best[0]:
            best = rank, Placed(node.id, tuple(gpu.uuid for gpu in gpus))
    return best[1] if best is not None else Unplaceable(tuple(refusals))


def _unfit(node: Node) -> Refusal | None:
    """Refused whatever is needed."""
    for name, rule in NODE_RULES:
        detail = rule(node)
        if detail is not None:
            return Refusal(node.id, name, detail)
    return None


def _misfit(need: Need, node: Node, booked: NodeBooks, rules: list[tuple[str, "FitRule"]]) -> Refusal | None:
    for name, rule in rules:
        detail = rule(need, node, booked)
        if detail is not None:
            return Refusal(node.id, name, detail)
    return None


# --- the rules: a reason with its numbers, or None --------------------------------------------------------------

NodeRule = Callable[[Node], str | None]
FitRule = Callable[[Need, Node, NodeBooks], str | None]


def _incompatible(node: Node) -> str | None:
    return node.reason if node.state is NodeState.INCOMPATIBLE else None


def _state(node: Node) -> str | None:
    if node.state is not NodeState.HEALTHY:
        return f"{node.state}, {node.reason}" if node.reason else node.state.value
    return "its agent is reconnecting" if node.connection is None else None


def _cordoned(node: Node) -> str | None:
    return "an operator has cordoned it" if node.cordoned else None


def _draining(node: Node) -> str | None:
    return "an operator is draining it" if node.draining else None


def _problem(node: Node) -> str | None:
    """Of the node as a whole. (Its NVML stopped answering and engines were started blindly; its disk was full.)"""
    if not node.problems:
        return None
    return next((f"{problem.code}: {problem.detail}" for problem in node.problems if not problem.gpu), None)


def _labels(need: Need, node: Node, _booked: NodeBooks) -> str | None:
    for key, value in need.labels.items():
        if node.labels.get(key) != value:
            has = f"has {key}={node.labels[key]}" if key in node.labels else f"has no {key}"
            return f"needs {key}={value}, {has}"
    return None


def _fabric(need: Need, node: Node, _booked: NodeBooks) -> str | None:
    if any(fabric.name == need.fabric for fabric in node.hardware.fabrics):
        return None
    return f"needs {need.fabric}, is on {', '.join(fabric.name for fabric in node.hardware.fabrics) or 'none'}"


def _gpu_name(need: Need, node: Node, _booked: NodeBooks) -> str | None:
    if len(_of_name(need, node.hardware.gpus)) >= need.gpus:
        return None
    counts: dict[str, int] = {}
    for gpu in node.hardware.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    has = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "no GPU"
    return f"needs {need.gpus} x {need.gpu}, has {has}"


def _gpu_count(need: Need, node: Node, booked: NodeBooks) -> str | None:
    left = _of_name(need, booked.free if need.gpu_memory is None else booked.shareable)
    if len(left) >= need.gpus:
        return None
    named = _of_name(need, node.hardware.gpus)
    faulty = [gpu for gpu in named if booked.fault(gpu)]
    in_use = len(named) - len(faulty) - len(left)
    facts = [f"{in_use} in use"] if in_use else []
    facts += [f"{_short(gpu)} has a problem ({booked.fault(gpu)})" for gpu in faulty]
    aside = f": {', '.join(facts)}" if facts else ""
    return f"needs {need.gpus}, {len(left)} free of {len(named)}{aside}"


def _gpu_memory(need: Need, _node: Node, booked: NodeBooks) -> str | None:
    assert need.gpu_memory is not None
    usable = _of_name(need, booked.shareable)
    too_full = [gpu for gpu in usable if booked.free_bytes(gpu) < need.gpu_memory]
    fitting = len(usable) - len(too_full)
    if fitting >= need.gpus:
        return None
    most = max(too_full, key=booked.free_bytes)
    each = f" on each of {need.gpus} GPUs, {fitting} has it" if need.gpus > 1 else ""
    return (
        f"needs {format_bytes(need.gpu_memory)}{each}, most free {format_bytes(booked.free_bytes(most))} "
        f"on {_short(most)}"
    )


def _host_memory(need: Need, node: Node, booked: NodeBooks) -> str | None:
    wanted = need.memory
    if need.gpu_memory is not None and need.gpus:
        # An integrated GPU has no memory of its own: what is booked on it is the host's.
        wanted += sum(need.gpu_memory for gpu in _choose_gpus(need, booked) if gpu.memory_unified)
    total = node.hardware.memory_total_bytes
    if wanted <= total - booked.memory:
        return None
    return f"needs {format_bytes(wanted)}, {format_bytes(max(0, total - booked.memory))} free of {format_bytes(total)}"


def _port(need: Need, _node: Node, booked: NodeBooks) -> str | None:
    assert need.port is not None
    if need.port not in booked.ports:
        return None
    return f"needs {need.port}, {booked.ports[need.port]} has it"


NODE_RULES: tuple[tuple[str, NodeRule], ...] = (
    ("incompatible", _incompatible),
    ("state", _state),
    ("cordoned", _cordoned),
    ("draining", _draining),
    ("problem", _problem),
)
"""What is wrong with the node. Asked first, since nothing else can be believed of a node that is away."""

FIT_RULES: tuple[tuple[str, Callable[[Need], bool], FitRule], ...] = (
    ("labels", lambda need: bool(need.labels), _labels),
    ("fabric", lambda need: bool(need.fabric), _fabric),
    ("gpu", lambda need: bool(need.gpu and need.gpus), _gpu_name),
    ("gpus", lambda need: need.gpus > 0, _gpu_count),
    ("gpu_memory", lambda need: need.gpus > 0 and need.gpu_memory is not None, _gpu_memory),
    ("memory", lambda need: need.memory > 0 or need.gpu_memory is not None, _host_memory),
    ("port", lambda need: need.port is not None, _port),
)
"""What the node is, then what is left of it: the first that refuses is shown, so the most lasting one. Each is asked
only where the need has something for it."""


# --- the choice -------------------------------------------------------------------------------------------------


def _pack(need: Need, booked: NodeBooks, gpus: tuple[Gpu, ...]) -> tuple[object, ...]:
    """The tightest fit, so that large holes stay: on the fullest GPU, the node with fewest free ones, the busiest."""
    return _bytes_left(need, booked, gpus), len(booked.free), -booked.launches


def _spread(need: Need, booked: NodeBooks, gpus: tuple[Gpu, ...]) -> tuple[object, ...]:
    """Away from its like first, so that one machine's end takes the fewest replicas; then where most is free."""
    alike = booked.models.get(need.model, 0)
    return alike, -_bytes_left(need, booked, gpus), -len(booked.free), booked.launches


_SCORES = {Strategy.PACK: _pack, Strategy.SPREAD: _spread}


def _bytes_left(need: Need, booked: NodeBooks, gpus: tuple[Gpu, ...]) -> int:
    """On the chosen GPUs; 0 where they are taken whole."""
    return sum(booked.free_bytes(gpu) for gpu in gpus) if need.gpu_memory is not None else 0


def _choose_gpus(need: Need, booked: NodeBooks) -> tuple[Gpu, ...]:
    if not need.gpus:
        return ()
    if need.gpu_memory is None:
        return _of_name(need, booked.free)[: need.gpus]
    wanted = need.gpu_memory
    fitting = [gpu for gpu in _of_name(need, booked.shareable) if booked.free_bytes(gpu) >= wanted]
    # Sorting is stable: among equals the order of the inventory holds.
    fitting.sort(key=booked.free_bytes, reverse=need.strategy is Strategy.SPREAD)
    return tuple(fitting[: need.gpus])


def _of_name(need: Need, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    wanted = need.gpu.casefold()
    return tuple(gpu for gpu in gpus if wanted in gpu.name.casefold()) if wanted else gpus


def _short(gpu: Gpu) -> str:
    return gpu.uuid[:UUID_SHOWN]
