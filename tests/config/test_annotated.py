"""The annotated text, with the demo's values and with any others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config.annotated import cluster_text, node_text
from llmgw.config.load import Loaded, Source, load_cluster, load_node
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.core.address import Address
from llmgw.core.catalog import Model, Profile
from llmgw.errors import InvariantBroken

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]

CONF = Path(__file__).parents[2] / "conf"

DEMO_CLUSTER = cluster_text(
    "# What llmgw-control runs, and what a llmgw-router of its own reads. The demo uses this file as it is.\n",
    {"state_dir": "../var/control", "control.listen": "127.0.0.1:7070", "router.control": "127.0.0.1:7070"},
    [
        {
            "models.name": "tiny",
            "models.aliases": ["gpt-4o-mini"],
            "models.profile.engine": "llamacpp",
            "models.profile.model": "tiny.gguf",
            "models.profile.args": ["--embeddings", "--pooling", "mean"],
        }
    ],
    {},
)
DEMO_NODE = node_text(
    "# What a GPU node (or any other machine) runs its llmgw-agent with. The demo uses this file as it is.\n",
    {"node_id": "local", "control": "127.0.0.1:7070", "state_dir": "../var/agent", "models_dir": "../var/models"},
    [],
    {},
)


@pytest.mark.parametrize(("name", "text"), [("cluster.toml", DEMO_CLUSTER), ("node.toml", DEMO_NODE)])
def test_conf_is_the_annotated_text_with_the_demo_s_values(name: str, text: str) -> None:
    """A remark or a setting belongs into llmgw/config/annotated.py, and from there into conf/."""
    assert (CONF / name).read_text() == text


def test_without_any_value_every_setting_is_a_comment(load_cluster_text: LoadCluster) -> None:
    text = cluster_text("# Title.\n", {}, [], {})
    assert load_cluster_text(text).config == load_cluster_text("").config
    assert "#[[models]]\n" in text
    assert '#name = "NAME"\n' in text


def test_a_node_with_fabrics(load_node_text: LoadNode) -> None:
    fabrics = [{"fabrics.name": "ib0", "fabrics.hcas": ["a"]}, {"fabrics.name": "roce0", "fabrics.hcas": ["b", "c"]}]
    config = load_node_text(node_text("# Title.\n", {"control": "[::1]:7070"}, fabrics, {})).config
    assert config.control == Address("::1", 7070)
    assert [(fabric.name, fabric.hcas) for fabric in config.fabrics] == [("ib0", ("a",)), ("roce0", ("b", "c"))]


def test_remarks_stand_above_their_setting() -> None:
    text = cluster_text("# Title.\n", {}, [], {"control.listen": ["One.", "Two."]})
    assert '# One.\n# Two.\n# listen = "127.0.0.1:7070"\n' in text
    assert text.count("# One.") == 1


def test_an_example_can_be_set(load_cluster_text: LoadCluster) -> None:
    values = {"control.listen": "127.0.0.1:1"}
    model = {"models.name": "a", "models.profile.engine": "vllm", "models.profile.model": "m", "models.profile.gpus": 1}
    text = cluster_text("# Title.\n", values, [{**model, "models.profile.gpu_memory": "40GiB"}], {})
    profile = load_cluster_text(text).config.models[0].profile
    assert profile is not None
    assert (profile.gpus, profile.gpu_memory) == (1, 40 * 1024**3)


def test_further_models_wait_behind_a_hash(load_cluster_text: LoadCluster) -> None:
    """Taking it away from each of their lines is all that it takes."""
    model = {"models.name": "a", "models.profile.engine": "vllm", "models.profile.model": "/a"}
    more = [{"models.name": name, "models.profile.engine": "vllm", "models.profile.model": f"/{name}"} for name in "bc"]
    text = cluster_text("# Title.\n", {"control.listen": "127.0.0.1:1"}, [model], {}, more)
    assert [one.name for one in load_cluster_text(text).config.models] == ["a"]
    before, at, listed = text.partition("# More models")
    first, blank, rest = listed.partition("\n\n# An engine")
    taken = before + at + first.replace("\n#", "\n") + blank + rest
    assert load_cluster_text(taken).config.models == tuple(
        Model(name, profile=Profile("vllm", f"/{name}")) for name in "abc"
    )


def test_a_setting_that_is_not_there_is_our_mistake() -> None:
    with pytest.raises(InvariantBroken, match=r"control\.nonsense"):
        cluster_text("# Title.\n", {"control.nonsense": 1}, [], {})


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(str.strip).filter(str.isprintable)
names = words.filter(lambda name: bool(name) and not name.startswith("/") and not name.endswith("/"))


@settings(max_examples=settings().max_examples // 20)
@given(st.lists(names, max_size=3, unique=True), st.lists(names, max_size=3, unique=True), st.text(max_size=9))
def test_whatever_is_found_is_written_right(served: list[str], more: list[str], remark: str) -> None:
    """Property: no name of a model, of an adapter or in a remark makes a file that does not load as meant."""

    def entry(name: str) -> dict[str, Any]:
        return {"models.name": name, "models.profile.engine": "vllm", "models.profile.model": f"/{name}"}

    remarks = {"control.listen": [remark], "control": [remark]}
    text = cluster_text(
        "# T.\n", {"control.listen": "127.0.0.1:1"}, list(map(entry, served)), remarks, list(map(entry, more))
    )
    cluster = load_cluster(Source("f", Path("/"), text), {}, engines=("vllm",), state_base=Path("/s")).config
    assert [model.name for model in cluster.models] == served
    fabrics = [{"fabrics.name": name, "fabrics.hcas": [name]} for name in served]
    node = load_node(
        Source("f", Path("/"), node_text("# T.\n", {"control": "a:1"}, fabrics, remarks)),
        {},
        options={},
        host_name="h",
        state_base=Path("/s"),
    )
    assert [fabric.name for fabric in node.config.fabrics] == served
