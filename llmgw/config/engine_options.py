"""Options of engines as far as a configuration meets them: written as settings by mistake, or out of their range.

What an option means is the business of its engine and of the adapter. But a fraction above 1 is a percentage that
somebody meant as a fraction, whichever engine gets it, and the engine says so only on the node, minutes later.
"""

import re
from collections.abc import Iterator
from typing import Any

from llmgw.config.findings import Finding
from llmgw.strict import Step

FRACTIONS = ("--gpu-memory-utilization", "--mem-fraction-static")
"""Options of vLLM and SGLang whose value is above 0 and at most 1."""

WRITTEN_AS_SETTINGS = (
    *FRACTIONS,
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--max-model-len", "--max-num-seqs", "--tp-size"),
    *("--context-length", "--ctx-size", "--n-gpu-layers", "--dtype", "--quantization", "--kv-cache-dtype"),
)
"""What people look for among the settings of a profile; no setting of ours, however near one is."""

LEAST_PERCENT = 2.0
"""A number from here on was meant in percent; below, nobody knows."""

FRACTION_EXPECTED = "expected a fraction above 0 and at most 1"

_NUMBER = re.compile(r"([0-9]{1,15}\.?[0-9]{0,15}|\.[0-9]{1,15})(e-?[0-9])?")


def option_hint(key: str, value: Any) -> str:
    """For a key of a profile that is an option of an engine: how it is written; empty: it is none."""
    option = "--" + key.lower().replace("_", "-")
    if option not in WRITTEN_AS_SETTINGS:
        return ""
    meant = str(value) if isinstance(value, (str, int, float)) else "..."
    if option in FRACTIONS and not _is_fraction(meant):
        return f'an option of the engine belongs into args: did you mean ["{option}", "{_fraction_meant(meant)}"]?'
    return f'an option of the engine belongs into args, as ["{option}", "{meant[:40]}"]'


def check_fractions(path: tuple[Step, ...], args: tuple[str, ...]) -> Iterator[Finding]:
    """A finding for each fraction in `args` that is none; `path` is that of `args`."""
    for index, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        where = index
        if option not in FRACTIONS:
            continue
        if not equals:
            where = index + 1
            value = args[where] if where < len(args) else ""
        if not _is_fraction(value):
            hint = f"did you mean {_fraction_meant(value)}?"
            yield Finding((*path, where if where < len(args) else index), FRACTION_EXPECTED, value, hint)


def _is_fraction(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and 0 < float(text) <= 1


def _fraction_meant(text: str) -> str:
    """`0.85` for `85` and `85%`; 0.9, which is what the engines take themselves, where nothing can be made of it."""
    number = text.removesuffix("%")
    if _NUMBER.fullmatch(number) and LEAST_PERCENT <= float(number) <= 100:  # noqa: PLR2004  percent
        return f"{float(number) / 100:.4g}"
    return "0.9"
