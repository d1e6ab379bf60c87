"""Where a shard can run: every rule refuses with its numbers, and the best of what is left is taken."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.books import Books
from llmgw.core.catalog import Model, Placement, Profile, Strategy
from llmgw.core.hardware import Fabric, Gpu, NodeHardware, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Node, NodeState
from llmgw.core.placement import FIT_RULES, NODE_RULES, Need, Placed, Unplaceable, place
from llmgw.core.replicas import Launch, Member, Replica
from llmgw.core.units import Size

GIB = 2**30


def node(name: str = "n1", gpus: int = 0, **changes: Any) -> Node:
    """A healthy node with 80 GiB GPUs and 64 GiB of memory."""
    made = Node(
        id=name,
        state=NodeState.HEALTHY,
        connection=1,
        labels={"zone": "a"},
        hardware=NodeHardware(
            gpus=tuple(Gpu(f"GPU-{name}-{k}", "NVIDIA H100 80GB", 80 * GIB) for k in range(gpus)),
            memory_total_bytes=64 * GIB,
        ),
    )
    return attrs.evolve(made, **changes)


def fleet(*nodes: Node) -> dict[str, Node]:
    return {one.id: one for one in sorted(nodes, key=lambda one: one.id)}


def launch(name: str, *gpus: str, number: int = 0, model: str = "other", **changes: Any) -> Replica:
    """A replica that holds those GPUs of that node."""
    made = attrs.evolve(Launch(5, "h", (Member(name, gpus),), 0.0), **changes)
    return Replica(f"{model}/{number}", model, (made,))


def refused(need: Need, one: Node, *replicas: Replica) -> str:
    """The line of the only node."""
    nodes = fleet(one)
    answer = place(need, nodes, Books(nodes, replicas), refuse={})
    assert isinstance(answer, Unplaceable)
    assert len(answer.refusals) == 1
    return str(answer.refusals[0])


def placed(need: Need, nodes: dict[str, Node], *replicas: Replica, prefer: str = "", **changes: Any) -> Placed:
    answer = place(need, nodes, Books(nodes, replicas), refuse=changes.get("refuse", {}), prefer=prefer)
    assert isinstance(answer, Placed)
    return answer


NEED = Need("m")

UNFIT = [
    (
        {"state": NodeState.INCOMPATIBLE, "reason": "its agent speaks protocol 2.0"},
        "n1: incompatible: its agent speaks protocol 2.0",
    ),
    (
        {"state": NodeState.UNREACHABLE, "reason": "3 heartbeats missed"},
        "n1: state: unreachable, 3 heartbeats missed",
    ),
    ({"state": NodeState.SYNCING}, "n1: state: syncing"),
    ({"state": NodeState.LOST, "reason": "silent for 3m00s"}, "n1: state: lost, silent for 3m00s"),
    ({"connection": None}, "n1: state: its agent is reconnecting"),
    ({"cordoned": True}, "n1: cordoned: an operator has cordoned it"),
    ({"draining": True}, "n1: draining: an operator is draining it"),
    ({"problems": (Problem("nvml", "Unknown Error"),)}, "n1: problem: nvml: Unknown Error"),
]


@pytest.mark.parametrize(("changes", "line"), UNFIT)
def test_a_node_with_something_wrong_is_refused_and_says_what(changes: dict[str, Any], line: str) -> None:
    assert refused(NEED, node(**changes)) == line


def shares(number: int, gib: float, *gpus: str) -> Replica:
    return launch("n1", *gpus, number=number, gpu_memory=int(gib * GIB))


MISFIT = [
    (Need("m", labels={"zone": "b"}), node(), (), "n1: labels: needs zone=b, has zone=a"),
    (Need("m", labels={"rack": "1"}), node(), (), "n1: labels: needs rack=1, has no rack"),
    (Need("m", fabric="ib0"), node(), (), "n1: fabric: needs ib0, is on none"),
    (
        Need("m", gpus=1, gpu="T4"),
        node(gpus=2),
        (),
        "n1: gpu: needs 1 x T4, has 2 x NVIDIA H100 80GB",
    ),
    (Need("m", gpus=2, gpu="h100"), node(), (), "n1: gpu: needs 2 x h100, has no GPU"),
    (Need("m", gpus=1), node(), (), "n1: gpus: needs 1, 0 free of 0"),
    (Need("m", gpus=3), node(gpus=2), (), "n1: gpus: needs 3, 2 free of 2"),
    (
        Need("m", gpus=2),
        node(gpus=2),
        (launch("n1", "GPU-n1-0"),),
        "n1: gpus: needs 2, 1 free of 2: 1 in use",
    ),
    (
        Need("m", gpus=2),
        node(gpus=2),
        (shares(0, 1, "GPU-n1-1"),),
        "n1: gpus: needs 2, 1 free of 2: 1 in use",
    ),
    (
        Need("m", gpus=1),
        node(gpus=1, problems=(Problem("xid", "79", "GPU-n1-0"),)),
        (),
        "n1: gpus: needs 1, 0 free of 1: GPU-n1-0 has a problem (xid)",
    ),
    (
        Need("m", gpus=1, gpu_memory=40 * GIB),
        node(gpus=2),
        (shares(0, 48.8, "GPU-n1-0"), shares(1, 60, "GPU-n1-1")),
        "n1: gpu_memory: needs 40 GiB, most free 31.2 GiB on GPU-n1-0",
    ),
    (
        Need("m", gpus=2, gpu_memory=40 * GIB),
        node(gpus=2),
        (shares(0, 50, "GPU-n1-1"),),
        "n1: gpu_memory: needs 40 GiB on each of 2 GPUs, 1 has it, most free 30 GiB on GPU-n1-1",
    ),
    (
        Need("m", gpus=1, gpu_memory=1 * GIB),
        node(gpus=1),
        (launch("n1", "GPU-n1-0"),),
        "n1: gpus: needs 1, 0 free of 1: 1 in use",
    ),
    (
        Need("m", memory=48 * GIB),
        node(),
        (launch("n1", memory=32 * GIB),),
        "n1: memory: needs 48 GiB, 32 GiB free of 64 GiB",
    ),
    (Need("m", port=8000), node(), (launch("n1", port=8000),), "n1: port: needs 8000, other/0/0 has it"),
]


@pytest.mark.parametrize(("need", "one", "replicas", "line"), MISFIT)
def test_a_node_that_does_not_fit_is_refused_with_numbers(
    need: Need, one: Node, replicas: tuple[Replica, ...], line: str
) -> None:
    assert refused(need, one, *replicas) == line


def test_every_rule_has_a_case() -> None:
    lines = [line for *_, line in UNFIT] + [line for *_, line in MISFIT]
    rules = [name for name, *_ in NODE_RULES] + [name for name, *_ in FIT_RULES]
    assert sorted({line.split(": ")[1] for line in lines}) == sorted(rules)


def test_long_uuids_are_cut_in_messages() -> None:
    gpu = Gpu("GPU-ab12cd34-0000-0000-0000-000000000000", "T4", 16 * GIB)
    line = refused(Need("m", gpus=1, gpu_memory=20 * GIB), node(hardware=NodeHardware(gpus=(gpu,))))
    assert line == "n1: gpu_memory: needs 20 GiB, most free 16 GiB on GPU-ab12cd34"


def test_the_callers_own_refusals_come_after_the_state_of_a_node() -> None:
    nodes = fleet(node("n1"), node("n2", state=NodeState.LOST))
    answer = place(NEED, nodes, Books(nodes, ()), refuse={"n1": ("failures", "5 times"), "n2": ("failures", "x")})
    assert isinstance(answer, Unplaceable)
    assert [str(one) for one in answer.refusals] == ["n1: failures: 5 times", "n2: state: lost"]


def test_the_need_of_a_model() -> None:
    profile = Profile(engine="vllm", gpus=2, gpu_memory=Size(5), memory=Size(7), port=8000)
    placement = Placement(labels={"a": "b"}, gpu="H100", fabric="ib0", strategy=Strategy.SPREAD)
    assert Need.of(Model("m", profile=profile, placement=placement)) == Need(
        "m", 2, 5, 7, {"a": "b"}, "H100", "ib0", 8000, Strategy.SPREAD
    )


# --- the choice -------------------------------------------------------------------------------------------------


def test_a_model_without_gpus_is_packed_away_from_them() -> None:
    assert placed(NEED, fleet(node("a", 8), node("b"), node("c", 1))) == Placed("b", ())


def test_pack_takes_the_node_with_the_fewest_free_gpus_that_fits() -> None:
    nodes = fleet(node("a", 8), node("b", 2), node("c", 1))
    assert placed(Need("m", gpus=2), nodes) == Placed("b", ("GPU-b-0", "GPU-b-1"))
    assert placed(Need("m", gpus=1), nodes) == Placed("c", ("GPU-c-0",))


def test_pack_fills_the_fullest_gpu_and_spread_the_emptiest() -> None:
    nodes = fleet(node("n1", 3))
    taken = (shares(0, 30, "GPU-n1-0"), shares(1, 50, "GPU-n1-1"))
    need = Need("m", gpus=1, gpu_memory=20 * GIB)
    assert placed(need, nodes, *taken).gpus == ("GPU-n1-1",)
    assert placed(attrs.evolve(need, strategy=Strategy.SPREAD), nodes, *taken).gpus == ("GPU-n1-2",)


def test_spread_keeps_away_from_its_like_then_takes_where_most_is_free() -> None:
    nodes = fleet(node("a", 8), node("b", 2), node("c", 4))
    need = Need("m", gpus=1, strategy=Strategy.SPREAD)
    assert placed(need, nodes).node == "a"
    assert placed(need, nodes, launch("a", "GPU-a-0", model="m")).node == "c"
    assert placed(need, nodes, launch("a", "GPU-a-0", model="x")).node == "a"


def test_where_it_ran_last_is_preferred_if_it_fits() -> None:
    nodes = fleet(node("a", 1), node("b", 8))
    assert placed(Need("m", gpus=1), nodes, prefer="b").node == "b"
    assert placed(Need("m", gpus=1), nodes, prefer="gone").node == "a"


def test_equals_are_taken_by_name() -> None:
    assert placed(Need("m", gpus=1), fleet(node("b", 1), node("a", 1))).node == "a"


def test_a_named_gpu_is_chosen_among_others_by_a_part_of_its_name() -> None:
    gpus = (Gpu("t4", "Tesla T4", 16 * GIB), Gpu("h", "NVIDIA H100", 80 * GIB))
    nodes = fleet(node("n1", hardware=NodeHardware(gpus=gpus)))
    assert placed(Need("m", gpus=1, gpu="h100"), nodes).gpus == ("h",)


def test_a_fabric_that_the_node_is_on_fits() -> None:
    nodes = fleet(node("n1", hardware=NodeHardware(fabrics=(Fabric("ib0"),))), node("n2"))
    assert placed(Need("m", fabric="ib0"), nodes).node == "n1"


def test_memory_of_an_integrated_gpu_is_the_hosts() -> None:
    hardware = NodeHardware(gpus=(Gpu("u", "GB10", 120 * GIB, memory_unified=True),), memory_total_bytes=128 * GIB)
    one = node("n1", hardware=hardware)
    need = Need("m", gpus=1, gpu_memory=60 * GIB, memory=10 * GIB)
    assert isinstance(place(need, fleet(one), Books(fleet(one), ()), refuse={}), Placed)
    taken = launch("n1", "u", gpu_memory=60 * GIB)
    assert refused(need, one, taken) == "n1: memory: needs 70 GiB, 68 GiB free of 128 GiB"


def test_a_shard_that_nobody_decided_holds_its_gpus() -> None:
    stray = ShardReport("what/is/this", 1, gpus=("GPU-n1-0",), state="ready", port=8000)
    one = node(gpus=1, shards={"what/is/this": stray})
    assert refused(Need("m", gpus=1), one) == "n1: gpus: needs 1, 0 free of 1: 1 in use"
    assert refused(Need("m", port=8000), one) == "n1: port: needs 8000, what/is/this has it"


# --- properties -------------------------------------------------------------------------------------------------

NEEDS = st.builds(
    Need,
    model=st.sampled_from(["a", "b"]),
    gpus=st.integers(0, 3),
    gpu_memory=st.sampled_from([None, 10 * GIB, 40 * GIB, 80 * GIB]),
    memory=st.sampled_from([0, 20 * GIB]),
    port=st.sampled_from([None, None, 8000]),
    strategy=st.sampled_from(list(Strategy)),
)


@settings(max_examples=max(1, settings().max_examples // 4))
@given(needs=st.lists(NEEDS, max_size=20))
def test_never_over_booked_and_every_refused_node_is_named(needs: list[Need]) -> None:
    nodes = fleet(node("a", 4), node("b", 2), node("c"), node("d", 2, cordoned=True))
    held: list[tuple[Need, Placed]] = []
    books = Books(nodes, ())
    for number, need in enumerate(needs):
        answer = place(need, nodes, books, refuse={})
        if isinstance(answer, Unplaceable):
            assert [one.node for one in answer.refusals] == list(nodes)
            assert all(one.rule and one.detail for one in answer.refusals)
            continue
        held.append((need, answer))
        made = Launch(
            number,
            "h",
            (Member(answer.node, answer.gpus),),
            0.0,
            gpu_memory=need.gpu_memory,
            memory=need.memory,
            port=need.port,
        )
        books.add(need.model, f"{need.model}/{number}/0", made, 0)
        assert answer.node != "d"
        assert len(set(answer.gpus)) == need.gpus
    for name, one in nodes.items():
        mine = [(need, answer) for need, answer in held if answer.node == name]
        assert sum(need.memory for need, _ in mine) <= one.hardware.memory_total_bytes
        ports = [need.port for need, _ in mine if need.port is not None]
        assert len(ports) == len(set(ports))
        for gpu in one.hardware.gpus:
            on = [need.gpu_memory for need, answer in mine if gpu.uuid in answer.gpus]
            assert len(on) <= 1 or None not in on
            assert sum(filter(None, on)) <= gpu.memory_total_bytes
