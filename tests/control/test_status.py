"""The status document and the gauges, from what the actors have published."""

import attrs
import msgspec

from llmgw.control.reconciler import Decided
from llmgw.control.routes import Follower, Published
from llmgw.control.status import Scene, gauges, status
from llmgw.core import statusdoc as doc
from llmgw.core.catalog import Catalog, Model, Profile, StaticEndpoint
from llmgw.core.explain import Explanation, Reason
from llmgw.core.hardware import Fabric, Gpu, Hca, NodeHardware, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import FleetView, Memory, Node, NodeState, Pulse, Recovery
from llmgw.core.replicas import Launch, Member, Replica, Replicas, ReplicaView, ShardView
from llmgw.core.routes import Table
from llmgw.core.routing import Endpoint
from llmgw.wire.messages import EndpointReport, RouterReport

NOW = 1000.0
TINY = Model("tiny", ("gpt",), replicas=2, profile=Profile("llamacpp", "tiny.gguf", gpus=1))
LEGACY = Model("legacy", endpoints=(StaticEndpoint("http://[::1]:9000"),))
REPORT = ShardReport(
    "tiny/0/0", 7, state="ready", pid=42, port=20000, gpus=("GPU-1",), exit_code=None, since_seconds=5.0
)
HARDWARE = NodeHardware(
    (Gpu("GPU-1", "H100", 80), Gpu("GPU-2", "H100", 80, problems=("ECC",))),
    cpus=8,
    memory_total_bytes=64,
    fabrics=(Fabric("ib0", (Hca("mlx5_0"),)),),
)
NODE = Node(
    "gpu-a",
    NodeState.HEALTHY,
    connection=3,
    agent_version="0.1.0",
    address="10.0.0.5",
    labels={"zone": "a"},
    hardware=HARDWARE,
    problems=(Problem("disk_full", "0 GiB free"), Problem("foreign_memory", "9 GiB", gpu="GPU-2")),
    shards={"tiny/0/0": REPORT},
    shard_since={"tiny/0/0": 990.0},
    cordoned=True,
    since=900.0,
)
PULSE = Pulse(last_heard=999.5, gpu_memory_used_bytes={"GPU-1": 31, "GPU-2": None}, gpu_memory_stale_seconds=1.5)
REPLICAS = Replicas(
    {
        "tiny/0": Replica("tiny/0", "tiny", (Launch(7, "h", (Member("gpu-a", ("GPU-1",)),), 0.0),)),
        "tiny/1": Replica("tiny/1", "tiny", (Launch(8, "h", (Member("gpu-a", ("GPU-2",)),), 0.0),)),
    }
)
VIEWS = (
    ReplicaView("tiny/0", "ready", shards=(ShardView("tiny/0/0", "gpu-a", "ready", False, 7, 20000, 42),)),
    ReplicaView("tiny/1", "accepted", shards=(ShardView("tiny/1/0", "gpu-a", "accepted", False, 8),)),
)
TABLE = Table(
    endpoints=(
        Endpoint("legacy@http://[::1]:9000", "legacy", "http://[::1]:9000"),
        Endpoint("tiny/0", "tiny", "http://10.0.0.5:20000", 7, "draining", "scaled down"),
    )
)


def follower(name: str, in_flight: int, *, revision: int = 4, incarnation: str = "inc", at: float = 999.0) -> Follower:
    report = RouterReport(incarnation, revision, (EndpointReport("tiny/0", 7, in_flight),))
    return Follower(name, "0.1.0", "10.0.0.9:5", at, report, at)


SCENE = Scene(
    now=NOW,
    started=900.0,
    incarnation="inc",
    catalog=Catalog({"tiny": TINY, "legacy": LEGACY}),
    fleet=FleetView(nodes={"gpu-a": NODE}, pulses={"gpu-a": PULSE}, memory=Memory.LOADED),
    decided=Decided(
        REPLICAS, {"tiny": Explanation("one of two", (Reason("gpus", ("gpu-a",), "none free"),))}, {"tiny": VIEWS}
    ),
    published=Published(4, TABLE),
)


def test_the_document_has_the_fields_that_scripts_read() -> None:
    scene = attrs.evolve(SCENE, followers=(follower("w0", 2),))
    shown = msgspec.json.decode(msgspec.json.encode(status(scene)))
    assert list(shown) == ["control", "nodes", "routers", "models"]
    assert (
        shown["control"].items()
        >= {
            "version": "0.1.0",
            "state": "serving",
            "uptime_s": 100.0,
            "known_nodes": 1,
            "synced_nodes": 1,
        }.items()
    )
    (node,) = shown["nodes"]
    assert node.keys() >= {"id", "state", "marks", "address", "last_heard_s", "gpus", "fabrics", "labels"}
    gpu = node["gpus"][0]
    assert gpu == {
        "uuid": "GPU-1",
        "name": "H100",
        "memory_total_bytes": 80,
        "memory_used_bytes": 31,
        "problems": [],
        "shards": ["tiny/0/0"],
    }
    assert shown["routers"][0].items() >= {"id": "w0", "revision": 4, "last_heard_s": 1.0}.items()
    tiny = shown["models"][0]
    assert tiny.items() >= {"name": "tiny", "aliases": ["gpt"], "desired": 2, "ready": 1}.items()
    replica = tiny["replicas"][0]
    assert replica.items() >= {"id": "tiny/0", "state": "ready", "reason": "", "outdated": False}.items()
    assert (
        replica["shards"][0].items()
        >= {
            "id": "tiny/0/0",
            "node": "gpu-a",
            "state": "ready",
            "gone": False,
            "epoch": 7,
            "port": 20000,
            "pid": 42,
            "error": "",
        }.items()
    )
    assert tiny["explanation"] == {
        "summary": "one of two",
        "reasons": [{"rule": "gpus", "nodes": ["gpu-a"], "detail": "none free"}],
        "change": "",
    }


def test_each_fact_of_a_node_has_its_age_and_its_trouble() -> None:
    (node,) = status(attrs.evolve(SCENE, busy_since={"gpu-a": 970.0})).nodes
    assert (node.last_heard_s, node.since_s, node.gpu_memory_age_s) == (0.5, 100.0, 2.0)
    assert node.marks == ("cordoned",)
    assert node.fabrics == (doc.FabricStatus("ib0", ("mlx5_0",)),)
    assert node.problems == (
        "disk_full: 0 GiB free",
        "not keeping up: its queue of commands has been full for 30s",
    )
    assert node.gpus[1].problems == ("ECC", "foreign_memory: 9 GiB")
    assert node.gpus[1].memory_used_bytes is None


def test_a_node_that_was_not_heard_yet_has_no_ages() -> None:
    node = Node("gpu-z", NodeState.SYNCING, since=900.0)
    (shown,) = status(attrs.evolve(SCENE, fleet=FleetView(nodes={"gpu-z": node}, pulses={"gpu-z": Pulse()}))).nodes
    assert (shown.last_heard_s, shown.gpu_memory_age_s) == (None, None)


def test_a_gpu_is_shown_as_booked_from_the_decision_until_gone() -> None:
    """GPU-2 is decided for and not reported; what only the agent knows of counts as well."""
    stranger = ShardReport("old/0/0", 3, state="ready", gpus=("GPU-2",))
    gone = ShardReport("old/1/0", 3, state="stopped", gpus=("GPU-2",), gone=True)
    node = attrs.evolve(NODE, shards={"old/0/0": stranger, "old/1/0": gone})
    (shown,) = status(attrs.evolve(SCENE, fleet=FleetView(nodes={"gpu-a": node}))).nodes
    assert [gpu.shards for gpu in shown.gpus] == [("tiny/0/0",), ("old/0/0", "tiny/1/0")]


def test_a_shard_has_what_its_agent_said_and_else_what_was_decided() -> None:
    tiny = status(SCENE).models[0]
    assert (tiny.replicas[0].shards[0].gpus, tiny.replicas[0].shards[0].since_s) == (("GPU-1",), 10.0)
    assert (tiny.replicas[1].shards[0].gpus, tiny.replicas[1].shards[0].since_s) == (("GPU-2",), None)


def test_a_failed_shard_says_how_and_what_it_printed_last() -> None:
    failed = attrs.evolve(REPORT, state="failed", gone=True, signal=9, cause="signalled", error="ended by SIGKILL")
    node = attrs.evolve(NODE, shards={}, ended={"tiny/0/0": failed}, outputs={"tiny/0/0": "CUDA out of memory"})
    shard = status(attrs.evolve(SCENE, fleet=FleetView(nodes={"gpu-a": node}))).models[0].replicas[0].shards[0]
    assert (shard.signal, shard.cause, shard.output) == (9, "signalled", "CUDA out of memory")


def test_recovering_says_what_it_waits_for_and_until_when() -> None:
    recovery = Recovery(3, 2, 1200.0, "waiting for the known nodes: gpu-b")
    waiting = Node("gpu-b", NodeState.SYNCING)
    lost = Node("gpu-c", NodeState.LOST)
    fleet = attrs.evolve(SCENE.fleet, nodes={"a": NODE, "b": waiting, "c": lost}, recovery=recovery)
    control = status(attrs.evolve(SCENE, fleet=fleet)).control
    assert (control.state, control.known_nodes, control.synced_nodes) == ("recovering", 2, 1)
    assert control.reason == (
        "waiting for the known nodes: gpu-b: nothing is stopped or given up for at most another 3m20s"
    )


def test_what_keeps_control_from_its_work_stands_first() -> None:
    fleet = attrs.evolve(SCENE.fleet, spare_strangers_until=1060.0)
    control = status(attrs.evolve(SCENE, fleet=fleet, troubles=("cannot write replicas to control.db: full",))).control
    assert control.reason == (
        "cannot write replicas to control.db: full; "
        "first start: engines that it did not start itself are let be for 1m00s"
    )
    for quiet in (attrs.evolve(fleet, spare_strangers_until=999.0), attrs.evolve(fleet, nodes={})):
        assert not status(attrs.evolve(SCENE, fleet=quiet)).control.reason


def test_a_removed_model_is_shown_while_anything_of_it_runs() -> None:
    decided = attrs.evolve(SCENE.decided, views={"old": (ReplicaView("old/0", "stopping"),), "gone": ()})
    models = status(attrs.evolve(SCENE, decided=decided)).models
    assert [(model.name, model.desired) for model in models] == [("tiny", 2), ("legacy", 0), ("old", 0)]


def test_endpoints_are_those_of_the_table() -> None:
    tiny, legacy = status(SCENE).models
    assert tiny.endpoints == (doc.EndpointStatus("tiny/0", "http://10.0.0.5:20000", "draining", "scaled down"),)
    assert [endpoint.state for endpoint in legacy.endpoints] == ["ready"]


def test_a_router_with_two_streams_is_one_and_a_table_of_another_control_is_none() -> None:
    scene = attrs.evolve(
        SCENE,
        followers=(
            follower("w0", 9, at=1.0),
            follower("w0", 2),
            follower("edge", 1, incarnation="before"),
            Follower("new", "", "", 1000.0),
        ),
    )
    shown = {router.id: router for router in status(scene).routers}
    assert list(shown) == ["w0", "edge", "new"]
    assert (shown["w0"].in_flight, shown["w0"].current) == (2, True)
    assert (shown["edge"].revision, shown["edge"].current) == (0, False)
    assert (shown["new"].in_flight, shown["new"].current) == (0, False)


def test_gauges_count_every_state() -> None:
    scene = attrs.evolve(SCENE, followers=(follower("w0", 2), follower("edge", 3), follower("hung", 50, at=900.0)))
    found = gauges(scene)
    assert found.nodes == {"syncing": 0, "healthy": 1, "unreachable": 0, "lost": 0, "incompatible": 0}
    assert found.replicas["tiny", "ready"] == 1
    assert found.replicas["tiny", "accepted"] == 1
    assert found.replicas["tiny", "failed"] == 0
    assert found.router_in_flight == {("legacy", "legacy@http://[::1]:9000"): 0, ("tiny", "tiny/0"): 5}


def test_a_stream_on_an_endpoint_that_left_the_table_is_still_counted() -> None:
    scene = attrs.evolve(SCENE, published=Published(5, Table()), followers=(follower("w0", 1),))
    assert gauges(scene).router_in_flight == {("tiny", "tiny/0"): 1}
