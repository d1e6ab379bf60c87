"""`Wake`: many sources that say "look again", one actor that looks, and breathes before it looks again."""

import contextlib

import trio

SPACING_SECONDS = 0.01
"""Between two looks of one actor: what arrives together is handled together, and nobody notices the delay."""


async def breathe(began: float) -> None:
    """Pause after a look that began then: for as long as it took, so that others have half of the time at least."""
    await trio.sleep(max(SPACING_SECONDS, trio.current_time() - began))


class Wake:
    """A bell with a memory of one ring: any number of rings while the owner is busy are one more look."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[None](1)

    def ring(self) -> None:
        """The owner looks again. Never blocks."""
        with contextlib.suppress(trio.WouldBlock):  # it has been told already and has not looked yet
            self._send.send_nowait(None)

    async def wait(self, seconds: float = float("inf")) -> None:
        """Until somebody rings, or so many seconds have passed."""
        with trio.move_on_after(seconds):
            await self._receive.receive()

    async def follow(self, changes: trio.MemoryReceiveChannel[None]) -> None:
        """Ring at each item of `changes` (a subscription to a `Latest`) until it is closed."""
        async for _ in changes:
            self.ring()
