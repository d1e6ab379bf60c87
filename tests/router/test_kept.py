"""The last table on disk: the same after a restart, marked stale, the owner's alone, and never a reason to fail."""

from pathlib import Path

import pytest

from llmgw.core.routing import ClientKey, Endpoint, RoutedModel
from llmgw.router.kept import FILE_NAME, keep, restore
from llmgw.router.table import Table
from llmgw.wire.messages import RouteTable


@pytest.fixture
def table() -> Table:
    made = Table()
    made.put(
        RouteTable(
            "c",
            7,
            models=(RoutedModel("tiny", ("gpt",), created=3),),
            endpoints=(Endpoint("tiny/0", "tiny", "http://127.0.0.1:1", 4, key="engine-key"),),
            keys=(ClientKey("team", "0" * 64),),
        )
    )
    return made


def test_what_was_kept_is_served_again_and_marked_stale(tmp_path: Path, table: Table) -> None:
    keep(tmp_path, table)
    other = Table()
    assert restore(tmp_path, other)
    assert other.stale
    assert (other.incarnation, other.revision, other.models()) == ("c", 7, table.models())
    assert list(other.endpoints()) == list(table.endpoints())
    assert other.client_keys == table.client_keys


def test_the_file_is_the_owners_alone(tmp_path: Path, table: Table) -> None:
    """It holds engines' keys."""
    keep(tmp_path, table)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda _: b"\xff" * 40, lambda _: b"", lambda data: data[4:]]
)
def test_a_damaged_file_is_no_table(tmp_path: Path, table: Table, damage: object) -> None:
    keep(tmp_path, table)
    path = tmp_path / FILE_NAME
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    other = Table()
    assert not restore(tmp_path, other)
    assert not other.known


def test_no_file_is_no_table(tmp_path: Path) -> None:
    assert not restore(tmp_path, Table())


def test_a_folder_that_cannot_be_written_costs_the_copy_alone(tmp_path: Path, table: Table) -> None:
    keep(tmp_path / "missing", table)
    assert not list(tmp_path.iterdir())
