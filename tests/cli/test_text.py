"""How values become text on a terminal."""

import pytest

from llmgw.cli.text import age, ago, clean, count, plain, state


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("größe 模型", "größe 模型"),
        ("two\nlines\tand\r", "two lines and "),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_clean_spells_out_what_could_move_a_cursor(value: str, text: str) -> None:
    assert clean(value) == text


def test_markup_in_a_value_is_not_read() -> None:
    assert plain("[red]x").plain == "[red]x"


def test_states_have_colours_and_unknown_ones_have_none() -> None:
    assert state("ready").style == "green"
    assert not state("hibernating").style


def test_ages() -> None:
    assert (age(None), age(75), ago(None), ago(0.41)) == ("never", "1m15s", "never", "0.4s ago")


def test_counts() -> None:
    assert (count(1, "node"), count(0, "node")) == ("1 node", "0 nodes")
