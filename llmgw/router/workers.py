"""The parent's side of its workers, in a llmgw-router of its own: they follow it as they would follow control.

The parent is the one that follows control. Each worker gets the whole table and then each step as it came; one that
is behind gets the whole table. Their reports are summed into one, so that control sees one router: it holds a
revision when every worker does, and a draining endpoint is idle when it is idle in each of them.
"""

from collections.abc import Callable, Iterable

import attrs
import structlog
import trio

from llmgw.errors import PeerError
from llmgw.latest import Latest
from llmgw.net.framed import MessageStream
from llmgw.router.table import Table
from llmgw.wire.messages import EndpointReport, Follow, RouteChange, RouterReport, RouteTable
from llmgw.wire.session import ControlSession

log = structlog.get_logger()


class Workers:
    """Serves the table to the workers and gathers what they report."""

    def __init__(self, table: Table, news: Callable[[], None]) -> None:
        """`news` is called when what is to be reported has changed in a way that control waits for."""
        self._table = table
        self._news = news
        self._latest: Latest[RouteChange | None] = Latest(None)
        self._reports: dict[int, RouterReport] = {}
        self._former: dict[str, float] = {}

    def applied(self, message: RouteTable | RouteChange) -> None:
        """The parent's table has changed by this."""
        self._latest.publish(message if isinstance(message, RouteChange) else None)

    async def serve(self, index: int, stream: trio.abc.Stream) -> None:
        """Serve worker `index` until its stream ends; its errors end it alone."""
        messages = MessageStream(stream, ControlSession())
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(messages.run)
                try:
                    await self._read(index, messages, nursery)
                except (PeerError, trio.BrokenResourceError) as error:
                    log.warning("worker dropped", worker=index, reason=str(error))
                nursery.cancel_scope.cancel()
        finally:
            self._ended(index)
            await messages.aclose()

    async def _read(self, index: int, messages: MessageStream, nursery: trio.Nursery) -> None:
        bringing = trio.CancelScope()
        async for message in messages:
            match message:
                case Follow():
                    bringing.cancel()  # it lacks a step: from the whole table on, again
                    bringing = trio.CancelScope()
                    nursery.start_soon(self._bring, messages, bringing)
                case RouterReport():
                    before = self._reports.get(index)
                    self._reports[index] = message
                    if before is None or _awaited(before) != _awaited(message):
                        self._news()
                case _:
                    pass

    async def _bring(self, messages: MessageStream, scope: trio.CancelScope) -> None:
        held: tuple[str, int] | None = None
        with scope, self._latest.subscribe() as changes:
            async for _ in changes:
                if not self._table.known or held == (self._table.incarnation, self._table.revision):
                    continue
                step = self._latest.value
                follows = step is not None and held == (step.incarnation, step.revision - 1)
                held = self._table.incarnation, self._table.revision
                try:
                    for message in [step] if follows and step is not None else self._table.parts():
                        await messages.send(message)
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    return  # the reader meets the same end, and knows more about it

    def _ended(self, index: int) -> None:
        report = self._reports.pop(index, None)
        if report is not None:
            # Counters never fall: what a dead worker had counted stays counted.
            self._former = summed([self._former, report.counters])
        self._news()

    def report(self) -> RouterReport:
        """What this router holds and sees, all workers together."""
        reports = list(self._reports.values())
        table = self._table
        held = [one.revision if one.incarnation == table.incarnation else 0 for one in reports]
        queued: dict[str, float] = summed(one.queued for one in reports)
        return RouterReport(
            table.incarnation,
            min(held, default=0),
            merged(entry for one in reports for entry in one.endpoints),
            queued={model: int(number) for model, number in queued.items()},
            counters=summed([self._former, *(one.counters for one in reports)]),
        )


def summed(parts: "Iterable[dict[str, int] | dict[str, float]]") -> dict[str, float]:
    """Value by value."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def merged(entries: Iterable[EndpointReport]) -> tuple[EndpointReport, ...]:
    """One report of each launch: requests add up, the newest completion and the first trouble count."""
    found: dict[tuple[str, int], EndpointReport] = {}
    for entry in entries:
        key = entry.id, entry.epoch
        other = found.get(key)
        found[key] = entry if other is None else _both(other, entry)
    return tuple(found.values())


def _both(one: EndpointReport, other: EndpointReport) -> EndpointReport:
    ages = [age for age in (one.completion_age_seconds, other.completion_age_seconds) if age is not None]
    troubled = one if one.state else other
    return attrs.evolve(
        one,
        in_flight=one.in_flight + other.in_flight,
        completion_age_seconds=min(ages, default=None),
        state=troubled.state,
        reason=troubled.reason,
    )


def _awaited(report: RouterReport) -> object:
    """What of a report control may be waiting for: a revision, and launches without a request."""
    return report.incarnation, report.revision, [(one.id, one.epoch) for one in report.endpoints if one.in_flight]
