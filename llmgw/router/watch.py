"""Two clocks that cost a request next to nothing: clients that leave early, and deadlines.

Most requests are answered within milliseconds, so whether their client is still there is looked at only when an engine
has not answered for a moment; and a deadline is a number in an object that a task looks through now and then, instead
of a timer for each request. Both tasks sleep while there is nothing to watch.
"""

import collections
from typing import NoReturn, Protocol

import trio

WATCHED_AFTER_SECONDS = 0.05
"""An engine that has not answered by then: its client is watched from now on."""

LOOK_SECONDS = 0.025
"""Between two looks at who has waited that long: together a client that leaves is noticed within 75 ms."""

SWEEP_SECONDS = 0.5
"""Between two looks at the deadlines: they are of seconds and minutes."""


class Waiting(Protocol):
    """A request whose engine is awaited."""

    def watch_client(self) -> None:
        """It has waited for long: watch its client. Does nothing where it has ended meanwhile."""


class Sweeping(Protocol):
    """Who has deadlines."""

    def sweep(self, now: float) -> bool:
        """Act on the deadlines that have passed; whether there is anything that has one."""


class Watch:
    """The two tasks."""

    def __init__(self) -> None:
        self._young: collections.deque[tuple[float, Waiting]] = collections.deque()
        self._young_came = trio.Event()
        self._something = trio.Event()

    def began(self, waiting: Waiting, now: float) -> None:
        """A request was sent to an engine."""
        self._young.append((now + WATCHED_AFTER_SECONDS, waiting))
        if len(self._young) == 1:
            self._young_came.set()

    def something_to_sweep(self) -> None:
        """There is something with a deadline again."""
        self._something.set()

    async def watch_clients(self) -> NoReturn:
        """Have the clients of slow answers watched, for ever."""
        while True:
            if not self._young:
                self._young_came = trio.Event()
                await self._young_came.wait()
            await trio.sleep(max(self._young[0][0] - trio.current_time(), LOOK_SECONDS))
            now = trio.current_time()
            while self._young and self._young[0][0] <= now:
                self._young.popleft()[1].watch_client()

    async def watch_deadlines(self, swept: Sweeping) -> NoReturn:
        """Look through the deadlines, for ever."""
        while True:
            await self._something.wait()
            if not swept.sweep(trio.current_time()):
                self._something = trio.Event()
            await trio.sleep(SWEEP_SECONDS)
