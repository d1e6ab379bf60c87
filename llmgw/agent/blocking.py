"""Calls that may hang for ever (a file system whose server is away), kept off the event loop and given up in time.

They have threads of their own: Trio's are limited in number and needed for name look-up, and an abandoned thread
keeps its place until its call returns.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

from llmgw.core.units import format_seconds
from llmgw.errors import LlmgwError

T = TypeVar("T")

THREADS_MAX = 4
"""Calls under way at once, hanging ones included: once that many hang, all further ones fail in time."""


class StuckError(LlmgwError):
    """A call did not return in time."""


class RunBlocking(Protocol):
    """The seam: `await run(call, seconds=5.0, what="reading /etc/key")`."""

    async def __call__(self, call: Callable[[], T], *, seconds: float, what: str) -> T:
        """What `call` returns or raises; StuckError after `seconds`, the call then goes on unheard."""


class Threads:
    """`RunBlocking` in threads."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._limiter = trio.CapacityLimiter(threads_max)

    async def __call__(self, call: Callable[[], T], *, seconds: float, what: str) -> T:
        with trio.move_on_after(seconds):
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        raise StuckError(f"{what} did not return within {format_seconds(seconds)}: is a network file system down?")
