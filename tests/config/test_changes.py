"""What a new file would do: to models by name, to keys, and to the daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config.changes import (
    Changes,
    Effect,
    ModelChange,
    SettingChange,
    as_lines,
    compare,
    compare_nodes,
    reason_to_ask,
)
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.core.catalog import Model, Placement, Profile, Secret, StaticEndpoint
from llmgw.core.units import Duration

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]

PROFILE = Profile("llamacpp", "m.gguf")
OURS = Model("a", profile=PROFILE, replicas=2)
THEIRS = Model("s", endpoints=(StaticEndpoint("http://127.0.0.1:9000"),))


@pytest.fixture
def changes(load_cluster_text: LoadCluster) -> Callable[..., Changes]:
    """(models before, models after) -> what changes."""
    config = load_cluster_text().config

    def changed(old: list[Model], new: list[Model]) -> Changes:
        return compare(attrs.evolve(config, models=tuple(old)), attrs.evolve(config, models=tuple(new)))

    return changed


Of: TypeAlias = Callable[..., Changes]


def test_nothing_changes(changes: Of) -> None:
    found = changes([OURS, THEIRS], [THEIRS, OURS])
    assert not found
    assert as_lines(found, "llmgw-control") == ["nothing changes"]


def test_a_changed_profile_restarts_that_model_alone(changes: Of) -> None:
    new = attrs.evolve(OURS, profile=attrs.evolve(PROFILE, args=("-c", "1")))
    (change,) = changes([OURS, THEIRS], [new, THEIRS]).models
    assert change == ModelChange(
        "a", Effect.RESTARTS, 2, 2, restarts=2, settings=(SettingChange("profile.args", [], ["-c", "1"]),)
    )


@pytest.mark.parametrize(
    "new",
    [
        attrs.evolve(OURS, aliases=("b",)),
        attrs.evolve(OURS, placement=Placement(labels={"zone": "a"})),
        attrs.evolve(OURS, replace_after=None),
        attrs.evolve(OURS, drain_deadline=Duration(5.0)),
        attrs.evolve(OURS, ready_min=1),
    ],
)
def test_what_is_no_profile_restarts_nothing(changes: Of, new: Model) -> None:
    """Aliases, labels, timers."""
    (change,) = changes([OURS], [new]).models
    assert (change.effect, change.restarts, change.before, change.after) == (Effect.IN_PLACE, 0, 2, 2)
    assert len(change.settings) == 1


def test_another_count_starts_or_stops_the_difference(changes: Of) -> None:
    (change,) = changes([OURS], [attrs.evolve(OURS, replicas=5)]).models
    assert (change.effect, change.before, change.after, change.restarts) == (Effect.SCALES, 2, 5, 0)
    assert as_lines(changes([OURS], [attrs.evolve(OURS, replicas=1)]), "x") == [
        "scales    a: from 2 to 1 replica",
        "    replicas: 2 -> 1",
    ]


def test_a_profile_and_a_count(changes: Of) -> None:
    """Those that stay are launched anew; one that is scaled to none is only stopped."""
    profile = attrs.evolve(PROFILE, gpus=1)
    (change,) = changes([OURS], [attrs.evolve(OURS, replicas=1, profile=profile)]).models
    assert (change.effect, change.after, change.restarts) == (Effect.RESTARTS, 1, 1)
    (change,) = changes([OURS], [attrs.evolve(OURS, replicas=0, profile=profile)]).models
    assert (change.effect, change.after, change.restarts) == (Effect.SCALES, 0, 0)


def test_models_come_and_go(changes: Of) -> None:
    found = changes([OURS], [attrs.evolve(OURS, name="b", profile=attrs.evolve(PROFILE, model="n"))])
    assert [(one.model, one.effect, one.before, one.after) for one in found.models] == [
        ("a", Effect.STOPS, 2, 0),
        ("b", Effect.STARTS, 0, 2),
    ]
    assert as_lines(found, "x") == [
        "stops     a: 2 replicas; no longer in the file",
        "starts    b: 2 replicas; a new model",
    ]


def test_a_renamed_model_is_another_one(changes: Of) -> None:
    """Which is told, with what to do instead."""
    (gone, _) = changes([OURS], [attrs.evolve(OURS, name="b")]).models
    assert gone.remark == "no longer in the file"
    assert gone.hint == '"b" has the same profile: to rename without a restart keep the name and add an alias'


def test_what_others_run_is_only_routed(changes: Of) -> None:
    moved = attrs.evolve(THEIRS, endpoints=(StaticEndpoint("http://127.0.0.1:9001"),))
    for old, new in (([THEIRS], [moved]), ([], [THEIRS]), ([THEIRS], [])):
        (change,) = changes(old, new).models
        assert (change.effect, change.before, change.after) == (Effect.IN_PLACE, 0, 0)
    (change,) = changes([THEIRS], [moved]).models
    assert change.settings == (SettingChange("endpoints[0].url", "http://127.0.0.1:9000", "http://127.0.0.1:9001"),)


def test_a_model_changes_hands(changes: Of) -> None:
    ours = attrs.evolve(OURS, name="s")
    assert changes([THEIRS], [ours]).models[0].effect is Effect.STARTS
    assert changes([ours], [THEIRS]).models[0].effect is Effect.STOPS


def test_no_secret_is_shown(changes: Of) -> None:
    old = attrs.evolve(
        OURS, profile=attrs.evolve(PROFILE, env={"A": "hunter1", "B": "hunter1"}, args=("--api-key", "hunter1"))
    )
    env: dict[str, str | Secret] = {"A": "hunter2", "B": Secret("/etc/b")}
    new = attrs.evolve(OURS, profile=attrs.evolve(PROFILE, env=env, args=("--api-key", "hunter2")))
    lines = as_lines(changes([old], [new]), "x")
    assert "hunter" not in "\n".join(lines)
    assert lines == [
        "restarts  a: 2 replicas, one after the other",
        "    profile.args: another value, which is not shown",
        "    profile.env.A: another value, which is not shown",
        '    profile.env.B: "***" -> not set',
        '    profile.env.B.file: not set -> "/etc/b"',
    ]


def test_keys_change_in_place(load_cluster_text: LoadCluster) -> None:
    def keys(**hashes: str) -> ClusterConfig:
        lines = [f'[[keys]]\nname = "{name}"\nsha256 = "{digit * 64}"\n' for name, digit in hashes.items()]
        return load_cluster_text("".join(lines)).config

    found = compare(keys(a="1", b="2", c="3"), keys(a="1", b="4", d="5"))
    assert found == Changes(keys=("b (changed)", "c (gone)", "d (new)"))
    assert as_lines(found, "x") == ["in place  keys: b (changed), c (gone), d (new)"]


def test_what_needs_a_restart_of_control(load_cluster_text: LoadCluster) -> None:
    """Listen addresses and state_dir, and everything else that is read once."""
    text = 'state_dir = "/s"\n[router]\nlisten = "127.0.0.1:81"\nworkers = 2\n[control]\nlisten = "[::1]:7070"\n'
    found = compare(load_cluster_text().config, load_cluster_text(text).config)
    assert (found.models, found.keys) == ((), ())
    assert as_lines(found, "llmgw-control") == [
        "needs a restart of llmgw-control:",
        '    state_dir: "/var/lib/llmgw/control" -> "/s" (what control knows is in the old one)',
        '    control.listen: not set -> "[::1]:7070"',
        '    router.listen: "127.0.0.1:8080" -> "127.0.0.1:81" (and of every llmgw-router)',
        "    router.workers: 1 -> 2 (and of every llmgw-router)",
    ]


def test_a_node_needs_a_restart_of_its_agent(load_node_text: LoadNode) -> None:
    old = load_node_text('control = "head"\nlabels = { zone = "a" }\n').config
    new = load_node_text('control = "head"\nlabels = { zone = "b" }\nnode_id = "b"\nstate_dir = "s"\n').config
    found = compare_nodes(old, new)
    assert [(one.path, one.remark) for one in found.daemon] == [
        ("node_id", "it registers as another node"),
        ("state_dir", "engines that run are not found from another one"),
        ("labels.zone", ""),
    ]
    assert not compare_nodes(old, old)


def test_what_must_be_confirmed(changes: Of) -> None:
    b, c = attrs.evolve(OURS, name="b"), attrs.evolve(OURS, name="c", replicas=20)
    ready = {"a": 2, "b": 2, "c": 20}
    everything = [OURS, b, c]
    assert reason_to_ask(changes(everything, [c]), ready) == "it stops 2 models: a, b"
    assert reason_to_ask(changes(everything, [b, c]), ready) == ""  # one of three, and 2 of 24 replicas
    assert reason_to_ask(changes(everything, [OURS, b]), ready) == "it stops 20 of 24 ready replicas"
    fewer = [OURS, b, attrs.evolve(c, replicas=15)]
    assert reason_to_ask(changes(everything, fewer), ready) == "it stops 5 of 24 ready replicas"
    assert reason_to_ask(changes(everything, fewer), ready | {"c": 10}) == ""  # none of them is ready
    assert reason_to_ask(changes([OURS], []), {"a": 1}) == "it stops 1 of 1 ready replicas"
    assert reason_to_ask(changes([OURS], []), {}) == ""


def test_a_restart_is_not_asked_about(changes: Of) -> None:
    """It goes one by one and stops where the first one fails."""
    new = attrs.evolve(OURS, profile=attrs.evolve(PROFILE, gpus=1))
    assert reason_to_ask(changes([OURS], [new]), {"a": 2}) == ""


profiles = st.builds(Profile, st.just("vllm"), st.sampled_from(["x", "y"]), gpus=st.integers(0, 1))
models = st.lists(
    st.builds(
        Model,
        st.sampled_from("abc"),
        aliases=st.sampled_from([(), ("z",)]),
        replicas=st.integers(0, 3),
        profile=st.none() | profiles,
    ),
    unique_by=lambda model: model.name,
)


@settings(max_examples=settings().max_examples // 20)
@given(models, models)
def test_the_difference_is_whole(old: list[Model], new: list[Model]) -> None:
    """Property: a model is listed exactly when it differs, and the counts lead from the one file to the other."""
    config = ClusterConfig(Path("/s"), models=tuple(old))
    found = compare(config, attrs.evolve(config, models=tuple(new)))
    before, after = ({model.name: model for model in side} for side in (old, new))
    assert {change.model for change in found.models} == {
        name for name in {*before, *after} if before.get(name) != after.get(name)
    }
    for change in found.models:
        for count, model in ((change.before, before.get(change.model)), (change.after, after.get(change.model))):
            assert count == (model.replicas if model is not None and model.profile is not None else 0)
        assert change.restarts <= min(change.before, change.after)
