"""One router that follows: a writer that brings it each step of the route table, and a reader of its reports.

A worker of this control on its socketpair and a router of its own over TCP are the same thing here.
"""

from collections.abc import Sequence

import attrs
import structlog
import trio

from llmgw.control.routes import Follower, Publisher
from llmgw.control.wake import Wake
from llmgw.errors import PeerError, PeerReason
from llmgw.net.framed import MessageStream
from llmgw.wire import messages as wire
from llmgw.wire.codec import Received, UnknownMessage

log = structlog.get_logger()

ROUTER_LETTERS_MAX = 253
"""Of a router's id."""


async def serve_follower(
    stream: MessageStream,
    follow: wire.Follow,
    others: Sequence[Received],
    *,
    connection: int,
    peer: str,
    publisher: Publisher,
) -> None:
    """Serve one router until its stream ends.

    `follow` is its first message; `others` came with it. Raises PeerError and trio.BrokenResourceError as the stream
    does.
    """
    if not 0 < len(follow.router) <= ROUTER_LETTERS_MAX or not follow.router.isprintable():
        expected = f"router: expected 1 to {ROUTER_LETTERS_MAX} printable characters"
        raise PeerError(PeerReason.BAD_FIELD, f"{expected}, got {follow.router[:80]!a}")
    following = _Following(stream, connection, publisher)
    publisher.followers[connection] = Follower(follow.router, follow.version, peer, trio.current_time())
    log.info("router follows", router=follow.router, peer=peer, version=follow.version)
    failure: PeerError | trio.BrokenResourceError | None = None
    try:
        with publisher.latest.subscribe() as changes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(following.wake.follow, changes)
                nursery.start_soon(following.bring_tables)
                try:
                    await following.read(follow, others)
                except (PeerError, trio.BrokenResourceError) as error:
                    failure = error
                nursery.cancel_scope.cancel()
    finally:
        del publisher.followers[connection]
        publisher.moved()  # nobody waits for it any more
    log.info("router left", router=follow.router, peer=peer)
    if failure is not None:
        raise failure


@attrs.define
class _Following:
    stream: MessageStream
    connection: int
    publisher: Publisher
    held: int = 0
    """Revision of this incarnation that it has when everything queued has arrived; 0: none."""
    wake: Wake = attrs.field(factory=Wake)

    async def read(self, follow: wire.Follow, messages: Sequence[Received]) -> None:
        newest = self.publisher.latest.value.revision
        if follow.incarnation_held == self.publisher.incarnation and follow.revision_held != newest:
            # Who has the newest already is sent the table all the same: it is the answer that opens the session.
            self.held = follow.revision_held
            self.wake.ring()
        while True:
            now = trio.current_time()
            self.publisher.followers[self.connection].heard_at = now
            for message in messages:
                match message:
                    case wire.RouterReport():
                        self.publisher.reported(self.connection, message, now)
                    case wire.Follow():
                        # It misses a step. What is on the way may be newer than what it says it has: all of it, then.
                        self.held = 0
                        self.wake.ring()
                    case wire.Goodbye():
                        return
                    case UnknownMessage():
                        log.warning("unknown message answered unsupported", router=follow.router, message=message.name)
                    case _:
                        pass
            messages = await self.stream.receive()
            if not messages:
                return

    async def bring_tables(self) -> None:
        """Send what it lacks, whenever it lacks something. Waits while it does not take more."""
        while True:
            await self.wake.wait()
            for message in self.publisher.messages_since(self.held):
                self.held = message.revision
                if not self.stream.session.may_send(type(message)):
                    return  # it broke the protocol, and its reader is about to learn of it
                try:
                    await self.stream.send(message)
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    return  # the reader meets the same end, and knows more about it
