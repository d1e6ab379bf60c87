"""The files in a shard's folder: their names, and how the shim writes them. Standard library only, and frozen as
`llmgw.agent.shim` says: the agent reads what shims of every age have written, with the shim dead too.
"""

import errno
import json
import os
from typing import Any

RECORD, EXIT, SOCKET, SHIM_LOG = "record.json", "exit.json", "shim.sock", "shim.log"
OUTPUT, OUTPUT_BEFORE = "output.log", "output.1.log"

OUTPUT_FILE_BYTES_MAX = 4 << 20
"""Two files of it are hours of an engine's log."""
OUTPUT_TAIL_BYTES_MAX = 1 << 20
"""Of one answer: no more than fits a frame of the wire."""


def write_json(folder: int, name: str, value: dict[str, Any]) -> None:
    """Replace a file of the folder (a descriptor) as a whole. OSError leaves the old one.

    Not synced: after a crash of the machine no process is left that the file could be about.
    """
    data = json.dumps(value).encode()
    fd = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)
    os.replace(name + ".new", name, src_dir_fd=folder, dst_dir_fd=folder)


def read_json(folder: int, name: str) -> dict[str, Any] | None:
    """None: there is no such file, or it holds no JSON object (the disk was full, or a person edited it)."""
    try:
        fd = os.open(name, os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:  # noqa: PTH123
        data = file.read()
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_tail(folder: int, bytes_max: int) -> bytes:
    """The end of the output kept in the folder; empty where there is none."""
    tail = b""
    for name in (OUTPUT, OUTPUT_BEFORE):
        wanted = min(bytes_max, OUTPUT_TAIL_BYTES_MAX) - len(tail)
        try:
            fd = os.open(name, os.O_RDONLY, dir_fd=folder)
        except FileNotFoundError:
            continue
        with open(fd, "rb") as file:  # noqa: PTH123
            file.seek(max(0, file.seek(0, os.SEEK_END) - wanted))
            tail = file.read(wanted) + tail
    return tail


class Output:
    """An engine's output in two rotating files.

    Never raises and never waits for anybody: what cannot be kept (the disk is full, the folder is gone) is dropped
    and counted, and a line in its place says so as soon as writing works again.
    """

    def __init__(self, folder: int) -> None:
        self.dropped_bytes = 0
        self._folder = folder
        self._fd = -1
        self._size = 0
        self._unsaid_bytes = 0
        self._why = ""

    def write(self, data: bytes) -> None:
        """Keep it, or count it."""
        try:
            self._make_room(len(data))
            if self._unsaid_bytes:
                self._put(f"\n[llmgw: {self._unsaid_bytes} bytes of output were not kept: {self._why}]\n".encode())
                self._unsaid_bytes = 0
        except OSError as error:
            self._drop(len(data), error)
            return
        before = self._size
        try:
            self._put(data)
        except OSError as error:
            self._drop(len(data) - (self._size - before), error)

    def _make_room(self, size: int) -> None:
        if self._fd >= 0 and self._size and self._size + size > OUTPUT_FILE_BYTES_MAX:
            os.close(self._fd)
            self._fd = -1
            os.replace(OUTPUT, OUTPUT_BEFORE, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._fd = os.open(OUTPUT, flags, 0o600, dir_fd=self._folder)
            self._size = os.fstat(self._fd).st_size

    def _put(self, data: bytes) -> None:
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def _drop(self, size: int, error: OSError) -> None:
        self.dropped_bytes += size
        self._unsaid_bytes += size
        self._why = error.strerror or str(error)
