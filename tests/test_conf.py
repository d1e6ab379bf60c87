"""The annotated files in conf/ are right, say the true defaults, and are what the demo needs."""

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from llmgw.commandline import read_cluster, read_node
from llmgw.config.in_force import NOT_IN_FORCE
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import Setting, settings_of

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
FILES = {"cluster.toml": ClusterConfig, "node.toml": NodeConfig}

UNSAID = {"models[].ready_min", "models[].profile.port", "models[].profile.gpu_memory"}
"""Settings without a default that could be written, or for rare use."""


def uncommented(name: str) -> str:
    """The file with every commented setting taken in."""
    return re.sub(r"^#(?=[a-z\[])", "", (CONF / name).read_text(), flags=re.MULTILINE)


def test_the_cluster_is_what_the_demo_runs() -> None:
    config = read_cluster(str(CONF / "cluster.toml"), {}).config
    assert config.state_dir == ROOT / "var/control"
    assert config.control.listen == config.router.control
    (model,) = config.models
    assert model.profile is not None
    assert (model.name, model.profile.engine, model.profile.model) == ("tiny", "llamacpp", "tiny.gguf")
    assert model.profile.args == ("--embeddings", "--pooling", "mean")


def test_the_node_is_what_the_demo_runs() -> None:
    cluster = read_cluster(str(CONF / "cluster.toml"), {}).config
    config = read_node(str(CONF / "node.toml"), {}).config
    assert config.control == cluster.control.listen
    assert config.state_dir == ROOT / "var/agent"
    assert config.models_dir == ROOT / "var/models"


def read(name: str, path: Path) -> Any:
    return (read_cluster if name == "cluster.toml" else read_node)(str(path), {}).config


@pytest.mark.parametrize("name", FILES)
def test_the_commented_settings_are_the_defaults(name: str, tmp_path: Path) -> None:
    """Taking every # away changes nothing but what is an example."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / name).write_text((CONF / name).read_text())
    plain = read(name, folder / name)
    (folder / name).write_text(uncommented(name))
    whole = read(name, folder / name)
    examples = {"keys": (), "fabrics": (), "gpus": ()}
    if name == "cluster.toml":
        examples["models"] = plain.models
        assert whole.models[0] == plain.models[0]
    fields = {field.name for field in attrs.fields(type(whole))}
    assert attrs.evolve(whole, **{key: value for key, value in examples.items() if key in fields}) == plain


@pytest.mark.parametrize("name", FILES)
def test_every_setting_in_force_is_explained(name: str) -> None:
    """A setting that the annotated file does not mention is one that nobody finds."""
    text = (CONF / name).read_text()

    def mentioned(setting: Setting) -> bool:
        return re.search(rf"^(#\s?)?{setting.key} = |\b{setting.key} = ", text, re.MULTILINE) is not None

    unmentioned = {
        ".".join(setting.path)
        for setting in settings_of(FILES[name])
        if setting.table is None and not mentioned(setting)
    }
    assert {path for path in unmentioned if not path.startswith(tuple(NOT_IN_FORCE))} <= UNSAID


def test_every_setting_in_force_is_read() -> None:
    """A setting that is accepted and that no part ever looks at is not in force: its row belongs into the table."""
    outside = [path for path in (ROOT / "llmgw").rglob("*.py") if "config" not in path.parts]
    source = "\n".join(path.read_text() for path in outside)
    judged_in_config = {"insecure"}
    unread = {
        ".".join(setting.path)
        for config in FILES.values()
        for setting in settings_of(config)
        if setting.table is None and not re.search(rf"\.{setting.key}\b", source)
    }
    refused = tuple(NOT_IN_FORCE)
    assert not {path for path in unread if not path.startswith(refused) and path.split(".")[-1] not in judged_in_config}
