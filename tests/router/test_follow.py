"""Following whoever has the table, over an in-memory stream with a scripted other side on a virtual clock."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from llmgw.core.routing import Endpoint, RoutedModel
from llmgw.errors import PeerError, PeerReason
from llmgw.net.framed import MessageStream
from llmgw.router.follow import REPORT_SECONDS, Bell, Following
from llmgw.router.table import Table
from llmgw.wire.messages import (
    Follow,
    Goodbye,
    Message,
    Refused,
    RouteChange,
    RouterReport,
    RouteSet,
    RouteTable,
)
from llmgw.wire.session import ControlSession

TINY = RoutedModel("tiny")
ENDPOINT = Endpoint("tiny/0", "tiny", "http://127.0.0.1:1", 1)


@attrs.define
class Scene:
    """A router that follows, and the scripted control."""

    nursery: trio.Nursery
    table: Table
    news: Bell
    following: Following
    applied: list[Message] = attrs.field(factory=list)
    told: list[tuple[str, float]] = attrs.field(factory=list)
    opened: int = 0
    failure: PeerError | trio.BrokenResourceError | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    _waiting: list[Any] = attrs.field(factory=list)

    async def dial(self) -> MessageStream:
        """Start a conversation; control's end of it."""
        ours, theirs = trio.testing.memory_stream_pair()
        control = MessageStream(theirs, ControlSession())
        await self.nursery.start(control.run)
        self.ended = trio.Event()
        self.nursery.start_soon(self._converse, ours)
        return control

    async def _converse(self, stream: trio.abc.Stream) -> None:
        def opened() -> None:
            self.opened += 1

        def refused(reason: str, retry_after: float) -> None:
            self.told.append((reason, retry_after))

        try:
            await self.following.converse(stream, opened=opened, refused=refused)
        except (PeerError, trio.BrokenResourceError) as error:
            self.failure = error
        self.ended.set()

    async def next(self, control: MessageStream, kind: type) -> Any:
        """The next message of that kind that reaches control."""
        while True:
            while self._waiting:
                message = self._waiting.pop(0)
                if isinstance(message, kind):
                    return message
            self._waiting = list(await control.receive())
            assert self._waiting, "the router ended the stream"


@pytest.fixture
async def scene(autojump_clock: Any) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        news = Bell()
        table = Table(news.ring)
        applied: list[Message] = []

        def report() -> RouterReport:
            return RouterReport(table.incarnation, table.revision, table.reports(trio.current_time()))

        following = Following("r1", table, news, report=report, applied=applied.append)
        yield Scene(nursery, table, news, following, applied)
        nursery.cancel_scope.cancel()


async def test_it_says_what_it_holds_and_reports_what_it_uses(scene: Scene, autojump_clock: MockClock) -> None:
    control = await scene.dial()
    follow = await scene.next(control, Follow)
    assert (follow.router, follow.incarnation_held, follow.revision_held) == ("r1", "", 0)
    control.send_nowait(RouteTable("c", 5, models=(TINY,), endpoints=(ENDPOINT,)))
    report = await scene.next(control, RouterReport)
    assert (report.incarnation, report.revision) == ("c", 5)
    assert scene.opened == 1
    control.send_nowait(RouteChange("c", 6))
    began = trio.current_time()
    assert (await scene.next(control, RouterReport)).revision == 6
    assert trio.current_time() - began < 0.1  # a drain waits for this confirmation
    assert [type(message) for message in scene.applied] == [RouteTable, RouteChange]
    assert (await scene.next(control, RouterReport)).revision == 6
    assert trio.current_time() - began >= REPORT_SECONDS

    again = await scene.dial()
    scene._waiting.clear()
    follow = await scene.next(again, Follow)
    assert (follow.incarnation_held, follow.revision_held) == ("c", 6)


async def test_who_sees_a_gap_asks_once_for_everything(scene: Scene, autojump_clock: MockClock) -> None:
    control = await scene.dial()
    await scene.next(control, Follow)
    control.send_nowait(RouteTable("c", 5, models=(TINY,)))
    for revision in (7, 8, 9):
        control.send_nowait(RouteChange("c", revision, set=RouteSet(endpoints=(ENDPOINT,))))
    follow = await scene.next(control, Follow)
    assert (follow.incarnation_held, follow.revision_held) == ("", 0)
    assert scene.table.revision == 5
    control.send_nowait(RouteTable("c", 9, models=(TINY,), endpoints=(ENDPOINT,)))
    control.send_nowait(RouteChange("c", 10))
    while (report := await scene.next(control, RouterReport)).revision != 10:
        assert report.revision in {5, 9}
    assert not [message for message in scene._waiting if isinstance(message, Follow)]


async def test_a_draining_endpoint_that_becomes_idle_is_reported_at_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    control = await scene.dial()
    await scene.next(control, Follow)
    control.send_nowait(RouteTable("c", 5, models=(TINY,), endpoints=(attrs.evolve(ENDPOINT, state="draining"),)))
    await scene.next(control, RouterReport)
    load = scene.table.load_of(ENDPOINT)
    load.in_flight = 1
    while not (await scene.next(control, RouterReport)).endpoints[0].in_flight:
        pass
    idle = trio.current_time()
    scene.table.released(load)
    while (await scene.next(control, RouterReport)).endpoints[0].in_flight:
        pass
    assert trio.current_time() - idle < 0.1


async def test_a_refusal_is_told_with_its_patience(scene: Scene, autojump_clock: MockClock) -> None:
    control = await scene.dial()
    await scene.next(control, Follow)
    control.send_nowait(Refused("come back", 12.0))
    await scene.ended.wait()
    assert scene.told == [("come back", 12.0)]
    assert scene.opened == 0


async def test_a_table_in_impossible_parts_ends_the_conversation(scene: Scene, autojump_clock: MockClock) -> None:
    control = await scene.dial()
    await scene.next(control, Follow)
    control.send_nowait(RouteTable("c", 5, 3, 2))
    await scene.ended.wait()
    assert isinstance(scene.failure, PeerError)
    assert scene.failure.reason is PeerReason.BAD_FIELD


async def test_the_end_of_the_other_side_ends_it_and_the_table_stays(scene: Scene, autojump_clock: MockClock) -> None:
    control = await scene.dial()
    await scene.next(control, Follow)
    control.send_nowait(RouteTable("c", 5, models=(TINY,), endpoints=(ENDPOINT,)))
    await scene.next(control, RouterReport)
    await control.aclose()
    await scene.ended.wait()
    assert scene.failure is None
    assert [endpoint.id for endpoint in scene.table.endpoints()] == ["tiny/0"]


async def test_cancelled_it_says_goodbye(scene: Scene, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        own = attrs.evolve(scene, nursery=nursery)
        control = await own.dial()
        await own.next(control, Follow)
        control.send_nowait(RouteTable("c", 5))
        await own.next(control, RouterReport)
        nursery.cancel_scope.cancel()
    received = [message for message in await control.receive() if isinstance(message, Goodbye)]
    assert received


async def test_a_bell_remembers_one_ring(autojump_clock: Any) -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    began = trio.current_time()
    await bell.wait(10)
    assert trio.current_time() - began < 1
    await bell.wait(10)
    assert trio.current_time() - began >= 10
