"""How values become text on a terminal: nothing that another machine said reaches it unescaped."""

from rich.text import Text

from llmgw.core.units import format_seconds

GOOD, WAITING, BAD = "green", "yellow", "bold red"

STYLES = {
    "serving": GOOD,
    "healthy": GOOD,
    "ready": GOOD,
    "recovering": WAITING,
    "braked": WAITING,
    "deaf": WAITING,
    "syncing": WAITING,
    "pending": WAITING,
    "accepted": WAITING,
    "starting": WAITING,
    "loading": WAITING,
    "warming": WAITING,
    "draining": WAITING,
    "stopping": WAITING,
    "backing off": WAITING,
    "suspect": WAITING,
    "unreachable": BAD,
    "lost": BAD,
    "incompatible": BAD,
    "failed": BAD,
    "out": BAD,
}
"""Colours say nothing that the word does not."""


def clean(value: str) -> str:
    """`value` on one line, with everything that could move a cursor or change a colour spelled out."""
    if value.isprintable():
        return value
    return "".join(letter if letter.isprintable() else _spelled(letter) for letter in value)


def plain(value: str, style: str = "") -> Text:
    """`value` as text that rich takes literally: its own markup is not read in it."""
    return Text(clean(value), style=style)


def state(word: str) -> Text:
    """A state, in its colour; one that this version does not know as it is."""
    return plain(word, STYLES.get(word, ""))


def age(seconds: float | None) -> str:
    """`12s`, or `never`."""
    return "never" if seconds is None else format_seconds(seconds)


def ago(seconds: float | None) -> str:
    """`12s ago`, or `never`."""
    return "never" if seconds is None else f"{format_seconds(seconds)} ago"


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _spelled(letter: str) -> str:
    if letter in "\n\t\r":
        return " "
    return f"\\x{ord(letter):02x}" if ord(letter) < 0x100 else f"\\u{ord(letter):04x}"  # noqa: PLR2004
