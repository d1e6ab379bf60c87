from typing import Any

import pytest

from llmgw.config.findings import ABSENT, VALUE_CHARS_MAX, Finding, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ABSENT, ""),
        (5, "5"),
        (8.9, "8.9"),
        (True, "true"),
        ("a b", '"a b"'),
        ('"', '"\\""'),
        ("\x1b[31m\n", '"\\u001b[31m\\n"'),
        (["a", 1, False], '["a", 1, false]'),
        ({"a": "secret"}, "a table"),
        ([{"a": "secret"}], "a list of tables"),
    ],
)
def test_values_are_shown_as_they_are_written(value: Any, text: str) -> None:
    assert shown(value, ("x",)) == text


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 1000, ("args", 0))) <= VALUE_CHARS_MAX + 3


@pytest.mark.parametrize("path", [("api_key",), ("models", 0, "profile", "env", "A"), ("routr", "HF_TOKEN")])
def test_secrets_are_hidden(path: tuple[str, ...]) -> None:
    assert shown("hunter2hunter2", path) == "***"


def test_the_path_of_a_key_s_file_is_no_secret() -> None:
    assert shown("~/x.key", ("control", "tls", "key")) == '"~/x.key"'


def test_a_finding_becomes_a_mistake_with_its_dotted_path() -> None:
    finding = Finding(("models", 0, "labels", "a.b"), "expected a string", 5, "write it in quotes")
    assert str(finding.mistake("cluster.toml:3")) == (
        "cluster.toml:3: models[0].labels.'a.b': expected a string, got 5 (write it in quotes)"
    )
