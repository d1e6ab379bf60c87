"""Sending an engine's output to control, in pieces, and only while nothing more urgent waits on the same stream."""

import trio

from llmgw.agent.uplink import Output
from llmgw.net.framed import QUEUE_FRAMES_MAX, MessageStream
from llmgw.wire.messages import LogChunk, LogEnd

REQUESTS_MAX = 4
"""Answered at once; more people do not look at one node."""

CHUNK_BYTES = 32 * 1024
"""In one frame: a tenth of a second of a slow line, so that a heartbeat behind it is not late."""

QUEUED_MAX = QUEUE_FRAMES_MAX // 8
"""Frames that may wait before a piece of output does: the rest of the queue is for commands' answers and heartbeats."""

PAUSE_SECONDS = 0.05


class LogSender:
    """The LogRequests of one connection that are being answered."""

    def __init__(self, messages: MessageStream, nursery: trio.Nursery) -> None:
        self._messages = messages
        self._nursery = nursery
        self._open: dict[int, trio.CancelScope] = {}

    def open(self, request_id: int) -> bool:
        """Whether the request is taken; one that is not has its LogEnd already."""
        if request_id in self._open or len(self._open) >= REQUESTS_MAX:
            reason = f"this agent answers {REQUESTS_MAX} such requests at once, each with a number of its own"
            self._nursery.start_soon(self._say, LogEnd(request_id, reason))
            return False
        self._open[request_id] = trio.CancelScope()
        return True

    def cancel(self, request_id: int) -> None:
        """Send no more for it but its end."""
        scope = self._open.get(request_id)
        if scope is not None:
            scope.cancel()

    def send(self, output: Output) -> None:
        """Send what was found, in pieces, and the end."""
        self._nursery.start_soon(self._send, output)

    async def _send(self, output: Output) -> None:
        reason = output.reason
        with self._open[output.request_id] as scope:
            for start in range(0, len(output.data), CHUNK_BYTES):
                await self._say(LogChunk(output.request_id, output.data[start : start + CHUNK_BYTES]))
        if scope.cancelled_caught:
            reason = "cancelled"
        await self._say(LogEnd(output.request_id, reason))
        del self._open[output.request_id]

    async def _say(self, message: LogChunk | LogEnd) -> None:
        while self._messages.queued > QUEUED_MAX:  # noqa: ASYNC110  the stream has no event for that
            await trio.sleep(PAUSE_SECONDS)
        await self._messages.send(message)
