"""What outlives the process: `state_dir/control.db`, and the lock that says that the folder is ours.

SQLite in WAL mode, called synchronously: a commit takes microseconds, and a thread would only add a moment in which
a command is out and the file does not know of it. Each row is one JSON value, decoded strictly; a field is only
ever added, with a default, so that the schema version rises only when rows mean something else.

Three things can be found at a start, and they are not the same. *No file*: a first start. *A file that is read*:
what it says is known. *A file that cannot be read* (corrupt, or of a newer llmgw): nobody knows what should run, so
nothing may be stopped. It is left where it is, untouched, and this control writes nothing until it is restarted
with the file mended, restored or moved away; after that loss a fresh file would lie about what is known.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import attrs
import msgspec
import structlog

from llmgw.core.fleet import Memory
from llmgw.core.fleet_events import KnownNode
from llmgw.core.replicas import Halt, Replica, Replicas
from llmgw.errors import LlmgwError

log = structlog.get_logger()

FILE_NAME = "control.db"
LOCK_NAME = "control.lock"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x6C6C6D67
"""`llmg`, in the header of the file: another program's database is not taken for ours."""

_SCHEMA = (
    "CREATE TABLE nodes (id TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT",
    "CREATE TABLE replicas (id TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT",
    "CREATE TABLE halts (model TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT",
    "CREATE TABLE models (name TEXT PRIMARY KEY, created INTEGER NOT NULL) STRICT",
    "CREATE TABLE epochs (one INTEGER PRIMARY KEY CHECK (one = 1), epoch_max INTEGER NOT NULL) STRICT",
    "INSERT INTO epochs VALUES (1, 0)",
)

_MAGIC = b"SQLite format 3\0"
_USER_VERSION_AT, _APPLICATION_ID_AT = 60, 68
"""Where the header has them, 4 bytes each, big-endian."""

T = TypeVar("T")


class StoreError(LlmgwError):
    """The state could not be written (a full disk, mostly). Nothing of that call was."""


class StateDirError(LlmgwError):
    """The state folder cannot be used: another control has it, or it cannot be written."""


@attrs.frozen
class Stored:
    """Everything that was known when the process before this one wrote last."""

    memory: Memory
    nodes: tuple[KnownNode, ...] = ()
    replicas: Replicas = Replicas()
    created: Mapping[str, int] = attrs.field(factory=dict)
    """Unix seconds at which each model was first in the catalog."""
    problem: str = ""
    """Why nothing could be read, naming the file."""


class Store(Protocol):
    """What control needs of its memory. Every call is quick and does not block on anything but the disk."""

    stored: Stored
    """As it was found at the start."""

    def save_nodes(self, rows: Mapping[str, KnownNode | None]) -> None:
        """Write (or, for None, delete) these nodes, all or none. Raises StoreError."""

    def save_replicas(self, old: Replicas, new: Replicas) -> None:
        """Write what differs, all or none. Raises StoreError."""

    def save_created(self, created: Mapping[str, int]) -> None:
        """Write when models appeared. Raises StoreError."""


class ControlStore:
    """The Store in `state_dir/control.db`. One process at a time: hold the `state_dir_lock`."""

    def __init__(self, state_dir: Path) -> None:
        file = state_dir / FILE_NAME
        self.stored = _read(file)
        if self.stored.memory is Memory.UNREADABLE:
            self._database = sqlite3.connect(":memory:", isolation_level=None)
            _create_tables(self._database)
            return
        if self.stored.memory is Memory.FIRST_START:
            _create(file)
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        # A power cut may take the last commits and never the file. Epochs are safe from it: they follow the clock.
        self._database.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        """Fold the log into the file and let go of it."""
        self._database.close()

    def save_nodes(self, rows: Mapping[str, KnownNode | None]) -> None:
        """As Store."""
        with self._transaction("nodes") as database:
            _write_rows(database, "nodes", "id", rows.items())

    def save_replicas(self, old: Replicas, new: Replicas) -> None:
        """As Store."""
        with self._transaction("replicas") as database:
            _write_rows(database, "replicas", "id", _differences(old.by_id, new.by_id))
            _write_rows(database, "halts", "model", _differences(old.halts, new.halts))
            if new.epoch_max != old.epoch_max:
                database.execute("UPDATE epochs SET epoch_max = ?", (new.epoch_max,))

    def save_created(self, created: Mapping[str, int]) -> None:
        """As Store."""
        with self._transaction("models") as database:
            database.executemany("INSERT OR REPLACE INTO models VALUES (?, ?)", created.items())

    @contextlib.contextmanager
    def _transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # BEGIN itself failed, or SQLite has rolled back already
                self._database.execute("ROLLBACK")
            raise StoreError(f"cannot write {what} to {FILE_NAME}: {error}") from error


@contextlib.contextmanager
def state_dir_lock(state_dir: Path) -> Iterator[None]:
    """Hold `state_dir` (made if absent, 0700) for this process. StateDirError says who has it, or why not."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirError(f"state_dir {state_dir} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            raise StateDirError(
                f"state_dir {state_dir} is in use by another llmgw-control, pid {holder}: "
                "stop it, or give this one a state_dir of its own"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _read(file: Path) -> Stored:
    try:
        with file.open("rb") as opened:
            header = opened.read(100)
    except FileNotFoundError:
        return Stored(Memory.FIRST_START)
    except OSError as error:
        return _unreadable(file, error.strerror or str(error))
    if not header.startswith(_MAGIC):
        return _unreadable(file, "it is no SQLite database")
    if _number(header, _APPLICATION_ID_AT) != APPLICATION_ID:
        return _unreadable(file, "it is another program's database")
    version = _number(header, _USER_VERSION_AT)
    if version > SCHEMA_VERSION:
        return _unreadable(file, f"it was written by a newer llmgw (schema {version}, this one reads {SCHEMA_VERSION})")
    try:
        # Read only: a close would otherwise write the log into a file of which nobody knows yet whether it is sound.
        with contextlib.closing(sqlite3.connect(f"file:{_escaped(file)}?mode=ro", uri=True)) as database:
            return _load(database)
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        return _unreadable(file, str(error))


def _load(database: sqlite3.Connection) -> Stored:
    sound = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if sound != "ok":
        raise sqlite3.DatabaseError(str(sound))
    nodes = _rows(database, "SELECT row FROM nodes ORDER BY id", KnownNode)
    replicas = _rows(database, "SELECT row FROM replicas ORDER BY id", Replica)
    halts = database.execute("SELECT model, row FROM halts ORDER BY model").fetchall()
    return Stored(
        Memory.LOADED,
        nodes,
        Replicas(
            by_id={replica.id: replica for replica in sorted(replicas, key=_position)},
            halts={model: msgspec.json.decode(row, type=Halt) for model, row in halts},
            epoch_max=database.execute("SELECT epoch_max FROM epochs").fetchone()[0],
        ),
        dict(database.execute("SELECT name, created FROM models ORDER BY name").fetchall()),
    )


def _rows(database: sqlite3.Connection, query: str, kind: type[T]) -> tuple[T, ...]:
    return tuple(msgspec.json.decode(row, type=kind) for (row,) in database.execute(query))


def _position(replica: Replica) -> tuple[str, int, str]:
    number = replica.id.rpartition("/")[2]
    return (replica.model, int(number) if number.isdecimal() else 0, replica.id)


def _unreadable(file: Path, why: str) -> Stored:
    problem = f"{file} cannot be read: {why}"
    log.error("state cannot be read", file=str(file), reason=why, consequence="nothing is stopped, nothing is written")
    return Stored(Memory.UNREADABLE, problem=problem)


def _create(file: Path) -> None:
    """A complete file appears under its name, or none: what is half made would be unreadable at the next start."""
    draft = file.with_suffix(".new")
    for leftover in (draft, Path(f"{file}-wal"), Path(f"{file}-shm")):
        # The log of a file that is gone would be replayed into its successor.
        leftover.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as database:
        _create_tables(database)
    draft.rename(file)


def _create_tables(database: sqlite3.Connection) -> None:
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute("BEGIN")
    for statement in _SCHEMA:
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    database.execute("COMMIT")


def _write_rows(database: sqlite3.Connection, table: str, key: str, rows: Iterable[tuple[str, object | None]]) -> None:
    for name, value in rows:
        if value is None:
            database.execute(f"DELETE FROM {table} WHERE {key} = ?", (name,))  # noqa: S608  names of ours
        else:
            row = msgspec.json.encode(value).decode()
            database.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (name, row))  # noqa: S608


def _differences(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T | None]]:
    for name, value in new.items():
        before = old.get(name)
        if before is not value and before != value:
            yield name, value
    for name in old:
        if name not in new:
            yield name, None


def _number(header: bytes, at: int) -> int:
    return int.from_bytes(header[at : at + 4], "big")


def _escaped(file: Path) -> str:
    """A path as SQLite's URIs want it."""
    return str(file.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
