"""The table: whole or step by step, never a mixture, and loads that outlive the entries."""

import pytest

from llmgw.core.routing import ClientKey, Endpoint, RoutedModel
from llmgw.router.table import GapError, Table
from llmgw.wire.messages import RouteChange, RouteRemoved, RouteSet, RouteTable

TINY = RoutedModel("tiny", ("gpt",))
ONE, TWO = (Endpoint(f"tiny/{number}", "tiny", f"http://127.0.0.1:{number + 1}", 5) for number in range(2))


def ids(table: Table, model: str = "tiny") -> list[str]:
    route = table.route(model)
    return [] if route is None else sorted(target.endpoint.id for target in route.targets)


def test_parts_are_used_together_and_not_before() -> None:
    table = Table()
    assert not table.put(RouteTable("c", 3, 0, 2, models=(TINY,)))
    assert not table.known
    assert table.put(RouteTable("c", 3, 1, 2, endpoints=(ONE,)))
    assert (table.incarnation, table.revision, ids(table), ids(table, "gpt")) == ("c", 3, ["tiny/0"], ["tiny/0"])


def test_parts_of_another_revision_start_anew() -> None:
    table = Table()
    table.put(RouteTable("c", 3, 0, 2, models=(TINY,), endpoints=(ONE,)))
    assert not table.put(RouteTable("c", 4, 1, 2, endpoints=(TWO,)))
    assert table.put(RouteTable("c", 4, 0, 2, models=(TINY,)))
    assert ids(table) == ["tiny/1"]


@pytest.mark.parametrize(("part", "parts"), [(1, 1), (-1, 1), (0, 0), (0, 100_000)])
def test_nonsense_of_parts_is_a_gap(part: int, parts: int) -> None:
    with pytest.raises(GapError):
        Table().put(RouteTable("c", 1, part, parts))


def test_a_complete_table_removes_and_an_incomplete_one_never_does() -> None:
    table = Table()
    table.put(RouteTable("c", 1, models=(TINY,), endpoints=(ONE, TWO)))
    table.put(RouteTable("d", 1, complete=False, models=(), endpoints=(ONE,)))
    assert ids(table) == ["tiny/0", "tiny/1"]
    table.put(RouteTable("d", 2, models=(TINY,), endpoints=(ONE,)))
    assert ids(table) == ["tiny/0"]


def test_a_change_follows_on_its_revision_or_is_a_gap() -> None:
    table = Table()
    table.put(RouteTable("c", 1, models=(TINY,), endpoints=(ONE,)))
    table.change(RouteChange("c", 2, set=RouteSet(endpoints=(TWO,)), removed=RouteRemoved(endpoints=("tiny/0",))))
    assert ids(table) == ["tiny/1"]
    for step in (RouteChange("c", 2), RouteChange("c", 4), RouteChange("d", 3)):
        with pytest.raises(GapError):
            table.change(step)
    table.change(RouteChange("c", 3, complete=False, removed=RouteRemoved(("tiny",), ("tiny/1",))))
    assert ids(table) == ["tiny/1"]


def test_keys_are_replaced_even_by_an_incomplete_table() -> None:
    table = Table()
    table.put(RouteTable("c", 1, keys=(ClientKey("a", "0" * 64),)))
    table.put(RouteTable("c", 2, complete=False))
    assert table.client_keys == ()


def test_a_load_outlives_its_endpoint_and_is_another_of_another_epoch() -> None:
    rung: list[int] = []
    table = Table(lambda: rung.append(1))
    table.put(RouteTable("c", 1, models=(TINY,), endpoints=(ONE,)))
    load = table.load_of(ONE)
    load.in_flight = 2
    table.put(RouteTable("c", 2, models=(TINY,)))
    assert table.is_leaving(ONE)
    assert [report.in_flight for report in table.reports(0)] == [2]
    table.released(load)
    assert not rung
    table.put(RouteTable("c", 3, models=(TINY,), endpoints=(ONE,)))
    assert table.load_of(ONE) is load
    table.put(RouteTable("c", 4, models=(TINY,)))
    table.released(load)
    assert rung == [1]
    assert [report.in_flight for report in table.reports(0)] == [0]  # told once more, then forgotten
    assert table.reports(0) == ()


def test_its_parts_make_the_same_table() -> None:
    table, other = Table(), Table()
    many = tuple(Endpoint(f"tiny/{number}", "tiny", "http://h:1", 1) for number in range(4500))
    table.put(RouteTable("c", 9, models=(TINY,), endpoints=many, keys=(ClientKey("a", "0" * 64),)))
    parts = table.parts()
    assert len(parts) == 3
    assert [other.put(part) for part in parts] == [False, False, True]
    assert ids(other) == ids(table)
    assert (other.models(), other.client_keys, other.revision) == (table.models(), table.client_keys, 9)
