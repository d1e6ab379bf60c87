"""The last table on disk, so that a router that starts while control is away serves what it served before."""

import os
from pathlib import Path

import structlog

from llmgw.errors import PeerError
from llmgw.router.table import GapError, Table
from llmgw.wire.codec import decode, encode
from llmgw.wire.frames import DOWN_BYTES_MAX, FrameDecoder
from llmgw.wire.messages import RouterDown, RouteTable

log = structlog.get_logger()

FILE_NAME = "table.frames"


def keep(folder: Path, table: Table) -> None:
    """Write the table in use, in place of the one before. It holds engines' keys, so it is the owner's alone.

    A disk that is full costs the copy and nothing else: it is said, and the old one stays.
    """
    draft = folder / f"{FILE_NAME}.new"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(encode(part) for part in table.parts())
        draft.replace(folder / FILE_NAME)
    except OSError as error:
        log.warning("table cannot be kept on disk", file=str(draft), error=error.strerror)


def restore(folder: Path, table: Table) -> bool:
    """Put the kept table into use, marked stale; whether there was one that can be read."""
    path = folder / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("kept table cannot be read", file=str(path), error=error.strerror)
        return False
    try:
        decoder = FrameDecoder(DOWN_BYTES_MAX)
        parts = [decode(fields, RouterDown) for fields in decoder.feed(data)]
        decoder.finish()
        used = [table.put(part, stale=True) for part in parts if isinstance(part, RouteTable)]
    except (PeerError, GapError) as error:
        log.warning("kept table is not used", file=str(path), reason=str(error))
        return False
    return bool(used) and used[-1]
