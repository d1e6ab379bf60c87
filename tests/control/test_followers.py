"""What routers are sent, whatever they had before."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from llmgw.core.catalog import Model, Profile, StaticEndpoint
from llmgw.core.routing import ClientKey
from llmgw.wire import messages as wire

TINY = Model("tiny", ("gpt",), profile=Profile("llamacpp", "tiny.gguf"))
LEGACY = Model("legacy", endpoints=(StaticEndpoint("http://10.9.9.9:9000", "upstream"),))
KEY = ClientKey("team-a", "0" * 64, ("tiny",))


async def test_a_new_router_gets_the_whole_table(autojump_clock: MockClock, world: Any) -> None:
    world.models, world.keys = (TINY, LEGACY), (KEY,)
    control = await world.start()
    router = await world.router()
    (table,) = router.of(wire.RouteTable)
    assert (table.incarnation, table.part, table.parts, table.complete) == (control.incarnation, 0, 1, True)
    assert table.keys == (KEY,)
    assert [(entry.name, entry.aliases) for entry in table.models] == [("legacy", ()), ("tiny", ("gpt",))]
    (endpoint,) = table.endpoints
    assert (endpoint.address, endpoint.upstream_model, endpoint.state) == ("http://10.9.9.9:9000", "upstream", "ready")
    assert router.models["tiny"].unavailable is not None
    assert router.models["legacy"].unavailable is None


async def test_afterwards_it_gets_the_steps(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    await world.start()
    router = await world.router()
    agent = await world.agent()
    await trio.sleep(2)
    endpoint = router.endpoints["tiny/0"]
    port = agent.shards["tiny/0/0"].port
    assert (endpoint.address, endpoint.epoch, endpoint.state) == (
        f"http://10.0.0.9:{port}",
        agent.shards["tiny/0/0"].epoch,
        "ready",
    )
    assert len(router.of(wire.RouteTable)) == 1
    assert router.revision == world.control.publisher.latest.value.revision
    agent.becomes_now("tiny/0/0", "failed", error="it crashed", signal=9, gone=True)
    await trio.sleep(0.2)
    assert router.endpoints.get("tiny/0", attrs.evolve(endpoint, state="out")).state == "out"
    assert len(router.of(wire.RouteTable)) == 1


async def test_one_who_is_a_few_steps_behind_gets_those(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    control = await world.start()
    first = await world.router()
    held = (control.incarnation, first.revision)
    await world.agent()
    await trio.sleep(2)
    newest = control.publisher.latest.value.revision
    assert newest > held[1] + 1
    second = await world.router("r2", held=held, report=False)
    assert second.of(wire.RouteTable) == []
    assert [change.revision for change in second.of(wire.RouteChange)] == list(range(held[1] + 1, newest + 1))


@pytest.mark.parametrize("held", ["nothing", "the newest", "another control's", "the future"])
async def test_one_who_holds_anything_else_gets_the_whole_table(
    autojump_clock: MockClock, world: Any, held: str
) -> None:
    world.models = (TINY,)
    control = await world.start()
    await world.agent()
    await trio.sleep(2)
    newest = control.publisher.latest.value.revision
    router = await world.router(
        held={
            "nothing": ("", 0),
            "the newest": (control.incarnation, newest),
            "another control's": ("0" * 16, newest - 1),
            "the future": (control.incarnation, newest + 5),
        }[held]
    )
    assert [table.revision for table in router.of(wire.RouteTable)] == [newest]
    assert router.endpoints["tiny/0"].state == "ready"


async def test_one_who_follows_anew_on_its_stream_gets_the_whole_table_again(
    autojump_clock: MockClock, world: Any
) -> None:
    control = await world.start()
    router = await world.router()
    router.stream.send_nowait(wire.Follow((1, 0), "r1", "", control.incarnation, 1))
    await trio.sleep(0.1)
    assert len(router.of(wire.RouteTable)) == 2


async def test_a_table_that_fits_no_frame_comes_in_parts(autojump_clock: MockClock, world: Any) -> None:
    endpoints = tuple(StaticEndpoint(f"http://e{number}.example:{number % 60000 + 1}") for number in range(12_000))
    world.models, world.keys = (Model("huge", endpoints=endpoints),), (KEY,)
    await world.start()
    router = await world.router(report=False)
    await trio.sleep(1)
    tables = router.of(wire.RouteTable)
    assert len(tables) > 1
    assert [(table.part, table.parts) for table in tables] == [(number, len(tables)) for number in range(len(tables))]
    assert len({table.revision for table in tables}) == 1
    assert len(router.endpoints) == 12_000
    assert sum(len(table.keys) for table in tables) == 1


async def test_the_status_shows_what_a_router_said(autojump_clock: MockClock, world: Any) -> None:
    world.models = (TINY,)
    control = await world.start()
    await world.agent()
    router = await world.router()
    await trio.sleep(2)
    (endpoint,) = router.endpoints.values()
    router.in_flight = {("tiny/0", endpoint.epoch): 3}
    router.counters = {'llmgw_router_requests_total{code="200",model="tiny"}': 5.0}
    await trio.sleep(4)
    (shown,) = world.status.routers
    assert (shown.id, shown.current, shown.in_flight, shown.version) == ("r1", True, 3, "0.1.0")
    assert shown.last_heard_s is not None
    assert shown.last_heard_s < 2.5
    metrics = control.metrics().decode()
    assert 'llmgw_router_requests_total{code="200",model="tiny"} 5.0' in metrics
    assert 'llmgw_router_in_flight{endpoint="tiny/0",model="tiny"} 3.0' in metrics
    router.silent = True
    router.stream.send_nowait(wire.Goodbye())
    await router.ended.wait()
    assert world.status.routers == ()


async def test_while_recovering_a_table_is_not_complete_and_the_complete_one_comes_whole(
    autojump_clock: MockClock, world: Any
) -> None:
    world.models = (TINY,)
    await world.start()
    agent = await world.agent()
    await trio.sleep(5)
    await world.kill()
    await world.start()
    router = await world.router()
    assert not router.complete
    await world.agent(shards=dict(agent.shards))
    await trio.sleep(2)
    assert router.complete
    assert router.endpoints["tiny/0"].state == "ready"
    assert [table.complete for table in router.of(wire.RouteTable)] == [False, True]
