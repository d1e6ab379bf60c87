from typing import Any

import pytest

from llmgw.config.engine_options import check_fractions, option_hint

PATH = ("models", 0, "profile", "args")


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("gpu_memory_utilization", 0.85, 'belongs into args, as ["--gpu-memory-utilization", "0.85"]'),
        ("gpu_memory_utilization", 90, 'did you mean ["--gpu-memory-utilization", "0.9"]?'),
        ("mem-fraction-static", "85%", 'did you mean ["--mem-fraction-static", "0.85"]?'),
        ("gpu_memory_utilization", 0, 'did you mean ["--gpu-memory-utilization", "0.9"]?'),
        ("gpu_memory_utilization", 1.5, 'did you mean ["--gpu-memory-utilization", "0.9"]?'),
        ("max_model_len", 4096, 'as ["--max-model-len", "4096"]'),
        ("dtype", ["x"], 'as ["--dtype", "..."]'),
        ("gpu_memroy", 4, ""),
    ],
)
def test_an_option_written_as_a_setting(key: str, value: Any, hint: str) -> None:
    assert option_hint(key, value).endswith(hint)
    assert bool(option_hint(key, value)) == bool(hint)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--gpu-memory-utilization", "0.9"),
        ("--gpu-memory-utilization=1",),
        ("--mem-fraction-static", ".5"),
        ("--max-model-len", "90"),
        ("--gpu-memory-utilization", "9e-1"),
    ],
)
def test_fractions_that_are_right(args: tuple[str, ...]) -> None:
    assert list(check_fractions(PATH, args)) == []


@pytest.mark.parametrize(
    ("args", "index", "hint"),
    [
        (("--gpu-memory-utilization", "90"), 1, "did you mean 0.9?"),
        (("-x", "--gpu-memory-utilization=85%"), 1, "did you mean 0.85?"),
        (("--mem-fraction-static", "0"), 1, "did you mean 0.9?"),
        (("--mem-fraction-static", "-1"), 1, "did you mean 0.9?"),
        (("--mem-fraction-static", "nan"), 1, "did you mean 0.9?"),
        (("--mem-fraction-static",), 0, "did you mean 0.9?"),
        (("--mem-fraction-static", "high"), 1, "did you mean 0.9?"),
    ],
)
def test_what_is_no_fraction(args: tuple[str, ...], index: int, hint: str) -> None:
    (finding,) = check_fractions(PATH, args)
    assert finding.path == (*PATH, index)
    assert (finding.expected, finding.hint) == ("expected a fraction above 0 and at most 1", hint)
