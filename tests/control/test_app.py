"""The whole of control: placing, adopting, recovering, expiring, draining."""

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from llmgw.config.schema import ClusterConfig
from llmgw.control.app import remember_created, served_names
from llmgw.control.store import ControlStore
from llmgw.core.catalog import Catalog, Model, Profile
from llmgw.core.hardware import Gpu, NodeHardware
from llmgw.core.lifecycle import ShardReport
from llmgw.wire import messages as wire

TINY = Model("tiny", profile=Profile("llamacpp", "tiny.gguf"))
TWO = Model("two", replicas=2, profile=Profile("llamacpp", "two.gguf", gpus=1))


def hardware(*uuids: str) -> NodeHardware:
    return NodeHardware(tuple(Gpu(uuid, "H100", 80 * 2**30) for uuid in uuids), cpus=8)


def change_catalog(world: Any, *models: Model) -> None:
    """The operator edits the catalog (a reload, as far as the actors see it)."""
    catalog = Catalog({model.name: model for model in models})
    world.control.config = attrs.evolve(world.control.config, models=models)
    world.control.reconciler.catalog = world.control.publisher.catalog = catalog
    world.control.reconciler.wake.ring()


async def test_the_main_job(autojump_clock: MockClock, world: Any) -> None:
    """An agent registers, a replica is placed and becomes ready, and a router learns where it is."""
    world.models = (TINY,)
    control = await world.start()
    assert control.readiness() == (True, "serving")
    router = await world.router()
    agent = await world.agent()
    await trio.sleep(2)
    assert [kind for kind, _, _ in agent.commands] == ["StartShard"]
    shown = world.model("tiny")
    assert (shown.desired, shown.ready, shown.explanation) == (1, 1, None)
    (replica,) = shown.replicas
    assert (replica.state, replica.shards[0].node, replica.shards[0].pid) == ("ready", "gpu-a", 30000)
    assert router.endpoints["tiny/0"].address == "http://10.0.0.9:20000"
    assert b'llmgw_replicas{model="tiny",state="ready"} 1.0' in control.metrics()
    assert b'llmgw_nodes{state="healthy"} 1.0' in control.metrics()


async def test_gpus_are_never_given_twice_and_what_does_not_fit_says_why(autojump_clock: MockClock, world: Any) -> None:
    world.models = (attrs.evolve(TWO, replicas=3),)
    await world.start()
    agent = await world.agent(hardware=hardware("GPU-1", "GPU-2"))
    await trio.sleep(2)
    assert sorted(report.gpus for report in agent.shards.values()) == [("GPU-1",), ("GPU-2",)]
    shown = world.model("two")
    assert shown.ready == 2
    assert shown.explanation is not None
    assert any("gpu-a" in reason.nodes for reason in shown.explanation.reasons)
    assert {gpu.shards for gpu in world.node().gpus} == {("two/0/0",), ("two/1/0",)}


async def test_after_a_restart_what_runs_is_adopted_and_not_one_command_is_sent(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY, TWO)
    await world.start()
    a, b = await world.agent(), await world.agent("gpu-b", "i2", hardware=hardware("GPU-1", "GPU-2"))
    await trio.sleep(5)
    assert (world.model("tiny").ready, world.model("two").ready) == (1, 2)
    await world.kill()
    await trio.sleep(30)

    control = await world.start()
    assert world.status.control.state == "recovering"
    router = await world.router()
    a2 = await world.agent(shards=dict(a.shards))
    await trio.sleep(2)
    assert (world.status.control.state, world.status.control.synced_nodes) == ("recovering", 1)
    assert "gpu-b" in world.status.control.reason
    ready, said = control.readiness()
    assert ready
    assert said.startswith("recovering: ")
    b2 = await world.agent("gpu-b", "i2", hardware=b.hardware, shards=dict(b.shards))
    await trio.sleep(5)
    assert world.status.control.state == "serving"
    assert (world.model("tiny").ready, world.model("two").ready) == (1, 2)
    await trio.sleep(600)
    assert a2.commands == b2.commands == []
    assert {id_: endpoint.epoch for id_, endpoint in router.endpoints.items()} == {
        report.shard.rpartition("/")[0]: report.epoch for report in (*a.shards.values(), *b.shards.values())
    }


async def test_while_recovering_nothing_is_started_on_a_node_that_may_still_run_it(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TWO,)
    await world.start()
    a = await world.agent("gpu-a", "i1", hardware=hardware("GPU-1"))
    b = await world.agent("gpu-b", "i2", hardware=hardware("GPU-2"))
    await trio.sleep(5)
    assert world.model("two").ready == 2
    await world.kill()
    await world.start()
    a2 = await world.agent("gpu-a", "i1", hardware=hardware("GPU-1", "GPU-3"), shards=dict(a.shards))
    await trio.sleep(250)
    # gpu-b is not back: its replica may be running there, and nothing is started in its place.
    assert a2.commands == []
    assert world.node("gpu-b").state == "syncing"
    await trio.sleep(300)
    # recover_for is over, and the silence that counted meanwhile acts.
    assert world.node("gpu-b").state == "lost"
    assert [kind for kind, _, _ in a2.commands] == ["StartShard"]
    assert b.commands


async def test_a_replica_that_its_node_came_back_without_is_started_meanwhile(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TWO,)
    await world.start()
    await world.agent("gpu-a", "i1", hardware=hardware("GPU-1"))
    await world.agent("gpu-b", "i2", hardware=hardware("GPU-2"))
    await trio.sleep(5)
    await world.kill()
    await world.start()
    # gpu-a was rebooted: it is back without its shard.
    a2 = await world.agent("gpu-a", "i1", hardware=hardware("GPU-1"))
    await trio.sleep(20)
    assert world.status.control.state == "recovering"
    assert [kind for kind, _, _ in a2.commands] == ["StartShard"]


async def test_an_unreadable_file_is_never_taken_for_nothing_should_run(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    agent = await world.agent()
    await trio.sleep(5)
    await world.kill()
    (world.state_dir / "control.db").write_bytes(b"rubbish")
    world.models = ()
    await world.start()
    agent2 = await world.agent(shards=dict(agent.shards))
    assert world.status.control.state == "recovering"
    assert "control.db cannot be read" in world.status.control.reason
    await trio.sleep(200)
    assert agent2.commands == []
    assert (world.state_dir / "control.db").read_bytes() == b"rubbish"


async def test_a_first_start_serves_at_once_and_spares_strangers(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    stranger = ShardReport("other/0/0", 5, state="ready", port=1)
    agent = await world.agent(shards={"other/0/0": stranger})
    await trio.sleep(5)
    assert world.status.control.state == "serving"
    assert "let be" in world.status.control.reason
    assert [command[0] for command in agent.commands] == ["StartShard"]
    await trio.sleep(290)
    assert [command[0] for command in agent.commands] == ["StartShard"]
    await trio.sleep(100)
    assert ("StopShard", "other/0/0", 5) in agent.commands


async def test_an_agent_killed_without_traffic_is_unreachable_then_lost_then_replaced(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    await world.start()
    router = await world.router()
    agent = await world.agent()
    await trio.sleep(5)
    await agent.cut()
    agent.heartbeats.cancel()
    await trio.sleep(5)
    assert world.node().state == "healthy"
    await trio.sleep(5)
    assert world.node().state == "unreachable"
    assert router.endpoints["tiny/0"].state == "suspect"
    await trio.sleep(165)
    assert world.node().state == "unreachable"
    await trio.sleep(20)
    assert world.node().state == "lost"
    shown = world.model("tiny")
    assert shown.ready == 0
    assert shown.explanation is not None
    assert any("gpu-a" in reason.nodes for reason in shown.explanation.reasons)
    other = await world.agent("gpu-b", "i2")
    await trio.sleep(5)
    assert [kind for kind, _, _ in other.commands] == ["StartShard"]
    assert world.model("tiny").ready == 1


async def test_a_removed_model_is_drained_when_every_router_is_idle(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    busy, idle, agent = await world.router("busy"), await world.router("idle"), await world.agent()
    await trio.sleep(5)
    epoch = agent.shards["tiny/0/0"].epoch
    busy.in_flight = {("tiny/0", epoch): 1}
    await trio.sleep(3)
    change_catalog(world)
    await trio.sleep(15)
    # The mark and the table go out together; nothing is stopped while one router still has a stream.
    assert ("DrainShard", "tiny/0/0", epoch) in agent.commands
    assert ("StopShard", "tiny/0/0", epoch) not in agent.commands
    for router in (busy, idle):
        assert "tiny/0" not in router.endpoints or router.endpoints["tiny/0"].state == "draining"
    busy.in_flight = {}
    await trio.sleep(3)
    assert ("StopShard", "tiny/0/0", epoch) in agent.commands
    await trio.sleep(5)
    assert agent.shards == {}
    assert world.status.models == ()


async def test_a_drain_ends_at_its_deadline_which_a_restart_does_not_move(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    await world.start()
    router, agent = await world.router(), await world.agent()
    await trio.sleep(5)
    epoch = agent.shards["tiny/0/0"].epoch
    router.in_flight = {("tiny/0", epoch): 1}
    await trio.sleep(3)
    change_catalog(world)
    began = trio.current_time()
    await trio.sleep(20)
    await world.kill()
    world.models = ()
    await world.start()
    router2 = await world.router()
    router2.in_flight = {("tiny/0", epoch): 1}
    router2.endpoints = dict(router.endpoints)
    agent2 = await world.agent(shards=dict(agent.shards))
    await trio.sleep(began + 55 - trio.current_time())
    assert [command for command in agent2.commands if command[0] == "StopShard"] == []
    await trio.sleep(10)
    assert ("StopShard", "tiny/0/0", epoch) in agent2.commands


async def test_a_router_that_hangs_holds_a_drain_up_for_ten_seconds_only(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    router, agent = await world.router(report=False), await world.agent()
    await trio.sleep(5)
    epoch = agent.shards["tiny/0/0"].epoch
    router.in_flight = {("tiny/0", epoch): 1}
    router.report()
    await trio.sleep(1)
    change_catalog(world)
    await trio.sleep(7)
    assert ("StopShard", "tiny/0/0", epoch) not in agent.commands
    await trio.sleep(6)
    assert ("StopShard", "tiny/0/0", epoch) in agent.commands


async def test_engines_without_an_agent_keep_their_node_as_long_as_one_answers(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    listening = True

    async def connect(host: str, port: int) -> trio.abc.Stream:
        if not listening:
            raise ConnectionRefusedError
        assert (host, port) == ("10.0.0.9", 20000)
        return trio.testing.memory_stream_pair()[0]

    world.connect = connect
    await world.start()
    router, agent = await world.router(), await world.agent()
    await trio.sleep(5)
    agent.heartbeats.cancel()
    agent.stream.send_nowait(wire.Goodbye("kept"))
    await trio.sleep(400)
    assert world.node().state == "unreachable"
    assert router.endpoints["tiny/0"].state == "ready"
    listening = False
    await trio.sleep(170)
    assert world.node().state == "unreachable"
    await trio.sleep(30)
    assert world.node().state == "lost"


async def test_an_engine_that_dies_is_out_of_the_table_at_once_and_is_restarted_after_a_pause(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    await world.start()
    router, agent = await world.router(), await world.agent()
    await trio.sleep(5)
    epoch = agent.shards["tiny/0/0"].epoch
    agent.becomes_now("tiny/0/0", "failed", gone=True, signal=9, cause="signalled", error="ended by signal 9")
    await trio.sleep(0.1)
    assert "tiny/0" not in router.endpoints or router.endpoints["tiny/0"].state == "out"
    shard = world.model("tiny").replicas[0].shards[0]
    assert (shard.state, shard.signal, shard.error) == ("failed", 9, "ended by signal 9")
    await trio.sleep(20)
    starts = [command for command in agent.commands if command[0] == "StartShard"]
    assert len(starts) == 2
    assert starts[1][2] > epoch
    assert world.model("tiny").ready == 1


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_nodes_settles(autojump_clock: MockClock, world: Any, seed: int) -> None:
    """Thirty agents in one instant, with a hundred replicas to place, while a router follows."""
    world.seed = seed
    world.models = (Model("m", replicas=100, profile=Profile("llamacpp", "m.gguf", gpus=1)),)
    await world.start()
    router = await world.router()
    agents = []
    for number in range(30):
        uuids = [f"GPU-{number}-{index}" for index in range(4)]
        agents.append(await world.agent(f"n{number}", f"i{number}", register=False, hardware=hardware(*uuids)))
    for agent in agents:
        agent.register()
        world.nursery.start_soon(agent.beat)
    await trio.sleep(20)
    assert world.model("m").ready == 100
    assert len(router.endpoints) == 100
    assert sum(len(agent.commands) for agent in agents) == 100


def test_the_name_an_engine_is_told_is_in_its_args() -> None:
    aliased = Model("b", profile=Profile("llamacpp", "b.gguf", args=("--alias", "bee")))
    assert served_names(ClusterConfig(Path("/x"), models=(TINY, aliased, Model("static")))) == {
        "tiny": "tiny",
        "b": "bee",
    }


def test_a_model_s_age_is_kept(tmp_path: Any) -> None:
    config = ClusterConfig(tmp_path, models=(TINY,))
    store = ControlStore(tmp_path)
    assert remember_created(config, store, 100.7) == {"tiny": 100}
    store.close()
    store = ControlStore(tmp_path)
    assert remember_created(attrs.evolve(config, models=(TINY, TWO)), store, 200.0) == {"tiny": 100, "two": 200}
    store.close()
