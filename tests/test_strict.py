"""Structuring that converts nothing by guess."""

import enum
import math
from typing import Any, NewType

import attrs
import pytest

from llmgw.errors import InvariantBroken
from llmgw.strict import Flaw, FlawKind, StructureError, dotted, make_converter, seen

Seconds = NewType("Seconds", float)


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@attrs.frozen
class Inner:
    file: str


@attrs.frozen
class Everything:
    number: int
    share: float = 0.5
    flag: bool = False
    name: str = ""
    data: bytes = b""
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    age: Seconds = Seconds(0.0)
    port: int | None = None
    limit: Seconds | None = None
    pair: tuple[int, int] = (1, 0)
    names: tuple[str, ...] = ()
    items: list[int] = attrs.field(factory=list)
    inners: tuple[Inner, ...] = ()
    env: dict[str, str | Inner] = attrs.field(factory=dict)
    counts: dict[str, int | None] = attrs.field(factory=dict)


@attrs.frozen
class Outer:
    inner: Everything
    others: tuple[Everything, ...] = ()


FAST = make_converter(detailed=False)
FULL = make_converter(detailed=True)
CLOSED = make_converter(detailed=True, forbid_extra_keys=True)


def flaws(data: Any, cls: type = Everything, converter: Any = FULL) -> list[str]:
    with pytest.raises(StructureError) as caught:
        converter.structure(data, cls)
    return [str(flaw) for flaw in caught.value.flaws]


@pytest.mark.parametrize("converter", [FAST, FULL, CLOSED])
def test_right_values_are_taken_as_they_are(converter: Any) -> None:
    data = {
        "number": -(2**63),
        "share": 3,
        "flag": True,
        "name": "x\0ü",
        "data": b"\xff",
        "colour": "blue",
        "level": 1,
        "age": 1.5,
        "port": 7,
        "limit": 2,
        "pair": [3, 4],
        "names": ["a", "b"],
        "items": [1],
        "inners": [{"file": "f"}],
        "env": {"A": "literal", "B": {"file": "g"}},
        "counts": {"a": 1, "b": None},
    }
    assert converter.structure(data, Everything) == Everything(
        number=-(2**63),
        share=3.0,
        flag=True,
        name="x\0ü",
        data=b"\xff",
        colour=Colour.BLUE,
        age=Seconds(1.5),
        port=7,
        limit=Seconds(2.0),
        pair=(3, 4),
        names=("a", "b"),
        items=[1],
        inners=(Inner("f"),),
        env={"A": "literal", "B": Inner("g")},
        counts={"a": 1, "b": None},
    )


def test_an_int_where_a_float_is_due_becomes_a_float() -> None:
    assert type(FAST.structure({"number": 1, "share": 3}, Everything).share) is float


@pytest.mark.parametrize("converter", [FAST, FULL])
@pytest.mark.parametrize(
    ("field", "value", "expected", "shown"),
    [
        ("number", True, "an integer of at most 64 bits", "bool True"),
        ("number", 8.9, "an integer of at most 64 bits", "float 8.9"),
        ("number", 8.0, "an integer of at most 64 bits", "float 8.0"),
        ("number", "8", "an integer of at most 64 bits", "str '8'"),
        ("number", None, "an integer of at most 64 bits", "nothing (null)"),
        ("share", True, "a finite number", "bool True"),
        ("share", math.nan, "a finite number", "float nan"),
        ("share", -math.inf, "a finite number", "float -inf"),
        ("share", "1", "a finite number", "str '1'"),
        ("flag", 1, "true or false", "int 1"),
        ("flag", "false", "true or false", "str 'false'"),
        ("flag", None, "true or false", "nothing (null)"),
        ("name", b"x", "a string", "bytes of length 1"),
        ("name", 3, "a string", "int 3"),
        ("data", "x", "bytes", "str 'x'"),
        ("colour", "green", "one of red, blue", "str 'green'"),
        ("colour", ["red"], "one of red, blue", "list of length 1"),
        ("colour", {}, "one of red, blue", "dict of length 0"),
        ("level", True, "one of 1", "bool True"),
        ("age", "180s", "a finite number", "str '180s'"),
        ("port", "7", "an integer of at most 64 bits", "str '7'"),
        ("port", False, "an integer of at most 64 bits", "bool False"),
        ("pair", [1], "a list of 2 items", "list of length 1"),
        ("pair", "ab", "a list of 2 items", "str 'ab'"),
        ("names", "ab", "a list", "str 'ab'"),
        ("names", {"a": 1}, "a list", "dict of length 1"),
        ("items", "12", "a list", "str '12'"),
        ("env", ["A"], "a table", "list of length 1"),
        ("env", "A=b", "a table", "str 'A=b'"),
    ],
)
def test_wrong_values_are_refused_with_path_expected_and_seen(
    converter: Any, field: str, value: Any, expected: str, shown: str
) -> None:
    assert flaws({"number": 1, field: value}, converter=converter) == [f"{field}: expected {expected}, got {shown}"]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_an_integer_beyond_64_bits_is_refused(number: int) -> None:
    assert flaws({"number": number})[0].startswith("number: expected an integer of at most 64 bits, got int ")
    assert flaws({"number": 1, "share": number})[0].startswith("share: expected a finite number, got int ")


def test_an_integer_of_64_bits_is_taken() -> None:
    assert FULL.structure({"number": 2**64 - 1}, Everything).number == 2**64 - 1


@pytest.mark.parametrize("converter", [FAST, FULL])
@pytest.mark.parametrize("value", [None, 3, "number", ["number"], b"number"])
def test_a_class_is_made_of_a_table_only(converter: Any, value: Any) -> None:
    assert flaws({"inner": value}, Outer, converter)[0].startswith("inner: expected a table, got ")


@pytest.mark.parametrize("converter", [FAST, FULL])
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"inner": {"number": 1}, "others": [{"number": 1}, {"number": "x"}]}, "others[1].number"),
        ({"inner": {"number": 1, "env": {"A.B": 3}}}, "inner.env.'A.B'"),
        ({"inner": {"number": 1, "env": {"A": {"file": 3}}}}, "inner.env.A.file"),
        ({"inner": {"number": 1, "counts": {"a": 1, "": "1"}}}, "inner.counts.''"),
        ({"inner": {"number": 1, "pair": [1, "2"]}}, "inner.pair[1]"),
        ({"inner": {"number": 1, "inners": [{"file": "a"}, {}]}}, "inner.inners[1].file"),
        ({"inner": {}}, "inner.number"),
        ({}, "inner"),
    ],
)
def test_the_path_leads_to_the_flaw(converter: Any, data: Any, path: str) -> None:
    assert flaws(data, Outer, converter)[0].partition(": ")[0] == path


def test_keys_are_str() -> None:
    assert flaws({"number": 1, "counts": {b"a": 1}}) == ["counts: expected a string as key, got bytes of length 1"]
    assert flaws({"number": 1, "counts": {1: 1}}) == ["counts: expected a string as key, got int 1"]


def test_every_flaw_is_found_where_that_is_asked_for() -> None:
    data = {
        "inner": {"flag": 1, "env": {"A": 1, "B": 2}, "names": [1, "x", 2], "pair": ["a", "b"]},
        "others": [{"number": 1}, {"number": None}],
    }
    assert [flaw.partition(":")[0] for flaw in flaws(data, Outer)] == [
        "inner.flag",
        "inner.env.A",
        "inner.env.B",
        "inner.names[0]",
        "inner.names[2]",
        "inner.pair[0]",
        "inner.pair[1]",
        "inner.number",
        "others[1].number",
    ]
    assert len(flaws(data, Outer, FAST)) == 1


def test_unknown_fields_are_ignored_or_named_with_the_known_ones() -> None:
    data = {"inner": {"number": 1, "colur": "red"}}
    assert FULL.structure(data, Outer) == FAST.structure(data, Outer) == Outer(Everything(1))
    with pytest.raises(StructureError) as caught:
        CLOSED.structure(data, Outer)
    (flaw,) = caught.value.flaws
    assert (flaw.kind, flaw.path, flaw.value) == (FlawKind.UNKNOWN, ("inner", "colur"), "red")
    assert "colour" in flaw.known


def test_a_missing_field_says_what_it_holds() -> None:
    assert flaws({}) == ["number: expected an integer, and it is missing"]


def test_a_hook_of_ones_own_for_a_newtype() -> None:
    """As config has for durations: its ValueError becomes the flaw, also within an optional."""

    def parse(value: Any, _: Any) -> float:
        if not str(value).endswith("s"):
            raise ValueError("a duration with its unit")
        return float(value[:-1])

    converter = make_converter(detailed=True)
    converter.register_structure_hook(Seconds, parse)
    assert converter.structure({"number": 1, "age": "3s", "limit": "4s"}, Everything).limit == Seconds(4)
    assert flaws({"number": 1, "age": 5, "limit": 6}, converter=converter) == [
        "age: expected a duration with its unit, got int 5",
        "limit: expected a duration with its unit, got int 6",
    ]


@attrs.frozen
class Checked:
    port: int = attrs.field(validator=attrs.validators.lt(10))


@pytest.mark.parametrize("converter", [FAST, FULL])
def test_a_validator_of_the_class_makes_a_flaw(converter: Any) -> None:
    assert "'port' must be < 10" in flaws({"port": 11}, Checked, converter)[0]


@attrs.frozen
class Ambiguous:
    value: Inner | dict[str, str]


@attrs.frozen
class Bare:
    value: tuple  # type: ignore[type-arg]


@attrs.frozen
class IntKeys:
    value: dict[int, str]


@pytest.mark.parametrize("cls", [Ambiguous, Bare, IntKeys])
def test_a_class_that_plain_data_cannot_say_is_our_mistake(cls: type) -> None:
    with pytest.raises(InvariantBroken):
        FAST.structure({"value": {}}, cls)


def test_dotted() -> None:
    assert dotted(("models", 0, "profile", "gpus")) == "models[0].profile.gpus"
    assert dotted(("models", "qwen2.5-7b", "")) == "models.'qwen2.5-7b'.''"
    assert not dotted(())


def test_what_was_seen_is_short_and_shows_nothing_nested() -> None:
    assert seen("x" * 1000) == "str of 1000 characters"
    assert seen({"key": "secret"}) == "dict of length 1"
    assert seen("\ud800\n") == "str '\\ud800\\n'"
    assert seen(10**400) == "int beyond 64 bits"
    assert seen(object()) == "object"


def test_a_flaw_of_the_whole() -> None:
    assert str(Flaw(FlawKind.WRONG, (), "a table", 3)) == "the whole: expected a table, got int 3"
