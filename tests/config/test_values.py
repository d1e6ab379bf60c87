import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config import values
from llmgw.config.values import BadValueError
from llmgw.core.address import Address
from llmgw.core.hardware import PortRange

few = settings(max_examples=settings().max_examples // 5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("1.5s", 1.5), ("20m", 1200), ("2h", 7200), ("1d", 86400), ("0s", 0), ("5 s", 5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration(text) == pytest.approx(seconds)


NO_DURATIONS: list[Any] = [
    *(5000, 0, 1.5, True, False, math.nan, math.inf, None, [], {}),
    *("", "s", "5 sec", "5S", "-1s", "+1s", "1e3s", "nan", "inf", "5", "1h30m", " 5s", "5s ", "5s\n", "5,5s"),
    *("\u0665s", "9999999d", "9" * 400 + "s"),
]


@pytest.mark.parametrize("value", NO_DURATIONS)
def test_a_duration_is_never_guessed(value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        values.duration(value)
    assert caught.value.flaws[0].expected == values.DURATION_EXPECTED


@pytest.mark.parametrize(
    ("value", "hint"),
    [(5000, 'write "5000s" or "5000ms"'), ("5 sec", 'write "5s"'), ("2H", 'write "2h"'), ("20min", 'write "20m"')],
)
def test_a_duration_almost_right_says_what_to_write(value: Any, hint: str) -> None:
    with pytest.raises(BadValueError) as caught:
        values.duration(value)
    assert caught.value.hint == hint


def test_never_is_a_word_only_where_it_makes_sense() -> None:
    assert values.duration_or_never("never") is None
    assert values.duration_or_never("3m") == 180.0
    with pytest.raises(BadValueError, match='or "never"'):
        values.duration_or_never("Never")
    with pytest.raises(BadValueError):
        values.duration("never")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("1KiB", 1024), ("64MiB", 64 * 1024**2), ("40GiB", 40 * 1024**3), ("1.5TiB", 3 * 2**39)],
)
def test_sizes(text: str, size: int) -> None:
    assert values.size(text) == size


@pytest.mark.parametrize("value", [80, True, math.nan, "80", "80GB", "80g", "80gib", "-1GiB", "", "GiB", "9999999TiB"])
def test_a_size_is_never_guessed(value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        values.size(value)
    assert caught.value.flaws[0].expected == values.SIZE_EXPECTED


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("80GB", 'GB has two meanings: write "80GiB", or "74.51GiB" for powers of 1000'),
        ("80g", 'g has two meanings: write "80GiB", or "74.51GiB" for powers of 1000'),
        (80, 'write "80GiB"'),
        (85899345920, 'write "85899345920B"'),
    ],
)
def test_a_size_almost_right_says_what_to_write(value: Any, hint: str) -> None:
    with pytest.raises(BadValueError) as caught:
        values.size(value)
    assert caught.value.hint == hint


def test_ports() -> None:
    assert values.ports("20000-20999") == PortRange(20000, 20999)
    assert values.ports("7-7") == PortRange(7, 7)


@pytest.mark.parametrize("value", [20000, "20000", "2-1", "0-5", "1-65536", "1 - 2", "1-2-3", "a-b", "-1-5", None])
def test_ports_of_another_form(value: Any) -> None:
    with pytest.raises(BadValueError):
        values.ports(value)


def test_addresses_take_their_default_port() -> None:
    assert values.address("[::1]", default_port=7070, listens=False) == Address("::1", 7070)
    assert values.address("head", default_port=7070, listens=False) == Address("head", 7070)


def test_port_0_is_only_for_what_we_bind() -> None:
    assert values.address("127.0.0.1:0", default_port=1, listens=True) == Address("127.0.0.1", 0)
    with pytest.raises(BadValueError):
        values.address("127.0.0.1:0", default_port=1, listens=False)


def test_an_ambiguous_address_is_refused_with_the_brackets_to_write() -> None:
    with pytest.raises(BadValueError) as caught:
        values.address("::1:7000", default_port=1, listens=True)
    assert "[::1]:7000" in caught.value.hint


@pytest.mark.parametrize("value", [7070, None, True, ["a:1"]])
def test_an_address_is_text(value: Any) -> None:
    with pytest.raises(BadValueError, match="host:port"):
        values.address(value, default_port=1, listens=True)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("x", "/etc/llmgw/x"),
        ("./x", "/etc/llmgw/x"),
        ("../var/x", "/etc/var/x"),
        ("/srv/x", "/srv/x"),
        ("a b", "/etc/llmgw/a b"),
    ],
)
def test_paths_are_under_the_folder_of_the_file(text: str, path: str) -> None:
    assert values.path_under(Path("/etc/llmgw"))(text) == Path(path)


@pytest.mark.parametrize("value", ["~/x", "~", "$HOME/x", "a/${X}", "", 5, True, "a\0b"])
def test_paths_are_never_expanded(value: Any) -> None:
    with pytest.raises(BadValueError):
        values.path_under(Path("/etc"))(value)


@few
@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())))
def test_a_reader_gives_a_value_or_says_why_not(value: Any) -> None:
    """Property: nothing but BadValueError, and durations and sizes are finite and not negative."""
    for reader in (values.duration, values.size, values.ports, values.path_under(Path("/"))):
        try:
            result = reader(value)
        except BadValueError:
            continue
        if isinstance(result, (int, float)):
            assert 0 <= result < math.inf
