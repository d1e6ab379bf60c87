from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.core.address import Address
from llmgw.errors import ConfigError, Mistake

Mistakes: TypeAlias = Callable[..., list[Mistake]]
LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]

F04 = """\
heartbeat_intervall = 5
[control]
Listen = "127.0.0.1:7070"
body_max = "64MiB"
[routr]
workers = 2
[[models]]
name = "a"
gpu_memroy = 40
notes = "after the move to the new rack"
endpoints = [{ url = "http://127.0.0.1:9000" }]
"""


def test_f04_unknown_keys_are_all_told_at_once(cluster_mistakes: Mistakes) -> None:
    """A misspelt key, table and letter case, and a key in the wrong table: five mistakes, each with its place.

    That nothing is started, and that `--check` says the same, is in tests/test_commandline.py.
    """
    assert [(mistake.origin, mistake.path, mistake.hint) for mistake in cluster_mistakes(F04)] == [
        ("cluster.toml:1", "heartbeat_intervall", 'did you mean "heartbeat" in [control]?'),
        ("cluster.toml:3", "control.Listen", 'did you mean "listen"? names are in lower case, with _'),
        ("cluster.toml:4", "control.body_max", '"body_max" is known in [router]'),
        ("cluster.toml:5", "routr", 'did you mean "router"?'),
        ("cluster.toml:9", "models[0].gpu_memroy", 'did you mean "gpu_memory" in [models.profile]?'),
    ]


def test_the_defaults(load_cluster_text: LoadCluster, load_node_text: LoadNode) -> None:
    cluster = load_cluster_text()
    assert cluster.config == ClusterConfig(Path("/var/lib/llmgw/control"))
    assert (cluster.origins, cluster.notes) == ({}, ())
    node = load_node_text('control = "head"')
    expected = NodeConfig("gpu-a", Address("head", 7070), Path("/var/lib/llmgw/gpu-a"), Path("/var/lib/llmgw/models"))
    assert node.config == expected


def test_an_agent_without_a_file(load_node_text: LoadNode) -> None:
    """`--server` and `--node-id` are enough."""
    loaded = load_node_text(options={"control": ("--server", "[::1]:7070"), "node_id": ("--node-id", "b")})
    assert loaded.config.control == Address("::1", 7070)
    assert loaded.config.node_id == "b"
    assert loaded.config.state_dir == Path("/var/lib/llmgw/b")
    assert loaded.origins == {"control": "--server", "node_id": "--node-id"}


def test_an_agent_that_knows_no_control_says_what_to_do(load_node_text: LoadNode) -> None:
    with pytest.raises(ConfigError, match=r"control: required, and missing \(write .* or use --server HOST:PORT\)"):
        load_node_text()


def test_without_a_place_for_state_it_must_be_given(load_node_text: LoadNode) -> None:
    with pytest.raises(ConfigError) as caught:
        load_node_text('control = "a:1"', state_base=None)
    assert [mistake.path for mistake in caught.value.mistakes] == ["state_dir", "models_dir"]
    loaded = load_node_text('control = "a:1"\nstate_dir = "s"\nmodels_dir = "m"', state_base=None)
    assert loaded.config.state_dir == Path("/etc/llmgw/s")


def test_an_option_beats_a_variable_and_a_variable_beats_the_file(load_node_text: LoadNode) -> None:
    text = 'control = "file:1"\nnode_id = "file"\naddress = "file"\n'
    environ = {"LLMGW_CONTROL": "variable:1", "LLMGW_NODE_ID": "variable"}
    loaded = load_node_text(text, environ, options={"control": ("--server", "option:1")})
    assert (loaded.config.control.host, loaded.config.node_id, loaded.config.address) == ("option", "variable", "file")
    assert loaded.origins == {"control": "--server", "node_id": "LLMGW_NODE_ID", "address": "node.toml:3"}


def test_a_variable_makes_the_table_it_needs(load_cluster_text: LoadCluster) -> None:
    loaded = load_cluster_text("", {"LLMGW_CONTROL__LISTEN": "127.0.0.1:0", "LLMGW_CONTROL__INSECURE": "yes"})
    assert loaded.config.control.listen == Address("127.0.0.1", 0)
    assert loaded.config.control.insecure is True
    assert loaded.origins["control.listen"] == "LLMGW_CONTROL__LISTEN"


def test_a_mistake_in_a_variable_names_the_variable(cluster_mistakes: Mistakes) -> None:
    told = cluster_mistakes(
        '[control]\nlisten = "127.0.0.1:1"\n', {"LLMGW_CONTROL__LOST_AFTER": "180", "LLMGW_ROUTER__WORKERS": "0"}
    )
    assert [(mistake.origin, mistake.path) for mistake in told] == [
        ("LLMGW_CONTROL__LOST_AFTER", "control.lost_after"),
        ("LLMGW_ROUTER__WORKERS", "router.workers"),
    ]


def test_mistakes_of_file_and_environment_are_told_together(cluster_mistakes: Mistakes) -> None:
    told = cluster_mistakes("nonsense = 1\n[control]\nlisten = 7070\n", {"LLMGW_ROUTR__WORKERS": "2"})
    assert [mistake.origin for mistake in told] == ["LLMGW_ROUTR__WORKERS", "cluster.toml:1", "cluster.toml:3"]
    told = cluster_mistakes("control = 5\n", {"LLMGW_CONTROL__LISTEN": "127.0.0.1:1"})
    assert [(mistake.origin, mistake.expected) for mistake in told] == [
        ("cluster.toml:1", "expected a table [control]")
    ]


def test_notes_of_what_was_ignored(load_cluster_text: LoadCluster) -> None:
    (note,) = load_cluster_text("", {"LLMGW_NODE_ID": "x"}).notes
    assert note == "LLMGW_NODE_ID: ignored: it is a setting of node.toml"


def test_what_is_no_toml_has_its_line(cluster_mistakes: Mistakes) -> None:
    (mistake,) = cluster_mistakes("[control]\nlisten = 127.0.0.1\n")
    assert mistake.origin == "cluster.toml:2"
    assert mistake.expected.startswith("not TOML: ")
    (mistake,) = cluster_mistakes('[control]\nlisten = "x')
    assert mistake.expected.startswith("not TOML: ")


def test_what_is_nested_absurdly_is_told(cluster_mistakes: Mistakes) -> None:
    (mistake,) = cluster_mistakes("a = " + "[" * 5000 + "]" * 5000)
    assert str(mistake) == "cluster.toml: expected tables and lists within each other, not so deep"


def test_lines_in_inline_tables_and_lists(cluster_mistakes: Mistakes) -> None:
    """Each mistake has the line on which a person finds it, not that of what is around it."""
    text = """\
[[models]]
name = "a"
endpoints = [
  { url = "http://a:1" },
  { url = "ftp://b:1" },
  { "url" = "http://c:1", mdoel = "x" },
]
[[keys]]
name = "k"
sha256 = "x"
models = [
  "a",
  "b",
]
"""
    assert [(mistake.origin, mistake.path) for mistake in cluster_mistakes(text)] == [
        ("cluster.toml:5", "models[0].endpoints[1].url"),
        ("cluster.toml:6", "models[0].endpoints[2].mdoel"),
        ("cluster.toml:10", "keys[0].sha256"),
        ("cluster.toml:13", "keys[0].models[1]"),
    ]


def test_a_table_named_like_a_model_shows_how_a_model_is_written(cluster_mistakes: Mistakes) -> None:
    """`[models.qwen2.5-7b]` alone, before and after a `[[models]]`, and quoted."""
    hint = 'write [[models]] with name = "qwen2.5-7b" in it'
    array = '[[models]]\nname = "b"\nendpoints = [{ url = "http://a:1" }]\n'
    for text in (
        "[models.qwen2.5-7b]\nreplicas = 1\n",
        '[models."qwen2.5-7b"]\nreplicas = 1\n',
        array + "[models.qwen2.5-7b]\nreplicas = 1\n",
        "[models.qwen2.5-7b]\nreplicas = 1\n" + array,
    ):
        told = cluster_mistakes(text)
        assert hint in told[0].hint, told


def test_paths_are_relative_to_the_file(load_cluster_text: LoadCluster) -> None:
    text = """\
state_dir = "../var"
[[models]]
name = "a"
endpoints = [{ url = "http://[::1]:9000/", key_file = "keys/a.key" }]
"""
    config = load_cluster_text(text).config
    assert config.state_dir == Path("/etc/var")
    assert config.models[0].endpoints[0].key_file == "/etc/llmgw/keys/a.key"
    assert config.models[0].endpoints[0].url == "http://[::1]:9000"


def test_paths_with_a_tilde_or_a_variable_are_refused(cluster_mistakes: Mistakes) -> None:
    text = 'state_dir = "~/x"\n[[models]]\nname = "a"\nendpoints = [{ url = "http://a:1", key_file = "$HOME/k" }]\n'
    assert [mistake.path for mistake in cluster_mistakes(text)] == ["state_dir", "models[0].endpoints[0].key_file"]


def test_no_secret_is_in_a_message(cluster_mistakes: Mistakes) -> None:
    """Whatever is wrong around it."""
    text = """\
api_key = "hunter2hunter2"
[[keys]]
name = "a"
sha256 = "hunter2hunter2"
token = "hunter2hunter2"
[[models]]
name = "a"
[models.profile]
engine = "vllm"
env = { A = ["hunter2hunter2"], B = { flie = "hunter2hunter2" }, C = { file = "hunter2hunter2" } }
"""
    told = cluster_mistakes(text, {"LLMGW_TOKEN": "hunter2hunter2"})
    assert len(told) >= 7
    assert "hunter2" not in "\n".join(map(str, told))
