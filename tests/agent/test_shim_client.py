"""The agent's end of the protocol, against a shim that the test plays: late, rude, gone, somebody else."""

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from short_paths import short

from llmgw.agent.shim_client import ANSWER_SECONDS, LINE_BYTES_MAX, ask, connect
from llmgw.errors import EngineError

FOREVER = b""


@asynccontextmanager
async def played(folder: Path, *replies: bytes) -> AsyncIterator[list[dict[str, object]]]:
    """A shim that gives one reply per connection, as it stands; what it was asked."""
    asked: list[dict[str, object]] = []
    with trio.socket.socket(socket.AF_UNIX) as listener, short(folder) as near:
        await listener.bind(f"{near}/shim.sock")
        listener.listen(5)

        async def play() -> None:
            for reply in replies:
                sock, _ = await listener.accept()
                async with trio.SocketStream(sock) as stream:
                    if reply == FOREVER:
                        await trio.sleep_forever()
                    if reply != b"hang up":
                        asked.append(json.loads(await stream.receive_some(65536)))
                        with suppress(trio.BrokenResourceError):
                            await stream.send_all(reply)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            yield asked
            nursery.cancel_scope.cancel()


async def test_a_command_and_its_answer(tmp_path: Path) -> None:
    async with played(tmp_path, b'{"v": 1, "id": 1, "ok": {"x": 1}}\n') as asked:
        assert await ask(tmp_path, os.getpid(), "stop", grace_seconds=1.5) == {"x": 1}
    assert asked == [{"v": 1, "id": 1, "command": "stop", "grace_seconds": 1.5}]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b'{"v": 1, "id": 1, "error": "unknown"}\n', "state: the shim refused: unknown"),
        (b'{"v": 1, "id": 1, "ok": 5}\n', "state: the shim refused: None"),
        (b"nonsense\n", "the shim sent no JSON"),
        (b"[]\n", "the shim sent list instead of an object"),
        (b'{"v": 1, "o', "state: the shim has gone"),
        (b"hang up", "state: the shim has gone"),
    ],
)
async def test_no_answer_is_an_error_with_its_reason(tmp_path: Path, reply: bytes, error: str) -> None:
    async with played(tmp_path, reply):
        with pytest.raises(EngineError, match=error):
            await ask(tmp_path, os.getpid(), "state")


async def test_a_shim_that_is_stopped_is_waited_for_a_while(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with played(tmp_path, FOREVER):
        began = trio.current_time()
        with pytest.raises(EngineError, match="state: the shim did not answer within 5 s"):
            await ask(tmp_path, os.getpid(), "state")
        assert trio.current_time() - began == ANSWER_SECONDS


async def test_a_line_without_end(tmp_path: Path) -> None:
    async with played(tmp_path, b"x" * (LINE_BYTES_MAX + 65537)):
        with pytest.raises(EngineError, match=f"a line of more than {LINE_BYTES_MAX} bytes"):
            await ask(tmp_path, os.getpid(), "state")


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"no shim listens in {tmp_path}: .*No such file"):
        await connect(tmp_path, os.getpid())
    with pytest.raises(EngineError, match="no shim listens"):
        await connect(tmp_path / "none", os.getpid())
    with socket.socket(socket.AF_UNIX) as dead, short(tmp_path) as near:
        dead.bind(f"{near}/shim.sock")
    with pytest.raises(EngineError, match="refused"):
        await connect(tmp_path, os.getpid())


async def test_somebody_else_listens(tmp_path: Path) -> None:
    async with played(tmp_path, FOREVER):
        with pytest.raises(EngineError, match=rf"process {os.getpid()} listens in .*, and its record says 1"):
            await connect(tmp_path, 1)


async def test_events_come_line_by_line_and_a_cancelled_wait_loses_none(tmp_path: Path) -> None:
    with trio.socket.socket(socket.AF_UNIX) as listener, short(tmp_path) as near:
        await listener.bind(f"{near}/shim.sock")
        listener.listen(1)
        with await connect(tmp_path, os.getpid()) as conversation:
            sock, _ = await listener.accept()
            with sock:
                await sock.send(b'{"event": "a"}\n{"event": "b"}\n{"eve')
                assert await conversation.receive() == {"event": "a"}
                assert await conversation.receive() == {"event": "b"}
                with trio.move_on_after(0):
                    await conversation.receive()
                await sock.send(b'nt": "c"}\n')
                assert await conversation.receive() == {"event": "c"}
            assert await conversation.receive() is None
