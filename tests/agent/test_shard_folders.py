"""Folders of launches: names, order, and what is kept."""

import os
from pathlib import Path

import pytest

from llmgw.agent.shard_folders import (
    FORGOTTEN_MAX,
    LAUNCH,
    folder_name,
    forget_folder,
    launch_folders,
    open_folder,
    previous_folder,
    read_file,
    read_launch,
    shard_hash,
)


def make(shards: Path, shard: str, epoch: int, age: int = 0) -> Path:
    path = shards / folder_name(shard, epoch)
    path.mkdir()
    os.utime(path, (1_000_000 - age, 1_000_000 - age))
    return path


def names(shards: Path) -> list[str]:
    return sorted(path.name for path in shards.iterdir())


def test_names_hold_for_ever() -> None:
    """A later agent finds the folders of an earlier one."""
    assert folder_name("tiny/0/0", 1700000000) == "72086936-1700000000"
    assert folder_name("org/model.gguf/12/3", 7).endswith("-7")
    assert shard_hash("a" * 5000) != shard_hash("a" * 5001)


def test_only_folders_of_launches_that_are_not_forgotten(tmp_path: Path) -> None:
    one, other = make(tmp_path, "m/1/0", 8), make(tmp_path, "m/2/0", 9)
    make(tmp_path, "m/1/0", 7).rename(tmp_path / (folder_name("m/1/0", 7) + ".forgotten"))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / folder_name("m/3/0", 1)).write_text("a file")
    assert launch_folders(tmp_path) == sorted([one, other])


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"shard": "m/1/0", "epoch": 7}', True),
        ('{"shard": "m/1/0", "epoch": "7"}', False),
        ('{"shard": 1, "epoch": 7}', False),
        ('{"epoch": 7}', False),
        ("[]", False),
        ("", False),
    ],
)
def test_the_agents_own_file(tmp_path: Path, text: str, whole: bool) -> None:
    (tmp_path / LAUNCH).write_text(text)
    assert (read_launch(tmp_path) is not None) == whole


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    assert read_file(tmp_path / "none", LAUNCH) is None
    assert read_launch(tmp_path) is None
    with pytest.raises(FileNotFoundError), open_folder(tmp_path / "none"):
        pass


def test_the_launch_before(tmp_path: Path) -> None:
    """By number, not by name; forgotten or not; of this shard only."""
    nine, ten, eleven = (make(tmp_path, "m/1/0", epoch) for epoch in (9, 10, 11))
    make(tmp_path, "m/2/0", 10)
    assert previous_folder(nine) is None
    assert previous_folder(ten) == nine
    assert previous_folder(eleven) == ten
    forget_folder(ten)
    assert previous_folder(eleven) == tmp_path / f"{ten.name}.forgotten"


def test_one_forgotten_launch_of_a_shard_is_kept(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        forget_folder(make(tmp_path, "m/1/0", epoch))
    other = make(tmp_path, "m/2/0", 1)
    assert names(tmp_path) == sorted([other.name, folder_name("m/1/0", 3) + ".forgotten"])


def test_forgetting_twice_or_what_was_taken_away(tmp_path: Path) -> None:
    path = make(tmp_path, "m/1/0", 1)
    forget_folder(path)
    forget_folder(path)
    assert names(tmp_path) == [path.name + ".forgotten"]
    make(tmp_path, "m/1/0", 1)
    (path / "new").write_text("")
    forget_folder(path)
    assert [file.name for file in (tmp_path / f"{path.name}.forgotten").iterdir()] == ["new"]


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    for number in range(FORGOTTEN_MAX + 5):
        forget_folder(make(tmp_path, f"m/{number}/0", 1, age=1000 - number))
    assert names(tmp_path) == sorted(
        folder_name(f"m/{number}/0", 1) + ".forgotten" for number in range(5, FORGOTTEN_MAX + 5)
    )
