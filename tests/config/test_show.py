import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config import values
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import settings_of
from llmgw.config.show import DEFAULT, Row, as_json, as_toml, duration_text, rows, size_text
from llmgw.config.unknown import settings_path
from llmgw.strict import dotted

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]

few = settings(max_examples=settings().max_examples // 5)

CLUSTER = """\
state_dir = "state"
[control]
listen = "[::1]:7070"
lost_after = "1d"
[[models]]
name = "llama.cpp"
aliases = ["a.b", "a\\"b"]
replace_after = "never"
update = "stop-first"
ready_min = 1
[models.profile]
engine = "vllm"
model = "m"
args = ["--chat-template", "{{ 'a long template, which does not fit on one line' }}", "--max-model-len", "4096"]
env = { HF_TOKEN = { file = "/etc/llmgw/hf" } }
gpus = 2
gpu_memory = "40GiB"
start_deadline = "1500ms"
[models.placement]
labels = { "topology.zone" = "a", plain = "b" }
strategy = "spread"
[[models]]
name = "static"
endpoints = [{ url = "http://[::1]:9000", key_file = "k" }, { url = "http://a:1", model = "x" }]
"""

NODE = """\
control = "head"
ports = "1000-1999"
labels = { "a.b" = "c" }
[gpu_filter]
only = ["GPU-a"]
[[fabrics]]
name = "ib0"
hcas = ["mlx5_0", "mlx5_1"]
[[gpus]]
uuid = "GPU-fake-0"
memory = "80GiB"
"""

SECRETS = """\
[control]
listen = "127.0.0.1:1"
[[keys]]
name = "team"
sha256 = "7f1d5a2c7f1d5a2c7f1d5a2c7f1d5a2c7f1d5a2c7f1d5a2c7f1d5a2c7f1d5a2c"
[[models]]
name = "a"
[models.profile]
engine = "vllm"
model = "m"
args = ["--api-key", "hunter2", "--api-key=hunter2", "--port", "1"]
env = { PLAIN = "hunter2", HF_TOKEN = { file = "/etc/hf" } }
"""


def found(loaded: Loaded[Any]) -> dict[str, Row]:
    return {dotted(row.path): row for row in rows(loaded)}


def test_what_is_shown_can_be_loaded_again(load_cluster_text: LoadCluster, load_node_text: LoadNode) -> None:
    """And gives the same configuration, wherever its file then is."""
    for load, text in ((load_cluster_text, CLUSTER), (load_cluster_text, ""), (load_node_text, NODE)):
        loaded = load(text)
        shown = as_toml(rows(loaded))
        assert load(shown).config == loaded.config, shown


def test_every_setting_has_its_row(load_cluster_text: LoadCluster, load_node_text: LoadNode) -> None:
    """Property: whoever looks for a setting finds its value, set or not."""
    for loaded, config in ((load_cluster_text(CLUSTER), ClusterConfig), (load_node_text(NODE), NodeConfig)):
        shown = {settings_path(row.path) for row in rows(loaded)}
        for setting in settings_of(config):
            if setting.table is None and not {"tls", "keys[]"} & set(setting.path):
                assert any(path[: len(setting.path)] == setting.path for path in shown), setting.path


def test_each_value_has_its_origin(load_cluster_text: LoadCluster, load_node_text: LoadNode) -> None:
    """The file with its line, the variable, the option, or that it is the default."""
    shown = found(load_cluster_text(CLUSTER, {"LLMGW_ROUTER__WORKERS": "3", "LLMGW_CONTROL__LOST_AFTER": "200s"}))
    assert shown["control.listen"] == Row(("control", "listen"), "[::1]:7070", "cluster.toml:3")
    assert shown["control.lost_after"] == Row(("control", "lost_after"), "200s", "LLMGW_CONTROL__LOST_AFTER")
    assert shown["router.workers"] == Row(("router", "workers"), 3, "LLMGW_ROUTER__WORKERS")
    assert shown["router.body_max"] == Row(("router", "body_max"), "64MiB", DEFAULT)
    assert shown["models[0].profile.env.HF_TOKEN.file"].origin == "cluster.toml:15"
    assert shown["models[0].placement.labels.'topology.zone'"].origin == "cluster.toml:20"
    assert shown["models[1].endpoints[1].model"].origin == "cluster.toml:24"
    node = found(load_node_text("", {"LLMGW_LABELS": '{ a = "b" }'}, options={"control": ("--server", "head")}))
    assert (node["control"].value, node["control"].origin) == ("head:7070", "--server")
    assert node["labels.a"].origin == "LLMGW_LABELS"
    assert node["node_id"] == Row(("node_id",), "gpu-a", DEFAULT)


def test_what_is_not_set_is_a_comment(load_cluster_text: LoadCluster) -> None:
    lines = as_toml(rows(load_cluster_text(CLUSTER))).splitlines()
    assert "# port is not set                             # default" in lines
    assert "[models.profile.env.HF_TOKEN]" in lines
    assert 'file = "/etc/llmgw/hf"                        # cluster.toml:15' in lines
    assert "keys = []                                     # default" in lines


def test_a_default_is_shown_as_it_acts(load_cluster_text: LoadCluster) -> None:
    """Nothing is replaced before its node is lost; and what others run has no replicas of ours."""
    text = CLUSTER.replace('replace_after = "never"\n', "")
    shown = found(load_cluster_text(text))
    expected = Row(("models", 0, "replace_after"), "24h", "default: not before control.lost_after")
    assert shown["models[0].replace_after"] == expected
    assert found(load_cluster_text(SECRETS))["models[0].replace_after"].value == "3m"
    assert "models[1].replicas" not in shown


def test_an_empty_table_is_one_line(load_cluster_text: LoadCluster) -> None:
    text = as_toml(rows(load_cluster_text(SECRETS)))
    assert "[models.placement.labels]                     # default: empty" in text.splitlines()


def test_a_long_list_has_a_line_for_each_item(load_cluster_text: LoadCluster) -> None:
    text = as_toml(rows(load_cluster_text(CLUSTER)))
    assert 'args = [                                      # cluster.toml:14\n    "--chat-template",\n' in text
    assert 'aliases = ["a.b", "a\\"b"]                     # cluster.toml:7\n' in text


def test_secrets_are_hidden(load_cluster_text: LoadCluster) -> None:
    """Values of variables, the hash of a key (which may be the key), and what follows an option for a secret."""
    loaded = load_cluster_text(SECRETS)
    text = as_toml(rows(loaded))
    assert "hunter2" not in text
    assert "7f1d5a2c" not in text
    shown = found(loaded)
    assert shown["keys[0].sha256"].value == shown["models[0].profile.env.PLAIN"].value == "***"
    assert shown["models[0].profile.args"].value == ["--api-key", "***", "--api-key=***", "--port", "1"]
    assert shown["models[0].profile.env.HF_TOKEN.file"].value == "/etc/hf"


def test_nothing_of_the_file_steers_the_terminal(load_node_text: LoadNode) -> None:
    """And it is still TOML with the same text in it."""
    loaded = load_node_text('control = "head"\nstate_dir = "/a\\u009b\\u001b[31m\\u202e\\U000e0001\\tb"\n')
    text = as_toml(rows(loaded))
    assert all(line.isprintable() for line in text.splitlines())
    assert load_node_text(text).config == loaded.config


def test_as_json(load_cluster_text: LoadCluster) -> None:
    row = next(row for row in rows(load_cluster_text(CLUSTER)) if row.path == ("models", 0, "name"))
    assert as_json(row) == {"path": "models[0].name", "value": "llama.cpp", "origin": "cluster.toml:6"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.5, "500ms"), (1, "1s"), (60, "60s"), (90, "90s"), (180, "3m"), (3600, "60m"), (7200, "2h"), (0, "0s")),
        *((172800, "2d"), (1.5, "1500ms"), (0.0015, "0.0015s"), (1e6, "1000000s")),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@few
@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(list(values.DURATION_UNITS)))
def test_a_duration_reads_back(whole: int, part: int, unit: str) -> None:
    """Property: what is shown means what was written, to the last digit that a clock could notice."""
    try:
        seconds = values.duration(f"{whole}.{part:03}{unit}")
    except values.BadValueError:
        return  # more than ten years
    assert math.isclose(values.duration(duration_text(seconds)), seconds, rel_tol=1e-12, abs_tol=1e-12)


@few
@given(st.integers(0, 10**15 - 1))
def test_a_size_reads_back(size: int) -> None:
    """Property: to the byte, for every size that a file can give in bytes."""
    assert values.size(size_text(size)) == size
    assert size_text(40 * 1024**3) == "40GiB"
    assert size_text(0) == "0B"
