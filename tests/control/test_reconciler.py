"""Decisions are written before they are sent, and what cannot be sent is decided again."""

import sqlite3
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from llmgw.control import commands
from llmgw.control.listener import Arrival
from llmgw.core.catalog import Model, Profile
from llmgw.wire import messages as wire
from llmgw.wire.codec import encode

TINY = Model("tiny", profile=Profile("llamacpp", "tiny.gguf"))


async def test_a_launch_is_in_the_store_before_it_is_sent(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    agent = await world.agent(answers=False)
    ((kind, shard, epoch),) = agent.commands
    assert (kind, shard) == ("StartShard", "tiny/0/0")
    with sqlite3.connect(world.state_dir / "control.db") as database:
        (row,) = database.execute("SELECT row FROM replicas").fetchone()
    database.close()
    assert f'"epoch":{epoch}' in row


async def test_a_command_that_is_on_its_way_is_not_sent_again(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    agent = await world.agent(answers=False)
    await trio.sleep(30)
    assert len(agent.commands) == 1


async def test_what_was_on_a_stream_that_broke_is_sent_again_with_the_same_epoch(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    control = await world.start()
    first = await world.agent(answers=False)
    await first.cut()
    await trio.sleep(1)
    second = await world.agent()
    assert second.commands == first.commands
    assert b'llmgw_commands_total{kind="start",result="unanswered"} 1.0' in control.metrics()
    assert b'llmgw_commands_total{kind="start",result="accepted"} 1.0' in control.metrics()


async def test_a_refusal_is_shown_with_its_reason(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    control = await world.start()
    await world.agent(refuse="no port of 20000-20999 is free")
    await trio.sleep(1)
    shown = world.model("tiny")
    assert shown.ready == 0
    said = f"{shown.explanation} {shown.replicas}"
    assert "no port of 20000-20999 is free" in said
    assert b'llmgw_commands_total{kind="start",result="refused"}' in control.metrics()


async def test_an_agent_that_does_not_know_a_command_has_refused_it(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    agent = await world.agent(answers=False)
    (start,) = agent.of(wire.StartShard)
    agent.stream.send_nowait(wire.Unsupported("StartShard", start.command_id))
    await trio.sleep(1)
    assert "unsupported command StartShard" in f"{world.model('tiny').explanation} {world.model('tiny').replicas}"
    assert not agent.ended.is_set()


async def test_a_disk_that_is_full_starts_nothing_and_says_so_until_it_is_not(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    await world.start()
    await trio.sleep(1)
    database = world.store._database
    database.execute("PRAGMA query_only = ON")
    with structlog.testing.capture_logs() as lines:
        agent = await world.agent()
        await trio.sleep(12)
        assert agent.commands == []
        assert "cannot write replicas to control.db" in world.status.control.reason
    assert 2 <= len([line for line in lines if line["event"] == "nothing is started or stopped"]) <= 4
    assert [line["event"] for line in lines if line["event"] == "nodes are not remembered"]
    database.execute("PRAGMA query_only = OFF")
    await trio.sleep(6)
    assert len(agent.commands) == 1
    assert not world.status.control.reason.startswith("cannot write")
    assert database.execute("SELECT count(*) FROM nodes").fetchone() == (1,)


async def test_a_node_that_does_not_keep_up_is_said_and_ended_and_gets_the_rest_when_it_is_back(
    autojump_clock: MockClock, world: Any
) -> None:
    """Its stream takes nothing: 64 commands wait, the others are not sent; after 30 s it is closed."""
    world.models = tuple(Model(f"m{number}", profile=Profile("llamacpp", "x.gguf")) for number in range(100))
    control = await world.start()
    ours, theirs = trio.testing.lockstep_stream_pair()
    world.arrivals.send_nowait(Arrival(theirs, "10.0.0.9:1"))
    await ours.send_all(encode(wire.Register((1, 0), "gpu-a", "i1")))
    with structlog.testing.capture_logs() as lines:
        await trio.sleep(5)
        assert b'llmgw_commands_total{kind="start",result="unsent"}' in control.metrics()
        assert any("not keeping up" in problem for problem in world.node().problems)
        await trio.sleep(30)
    events = [(line["event"], line.get("node")) for line in lines]
    assert ("not keeping up", "gpu-a") in events
    assert len([event for event in events if event[0] == "not keeping up"]) <= 2
    ended = [line for line in lines if line["event"] == "connection ended: the peer broke the protocol"]
    assert ["nothing could be written for 30 s" in line["reason"] for line in ended] == [True]
    agent = await world.agent()
    await trio.sleep(5)
    assert len({shard for _, shard, _ in agent.commands}) == 100
    assert not world.node().problems
    assert commands.RETRY_SECONDS < 5


@pytest.mark.parametrize("replicas", [3])
async def test_nothing_is_sent_twice_in_a_quiet_cluster(autojump_clock: MockClock, world: Any, replicas: int) -> None:
    world.models = (Model("tiny", replicas=replicas, profile=Profile("llamacpp", "tiny.gguf")),)
    control = await world.start()
    agent = await world.agent()
    await trio.sleep(60)
    assert sorted(kind for kind, _, _ in agent.commands) == ["StartShard"] * replicas
    assert control.reconciler.fired
