import pytest

from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.unknown import named_hint, nearest, quoted_hint, settings_path, unknown_key
from llmgw.strict import Step


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        (("heartbeat_intervall",), 5, 'did you mean "heartbeat" in [control]?'),
        (("routr",), {}, 'did you mean "router"?'),
        (("models", 0, "gpu_memroy"), 40, 'did you mean "gpu_memory" in [models.profile]?'),
        (("models", 0, "profile", "gpu_memroy"), 40, 'did you mean "gpu_memory"?'),
        (("control", "body_max"), "1GiB", '"body_max" is known in [router]'),
        (("listen",), "x", '"listen" is known in [control], [admin], [router], [metrics]'),
        (("control", "Listen"), "x", 'did you mean "listen"? names are in lower case, with _'),
        (("control", "lost-after"), "x", 'did you mean "lost_after"? names are in lower case, with _'),
        (("models_dir",), "x", '"models_dir" is known in node.toml'),
        (("log", "zzzz"), 1, "known here: level, format"),
        (("models", 3, "qwen2"), {"5-7b": {"engine": "x"}}, 'write [[models]] with name = "qwen2.5-7b" in it'),
        (("models", 0, "profile", "gpu_memory_utilization"), 0.5, "an option of the engine belongs into args, as ["),
        (("models", 0, "profile", "env", "A", "B"), "x", 'write a text, or { file = "/a/path" }'),
        (("nodes",), {"gpu1": {"example": {"org": {"x": 1}}}}, "no file lists nodes"),
        (("models", 3, "qwen2.5-7b"), {"replicas": 1}, 'write [[models]] with name = "qwen2.5-7b" in it'),
    ],
)
def test_an_unknown_key_says_what_was_probably_meant(path: tuple[Step, ...], value: object, hint: str) -> None:
    assert unknown_key(path, value, ClusterConfig).hint.startswith(hint)


def test_a_setting_of_the_other_file() -> None:
    assert unknown_key(("router",), {}, NodeConfig).hint == '"router" is known in cluster.toml'


def test_tables_and_keys_are_told_apart() -> None:
    assert unknown_key(("routr",), {}, ClusterConfig).expected == "unknown table"
    assert unknown_key(("routr",), 1, ClusterConfig).expected == "unknown key"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"qwen2": {"5-7b": {"engine": "x"}}}, "qwen2.5-7b"),
        ({"qwen2.5-7b": {"engine": "x", "model": "y"}}, "qwen2.5-7b"),
        ({"a": {"profile": {"engine": "x"}}}, "a"),
        ({"a": 1, "b": 2}, "NAME"),
        ({}, "NAME"),
    ],
)
def test_a_table_named_like_a_model_shows_how_a_model_is_written(value: object, name: str) -> None:
    assert f'name = "{name}"' in named_hint("models", value)


def test_items_of_other_arrays_are_named_by_their_own_key() -> None:
    assert named_hint("gpus", {"GPU-a": {"memory": "1GiB"}}).startswith('write [[gpus]] with uuid = "GPU-a" in it')


def test_a_table_where_a_text_belongs_had_a_dot_in_its_name() -> None:
    assert quoted_hint("a", {"b": {"c": "x"}}) == 'a name that contains a dot must be quoted: "a.b.c"'
    assert quoted_hint("a", {"b": "x", "c": "y"}) == ""
    assert quoted_hint("a", 5) == ""


def test_settings_path() -> None:
    assert settings_path(("models", 0, "endpoints", 2, "url")) == ("models[]", "endpoints[]", "url")


def test_nothing_is_near_everything() -> None:
    assert nearest("xyz", ["listen", "heartbeat"]) == ""
