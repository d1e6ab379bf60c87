"""The parent of workers: each gets the whole table and every step, and their reports are one."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from llmgw.core.routing import Endpoint, RoutedModel
from llmgw.net.framed import MessageStream
from llmgw.router.table import Table
from llmgw.router.workers import Workers, merged, summed
from llmgw.wire.messages import (
    PROTOCOL,
    EndpointReport,
    Follow,
    RouteChange,
    RouterReport,
    RouteSet,
    RouteTable,
)
from llmgw.wire.session import RouterSession

ENDPOINT = Endpoint("tiny/0", "tiny", "http://127.0.0.1:1", 1)
WHOLE = RouteTable("c", 5, models=(RoutedModel("tiny"),))


@attrs.define
class Parent:
    nursery: trio.Nursery
    table: Table
    workers: Workers
    news: list[int]

    async def worker(self, index: int = 0) -> MessageStream:
        """A scripted worker that follows."""
        ours, theirs = trio.testing.memory_stream_pair()
        stream = MessageStream(ours, RouterSession())
        await self.nursery.start(stream.run)
        self.nursery.start_soon(self.workers.serve, index, theirs)
        stream.send_nowait(Follow(PROTOCOL, f"worker-{index}"))
        return stream

    def use(self, message: RouteTable | RouteChange) -> None:
        self.table.put(message) if isinstance(message, RouteTable) else self.table.change(message)
        self.workers.applied(message)


@pytest.fixture
async def parent(autojump_clock: Any) -> AsyncIterator[Parent]:
    async with trio.open_nursery() as nursery:
        table, news = Table(), list[int]()
        yield Parent(nursery, table, Workers(table, lambda: news.append(1)), news)
        nursery.cancel_scope.cancel()


async def test_a_worker_gets_the_table_and_then_each_step_as_it_came(parent: Parent, autojump_clock: MockClock) -> None:
    parent.use(WHOLE)
    worker = await parent.worker()
    assert await worker.receive() == [WHOLE]
    step = RouteChange("c", 6, set=RouteSet(endpoints=(ENDPOINT,)))
    parent.use(step)
    assert await worker.receive() == [step]


async def test_a_worker_that_came_before_the_table_gets_it_when_it_is_there(
    parent: Parent, autojump_clock: MockClock
) -> None:
    worker = await parent.worker()
    await trio.testing.wait_all_tasks_blocked()
    parent.use(WHOLE)
    assert await worker.receive() == [WHOLE]


async def test_the_table_of_a_router_alone_is_brought_too(parent: Parent, autojump_clock: MockClock) -> None:
    """It has revision 0 of nobody."""
    parent.use(RouteTable("", 0, models=(RoutedModel("legacy"),)))
    worker = await parent.worker()
    (table,) = await worker.receive()
    assert isinstance(table, RouteTable)
    assert [model.name for model in table.models] == ["legacy"]


async def test_a_worker_that_is_behind_or_asks_anew_gets_everything(parent: Parent, autojump_clock: MockClock) -> None:
    parent.use(WHOLE)
    worker = await parent.worker()
    await worker.receive()
    parent.use(RouteChange("c", 6, set=RouteSet(endpoints=(ENDPOINT,))))
    parent.use(RouteChange("c", 7))  # before the worker's task had its turn
    (table,) = await worker.receive()
    assert isinstance(table, RouteTable)
    assert (table.revision, table.endpoints) == (7, (ENDPOINT,))
    worker.send_nowait(Follow(PROTOCOL, "worker-0"))
    assert await worker.receive() == [table]


async def test_a_revision_is_held_when_every_worker_holds_it(parent: Parent, autojump_clock: MockClock) -> None:
    parent.use(WHOLE)
    first, second = await parent.worker(0), await parent.worker(1)
    for worker, revision in ((first, 5), (second, 4)):
        await worker.receive()
        worker.send_nowait(RouterReport("c", revision))
    await trio.testing.wait_all_tasks_blocked()
    assert parent.workers.report().revision == 4
    second.send_nowait(RouterReport("c", 5))
    await trio.testing.wait_all_tasks_blocked()
    assert parent.workers.report().revision == 5
    second.send_nowait(RouterReport("older", 5))
    await trio.testing.wait_all_tasks_blocked()
    assert parent.workers.report().revision == 0


async def test_counters_never_fall_when_a_worker_dies(parent: Parent, autojump_clock: MockClock) -> None:
    parent.use(WHOLE)
    first, second = await parent.worker(0), await parent.worker(1)
    for worker in (first, second):
        await worker.receive()
        worker.send_nowait(RouterReport("c", 5, counters={"n": 2.0}))
    await trio.testing.wait_all_tasks_blocked()
    assert parent.workers.report().counters == {"n": 4.0}
    await first.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert parent.workers.report().counters == {"n": 4.0}
    assert parent.news


async def test_what_control_waits_for_is_news_and_a_plain_report_is_not(
    parent: Parent, autojump_clock: MockClock
) -> None:
    parent.use(WHOLE)
    worker = await parent.worker()
    await worker.receive()
    busy = EndpointReport("tiny/0", 1, 3)
    for entry, news in ((busy, 1), (attrs.evolve(busy, in_flight=2), 1), (attrs.evolve(busy, in_flight=0), 2)):
        worker.send_nowait(RouterReport("c", 5, (entry,)))
        await trio.testing.wait_all_tasks_blocked()
        assert len(parent.news) == news


def test_reports_of_one_launch_are_added_up() -> None:
    one = EndpointReport("a", 1, 2, 5.0)
    other = EndpointReport("a", 1, 3, 1.0, "unreachable", "no connection")
    assert merged([one, other]) == (EndpointReport("a", 1, 5, 1.0, "unreachable", "no connection"),)
    assert merged([one, EndpointReport("a", 2, 3)]) == (one, EndpointReport("a", 2, 3))


def test_sums_are_by_name() -> None:
    assert summed([{"a": 1}, {"a": 2, "b": 5}]) == {"a": 3, "b": 5}
