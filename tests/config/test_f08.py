"""F08: paths in the file were resolved against the working directory, which is / under a service manager.

There is no separate file for a catalog or a token here; what has paths is `state_dir`, `models_dir`, `key_file` and the
TLS files. With real processes started from /, and what an engine is given: tests/e2e/test_config_cases.py.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from llmgw.commandline import read_cluster, read_control, read_node, state_base
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import settings_of
from llmgw.errors import ConfigError, Mistake

LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]
Mistakes: TypeAlias = Callable[..., list[Mistake]]

CLUSTER = """\
state_dir = "state"
[[models]]
name = "a"
endpoints = [{ url = "http://127.0.0.1:9000", key_file = "./token" }]
"""
NODE = 'control = "head"\nstate_dir = "state"\nmodels_dir = "../models"\n'


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    folder = tmp_path / "etc/llmgw"
    folder.mkdir(parents=True)
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "node.toml").write_text(NODE)
    (folder / "token").write_text("sk-0123456789")
    return folder


def paths(config: ClusterConfig) -> tuple[Path, str]:
    return config.state_dir, config.models[0].endpoints[0].key_file


@pytest.mark.parametrize("place", ["/", "etc", "etc/llmgw"])
def test_f08_paths_are_relative_to_the_file_whatever_the_working_directory(
    place: str, conf: Path, tmp_path: Path
) -> None:
    """Named by an absolute or by a relative path."""
    with working_in(tmp_path / place):
        for name in (conf / "cluster.toml", Path(os.path.relpath(conf / "cluster.toml"))):
            keys: dict[tuple[str, str], str] = {}
            config = read_control(str(name), {}, keys).config
            assert paths(config) == (conf / "state", str(conf / "token"))
            assert list(keys.values()) == ["sk-0123456789"]
        node = read_node(os.path.relpath(conf / "node.toml"), {}).config
        assert (node.state_dir, node.models_dir) == (conf / "state", conf.parent / "models")


def test_f08_so_are_those_of_a_variable(conf: Path) -> None:
    """One rule, wherever the value came from."""
    with working_in(Path("/")):
        loaded = read_cluster(str(conf / "cluster.toml"), {"LLMGW_STATE_DIR": "elsewhere"})
        assert loaded.config.state_dir == conf / "elsewhere"


def test_f08_of_a_link_it_is_the_folder_of_the_link(conf: Path, tmp_path: Path) -> None:
    """Which the annotated files say."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "cluster.toml").symlink_to(conf / "cluster.toml")
    assert paths(read_cluster(str(other / "cluster.toml"), {}).config) == (other / "state", str(other / "token"))
    for file in ("cluster.toml", "node.toml"):
        text = (Path(__file__).parents[2] / "conf" / file).read_text()
        assert (
            "relative\n# to the folder of this file (of the link, if it is one); ~ and $HOME are not expanded" in text
        )


@pytest.mark.parametrize("value", ["~/x", "$HOME/x", "${HOME}/x", "~"])
def test_f08_tilde_and_variables_are_refused(value: str, cluster_mistakes: Mistakes, node_mistakes: Mistakes) -> None:
    """Not taken as literal names, and not expanded by whose home it happens to be."""
    told = [
        *cluster_mistakes(f'state_dir = "{value}"\n'),
        *cluster_mistakes(CLUSTER.replace("./token", value)),
        *node_mistakes(f'state_dir = "{value}"\n'),
        *node_mistakes(f'models_dir = "{value}"\n'),
        *node_mistakes("", {"LLMGW_MODELS_DIR": value}),
    ]
    assert [mistake.path for mistake in told] == [
        "state_dir",
        "models[0].endpoints[0].key_file",
        "state_dir",
        "models_dir",
        "models_dir",
    ]
    for mistake in told:
        assert mistake.hint.endswith("not expanded here: write the whole path")


def test_f08_a_missing_file_is_told_with_the_absolute_path_tried(conf: Path) -> None:
    with working_in(conf):
        with pytest.raises(ConfigError) as caught:
            read_cluster("none.toml", {})
        assert str(caught.value) == f"{conf}/none.toml: cannot be read: No such file or directory"
        (conf / "token").unlink()
        with pytest.raises(ConfigError) as caught:
            read_control("cluster.toml", {}, {})
        (mistake,) = caught.value.mistakes
        assert (mistake.origin, mistake.path) == (f"{conf}/token", "models[0].endpoints[0].key_file")
        assert mistake.expected == "cannot be read: No such file or directory"


def test_f08_a_user_without_a_home_is_told_what_to_write(load_node_text: LoadNode) -> None:
    """Nothing is put into a folder that happens to be the working directory."""
    assert state_base({}, root=False) is None
    with pytest.raises(ConfigError) as caught:
        load_node_text('control = "head"\n', state_base=None)
    assert [mistake.path for mistake in caught.value.mistakes] == ["state_dir", "models_dir"]
    assert {mistake.hint for mistake in caught.value.mistakes} == {"there is no HOME to derive it from"}


def test_f08_an_agent_of_a_unit_without_a_home_runs_with_what_its_file_says(conf: Path) -> None:
    with working_in(Path("/")):
        node = read_node(str(conf / "node.toml"), {}).config
    assert (node.state_dir, node.models_dir) == (conf / "state", conf.parent / "models")


def test_f08_every_path_inside_is_absolute(conf: Path) -> None:
    """Property: no setting that holds a path is left to a working directory."""
    kinds = (Path, Path | None)
    keys = {one.key for config in (ClusterConfig, NodeConfig) for one in settings_of(config) if one.kind in kinds}
    assert keys == {"state_dir", "models_dir", "cert", "key", "ca"}
    with working_in(Path("/")):
        cluster = read_cluster(str(conf / "cluster.toml"), {}).config
        node = read_node(str(conf / "node.toml"), {}).config
    assert all(Path(path).is_absolute() for path in (*paths(cluster), node.state_dir, node.models_dir))
