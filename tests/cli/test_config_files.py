"""What lies under `llmgw config`; how it is printed is in test_config.py."""

from pathlib import Path

import pytest

from llmgw.cli.config_files import check, kind_of_file
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.errors import ConfigError


def test_what_is_said_beats_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[[models]]\n")
    assert kind_of_file(str(file), None) is ClusterConfig
    assert kind_of_file(str(file), NodeConfig) is NodeConfig
    file.write_text("")
    assert kind_of_file(str(file), None) is NodeConfig


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = str(tmp_path / "none.toml")
    with pytest.raises(ConfigError):
        kind_of_file(file, None)
    (mistake,) = check(file, None, {}).mistakes
    assert mistake.origin == file


def test_notes_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('state_dir = "s"\n')
    assert check(str(file), None, {"LLMGW_NODE_ID": "x"}).notes == (
        "LLMGW_NODE_ID: ignored: it is a setting of node.toml",
    )
