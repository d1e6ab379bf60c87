"""A mistake while it is being looked for: it knows its path, and not yet where the value came from."""

import json
from typing import Any

import attrs

from llmgw.core.secrecy import REDACTED, names_secret
from llmgw.errors import Mistake
from llmgw.strict import Step, dotted

VALUE_CHARS_MAX = 80
"""Of a value in a message: enough to recognise it on one line."""

ABSENT = object()
"""No value was seen."""

SECRET_TABLES = ("env",)
"""Tables whose every value may be a secret, whatever its name."""


PATHS_OF_SECRETS = (("tls", "key"),)
"""Settings that are named like secrets and hold the path of one."""


@attrs.frozen
class Finding:
    """One mistake."""

    path: tuple[Step, ...]
    expected: str
    """`expected a string`, `unknown key`: what stands first in the message."""
    value: Any = ABSENT
    hint: str = ""
    others: tuple[tuple[Step, ...], ...] = ()
    """The other settings that a contradiction is about: no finding once one of them is wrong by itself."""

    def mistake(self, origin: str) -> Mistake:
        """The finished mistake, with every secret hidden."""
        return Mistake(origin, dotted(self.path), self.expected, shown(self.value, self.path), self.hint)


def shown(value: Any, path: tuple[Step, ...]) -> str:
    """The value as one would write it in the file, on one line, shortened; `***` for what may be a secret."""
    if value is ABSENT:
        return ""
    by_name = bool(path) and names_secret(str(path[-1])) and path[-2:] not in PATHS_OF_SECRETS
    if by_name or any(step in SECRET_TABLES for step in path):
        return REDACTED
    text = _written(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list of tables" if any(isinstance(item, dict) for item in value) else _items(value)
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=not str(value).isprintable())
    return str(value)


def _items(value: list[Any] | tuple[Any, ...]) -> str:
    return "[" + ", ".join(_written(item) for item in value) + "]"
