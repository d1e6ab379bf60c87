"""One agent's connection: what it says, what it is answered, how it ends."""

from typing import Any

import attrs
import msgpack
import msgspec
import pytest
import structlog
import trio
from trio.testing import MockClock

from llmgw.core.catalog import Model, Profile
from llmgw.core.hardware import Gpu, NodeHardware, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.wire import messages as wire
from llmgw.wire.codec import encode

H100 = NodeHardware((Gpu("GPU-1", "H100", 80), Gpu("GPU-2", "H100", 80)), cpus=8)


async def test_a_register_is_answered_with_what_an_agent_needs(autojump_clock: MockClock, world: Any) -> None:
    control = await world.start()
    agent = await world.agent(hardware=H100)
    (registered,) = agent.registered
    assert registered == wire.Registered(control.incarnation, 2.0, 0, (1, 0), "0.1.0")
    node = world.node()
    assert (node.state, node.address, node.last_heard_s is not None) == ("healthy", "10.0.0.9", True)
    assert [gpu.uuid for gpu in node.gpus] == ["GPU-1", "GPU-2"]


async def test_a_heartbeat_is_folded_in_also_of_a_node_without_gpus(autojump_clock: MockClock, world: Any) -> None:
    """Memory in use, problems, and the list of shards that makes it right when an event was lost."""
    await world.start()
    with_gpus, without = await world.agent(hardware=H100, beat=False), await world.agent("cpu-a", beat=False)
    problem = Problem("disk_full", "0 GiB free")
    shard = ShardReport("m/0/0", 7, state="loading", pid=5)
    with_gpus.stream.send_nowait(wire.Heartbeat(1, {"GPU-1": 31, "GPU-2": None}, 1.5, (problem,), (shard,)))
    without.stream.send_nowait(wire.Heartbeat(1, problems=(problem,), shards=(attrs.evolve(shard, shard="m/1/0"),)))
    await trio.sleep(0.5)
    shown = world.node()
    assert [gpu.memory_used_bytes for gpu in shown.gpus] == [31, None]
    assert shown.gpu_memory_age_s == pytest.approx(2.0, abs=0.1)
    assert shown.problems == ("disk_full: 0 GiB free",)
    assert world.node("cpu-a").problems == ("disk_full: 0 GiB free",)
    nodes = world.control.inventory.latest.value.nodes
    assert nodes["gpu-a"].shards["m/0/0"].state == "loading"
    assert nodes["cpu-a"].shards["m/1/0"].state == "loading"


async def test_a_status_is_acknowledged_after_it_was_handled(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent()
    for state in ("starting", "loading"):
        agent.report(ShardReport("m/0/0", 7, state=state))
    await trio.sleep(0.1)
    assert agent.of(wire.StatusAck)[-1] == wire.StatusAck(2)
    assert world.control.inventory.latest.value.nodes["gpu-a"].shards["m/0/0"].state == "loading"


async def test_what_was_acknowledged_is_said_to_the_same_instance_when_it_is_back(
    autojump_clock: MockClock, world: Any
) -> None:
    await world.start()
    first = await world.agent()
    first.report(ShardReport("m/0/0", 7, state="loading"))
    await trio.sleep(0.1)
    await first.cut()
    second = await world.agent(shards={"m/0/0": ShardReport("m/0/0", 7, state="loading")})
    assert second.registered[0].status_acked == 1


async def test_a_second_register_on_the_stream_means_other_hardware(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent(hardware=H100)
    agent.register(hardware=NodeHardware((Gpu("GPU-1", "H100", 80),)))
    await trio.sleep(0.1)
    assert len(agent.registered) == 2
    assert [gpu.uuid for gpu in world.node().gpus] == ["GPU-1"]
    # Hardware that could not be read fully takes no GPU away.
    agent.register(hardware=NodeHardware(), hardware_complete=False)
    await trio.sleep(0.1)
    assert [gpu.uuid for gpu in world.node().gpus] == ["GPU-1"]


async def test_another_node_s_register_on_the_stream_ends_it(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent()
    agent.stream.send_nowait(wire.Register((1, 0), "gpu-b", "i1"))
    await agent.ended.wait()
    assert "Register of 'gpu-b' on the stream of 'gpu-a'" in agent.refusals[0].reason
    assert [node.id for node in world.status.nodes] == ["gpu-a"]


async def test_an_agent_is_spoken_to_at_least_every_thirty_seconds(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent()
    await trio.sleep(61)
    pings = agent.of(wire.Ping)
    assert len(pings) >= 2
    assert pings[0] == wire.Ping(2.0)


async def test_an_early_agent_learns_that_the_fleet_has_grown(autojump_clock: MockClock, world: Any) -> None:
    """1,500 nodes at 500 heartbeats a second: every 3 s."""
    await world.start()
    agent = await world.agent()
    for number in range(1500):
        world.control.inventory.fleet.nodes[f"n{number}"] = world.control.inventory.fleet.nodes["gpu-a"]
    await trio.sleep(25)
    assert agent.of(wire.Ping)[-1] == wire.Ping(1501 / 500)
    for number in range(1500):
        del world.control.inventory.fleet.nodes[f"n{number}"]


async def test_an_unknown_message_is_answered_and_logged_once_and_the_connection_lives(
    autojump_clock: MockClock, world: Any
) -> None:
    await world.start()
    agent = await world.agent()
    body = msgpack.packb({"type": "Confession", "of": "everything"})
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            await agent.raw.send_all(len(body).to_bytes(4, "big") + body)
        await trio.sleep(0.1)
    assert agent.of(wire.Unsupported) == [wire.Unsupported("Confession")] * 3
    assert [(line["event"], line["message"]) for line in lines] == [
        ("unknown message answered unsupported", "Confession")
    ]
    assert not agent.ended.is_set()


async def test_a_certificate_on_a_live_stream_is_unsupported(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent()
    agent.stream.send_nowait(wire.RenewRequest("csr"))
    await trio.sleep(0.1)
    assert agent.of(wire.Unsupported) == [wire.Unsupported("RenewRequest")]
    assert not agent.ended.is_set()


@pytest.mark.parametrize("how", ["cut", "violation", "eof"])
async def test_the_end_of_a_stream_alone_changes_nothing(autojump_clock: MockClock, world: Any, how: str) -> None:
    await world.start()
    agent = await world.agent()
    if how == "cut":
        await agent.cut()
    elif how == "eof":
        await agent.stream.aclose()
    else:
        await agent.raw.send_all(b"\xff" * 10)
        await agent.ended.wait()
    await trio.sleep(1)
    assert world.node().state == "healthy"
    assert world.control.inventory.latest.value.nodes["gpu-a"].connection is None


async def test_goodbye_with_engines_kept(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent(shards={"m/0/0": ShardReport("m/0/0", 7, state="ready", port=1)})
    agent.stream.send_nowait(wire.Goodbye("kept", "upgrade"))
    await agent.ended.wait()
    await trio.sleep(1)
    node = world.node()
    assert node.state == "unreachable"
    assert node.reason.startswith("agent stopped, engines kept")
    assert world.control.inventory.latest.value.nodes["gpu-a"].shards["m/0/0"].state == "ready"


async def test_goodbye_with_engines_stopped(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent(shards={"m/0/0": ShardReport("m/0/0", 7, state="ready", port=1)})
    agent.stream.send_nowait(wire.Goodbye("stopped"))
    await agent.ended.wait()
    await trio.sleep(1)
    assert world.node().state == "lost"
    assert not world.control.inventory.latest.value.nodes["gpu-a"].shards


@pytest.mark.parametrize("before", [[], [wire.Ping()], [wire.ShardStatus(1, ShardReport("m/0/0", 7))]])
@pytest.mark.parametrize("opened", [False, True])
async def test_a_violation_right_behind_other_messages_ends_that_stream_and_nothing_else(
    autojump_clock: MockClock, world: Any, before: list[Any], opened: bool
) -> None:
    """While what came before it is handled, commands and acknowledgements for a stream that is over are not sent."""
    world.models = tuple(Model(f"m{number}", profile=Profile("llamacpp", "m.gguf")) for number in range(5))
    await world.start()
    agent = await world.agent(register=opened, answers=False)
    register = [] if opened else [wire.Register((1, 0), "gpu-a", "i1")]
    if not opened:
        agent.stream.session.send(register[0])
    with structlog.testing.capture_logs() as lines:
        await agent.raw.send_all(b"".join(map(encode, [*register, *before])) + b"\xff\xff\xff\xff")
        await agent.ended.wait()
        await trio.sleep(5)
    ended = [line for line in lines if line["event"] == "connection ended: the peer broke the protocol"]
    assert len(ended) == 1
    assert len(agent.refusals) == 1
    other = await world.agent("gpu-b", "i2")
    await trio.sleep(1)
    assert len(other.commands) + len(agent.commands) >= 5


@pytest.mark.parametrize("extreme", [2**64 - 1, 2**63, -(2**63), -1])
async def test_numbers_out_of_this_world_harm_nobody(autojump_clock: MockClock, world: Any, extreme: int) -> None:
    """Whatever figures an agent reports, control lives, its store too, and what it shows can be encoded."""
    world.models = (Model("m", replicas=2, profile=Profile("llamacpp", "m.gguf")),)
    control = await world.start()
    report = ShardReport("m/0/0", 5, state="ready", pid=extreme, port=extreme, exit_code=extreme, signal=extreme)
    report = attrs.evolve(report, since_seconds=float(extreme), rendezvous_port=extreme)
    odd = NodeHardware((Gpu("GPU-1", "x", extreme, extreme),), extreme, extreme, extreme, extreme)
    agent = await world.agent(hardware=odd, shards={"m/0/0": report}, beat=False)
    agent.say(wire.Heartbeat(extreme, {"GPU-1": extreme}, float(extreme), shards=(report,)))
    agent.say(wire.ShardStatus(extreme, report))
    await trio.sleep(1)
    agent.becomes_now("m/0/0", "failed", gone=True)
    router = await world.router(report=False)
    seen = wire.EndpointReport("m/0", extreme, extreme, float(extreme))
    router.stream.send_nowait(wire.RouterReport("x", extreme, (seen,), {"m": extreme}))
    await trio.sleep(30)
    other = await world.agent("gpu-b", "i2")
    await trio.sleep(5)
    assert other.registered
    assert msgspec.json.encode(world.status)
    assert control.metrics()
    await world.kill()
    await world.start()
    assert world.store.stored.memory == "loaded"


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (ShardReport("m/0/0", 2**63), "epoch: expected 0 to 281474976710656, got 9223372036854775808"),
        (ShardReport("m/0/0", -1), "epoch: expected 0"),
        *((ShardReport(name, 1), "shard: expected <model>/<n>/<rank>, got ") for name in ("", "m", "m/0", "/0/0")),
        *((ShardReport(name, 1), "shard: expected <model>/<n>/<rank>, got ") for name in ("m/01/0", "m/-1/0", "m/0/x")),
        (ShardReport("m/\N{ARABIC-INDIC DIGIT ONE}/0", 1), "shard: expected <model>/<n>/<rank>, got "),
        (ShardReport("m" * 1024 + "/0/0", 1), "shard: expected <model>/<n>/<rank>, got "),
    ],
)
@pytest.mark.parametrize("where", ["register", "heartbeat", "status"])
async def test_a_shard_that_no_control_can_have_started_ends_the_stream(
    autojump_clock: MockClock, world: Any, report: ShardReport, said: str, where: str
) -> None:
    await world.start()
    if where == "register":
        agent = await world.agent(shards={report.shard: report})
    else:
        agent = await world.agent(beat=False)
        agent.say(wire.ShardStatus(1, report) if where == "status" else wire.Heartbeat(1, shards=(report,)))
    await agent.ended.wait()
    assert said in agent.refusals[0].reason
