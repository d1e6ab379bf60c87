"""The keys of static endpoints, from the files that `key_file` names. Control and a router alone both need them."""

from pathlib import Path

import llmgw.logs
from llmgw.config.schema import ClusterConfig
from llmgw.errors import ConfigError, Mistake

KEY_BYTES_MAX = 16 * 1024
"""Of a key file: what is longer fits into no header, and is the wrong file."""


def read_key_files(config: ClusterConfig) -> dict[tuple[str, str], str]:
    """(model, url) -> the key to send there. ConfigError with every file that cannot be used; no value is shown.

    Every key is registered with the logs, so that it is shown nowhere.
    """
    keys: dict[tuple[str, str], str] = {}
    mistakes: list[Mistake] = []
    for number, model in enumerate(config.models):
        for index, endpoint in enumerate(model.endpoints):
            if endpoint.key_file:
                try:
                    keys[model.name, endpoint.url] = _read(Path(endpoint.key_file))
                except ValueError as error:
                    path = f"models[{number}].endpoints[{index}].key_file"
                    mistakes.append(Mistake(endpoint.key_file, path, str(error)))
    if mistakes:
        raise ConfigError(tuple(mistakes))
    llmgw.logs.redactor.register(*keys.values())
    return keys


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    key = data.strip()
    if not key or len(data) > KEY_BYTES_MAX or any(byte <= 0x20 or byte >= 0x7F for byte in key):  # noqa: PLR2004
        raise ValueError("expected a file with one key: visible ASCII characters, without blanks")
    return key.decode("ascii")
