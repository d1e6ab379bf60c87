"""Which names are those of secrets. One rule, for mistakes in a configuration and for every log line alike."""

import re
from collections.abc import Sequence

SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "secret", "secrets", "password", "passwd", "passphrase", "authorization"}
    | {"credential", "credentials", "cookie"}
)
"""The last word of a secret's name is one of these: `HF_TOKEN`, `x-api-key`; not `key_file`, `max_tokens`."""

REDACTED = "***"
"""What is shown in place of a secret."""

_WORDS = re.compile(r"[A-Za-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def names_secret(name: str) -> bool:
    """Whether a value under this name must not be shown."""
    words = _WORDS.findall(_CAMEL.sub("_", name))
    return bool(words) and words[-1].lower() in SECRET_WORDS


def hide_in_args(args: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of options whose names are those of secrets: `--api-key ***`.

    Every element up to the next option counts as a value: some options take several.
    """
    hidden: list[str] = []
    secret = False
    for argument in args:
        if argument.startswith("-"):
            option, equals, _ = argument.partition("=")
            secret = names_secret(option) and not equals
            hidden.append(f"{option}={REDACTED}" if names_secret(option) and equals else argument)
        else:
            hidden.append(REDACTED if secret else argument)
    return tuple(hidden)
