"""Field cases of the agent port, each sentence of its right outcome."""

from typing import Any

import attrs
import msgpack
import pytest
import structlog
import trio
from trio.testing import MockClock

from llmgw.core.catalog import Model, Placement, Profile, Strategy
from llmgw.core.hardware import Gpu, NodeHardware
from llmgw.core.lifecycle import ShardReport
from llmgw.wire import messages as wire

TINY = Model("tiny", profile=Profile("llamacpp", "tiny.gguf"))


def hardware(*uuids: str) -> NodeHardware:
    return NodeHardware(tuple(Gpu(uuid, "H100", 80 * 2**30) for uuid in uuids), cpus=8)


async def send_map(agent: Any, fields: dict[Any, Any]) -> None:
    body = msgpack.packb(fields)
    await agent.raw.send_all(len(body).to_bytes(4, "big") + body)


# --- A02: late close of the old connection disconnects the new one ----------------------------------------------


@pytest.mark.parametrize("order", ["after the answer", "before the answer", "five seconds later", "never"])
async def test_a02_late_close_of_the_old_connection(autojump_clock: MockClock, world: Any, order: str) -> None:
    """Nothing blinks, the stop arrives on the new stream, and the old one is closed by control."""
    world.models = (attrs.evolve(TINY, profile=Profile("llamacpp", "tiny.gguf")),)
    await world.start()
    router = await world.router()
    c1 = await world.agent()
    await trio.sleep(5)
    assert router.endpoints["tiny/0"].state == "ready"
    epoch = c1.shards["tiny/0/0"].epoch
    states: list[str] = []
    router.blinks.clear()

    c2 = await world.agent(register=False, shards=dict(c1.shards))
    c2.register()
    if order == "before the answer":
        await c1.cut()
    await trio.sleep(0.2)
    world.nursery.start_soon(c2.beat)
    assert len(c2.registered) == 1
    if order == "after the answer":
        await c1.cut()
    # Control closes the old one, and says why where it still listens.
    await c1.ended.wait()
    if order in ("five seconds later", "never"):
        assert c1.refusals[0].reason == "superseded: the same agent has connected anew"
    for _ in range(20):
        states.append(world.node().state)
        await trio.sleep(1)
        if order == "five seconds later" and len(states) == 5:
            await c1.cut()
    assert set(states) == {"healthy"}
    assert all(blink == {"tiny/0": "ready"} for blink in router.blinks)
    before = len(c1.commands)

    # Asked to stop it, control says so on the new stream.
    world.control.reconciler.catalog = attrs.evolve(world.control.reconciler.catalog, models={})
    world.control.publisher.catalog = world.control.reconciler.catalog
    world.control.reconciler.wake.ring()
    await trio.sleep(5)
    assert ("StopShard", "tiny/0/0", epoch) in c2.commands
    assert len(c1.commands) == before


# --- A03: two machines with one identity ------------------------------------------------------------------------


async def test_a03_two_machines_with_one_identity(autojump_clock: MockClock, world: Any) -> None:
    """The retries with growing delay are the agent's half (its link's tests)."""
    world.models = (TINY,)
    await world.start()
    first = await world.agent(instance="machine-1", hardware=hardware("GPU-1"))
    await trio.sleep(10)
    shard = first.shards["tiny/0/0"]
    commands = list(first.commands)
    refused: list[wire.Refused] = []
    other = ShardReport("tiny/0/0", shard.epoch + 1, state="ready", port=9, gpus=("GPU-2",))
    with structlog.testing.capture_logs() as lines:
        for _ in range(12):
            second = await world.agent(
                instance="machine-2",
                hardware=hardware("GPU-2"),
                shards={"tiny/0/0": other, "x/0/0": attrs.evolve(other, shard="x/0/0")},
            )
            await second.ended.wait()
            refused += second.refusals
            assert second.commands == []
            assert second.registered == []
            for _ in range(10):
                # Never the union, and never the second's.
                assert [gpu.uuid for gpu in world.node().gpus] == ["GPU-1"]
                assert world.node().state == "healthy"
                await trio.sleep(1)
    # No ping-pong: refused each time, with the name and where the holder is, and told to take its time.
    assert len(refused) == 12
    assert all("gpu-a" in refusal.reason and "10.0.0.9:40000" in refusal.reason for refusal in refused)
    assert all(refusal.retry_after_seconds > 0 for refusal in refused)
    assert len([line for line in lines if line["event"] == "node refused: its name is taken"]) == 12
    # The first's shards get no commands because of the second.
    assert first.commands == commands
    assert not first.ended.is_set()

    await first.cut()
    first.heartbeats.cancel()
    await trio.sleep(200)
    assert world.node().state == "lost"
    second = await world.agent(instance="machine-2", hardware=hardware("GPU-2"), becomes="")
    assert len(second.registered) == 1
    node = world.control.inventory.latest.value.nodes["gpu-a"]
    # A different machine: what it does not report is not assumed to run there.
    assert [gpu.uuid for gpu in world.node().gpus] == ["GPU-2"]
    assert shard.epoch not in {report.epoch for report in node.shards.values()}
    assert not [command for command in second.commands if command[0] == "StopShard"]


# --- A10: agent and control of different versions ----------------------------------------------------------------


async def test_a10_a_extra_keys_are_ignored(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    agent = await world.agent(register=False)
    agent.stream.session.send(wire.Register((1, 0), "gpu-a", "i1"))  # the session knows; the bytes are our own
    gpu = {"uuid": "GPU-1", "name": "H100", "sings": True}
    fields = {"hardware": {"gpus": [gpu], "smell": "ozone"}, "motto": ["per", "aspera"]}
    await send_map(agent, {"type": "Register", "protocol": [1, 7], "node": "gpu-a", "instance": "i1", **fields})
    await trio.sleep(0.1)
    assert len(agent.registered) == 1
    assert [gpu.uuid for gpu in world.node().gpus] == ["GPU-1"]


async def test_a10_b_an_unknown_state_is_shown_and_not_routed_to(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    router, agent = await world.router(), await world.agent()
    await trio.sleep(5)
    assert router.endpoints["tiny/0"].state == "ready"
    with structlog.testing.capture_logs() as lines:
        agent.becomes_now("tiny/0/0", "warming")
        await trio.sleep(5)
    assert not agent.ended.is_set()
    (replica,) = world.model("tiny").replicas
    assert replica.shards[0].state == "warming"
    assert replica.state == "unknown"
    endpoint = router.endpoints.get("tiny/0")
    assert endpoint is None or endpoint.state == "out"
    assert len([line for line in lines if "warming" in str(line.values())]) == 1
    assert [command for command in agent.commands if command[0] != "StartShard"] == []


async def test_a10_d_another_major_version_is_refused_naming_both(autojump_clock: MockClock, world: Any) -> None:
    await world.start()
    for protocol, theirs in (([2, 0], "2.0"), (None, "no version that is known here")):
        agent = await world.agent(f"gpu-{theirs[0]}", register=False)
        agent.stream.session.send(wire.Register((1, 0), "x", "i"))
        version = {} if protocol is None else {"protocol": protocol}
        with structlog.testing.capture_logs() as lines:
            await send_map(agent, {"type": "Register", "node": agent.node, "instance": "i", **version})
            await agent.ended.wait()
            await trio.sleep(1)
        (refused,) = agent.refusals
        assert theirs in refused.reason
        assert "1.0" in refused.reason
        assert refused.protocol == (1, 0)
        # Retries happen at maximum backoff.
        assert refused.retry_after_seconds == 30
        # Listed as incompatible rather than just absent, with one line in the log.
        node = world.node(agent.node)
        assert node.state == "incompatible"
        assert theirs in node.reason
        assert "1.0" in node.reason
        assert len([line for line in lines if line["log_level"] == "warning"]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Heartbeat", "number": 1, 5: "five"},
        {"type": "Heartbeat", b"number": 1},
    ],
)
async def test_a10_e_keys_that_are_no_text_end_that_connection_only(
    autojump_clock: MockClock, world: Any, fields: dict[Any, Any]
) -> None:
    await world.start()
    agent, other = await world.agent(), await world.agent("gpu-b")
    with structlog.testing.capture_logs() as lines:
        await send_map(agent, fields)
        await agent.ended.wait()
    said = [line for line in lines if line["event"] == "connection ended: the peer broke the protocol"]
    assert [(line["peer"], line["reason"].split(":")[0]) for line in said] == [
        ("10.0.0.9:40000", "a map key is not a unique str")
    ]
    await trio.sleep(10)
    assert not other.ended.is_set()
    assert world.node("gpu-b").state == "healthy"


# --- D01: right after control starts, everybody looks dead --------------------------------------------------------


async def test_d01_right_after_a_start_nobody_is_dead(autojump_clock: MockClock, world: Any) -> None:
    """The second half of the case, a stalled loop, and the spread of replacements belong to "The fleet"."""
    profile = Profile("llamacpp", "tiny.gguf", gpus=1)
    world.models = (Model("tiny", replicas=10, profile=profile, placement=Placement(strategy=Strategy.SPREAD)),)
    await world.start()
    agents = []
    for number in range(6):
        uuids = (f"GPU-{number}-0", f"GPU-{number}-1")
        agents.append(await world.agent(f"n{number}", f"i{number}", hardware=hardware(*uuids), register=False))
    for agent in agents:
        agent.register()
        world.nursery.start_soon(agent.beat)
    await trio.sleep(10)
    assert world.model("tiny").ready == 10
    missing = len(agents[5].shards)
    assert missing > 0
    await world.kill()
    for agent in agents:
        agent.heartbeats.cancel()
        await agent.ended.wait()
    await trio.sleep(300)

    await world.start()
    started = trio.current_time()
    back = []
    for number, seconds in enumerate((1, 5, 10, 20, 40)):
        await trio.sleep(started + seconds - trio.current_time())
        before = agents[number]
        back.append(
            await world.agent(before.node, before.instance, hardware=before.hardware, shards=dict(before.shards))
        )
    while trio.current_time() < started + 180:
        assert all(node.state != "lost" for node in world.status.nodes)
        assert all(agent.commands == [] for agent in back)
        await trio.sleep(1)
    # Those that returned are adopted as they are; only the sixth's are replaced, once, after that time.
    await trio.sleep(started + 400 - trio.current_time())
    assert world.node("n5").state == "lost"
    replacements = [command for agent in back for command in agent.commands]
    assert {command[0] for command in replacements} == {"StartShard"}
    assert len(replacements) == missing
    assert world.model("tiny").ready == 10
