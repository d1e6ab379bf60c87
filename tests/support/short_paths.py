"""Short names of folders, for unix sockets in temporary folders that lie deep."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short(folder: Path) -> Iterator[str]:
    """A short name of the folder: paths of unix sockets end at 108 bytes, and temporary folders may lie deep."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
