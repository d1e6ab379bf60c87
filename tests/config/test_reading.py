from pathlib import Path
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.config.reading import read
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import settings_of
from llmgw.core.address import Address
from llmgw.core.catalog import Secret, Strategy, Update
from llmgw.strict import dotted

BASE = Path("/etc/llmgw")


def findings(data: dict[str, Any], cls: type = ClusterConfig) -> dict[str, str]:
    """Dotted path -> what was expected there."""
    return {dotted(finding.path): finding.expected for finding in read(cls, {"state_dir": "s", **data}, BASE).findings}


def test_a_whole_configuration_is_read_into_the_classes_of_the_core() -> None:
    data = {
        "state_dir": "../var",
        "control": {"listen": "[::1]:0", "lost_after": "3m"},
        "models": [
            {
                "name": "a",
                "replace_after": "never",
                "update": "stop-first",
                "profile": {
                    "engine": "vllm",
                    "args": ["--x", ""],
                    "env": {"A": "b", "C": {"file": "/f"}},
                    "gpu_memory": "40GiB",
                },
                "placement": {"strategy": "spread", "labels": {"zone": "a"}},
            }
        ],
    }
    reading = read(ClusterConfig, data, BASE)
    assert reading.findings == ()
    config = reading.config
    assert config.state_dir == Path("/etc/var")
    assert config.control.listen == Address("::1", 0)
    assert config.control.lost_after == 180.0
    model = config.models[0]
    assert (model.replace_after, model.update) == (None, Update.STOP_FIRST)
    assert model.placement.strategy is Strategy.SPREAD
    assert model.profile is not None
    assert model.profile.args == ("--x", "")
    assert model.profile.env == {"A": "b", "C": Secret("/f")}
    assert model.profile.gpu_memory == 40 * 1024**3


def test_nothing_is_converted() -> None:
    """8.9 is no 8, "false" is no bool, true is no 1, a word is no list, a number is no text."""
    assert findings(
        {
            "control": {"insecure": "false"},
            "router": {"workers": True},
            "models": [{"name": 5, "aliases": "abc", "replicas": 8.9, "endpoints": {}}],
        }
    ) == {
        "control.insecure": "expected true or false",
        "router.workers": "expected an integer of at most 64 bits",
        "models[0].name": "expected a string",
        "models[0].aliases": "expected a list",
        "models[0].replicas": "expected an integer of at most 64 bits",
        "models[0].endpoints": "expected tables [[models.endpoints]]",
    }


def test_one_slip_hides_no_other() -> None:
    """A wrong table, a wrong item, a missing key and an unknown one are all told, at whatever depth."""
    assert set(
        findings(
            {
                "log": 3,
                "keys": [{"name": "a"}, "b"],
                "models": [{"profile": {"gpus": "1", "model": "m", "zzz": 1}}, {"name": "b", "aliases": ["x", 1]}],
            }
        )
    ) == {
        "log",
        "keys[0].sha256",
        "keys[1]",
        "models[0].name",
        "models[0].profile.gpus",
        "models[0].profile.engine",
        "models[0].profile.zzz",
        "models[1].aliases[1]",
    }


def test_what_is_right_survives_what_is_wrong() -> None:
    """So that the rules that compare settings still see it."""
    data = {"state_dir": "s", "control": {"lost_after": 5, "listen": "127.0.0.1:1"}, "models": [{"name": "a"}, 7]}
    config = read(ClusterConfig, data, BASE).config
    assert config.control.listen == Address("127.0.0.1", 1)
    assert config.control.lost_after == 180.0
    assert config.models[0].name == "a"


def test_every_table_may_have_notes() -> None:
    """The documented place for the operator's own remarks, whatever they are."""
    notes = {"who": ["us", 1], "until": {"x": True}}
    data: dict[str, Any] = {
        "state_dir": "s",
        "notes": notes,
        "control": {"notes": "text"},
        "models": [{"name": "a", "notes": 5, "profile": {"engine": "e", "notes": []}}],
    }
    reading = read(ClusterConfig, data, BASE)
    assert reading.findings == ()
    assert (
        reading.config
        == read(ClusterConfig, {"state_dir": "s", "models": [{"name": "a", "profile": {"engine": "e"}}]}, BASE).config
    )
    assert data["notes"] == notes, "what was given is not changed"


def test_a_label_may_be_called_notes() -> None:
    data = {"node_id": "a", "control": "b:1", "state_dir": "s", "models_dir": "m", "labels": {"notes": "x"}}
    assert read(NodeConfig, data, BASE).config.labels == {"notes": "x"}


def test_secrets_in_the_environment_are_one_of_two_forms() -> None:
    env = {"A": 5, "B": {"file": 7}, "C": {"fil": "/x"}, "D": "text"}
    assert set(findings({"models": [{"name": "a", "profile": {"engine": "e", "env": env}}]})) == {
        "models[0].profile.env.A",
        "models[0].profile.env.B.file",
        "models[0].profile.env.C.fil",
        "models[0].profile.env.C.file",
    }


names = st.sampled_from(sorted({setting.key for setting in settings_of(ClusterConfig)} | {"notes", "x", "file"}))
toml: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.integers(), st.floats(), st.booleans(), st.sampled_from(["", "a", "5s", "1GiB", "a:1", "never"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=settings().max_examples // 5)
@given(st.dictionaries(names, toml, max_size=5))
def test_whatever_a_file_holds_is_read_or_told(data: dict[str, Any]) -> None:
    """Property: no data raises, and what is told lies within the data or is missing from it."""
    reading = read(ClusterConfig, data, BASE)
    assert attrs.has(type(reading.config))
    for finding in reading.findings:
        holder: Any = data
        for step in finding.path[:-1]:
            holder = holder[step]
        assert "missing" in finding.expected or repr(holder[finding.path[-1]]) == repr(finding.value)
