"""Bookings last from the decision until gone."""

from llmgw.core.books import Books
from llmgw.core.hardware import Gpu, NodeHardware
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Node, NodeState
from llmgw.core.replicas import Launch, Member, Replica

GPU = Gpu("g", "T4", 100)


def node(*reports: ShardReport, ended: tuple[ShardReport, ...] = ()) -> dict[str, Node]:
    made = Node(
        "n1",
        NodeState.HEALTHY,
        hardware=NodeHardware(gpus=(GPU, Gpu("h", "T4", 100, problems=("fell off the bus",)))),
        shards={report.shard: report for report in reports},
        ended={report.shard: report for report in ended},
    )
    return {"n1": made}


def replica(**changes: int | None) -> Replica:
    launch = Launch(5, "h", (Member("n1", ("g",)),), 0.0, **changes)  # type: ignore[arg-type]
    return Replica("m/0", "m", (launch,))


def test_a_launch_is_booked_from_the_decision_on() -> None:
    booked = Books(node(), [replica(memory=7, port=8000)]).on("n1")
    assert (booked.whole, booked.memory, booked.ports, booked.launches) == ({"g": "m/0/0"}, 7, {8000: "m/0/0"}, 1)
    assert booked.models == {"m": 1}
    assert booked.free == booked.shareable == ()
    assert booked.free_bytes(GPU) == 0


def test_a_failed_shard_holds_its_gpu_until_it_is_gone() -> None:
    failed = ShardReport("m/0/0", 5, state="failed", gpus=("g",))
    assert Books(node(failed), [replica()]).on("n1").whole == {"g": "m/0/0"}
    gone = ShardReport("m/0/0", 5, state="failed", gpus=("g",), gone=True)
    assert Books(node(gone), [replica()]).on("n1").whole == {}
    assert Books(node(ended=(gone,)), [replica()]).on("n1").free == (GPU,)


def test_a_shard_of_another_epoch_is_booked_beside_the_decided_one() -> None:
    old = ShardReport("m/0/0", 4, state="ready", gpus=("g",), port=1)
    booked = Books(node(old), [replica(gpu_memory=10)]).on("n1")
    assert (booked.whole, booked.shares, booked.launches) == ({"g": "m/0/0"}, {"g": 10}, 2)
    assert booked.free_bytes(GPU) == 0


def test_shares_leave_what_is_left_of_a_sound_gpu() -> None:
    booked = Books(node(), [replica(gpu_memory=60)]).on("n1")
    assert (booked.free_bytes(GPU), booked.shareable, booked.free) == (40, (GPU,), ())
    assert booked.fault(Gpu("h", problems=("fell off the bus",))) == "fell off the bus"


def test_the_port_that_an_agent_chose_counts() -> None:
    ready = ShardReport("m/0/0", 5, state="ready", gpus=("g",), port=20001)
    assert Books(node(ready), [replica()]).on("n1").ports == {20001: "m/0/0"}


def test_what_is_booked_on_a_node_that_is_not_in_the_fleet_stays_there() -> None:
    booked = Books({}, [replica()]).on("n1")
    assert (booked.node, booked.whole, booked.shareable) == (None, {"g": "m/0/0"}, ())
