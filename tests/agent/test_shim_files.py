"""Files of a shard's folder: whole or not at all, and output that never hurts the engine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import shim_files
from llmgw.agent.shim_files import (
    OUTPUT,
    OUTPUT_BEFORE,
    OUTPUT_FILE_BYTES_MAX,
    OUTPUT_TAIL_BYTES_MAX,
    Output,
    read_json,
    read_tail,
    write_json,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_json_comes_back_and_is_for_us_alone(folder: int, tmp_path: Path) -> None:
    write_json(folder, "a.json", {"x": [1, None, "ü\udc80"]})
    assert read_json(folder, "a.json") == {"x": [1, None, "ü\udc80"]}
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file(folder: int, tmp_path: Path) -> None:
    write_json(folder, "a.json", {"x": 1})
    (tmp_path / "a.json.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_json(folder, "a.json", {"x": 2})
    assert read_json(folder, "a.json") == {"x": 1}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', "\udcff"])
def test_damaged_json_is_none(folder: int, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(os.fsencode(text))
    assert read_json(folder, "a.json") is None
    assert read_json(folder, "none.json") is None


def test_output_rotates_and_both_files_are_bounded(folder: int, tmp_path: Path) -> None:
    """Of three and a half files' worth the last one and a half at least are kept, in order."""
    output = Output(folder)
    chunk = OUTPUT_FILE_BYTES_MAX // 4
    for number in range(14):
        output.write(bytes((number,)) * chunk)
    sizes = {name: (tmp_path / name).stat().st_size for name in (OUTPUT, OUTPUT_BEFORE)}
    assert sizes == {OUTPUT: 2 * chunk, OUTPUT_BEFORE: 4 * chunk}
    assert output.dropped_bytes == 0
    kept = (tmp_path / OUTPUT_BEFORE).read_bytes() + (tmp_path / OUTPUT).read_bytes()
    assert kept == b"".join(bytes((number,)) * chunk for number in range(8, 14))


def test_the_tail_goes_over_both_files(folder: int, tmp_path: Path) -> None:
    assert read_tail(folder, 10) == b""
    (tmp_path / OUTPUT).write_bytes(b"defg")
    assert read_tail(folder, 10) == b"defg"
    (tmp_path / OUTPUT_BEFORE).write_bytes(b"abc")
    assert [read_tail(folder, size) for size in (0, 3, 6, 100)] == [b"", b"efg", b"bcdefg", b"abcdefg"]


def test_the_tail_is_bounded(folder: int, tmp_path: Path) -> None:
    (tmp_path / OUTPUT).write_bytes(bytes(OUTPUT_TAIL_BYTES_MAX + 5))
    assert len(read_tail(folder, 10 * OUTPUT_TAIL_BYTES_MAX)) == OUTPUT_TAIL_BYTES_MAX


def test_what_cannot_be_kept_is_counted_and_said_later(folder: int, tmp_path: Path) -> None:
    (tmp_path / OUTPUT).mkdir()
    output = Output(folder)
    output.write(b"lost")
    output.write(b"too")
    assert output.dropped_bytes == 7
    (tmp_path / OUTPUT).rmdir()
    output.write(b"kept")
    output.write(b" on")
    assert output.dropped_bytes == 7
    said = "\n[llmgw: 7 bytes of output were not kept: Is a directory]\nkept on"
    assert (tmp_path / OUTPUT).read_text() == said


def test_a_full_disk_counts_every_byte(folder: int, tmp_path: Path) -> None:
    (tmp_path / OUTPUT).symlink_to("/dev/full")
    output = Output(folder)
    for _ in range(3):
        output.write(b"12345")
    assert output.dropped_bytes == 15


def test_a_folder_that_was_removed_hurts_nobody(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    try:
        path.rmdir()
        output = Output(fd)
        output.write(b"abc")
    finally:
        os.close(fd)
    assert output.dropped_bytes == 3


def test_names_and_sizes_are_frozen() -> None:
    """Agents of every age read what shims of every age have written."""
    names = ("RECORD", "EXIT", "SOCKET", "SHIM_LOG", "OUTPUT", "OUTPUT_BEFORE")
    assert [getattr(shim_files, name) for name in names] == [
        "record.json",
        "exit.json",
        "shim.sock",
        "shim.log",
        "output.log",
        "output.1.log",
    ]
