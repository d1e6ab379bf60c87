"""What is read of a body, and that an edit changes the model's name and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.dialects import Problem, Trouble
from llmgw.router.peek import peek, renamed

HALF = settings(max_examples=settings().max_examples // 2)


@pytest.mark.parametrize(
    ("body", "model", "stream", "exact"),
    [
        ('{"model": "tiny"}', "tiny", False, False),
        ('{"messages": [{"model": "no"}], "model": "tiny", "stream": true}', "tiny", True, False),
        ('{"model": "a", "stream": true, "stream_options": {"include_usage": true}}', "a", True, True),
        ('{"model": "a", "stream": false, "stream_options": {"include_usage": true}}', "a", False, False),
        ('{"model": "a", "stream": true, "stream_options": {"include_usage": 1}}', "a", True, False),
        ('{"model": "a", "stream": "yes", "stream_options": [1]}', "a", False, False),
        ('{"model": "\\u00e4/\\"x"}', 'ä/"x', False, False),
        ('{"\\u006dodel": "tiny"}', "tiny", False, False),
        ('{"model": "a", "model": "b"}', "b", False, False),
        ('{"n": 123456789012345678901234567890, "x": 1e999, "model": "tiny"}', "tiny", False, False),
        ('{"model": " Qwen "}', " Qwen ", False, False),
    ],
)
def test_what_routing_needs_is_read(body: str, model: str, stream: bool, exact: bool) -> None:
    found = peek(body.encode())
    assert (found.model, found.stream, found.exact_usage) == (model, stream, exact)


def test_bytes_that_are_no_utf_8_are_somebody_elses_affair() -> None:
    assert peek(b'{"prompt": "\xff\xfe", "model": "tiny"}').model == "tiny"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{}", "expected `model`, a string, got none"),
        ('{"model": null}', "expected `model`, a string, got null"),
        ('{"model": 7}', "expected `model`, a string, got 7"),
        ('{"model": ["a"]}', r'expected `model`, a string, got \["a"\]'),
    ],
)
def test_a_missing_model_is_named(body: str, message: str) -> None:
    with pytest.raises(Problem, match=message) as caught:
        peek(body.encode())
    assert (caught.value.trouble, caught.value.param) == (Trouble.INVALID_BODY, "model")


@pytest.mark.parametrize(
    "body",
    [
        *[
            "",
            "[]",
            "{",
            '"x"',
            "7",
            '{"model": "a"} x',
            '{"a": NaN, "model": "x"}',
            '{"model": "\\ud800"}',
            "nonsense",
        ],
        *["[" * 100_000, '{"a":' + "[" * 100_000, '{"stream_options":' + "[" * 5000 + "]" * 5000 + "}"],
    ],
)
def test_what_is_no_json_object_is_refused(body: str) -> None:
    with pytest.raises(Problem, match="not a JSON object") as caught:
        peek(body.encode())
    assert caught.value.status == 400


text = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.one_of(text, st.sampled_from(["model", "a", '"', "\\", '"model":"a"', "{", "]"]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), names),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


def pairs(body: bytes) -> Any:
    """With duplicates and order, at every depth."""
    return json.loads(body, object_pairs_hook=list)


@HALF
@given(
    st.lists(st.tuples(names, values), max_size=5),
    st.lists(st.tuples(names, values), max_size=5),
    names,
    names,
    st.tuples(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")]), st.booleans()),
)
def test_property_renaming_changes_the_models_name_and_nothing_else(
    before: list[tuple[str, Any]],
    after: list[tuple[str, Any]],
    old: str,
    new: str,
    style: tuple[tuple[str, str], bool],
) -> None:
    separators, ascii_only = style
    after = [(key, value) for key, value in after if key != "model"]

    def write(value: Any) -> str:
        return json.dumps(value, separators=separators, ensure_ascii=ascii_only)

    written = (write(key) + separators[1] + write(value) for key, value in (*before, ("model", old), *after))
    body = ("{" + separators[0].join(written) + "}").encode()
    found = peek(body)
    assert found.model == old
    start, name, end = renamed(body, found.written, new)
    assert body == start + found.written + end
    expected = pairs(body)
    assert expected[len(before)] == ("model", old)
    expected[len(before)] = ("model", new)
    assert pairs(start + name + end) == expected


def test_escaped_keys_do_not_mislead() -> None:
    body = b'{"\\u006dodel":"a","x":"\\"model\\":\\"a\\"","\\u00e4":"a"}'
    start, name, end = renamed(body, peek(body).written, "b")
    assert start + name + end == b'{"\\u006dodel":"b","x":"\\"model\\":\\"a\\"","\\u00e4":"a"}'


@HALF
@given(st.binary(max_size=60))
def test_property_any_bytes_are_read_or_refused(body: bytes) -> None:
    for candidate in (body, b'{"model":"a",' + body + b"}"):
        try:
            found = peek(candidate)
        except Problem:
            continue
        start, name, end = renamed(candidate, found.written, "new")
        assert start + found.written + end == candidate
        assert name == b'"new"'
