import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config.lines import Path, key_lines, line_of

TEXT = '''\
state_dir = "x"
[control]
listen = "a"
heartbeat.extra = 1
[[models]]
name = "a"   # name = "c"
[models.profile]
args = [
  "--x",  # gpus = 5
  "gpus = 6",
]
env = { A = "1", "B.C" = { file = "/x" } }
[[models]]
  name = "b"
  [models."profile"]
  model = """
  gpus = 3 \\"""
  """
  gpus = 4
[[models.endpoints]]
url = "u"
[[models.endpoints]]
'url' = "v"
["odd name"]
[keys.'\\']
"\\u0041b\\"" = 1979-05-27 07:32:32 # a date with a blank
last = [ [ 1 ], { x = 2 },
  { y = \'\'\'
]}\'\'\', z = 3 },
]
'''


def test_each_key_is_found_on_its_line() -> None:
    lines = key_lines(TEXT)
    expected = {
        ("state_dir",): 1,
        ("control",): 2,
        ("control", "listen"): 3,
        ("control", "heartbeat"): 4,
        ("control", "heartbeat", "extra"): 4,
        ("models",): 5,
        ("models", 0): 5,
        ("models", 0, "name"): 6,
        ("models", 0, "profile"): 7,
        ("models", 0, "profile", "args"): 8,
        ("models", 0, "profile", "args", 0): 9,
        ("models", 0, "profile", "args", 1): 10,
        ("models", 0, "profile", "env", "A"): 12,
        ("models", 0, "profile", "env", "B.C", "file"): 12,
        ("models", 1): 13,
        ("models", 1, "name"): 14,
        ("models", 1, "profile"): 15,
        ("models", 1, "profile", "gpus"): 19,
        ("models", 1, "endpoints"): 20,
        ("models", 1, "endpoints", 0, "url"): 21,
        ("models", 1, "endpoints", 1, "url"): 23,
        ("odd name",): 24,
        ("keys", "\\", 'Ab"'): 26,
        ("keys", "\\", "last", 0, 0): 27,
        ("keys", "\\", "last", 1, "x"): 27,
        ("keys", "\\", "last", 2): 28,
        ("keys", "\\", "last", 2, "z"): 29,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert ("models", 0, "profile", "gpus") not in lines


def test_what_is_not_written_gets_the_line_of_its_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("models", 1, "profile", "engine")) == 15
    assert line_of(lines, ("models", 0, "profile", "args", 7)) == 8
    assert line_of(lines, ("router", "listen")) is None
    assert line_of(lines, ()) is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_where_an_editor_ends_them(end: str) -> None:
    """Neither a form feed nor a Unicode line separator begins a new one."""
    assert key_lines(end.join(["# \u2028 \x85", 'a = "\u2028"', "b = 1"])) == {("a",): 2, ("b",): 3}


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield (*above, step)
        yield from paths(inner, (*above, step))


few = settings(max_examples=settings().max_examples // 10)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
scalars = st.one_of(text, st.integers(-99, 99), st.booleans(), st.dates(), st.sampled_from(["]", "}", "#", '"""', "="]))
data = st.dictionaries(
    text,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)),
    max_size=4,
)


@few
@given(data, st.booleans())
def test_every_path_has_its_line(given_data: Any, multiline: bool) -> None:
    """Property: nothing that the parser found is missing, nothing else is found, and no line is beyond the last."""
    written = tomli_w.dumps(given_data, multiline_strings=multiline)
    parsed = tomllib.loads(written)
    found = key_lines(written)
    assert set(found) == set(paths(parsed))
    assert all(1 <= line <= written.count("\n") for line in found.values())


@few
@given(st.lists(text, min_size=1, max_size=3, unique=True), st.integers(0, 5))
def test_a_line_is_where_the_key_stands(names: list[str], above: int) -> None:
    """Property: the line holds the key, wherever comments and blank lines put it."""
    written = "".join("# = [\n\n" * above + tomli_w.dumps({name: [1]}) for name in names)
    for name, line in ((path[0], line) for path, line in key_lines(written).items() if len(path) == 1):
        key = tomli_w.dumps({str(name): 0}).partition(" = ")[0]
        assert written.split("\n")[line - 1].startswith(f"{key} = ")
