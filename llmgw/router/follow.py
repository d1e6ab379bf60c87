"""A conversation with whoever has the table: control, or the parent of this process. One code path for both.

`Follow` goes out first; the answer is the whole table or the steps from the one held. From then on each step is
applied as it comes, and what this router holds and sees is reported every REPORT_SECONDS, at once when a draining
endpoint has become idle, and at once when another revision came into use (a drain waits for both). Who sees a gap
asks for the whole table, once, and drops the steps until it is in.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn

import structlog
import trio

import llmgw
from llmgw.errors import PeerError, PeerReason
from llmgw.net.framed import MessageStream
from llmgw.router.table import GapError, Table
from llmgw.wire.codec import Received, UnknownMessage
from llmgw.wire.messages import PROTOCOL, Follow, Goodbye, Refused, RouteChange, RouterReport, RouteTable
from llmgw.wire.session import RouterSession

log = structlog.get_logger()

REPORT_SECONDS = 2.0
"""Five of them within the time after which control no longer waits for a router."""

REPORT_SPACING_SECONDS = 0.02
"""Between two reports, however much happens: a burst of requests that end is one piece of news."""


class Bell:
    """Rung when there is news for control; any number of rings before it is heard are one."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        """There is news. Never blocks."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Until it was rung, or so many seconds have passed."""
        with trio.move_on_after(seconds):
            await self._event.wait()
        self._event = trio.Event()


class Following:
    """What one router process is to those whom it follows, over any number of connections."""

    def __init__(
        self,
        router: str,
        table: Table,
        news: Bell,
        *,
        report: Callable[[], RouterReport],
        applied: Callable[[RouteTable | RouteChange], None],
    ) -> None:
        """`report`: what to say now. `applied`: a whole table (its last part) or a step has come into use."""
        self.router = router
        self.table = table
        self.news = news
        self._report = report
        self._applied = applied
        self._asked_anew = False

    async def converse(
        self,
        stream: trio.abc.Stream,
        *,
        opened: Callable[[], None] = lambda: None,
        refused: Callable[[str, float], None] = lambda _reason, _retry_after: None,
    ) -> None:
        """Follow over `stream` until it ends, and close it. Raises PeerError or trio.BrokenResourceError as it does."""
        messages = MessageStream(stream, RouterSession())
        failure: PeerError | trio.BrokenResourceError | None = None
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(messages.run)
                self._asked_anew = False
                self._ask(messages, whole=False)
                nursery.start_soon(self._tell, messages)
                try:
                    await self._read(messages, opened, refused)
                except (PeerError, trio.BrokenResourceError) as error:
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            await messages.aclose(Goodbye("", "the router ends"))
        if failure is not None:
            raise failure

    def _ask(self, messages: MessageStream, *, whole: bool) -> None:
        held = ("", 0) if whole or not self.table.known else (self.table.incarnation, self.table.revision)
        messages.send_nowait(Follow(PROTOCOL, self.router, llmgw.__version__, *held))

    async def _read(
        self, messages: MessageStream, opened: Callable[[], None], refused: Callable[[str, float], None]
    ) -> None:
        is_open = False
        while received := await messages.receive():
            for message in received:
                if isinstance(message, Refused):
                    refused(message.reason, message.retry_after_seconds)
                    return
                if isinstance(message, (RouteTable, RouteChange)) and not is_open:
                    is_open = True
                    opened()
            self._take(messages, received)

    def _take(self, messages: MessageStream, received: Sequence[Received]) -> None:
        for message in received:
            try:
                match message:
                    case RouteTable():
                        in_use = self.table.put(message)
                    case RouteChange() if not self._asked_anew:
                        self.table.change(message)
                        in_use = True
                    case UnknownMessage():
                        log.warning("unknown message answered unsupported", message=message.name)
                        continue
                    case _:
                        continue
            except GapError as gap:
                if isinstance(message, RouteTable):
                    raise PeerError(PeerReason.BAD_FIELD, f"RouteTable: {gap}") from None
                log.info("asking for the whole table", reason=str(gap))
                self._asked_anew = True
                self._ask(messages, whole=True)
                continue
            if in_use:
                self._asked_anew = self._asked_anew and isinstance(message, RouteChange)
                self._applied(message)
                self.news.ring()

    async def _tell(self, messages: MessageStream) -> NoReturn:
        while True:
            if self.table.known and messages.session.may_send(RouterReport):
                await messages.send(self._report())
            await trio.sleep(REPORT_SPACING_SECONDS)
            await self.news.wait(REPORT_SECONDS)
