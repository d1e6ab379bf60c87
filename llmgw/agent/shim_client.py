"""The agent's end of a shim's protocol (`llmgw.agent.shim`): lines of JSON over the socket in a shard's folder.

A command has a connection of its own, so that replies and events never mix; the one that is attached only listens.
Shims of every age answer: what an old one does not know is an EngineError, never an assumption.
"""

import json
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from llmgw.agent.launch import JsonObject
from llmgw.agent.shim_files import SOCKET
from llmgw.errors import EngineError

PROTOCOL = 1
ANSWER_SECONDS = 5.0
"""A shim answers within milliseconds; one that does not is stopped, or its machine is."""
LINE_BYTES_MAX = 4 << 20
"""The longest answer is an output tail of 1 MiB in base64."""
RECEIVE_BYTES = 1 << 16


class Conversation:
    """One connection to a shim. `with await connect(...)`."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._stream = trio.SocketStream(sock)
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The shim does not mind."""
        self._stream.socket.close()

    async def receive(self) -> JsonObject | None:
        """The next line; None at the end. EngineError: it is no JSON object. Cancelling it loses nothing."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > LINE_BYTES_MAX:
                raise EngineError(f"the shim sent a line of more than {LINE_BYTES_MAX} bytes")
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            message = json.loads(line)
        except ValueError as error:
            raise EngineError(f"the shim sent no JSON: {error}") from error
        if not isinstance(message, dict):
            raise EngineError(f"the shim sent {type(message).__name__} instead of an object")
        return message

    async def ask(self, command: str, **fields: Any) -> JsonObject:
        """What is in its `ok`. EngineError: it refused, did not answer in time, or is gone."""
        line = json.dumps({"v": PROTOCOL, "id": 1, "command": command, **fields}).encode() + b"\n"
        answer = None
        with trio.move_on_after(ANSWER_SECONDS) as scope:
            try:
                await self._stream.send_all(line)
            except trio.BrokenResourceError as error:
                raise EngineError(f"{command}: the shim has gone") from error
            answer = await self.receive()
        if scope.cancelled_caught:
            raise EngineError(f"{command}: the shim did not answer within {ANSWER_SECONDS:.0f} s")
        if answer is None:
            raise EngineError(f"{command}: the shim has gone")
        if not isinstance(answer.get("ok"), dict):
            raise EngineError(f"{command}: the shim refused: {answer.get('error')}")
        return dict(answer["ok"])


async def connect(folder: Path, shim_pid: int) -> Conversation:
    """A connection to the shim of that folder. EngineError: there is none that listens, or it is another process."""
    sock = trio.socket.socket(socket.AF_UNIX)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await sock.connect(f"/proc/self/fd/{fd}/{SOCKET}")
        finally:
            os.close(fd)
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except (OSError, trio.TooSlowError) as error:
        sock.close()
        raise EngineError(f"no shim listens in {folder}: {error}") from error
    except BaseException:
        sock.close()
        raise
    if pid != shim_pid:
        sock.close()
        raise EngineError(f"process {pid} listens in {folder}, and its record says {shim_pid}")
    return Conversation(sock)


async def ask(folder: Path, shim_pid: int, command: str, **fields: Any) -> JsonObject:
    """One command on a connection of its own."""
    with await connect(folder, shim_pid) as conversation:
        return await conversation.ask(command, **fields)
