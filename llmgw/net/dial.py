"""Dialling for ever: connect, let the caller converse, wait, again. Used by agents and routers.

Each attempt resolves the name anew and tries all of its addresses, since control may have moved. The delay grows
until the *conversation* was accepted and lasted: a control that accepts connections and then drops them (overloaded,
half started, or a proxy without anything behind it) is not helped by being dialled every second.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeAlias

import structlog
import trio

from llmgw.core.address import Address
from llmgw.core.backoff import CAP_SECONDS, Backoff, Uniform, retry_after_seconds
from llmgw.core.units import format_seconds
from llmgw.errors import PeerError, PeerReason

log = structlog.get_logger()

CONNECT_SECONDS = 10.0
"""For one attempt: resolving, every address, and TLS where `connect` speaks it."""

LASTED_SECONDS = 10.0
"""An accepted conversation that lasted so long starts the delays at their base again."""

ENDINGS = (PeerError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What may end a conversation without being a bug of ours."""

Connect: TypeAlias = Callable[[Address], Awaitable[trio.abc.Stream]]
"""Opens a stream to an address, resolving its name. Raises OSError, also for a name that does not resolve, and
`trio.BrokenResourceError` where TLS did not come about.
"""


async def connect_tcp(address: Address) -> trio.abc.Stream:
    """A TCP connection, to whichever of the host's addresses answers first. Nagle's delay is off, as Trio has it."""
    return await trio.open_tcp_stream(address.host, address.port)


class Attempt:
    """One connection, as the conversation over it says how it goes."""

    def __init__(self) -> None:
        self.accepted_at: float | None = None
        self.retry_after_seconds = 0.0
        self.reason = ""

    def accepted(self) -> None:
        """The other side has opened the session: Registered, or a first table."""
        self.accepted_at = trio.current_time()

    def refused(self, reason: str, retry_after: float) -> None:
        """The other side said no, and when to come back."""
        self.reason = reason
        self.retry_after_seconds = retry_after if math.isfinite(retry_after) else 0.0


Converse: TypeAlias = Callable[[trio.abc.Stream, Attempt], Awaitable[None]]
"""Holds a session on a fresh stream, and closes it. Returns at its end, or raises one or a group of ENDINGS."""


async def keep_dialling(
    address: Address,
    converse: Converse,
    *,
    rng: Uniform,
    connect: Connect = connect_tcp,
    peer: str = "control",
) -> NoReturn:
    """Dial for ever, and converse each time. Ends only by cancellation, or by what `converse` raises
    beside ENDINGS, which is a bug. peer: who is dialled, for the log.
    """
    backoff = Backoff(rng)
    while True:
        attempt = Attempt()
        ended = await _converse_once(address, converse, attempt, connect)
        accepted_at = attempt.accepted_at
        if accepted_at is not None and trio.current_time() - accepted_at >= LASTED_SECONDS:
            backoff.reset()
        # Both are drawn: who was sent away for a second is not let in faster than who met a closed door.
        delay = max(backoff.next_seconds(), retry_after_seconds(attempt.retry_after_seconds, rng))
        log.warning(
            f"disconnected from {peer}" if accepted_at is not None else f"cannot reach {peer}",
            address=str(address),
            reason=attempt.reason or ended,
            retry_in=format_seconds(delay),
            attempt=backoff.attempt,
        )
        await trio.sleep(delay)


async def _converse_once(address: Address, converse: Converse, attempt: Attempt, connect: Connect) -> str:
    """One attempt; returns what ended it, for the log."""
    stream: trio.abc.Stream | None = None
    try:
        with trio.move_on_after(CONNECT_SECONDS):
            stream = await connect(address)
        if stream is None:
            return f"no connection within {CONNECT_SECONDS:.0f} s"
        await converse(stream, attempt)
    except ENDINGS as error:
        return _ended_by([error], address, attempt)
    except BaseExceptionGroup as group:
        endings, others = group.split(ENDINGS)
        if endings is None or others is not None:
            raise others or group from None  # a bug, or the cancellation that ends us, counts for more
        return _ended_by(_leaves(endings), address, attempt)
    return "the connection was closed"


def _ended_by(errors: Sequence[BaseException], address: Address, attempt: Attempt) -> str:
    """What to say of the errors that ended a conversation. A violation explains the broken stream beside it."""
    error = next((error for error in errors if isinstance(error, PeerError)), errors[0])
    if isinstance(error, PeerError) and error.reason is PeerReason.INCOMPATIBLE_VERSION:
        # Only an upgrade of one side helps, so it is tried at the slowest pace.
        attempt.refused(str(error), CAP_SECONDS)
    if isinstance(error, socket.gaierror):
        return f"the name {address.host} cannot be resolved: {error.strerror or error}"
    if isinstance(error, (trio.BrokenResourceError, trio.ClosedResourceError)):
        return f"the connection broke: {_why(error)}"
    return _why(error)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _why(error: BaseException) -> str:
    """The innermost text of an error, since `all attempts to connect failed` says nothing."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_why(inner) for inner in error.exceptions))
    if error.__cause__ is not None:
        return _why(error.__cause__)
    return str(error) or type(error).__name__
