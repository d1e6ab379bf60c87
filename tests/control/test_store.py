"""What control remembers: round trips, first starts, and files that cannot be read."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from llmgw.control.store import ControlStore, StateDirError, Stored, StoreError, state_dir_lock
from llmgw.core.fleet import Memory
from llmgw.core.fleet_events import KnownNode
from llmgw.core.lifecycle import ShardReport
from llmgw.core.replicas import Drain, Failure, Halt, Launch, Member, Replica, Replicas

NODE = KnownNode(
    "gpu-a",
    "i1",
    "b1",
    "10.0.0.5",
    "10.0.0.5:4321",
    {"zone": "a"},
    cordoned=True,
    engines_kept=True,
    shards=(ShardReport("org/tiny/0/0", 7, "0" * 16, "ready", gpus=("GPU-1",), port=20000, pid=5),),
)
LAUNCH = Launch(
    7,
    "0123456789abcdef",
    (Member("gpu-a", ("GPU-1", "GPU-2")), Member("gpu-b")),
    1_764_540_000.5,
    gpu_memory=40 * 2**30,
    served_name="tiny",
    drain=Drain("scaled down", 1_764_540_060.25),
)
REPLICA = Replica("org/tiny/0", "org/tiny", (LAUNCH,), (Failure(1.5, "gpu-a", "it crashed"),), 2.5, "gpu-a", "removed")
REPLICAS = Replicas({"org/tiny/0": REPLICA}, {"org/tiny": Halt("0" * 16, "bad profile", entirely=True)}, 7)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[ControlStore]:
    store = ControlStore(tmp_path)
    yield store
    store.close()


def reread(state_dir: Path) -> Stored:
    store = ControlStore(state_dir)
    store.close()
    return store.stored


def test_no_file_is_a_first_start(tmp_path: Path, opened: ControlStore) -> None:
    assert opened.stored == Stored(Memory.FIRST_START)
    assert stat.S_IMODE((tmp_path / "control.db").stat().st_mode) == 0o600
    assert {file.name for file in tmp_path.iterdir()} <= {"control.db", "control.db-wal", "control.db-shm"}
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())


def test_everything_round_trips(tmp_path: Path, opened: ControlStore) -> None:
    opened.save_nodes({"gpu-a": NODE, "gpu-b": KnownNode("gpu-b")})
    opened.save_replicas(Replicas(), REPLICAS)
    opened.save_created({"org/tiny": 1_764_540_000})
    assert reread(tmp_path) == Stored(Memory.LOADED, (NODE, KnownNode("gpu-b")), REPLICAS, {"org/tiny": 1_764_540_000})


def test_what_a_killed_process_had_written_is_there(tmp_path: Path, opened: ControlStore) -> None:
    """The log is not folded into the file by a close, as after kill -9."""
    opened.save_nodes({"gpu-a": NODE})
    assert (tmp_path / "control.db-wal").stat().st_size > 0
    assert reread(tmp_path).nodes == (NODE,)


def test_only_differences_are_written_and_removals_too(tmp_path: Path, opened: ControlStore) -> None:
    opened.save_replicas(Replicas(), REPLICAS)
    other = Replica("org/tiny/1", "org/tiny")
    later = Replicas({"org/tiny/1": other}, {}, 8)
    opened.save_replicas(REPLICAS, later)
    assert reread(tmp_path).replicas == later
    opened.save_nodes({"gpu-a": NODE})
    opened.save_nodes({"gpu-a": None})
    assert reread(tmp_path).nodes == ()


def test_an_unchanged_replica_is_not_written(tmp_path: Path, opened: ControlStore) -> None:
    opened.save_replicas(Replicas(), REPLICAS)
    with sqlite3.connect(tmp_path / "control.db") as database:
        database.execute("DELETE FROM replicas")
    opened.save_replicas(REPLICAS, attrs.evolve(REPLICAS, by_id={"org/tiny/0": attrs.evolve(REPLICA)}, epoch_max=9))
    found = reread(tmp_path).replicas
    assert (found.by_id, found.epoch_max) == ({}, 9)
    database.close()


def test_replicas_come_back_sorted_by_model_and_number(tmp_path: Path, opened: ControlStore) -> None:
    ids = ["a/2", "a/10", "a/b/1", "b/0"]
    opened.save_replicas(Replicas(), Replicas({id_: Replica(id_, id_.rpartition("/")[0]) for id_ in sorted(ids)}))
    assert list(reread(tmp_path).replicas.by_id) == ids


def test_fields_of_a_newer_minor_version_are_ignored_and_missing_ones_have_their_defaults(tmp_path: Path) -> None:
    ControlStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "control.db") as database:
        database.execute("""INSERT INTO nodes VALUES ('n', '{"id": "n", "invented_later": [1]}')""")
    database.close()
    assert reread(tmp_path).nodes == (KnownNode("n"),)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no SQLite database"),
        (b"\0" * 4096, "it is no SQLite database"),
        (b"SQLite format 3\0" + b"\0" * 84, "it is another program's database"),
        (b"SQLite format 3\0" + b"\0" * 44 + b"\0\0\0\x02" + b"\0" * 4 + b"llmg" + b"\0" * 28, "newer llmgw"),
    ],
)
def test_a_file_that_is_not_ours_to_read_is_kept_and_named(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "control.db"
    file.write_bytes(content)
    store = ControlStore(tmp_path)
    assert store.stored.memory is Memory.UNREADABLE
    assert why in store.stored.problem
    assert str(file) in store.stored.problem
    store.save_nodes({"gpu-a": NODE})
    store.save_replicas(Replicas(), REPLICAS)
    store.close()
    assert file.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["control.db"]


@pytest.mark.parametrize("damage", ["page", "row", "type", "table"])
def test_damage_within_a_database_of_ours(tmp_path: Path, damage: str) -> None:
    store = ControlStore(tmp_path)
    store.save_nodes({f"n{number}": KnownNode(f"n{number}", peer="x" * 200) for number in range(100)})
    store.close()
    file = tmp_path / "control.db"
    if damage == "page":
        content = bytearray(file.read_bytes())
        content[4096 * 2 : 4096 * 8] = os.urandom(4096 * 6)
        file.write_bytes(content)
    else:
        statement = {
            "row": "UPDATE nodes SET row = '{' WHERE id = 'n50'",
            "type": """UPDATE nodes SET row = '{"id": "n50", "cordoned": "false"}' WHERE id = 'n50'""",
            "table": "DROP TABLE epochs",
        }[damage]
        with sqlite3.connect(file) as database:
            database.execute(statement)
        database.close()
    before = file.read_bytes()
    assert reread(tmp_path).memory is Memory.UNREADABLE
    assert file.read_bytes() == before


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "control.db").mkdir()
    assert "Is a directory" in reread(tmp_path).problem


def test_the_log_of_a_file_that_was_moved_away_is_not_replayed_into_the_next(
    tmp_path: Path, opened: ControlStore
) -> None:
    opened.save_nodes({"gpu-a": NODE})
    (tmp_path / "control.db").rename(tmp_path / "control.db.old")
    assert reread(tmp_path).memory is Memory.FIRST_START
    assert reread(tmp_path) == Stored(Memory.LOADED)


def test_a_full_disk_is_a_store_error_and_nothing_is_half_written(tmp_path: Path, opened: ControlStore) -> None:
    opened.save_nodes({"gpu-a": NODE})
    opened._database.execute("PRAGMA max_page_count = 1")  # the least that SQLite allows is what is in use
    rows = {f"n{number}": KnownNode(f"n{number}", peer="x" * 500) for number in range(100)}
    with pytest.raises(StoreError, match=r"^cannot write nodes to control\.db: database or disk is full$"):
        opened.save_nodes(rows)
    assert reread(tmp_path).nodes == (NODE,)
    opened._database.execute("PRAGMA max_page_count = 1000000")
    opened.save_nodes(rows)
    assert len(reread(tmp_path).nodes) == 101


def test_a_second_control_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with (
        state_dir_lock(folder),
        pytest.raises(StateDirError, match=rf"is in use by another llmgw-control, pid {os.getpid()}: "),
        state_dir_lock(folder),
    ):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with state_dir_lock(folder):
        pass


def test_a_state_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StateDirError, match=r"cannot be used: Not a directory"),
        state_dir_lock(tmp_path / "file" / "x"),
    ):
        pass
