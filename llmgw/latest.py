"""`Latest[T]`: one writer publishes values, many readers each see the newest one.

A reader that falls behind skips values and never holds the writer up, so arrows out of an actor cannot
deadlock with arrows into it. Each reader has a channel of capacity 1 that says "look again"; the value itself
is read from `Latest.value`, which is always the newest.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Latest(Generic[T]):
    """The newest value of something. Only its owner calls `publish`."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._readers: dict[int, trio.MemorySendChannel[None]] = {}
        self._next_reader = 0

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    def publish(self, value: T) -> None:
        """Replace the value and wake every reader. Never blocks."""
        self._value = value
        for send in self._readers.values():
            with suppress(trio.WouldBlock):  # that reader has been told already and has not looked yet
                send.send_nowait(None)

    @contextmanager
    def subscribe(self) -> Iterator[trio.MemoryReceiveChannel[None]]:
        """A channel that has an item whenever `value` may be newer than when the reader last looked.

        The first item is there at once, so that a loop `async for _ in channel: use(latest.value)` starts
        with the present value.
        """
        send, receive = trio.open_memory_channel[None](1)
        send.send_nowait(None)
        reader = self._next_reader
        self._next_reader += 1
        self._readers[reader] = send
        try:
            with send, receive:
                yield receive
        finally:
            del self._readers[reader]
