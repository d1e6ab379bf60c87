"""Who connects to the agent port: told apart by the first message, served until the end, and logged once.

Whatever a peer does ends its own connection and nothing else: this is the one place where its errors are caught.
"""

import itertools
from typing import NoReturn

import attrs
import structlog
import trio

import llmgw
from llmgw.control.commands import Links
from llmgw.control.followers import serve_follower
from llmgw.control.inventory import Input, Inventory
from llmgw.control.nodes import NodeLink, serve_node
from llmgw.control.routes import Publisher
from llmgw.core.fleet_events import Incompatible
from llmgw.errors import PeerError
from llmgw.net.framed import MessageStream
from llmgw.wire import messages as wire
from llmgw.wire.codec import Received
from llmgw.wire.session import RETRY_AFTER_SECONDS, ControlSession, IncompatibleVersionError, Role

log = structlog.get_logger()

STRANGERS_MAX = 1024
"""Connections that have not said yet who they are. More wait in the kernel's queue; each says it within 10 s."""


@attrs.frozen
class Arrival:
    """A connection that somebody made to control."""

    stream: trio.abc.Stream
    peer: str
    """Where it comes from, `10.0.0.5:43210` or `[::1]:43210`; of a worker of our own, what it is."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    """Set when control is done with it and has closed it."""


Arrivals = trio.MemoryReceiveChannel[Arrival]


@attrs.define
class Listener:
    """Serves arrivals. Owns the numbers of connections."""

    inventory: Inventory
    inputs: trio.MemorySendChannel[Input]
    links: Links
    publisher: Publisher
    incarnation: str
    _numbers: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))
    _strangers: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(STRANGERS_MAX))

    async def run(self, arrivals: Arrivals) -> NoReturn:
        """Serve everybody who arrives, for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._strangers.acquire()
                nursery.start_soon(self._serve, await arrivals.receive(), next(self._numbers))
        raise AssertionError("unreachable: it ends by cancellation")

    async def _serve(self, arrival: Arrival, connection: int) -> None:
        stream = MessageStream(arrival.stream, ControlSession(), make_ping=self._ping)
        link = NodeLink(connection, stream, self.incarnation, llmgw.__version__)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                try:
                    await self._converse(link, arrival.peer)
                finally:
                    # Closed while the writer still runs: what is queued goes out, then the last word.
                    await stream.aclose(link.last_word)
        finally:
            arrival.ended.set()

    async def _converse(self, link: NodeLink, peer: str) -> None:
        try:
            match await self._opening(link.stream):
                case [wire.Register() as register, *others]:
                    await serve_node(link, register, others, peer=peer, inventory=self.inputs, links=self.links)
                case [wire.Follow() as follow, *others]:
                    await serve_follower(
                        link.stream, follow, others, connection=link.connection, peer=peer, publisher=self.publisher
                    )
                case [wire.RenewRequest(), *_]:
                    link.last_word = wire.Refused("this control issues no certificates")
                    log.warning("refused", peer=peer, reason=link.last_word.reason)
                case _:
                    log.info("connection closed before it said anything", peer=peer)
        except IncompatibleVersionError as error:
            if error.role is Role.AGENT and error.who:
                await self.inputs.send(Incompatible(error.who, peer, error.theirs, error.ours))
            else:
                log.warning("refused", peer=peer, reason=str(error))
        except PeerError as error:
            link.last_word = wire.Refused(str(error), RETRY_AFTER_SECONDS)
            log.warning("connection ended: the peer broke the protocol", peer=peer, reason=str(error))
        except trio.BrokenResourceError:
            log.info("connection lost", peer=peer)

    async def _opening(self, stream: MessageStream) -> list[Received]:
        """What a stranger says first; nothing where it went away. After it the connection is no stranger's."""
        try:
            return await stream.receive()
        finally:
            self._strangers.release()

    def _ping(self) -> wire.Ping:
        """Each Ping carries the interval: an agent that came early learns that the fleet has grown."""
        return wire.Ping(self.inventory.fleet.heartbeat_interval_seconds())
