"""The shim's end of its protocol: the launch request, one client's connection, and what a line of it may hold.

Standard library only, part of the shim, and frozen as `llmgw.agent.shim` says.
"""

import json
import select
import signal
import socket
from collections.abc import Iterator
from typing import Any

from llmgw.agent.shim_files import OUTPUT_TAIL_BYTES_MAX

Json = dict[str, Any]

PROTOCOL = 1
READ_BYTES = 1 << 16
"""At a time, so that a chatty engine or client does not keep the others waiting."""
LINE_BYTES_MAX = 1 << 16
"""A command is a few hundred bytes."""
PENDING_BYTES_MAX = 4 << 20
"""A client that takes no answers is dropped; two output tails fit."""
GRACE_SECONDS_MAX = 86400.0
"""A day: more is a mistake in the unit."""

REQUEST: Json = {  # field -> default; None: needed
    "mark": None,  # of this launch: goes into the engine's environment
    "agent": None,
    "state_dir": None,
    "shard": None,
    "epoch": None,
    "argv": None,
    "env": None,  # the whole environment
    "cwd": "/",
    "ports": [],  # all must be free just before exec; the first is the engine's own
    "grace_seconds": 20.0,  # for SIGTERM to the shim
    "second_term": False,
    "cgroup": "",  # a folder; empty: the engine stays in the shim's
}


class RefusedError(Exception):
    """A command that is not carried out, with the reason for the client."""


def read_request(text: bytes) -> Json:
    """The launch request with its defaults. ValueError says what is wrong with it."""
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("the launch request: expected an object")  # noqa: TRY004
    request: Json = {field: given.get(field, default) for field, default in REQUEST.items()}
    missing = [field for field, value in request.items() if value is None]
    if missing:
        raise ValueError(f"the launch request lacks {', '.join(missing)}")
    words = (*request["argv"], *request["env"], *request["env"].values())
    if not request["argv"] or not all(isinstance(word, str) for word in words):
        raise ValueError("argv and env of the launch request hold strings only, and argv at least one")
    return request


def read_command(line: bytes) -> Json:
    """One line of a client. RefusedError: it is no command."""
    try:
        command = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"expected a line of JSON: {error}") from error
    if not isinstance(command, dict):
        raise RefusedError("expected an object")
    return command


def is_whole(value: Any) -> bool:
    """An integer, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def stop_arguments(command: Json) -> tuple[float, bool]:
    """grace_seconds, second_term."""
    grace, second_term = command.get("grace_seconds"), command.get("second_term", False)
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= GRACE_SECONDS_MAX:
        raise RefusedError(f"grace_seconds: expected a number from 0 to {GRACE_SECONDS_MAX:.0f}")
    if not isinstance(second_term, bool):
        raise RefusedError("second_term: expected true or false")
    return grace, second_term


def signal_argument(command: Json) -> int:
    """The number of a signal."""
    number: Any = command.get("signal")
    if not is_whole(number) or number not in signal.valid_signals():
        raise RefusedError("signal: expected the number of a signal")
    return int(number)


def bytes_argument(command: Json) -> int:
    """bytes_max."""
    size: Any = command.get("bytes_max")
    if not is_whole(size) or not 0 <= size <= OUTPUT_TAIL_BYTES_MAX:
        raise RefusedError(f"bytes_max: expected an integer from 0 to {OUTPUT_TAIL_BYTES_MAX}")
    return int(size)


class Client:
    """One connection. Nothing that it sends or leaves unread can hurt."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.attached = False
        self.closing = False
        """Closed as soon as nothing is pending."""
        self.pending = bytearray()
        self._received = b""

    def send(self, message: Json) -> None:
        """Never waits: what the client does not take now is pending. One that takes nothing is dropped."""
        if self.closing:
            return
        waiting = bool(self.pending)
        self.pending += json.dumps({"v": PROTOCOL, **message}).encode() + b"\n"
        if not waiting:
            self.flush()
        if len(self.pending) > PENDING_BYTES_MAX:
            self.pending.clear()
            self.closing = True

    def flush(self) -> None:
        """Send what is pending, as far as it goes."""
        try:
            while self.pending:
                del self.pending[: self.sock.send(self.pending)]
        except BlockingIOError:
            return
        except OSError:
            self.pending.clear()
            self.closing = True

    def lines(self) -> Iterator[bytes]:
        """The whole lines that have come in. None from a client that has yet to take its answers."""
        if self.closing or self.pending:
            return
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        yield from lines
        if not data:
            self.closing = True
        elif len(self._received) > LINE_BYTES_MAX:
            self.send({"id": None, "error": f"a line is longer than {LINE_BYTES_MAX} bytes"})
            self._received, self.closing = b"", True

    @property
    def waits_for(self) -> int:
        """What poll is to look for: no more from who has not taken what there is."""
        if self.pending:
            return select.POLLOUT
        return 0 if self.closing else select.POLLIN
