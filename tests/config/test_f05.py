"""F05: an unquoted dot in a table name makes a nested table, so names with versions or host names become others.

A model is a `[[models]]` with a name, which is always in quotes. Listing, routing and status with real processes are in
tests/e2e/test_config_cases.py.
"""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.show import as_toml, rows
from llmgw.core.catalog import Model
from llmgw.core.lifecycle import replica_id, shard_id, split_replica, split_shard
from llmgw.core.nodes import FleetView
from llmgw.core.replicas import Replicas
from llmgw.core.routes import table
from llmgw.errors import Mistake
from llmgw.router.table import Table
from llmgw.wire.messages import RouteTable

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]
Mistakes: TypeAlias = Callable[..., list[Mistake]]

NAMES = ("qwen2.5-7b", "llama.cpp", "meta-llama/Llama-3.1-8B.Q4_K_M", "a.b.c")
STATIC = "".join(f'[[models]]\nname = "{name}"\nendpoints = [{{ url = "http://127.0.0.1:9000" }}]\n' for name in NAMES)
BEFORE = '[[models]]\nname = "b"\nendpoints = [{ url = "http://a:1" }]\n'
HINT = 'write [[models]] with name = "{}" in it'
QUOTED = "a name that contains a dot must be quoted"

UNQUOTED = {
    "[models.qwen2.5-7b]\nreplicas = 1\n": ("qwen2.5-7b", 1),
    BEFORE + "[models.qwen2.5-7b]\nreplicas = 1\n": ("qwen2.5-7b", 4),
    '[models.qwen2.5-7b.profile]\nengine = "vllm"\n': ("qwen2.5-7b", 1),
    "[models]\nqwen2.5-7b = { replicas = 1 }\n": ("qwen2.5-7b", 1),
    BEFORE + "qwen2.5-7b = { replicas = 1 }\n": ("qwen2.5-7b", 4),
    '[models.llama.cpp]\n[models.llama.cpp.profile]\nengine = "vllm"\n': ("llama.cpp", 1),
    'models.llama.cpp.profile.engine = "vllm"\n': ("llama.cpp", 1),
}


def test_f05_a_name_with_dots_is_one_name(load_cluster_text: LoadCluster) -> None:
    """Neither a model `qwen2` nor a model `llama`."""
    config = load_cluster_text(STATIC).config
    assert tuple(config.catalog.models) == NAMES


def test_f05_it_is_listed_and_routed_by_that_name(load_cluster_text: LoadCluster) -> None:
    """From the catalog to the router's table, where aliases with dots are found too."""
    text = STATIC.replace('name = "llama.cpp"\n', 'name = "llama.cpp"\naliases = ["gpt-3.5"]\n')
    catalog = load_cluster_text(text).config.catalog
    known = table(catalog, FleetView(), Replicas(), {}, static_keys={}, created={})
    router = Table()
    router.put(RouteTable("x", 1, models=known.models, endpoints=known.endpoints))
    assert sorted(model.name for model in router.models()) == sorted(NAMES)
    for name in NAMES:
        route = router.route(name)
        assert route is not None
        assert route.model.name == name
    alias = router.route("gpt-3.5")
    assert alias is not None
    assert alias.model.name == "llama.cpp"
    assert router.route("qwen2") is router.route("llama") is None


@pytest.mark.parametrize("name", NAMES)
def test_f05_its_replicas_and_shards_keep_it(name: str) -> None:
    shard = shard_id(replica_id(name, 3), 0)
    assert split_shard(shard) == (f"{name}/3", 0)
    assert split_replica(f"{name}/3") == (name, 3)


def test_f05_it_is_shown_and_told_by_that_name(load_cluster_text: LoadCluster, cluster_mistakes: Mistakes) -> None:
    loaded = load_cluster_text(STATIC)
    assert load_cluster_text(as_toml(rows(loaded))).config == loaded.config
    (mistake,) = cluster_mistakes(STATIC + '[[models]]\nname = "llama.cpp"\nendpoints = [{ url = "http://b:1" }]\n')
    assert mistake.value == '"llama.cpp"'


def test_f05_names_of_tables_and_nodes_with_dots_in_quotes(
    load_cluster_text: LoadCluster, load_node_text: LoadNode
) -> None:
    """In the file and in the environment: labels, which are the tables that have names of the operator's."""
    labels = {"topology.example.org/zone": "a.b", "plain": "c"}
    written = '"topology.example.org/zone" = "a.b", plain = "c"'
    text = 'control = "head"\nnode_id = "gpu1.example.org"\n'
    node = load_node_text(text + "[labels]\n" + written.replace(", ", "\n")).config
    assert (node.node_id, node.labels) == ("gpu1.example.org", labels)
    node = load_node_text(text, {"LLMGW_LABELS": f"{{ {written} }}", "LLMGW_NODE_ID": "gpu2.example.org"}).config
    assert (node.node_id, node.labels) == ("gpu2.example.org", labels)
    model = (
        '[control]\nlisten = "127.0.0.1:1"\n[[models]]\nname = "a.b"\n[models.profile]\nengine = "vllm"\nmodel = "m"\n'
    )
    found = load_cluster_text(model + f"[models.placement]\nlabels = {{ {written} }}\n").config.models[0]
    assert found.placement.labels == labels


@pytest.mark.parametrize(("text", "where"), UNQUOTED.items())
def test_f05_an_unquoted_name_is_refused_with_what_to_write(
    text: str, where: tuple[str, int], cluster_mistakes: Mistakes
) -> None:
    """The error names the table that was made of it, or that models are an array, and says to quote the name."""
    name, line = where
    told = cluster_mistakes(text)
    first = told[0]
    assert first.origin == f"cluster.toml:{line}"
    assert first.path in {"models", f"models[0].{name.partition('.')[0]}"}
    assert first.hint == f"{HINT.format(name)}: {QUOTED}"


def test_f05_a_table_in_quotes_is_no_model_either(cluster_mistakes: Mistakes) -> None:
    """There is one way to write a model, and it is said."""
    (mistake,) = cluster_mistakes('[models."qwen2.5-7b"]\nreplicas = 1\n')
    assert mistake.hint.startswith(HINT.format("qwen2.5-7b"))


@pytest.mark.parametrize("text", ["[nodes.gpu1.example.org]\nx = 1\n", "[nodes.gpu1.example.org]\n"])
def test_f05_a_table_of_nodes_makes_no_node(text: str, cluster_mistakes: Mistakes, node_mistakes: Mistakes) -> None:
    """Neither `gpu1` nor any other: it is said where the name belongs, in quotes."""
    for mistakes in (cluster_mistakes, node_mistakes):
        (mistake,) = mistakes(text)
        assert (mistake.path, mistake.expected) == ("nodes", "unknown table")
        assert 'node_id = "gpu1.example.org"' in mistake.hint
        assert QUOTED in mistake.hint


def test_f05_labels_without_quotes_are_told(cluster_mistakes: Mistakes, node_mistakes: Mistakes) -> None:
    (mistake,) = node_mistakes('[labels]\nfailure-domain.zone = "a"\n')
    assert (mistake.path, mistake.hint) == ("labels.failure-domain", f'{QUOTED}: "failure-domain.zone"')
    (mistake,) = node_mistakes("", {"LLMGW_LABELS": '{ a.b.c = "x" }'})
    assert (mistake.origin, mistake.hint) == ("LLMGW_LABELS", f'{QUOTED}: "a.b.c"')
    assert cluster_mistakes("", {"LLMGW_MODELS__QWEN2.5-7B__REPLICAS": "1"})[0].hint == "write it in the file"


def test_f05_two_names_that_differ_behind_the_dot_are_two(load_cluster_text: LoadCluster) -> None:
    text = "".join(
        f'[[models]]\nname = "{name}"\nendpoints = [{{ url = "http://{name}:1" }}]\n' for name in ("q.1", "q.2")
    )
    models = load_cluster_text(text).config.models
    assert [type(model) for model in models] == [Model, Model]
    assert [model.endpoints[0].url for model in models] == ["http://q.1:1", "http://q.2:1"]
