"""The publisher: numbers, steps and parts of tables, and what routers' reports mean."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from llmgw.control.metrics import RouterCounters
from llmgw.control.reconciler import Decided
from llmgw.control.routes import PART_BYTES_MAX, STEPS_MAX, Follower, Published, Publisher, parts
from llmgw.core.catalog import Catalog, Model, StaticEndpoint
from llmgw.core.nodes import FleetView, Recovery
from llmgw.core.reconcile import RouterSeen
from llmgw.core.replicas import Launch, Member, Replica, Replicas
from llmgw.core.routes import Table
from llmgw.core.routing import ClientKey, Endpoint, RoutedModel
from llmgw.latest import Latest
from llmgw.wire import messages as wire
from llmgw.wire.codec import encode


def static(*ports: int) -> Model:
    return Model("legacy", endpoints=tuple(StaticEndpoint(f"http://10.0.0.1:{port}") for port in ports))


@pytest.fixture
def publisher() -> Publisher:
    """With one static endpoint; rings are counted in `moved.rings`."""

    class Moved:
        rings = 0

        def __call__(self) -> None:
            self.rings += 1

    return Publisher(
        incarnation="inc",
        catalog=Catalog({"legacy": static(1)}),
        keys=(ClientKey("k", "0" * 64),),
        static_keys={},
        created={"legacy": 5},
        fleet=Latest(FleetView()),
        decided=Latest(Decided()),
        counters=RouterCounters(),
        moved=Moved(),
    )


def rings(publisher: Publisher) -> int:
    moved: Any = publisher.moved
    count: int = moved.rings
    return count


def edit(publisher: Publisher, *ports: int) -> None:
    publisher.catalog = Catalog({"legacy": static(*ports)})
    publisher.publish()


def test_a_table_is_numbered_when_it_is_another_one(publisher: Publisher) -> None:
    assert publisher.latest.value.revision == 0
    publisher.publish()
    publisher.publish()
    assert publisher.latest.value.revision == 1
    edit(publisher, 1, 2)
    edit(publisher, 1, 2)
    assert publisher.latest.value.revision == 2


def test_an_empty_table_is_one_too(publisher: Publisher) -> None:
    """A router of a control without models has something to serve: 404."""
    publisher.catalog = Catalog()
    publisher.publish()
    assert publisher.latest.value == Published(1)
    (table,) = publisher.messages_since(0)
    assert isinstance(table, wire.RouteTable)
    assert (table.parts, table.keys) == (1, publisher.keys)


def test_a_holder_gets_the_steps_it_lacks_or_all_of_it(publisher: Publisher) -> None:
    publisher.publish()
    for count in range(2, STEPS_MAX + 4):
        edit(publisher, *range(1, count + 1))
    newest = publisher.latest.value.revision
    assert newest == STEPS_MAX + 3
    steps = publisher.messages_since(newest - STEPS_MAX)
    assert [step.revision for step in steps] == list(range(newest - STEPS_MAX + 1, newest + 1))
    assert all(isinstance(step, wire.RouteChange) for step in steps)
    for held in (0, 1, newest - STEPS_MAX - 1, newest + 1):
        assert [type(message).__name__ for message in publisher.messages_since(held)] == ["RouteTable"]
    assert publisher.messages_since(newest) == ()


def test_a_step_says_what_is_set_and_what_is_removed(publisher: Publisher) -> None:
    edit(publisher, 1, 2)
    edit(publisher, 2, 3)
    (step,) = publisher.messages_since(1)
    assert isinstance(step, wire.RouteChange)
    assert [endpoint.id for endpoint in step.set.endpoints] == ["legacy@http://10.0.0.1:3"]
    assert step.removed.endpoints == ("legacy@http://10.0.0.1:1",)
    assert (step.incarnation, step.revision, step.complete) == ("inc", 2, True)


def test_the_step_to_a_complete_table_is_the_whole_table(publisher: Publisher) -> None:
    publisher.fleet.publish(FleetView(version=1, recovery=Recovery(1, 0, 300.0, "")))
    publisher.publish()
    (first,) = publisher.messages_since(0)
    edit(publisher, 1, 2)
    (step,) = publisher.messages_since(1)
    assert (first.complete, step.complete) == (False, False)
    publisher.fleet.publish(FleetView(version=2))
    publisher.publish()
    (table,) = publisher.messages_since(2)
    assert isinstance(table, wire.RouteTable)
    assert table.complete


def test_a_step_too_large_for_a_frame_is_the_whole_table(publisher: Publisher) -> None:
    publisher.publish()
    edit(publisher, *range(1, 12_000))
    messages = publisher.messages_since(1)
    assert len(messages) > 1
    assert all(isinstance(message, wire.RouteTable) for message in messages)


@pytest.mark.parametrize("letter", ["a", "\N{SNOWMAN}", "\N{ROCKET}"])
def test_parts_fit_into_frames_whatever_the_text(letter: str) -> None:
    endpoints = tuple(Endpoint(f"m/{n}", "m", "http://x:1", reason=letter * 500) for n in range(3000))
    models = tuple(RoutedModel(letter * 100 + str(n)) for n in range(3000))
    keys = tuple(ClientKey(f"k{n}", "0" * 64, (letter * 100,)) for n in range(3000))
    tables = list(parts(Published(3, Table(True, models, endpoints)), keys, "inc"))
    assert all(len(encode(table)) <= 2 * PART_BYTES_MAX for table in tables)
    assert [(table.part, table.parts, table.revision) for table in tables] == [
        (number, len(tables), 3) for number in range(len(tables))
    ]
    assert tuple(entry for table in tables for entry in table.endpoints) == endpoints
    assert tuple(entry for table in tables for entry in table.models) == models
    assert tuple(entry for table in tables for entry in table.keys) == keys


def follow(publisher: Publisher, connection: int = 1) -> Follower:
    follower = Follower("r1", "0.1.0", "peer", 0.0)
    publisher.followers[connection] = follower
    return follower


def report(revision: int, in_flight: int = 0, *, incarnation: str = "inc", **others: Any) -> wire.RouterReport:
    return wire.RouterReport(incarnation, revision, (wire.EndpointReport("m/0", 7, in_flight),), **others)


async def test_a_router_is_live_while_its_reports_are_young(publisher: Publisher, autojump_clock: MockClock) -> None:
    follow(publisher)
    assert publisher.routers().live == ()
    publisher.reported(1, report(1, 3), trio.current_time())
    assert publisher.routers().live == (RouterSeen("r1", 1, {("m/0", 7): 3}),)
    await trio.sleep(9)
    assert publisher.routers().live != ()
    await trio.sleep(1)
    assert publisher.routers().live == ()


async def test_a_revision_of_another_control_is_none_of_ours(publisher: Publisher, autojump_clock: MockClock) -> None:
    follow(publisher)
    publisher.reported(1, report(9, incarnation="before"), trio.current_time())
    assert publisher.routers().live == (RouterSeen("r1", 0, {}),)


async def test_the_reconciler_is_woken_by_what_a_drain_waits_for_and_by_nothing_else(
    publisher: Publisher, autojump_clock: MockClock
) -> None:
    publisher.publish()
    follow(publisher)
    launch = Launch(7, "h", (Member("n1"),), 0.0)
    before = rings(publisher)
    publisher.decided.publish(Decided(Replicas({"m/0": Replica("m/0", "m", (launch,))})))
    publisher.publish()
    assert publisher.latest.value.withdrawn == {("m/0", 7): 1}
    assert rings(publisher) == before + 1
    for sent, wakes in [
        (report(1, 3), True),  # the first
        (report(1, 3), False),
        (report(1, 3, counters={'llmgw_router_requests_total{code="200"}': 4.0}), False),
        (attrs.evolve(report(1, 3), endpoints=(*report(1, 3).endpoints, wire.EndpointReport("x/0", 1, 9))), False),
        (report(1, 2), True),
        (report(2, 2), True),
        (attrs.evolve(report(2), endpoints=()), True),
    ]:
        before = rings(publisher)
        publisher.reported(1, sent, trio.current_time())
        assert rings(publisher) - before == int(wakes), sent
    assert publisher.counters.totals


async def test_a_router_that_falls_silent_is_news(
    publisher: Publisher, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(publisher.run)
    await trio.sleep(1)
    follow(publisher)
    publisher.reported(1, report(1), trio.current_time())
    await trio.sleep(2)
    before = rings(publisher)
    await trio.sleep(7)
    assert rings(publisher) == before
    await trio.sleep(3)
    assert rings(publisher) == before + 1


async def test_it_publishes_when_the_fleet_or_the_decisions_change(
    publisher: Publisher, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(publisher.run)
    await trio.sleep(1)
    assert publisher.latest.value.table.complete
    publisher.fleet.publish(FleetView(version=1, recovery=Recovery(1, 0, 300.0, "")))
    await trio.sleep(0.1)
    assert not publisher.latest.value.table.complete
