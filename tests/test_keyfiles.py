"""Keys of static endpoints from their files."""

from pathlib import Path

import pytest

from llmgw.config.schema import ClusterConfig
from llmgw.core.catalog import Model, StaticEndpoint
from llmgw.errors import ConfigError
from llmgw.keyfiles import read_key_files
from llmgw.logs import redactor


def config(*files: Path | str) -> ClusterConfig:
    endpoints = tuple(StaticEndpoint(f"http://e{n}:1", key_file=str(file)) for n, file in enumerate(files))
    return ClusterConfig(Path("/nowhere"), models=(Model("m", endpoints=endpoints),))


def test_a_key_is_what_the_file_says_without_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-very-secret\n")
    assert read_key_files(config(tmp_path / "key", "")) == {("m", "http://e0:1"): "sk-very-secret"}
    assert redactor.text("it is sk-very-secret") == "it is ***"


def test_every_file_that_cannot_be_used_is_named_and_its_content_is_not_shown(tmp_path: Path) -> None:
    contents = {"empty": b"\n", "two": b"sk-one sk-two", "binary": b"\xff\xfe", "long": b"x" * 20_000}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = [tmp_path / "absent", tmp_path, *(tmp_path / name for name in contents)]
    with pytest.raises(ConfigError) as raised:
        read_key_files(config(*files))
    mistakes = raised.value.mistakes
    assert [mistake.origin for mistake in mistakes] == [str(file) for file in files]
    assert mistakes[0].path == "models[0].endpoints[0].key_file"
    assert mistakes[0].expected == "cannot be read: No such file or directory"
    assert "sk-one" not in str(raised.value)
