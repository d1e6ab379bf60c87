from collections.abc import Callable
from typing import TypeAlias

import pytest

from llmgw.config.in_force import NOT_IN_FORCE
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import settings_of
from llmgw.errors import Mistake

Mistakes: TypeAlias = Callable[..., list[Mistake]]

MODEL = '[[models]]\nname = "a"\nprofile = { engine = "vllm", model = "m" }\n'
LISTEN = '[control]\nlisten = "127.0.0.1:7070"\n'

REFUSED = {
    "control.tls": '[control]\nlisten = "127.0.0.1:7070"\ntls = { cert = "c" }\n' + MODEL,
    "admin.tls": LISTEN + '[admin.tls]\ncert = "c"\n' + MODEL,
    "router.tls": LISTEN + '[router.tls]\ncert = "c"\n' + MODEL,
    "metrics.listen": LISTEN + '[metrics]\nlisten = "127.0.0.1:9"\n' + MODEL,
    "models[].exact_usage": LISTEN + MODEL + "exact_usage = true\n",
    "models[].profile.nodes": LISTEN + MODEL.replace(" }", ", nodes = 2 }") + 'placement = { fabric = "ib0" }\n',
    "models[].placement.fabric": LISTEN + MODEL + 'placement = { fabric = "ib0" }\n',
}


def test_every_row_is_a_setting_and_has_a_case() -> None:
    known = {".".join(setting.path) for config in (ClusterConfig, NodeConfig) for setting in settings_of(config)}
    assert set(NOT_IN_FORCE) <= known
    assert set(NOT_IN_FORCE) == set(REFUSED)


@pytest.mark.parametrize("row", sorted(NOT_IN_FORCE))
def test_a_setting_that_does_nothing_is_refused_with_the_reason(row: str, cluster_mistakes: Mistakes) -> None:
    path = row.replace("[]", "[0]")
    refused = {mistake.path: mistake for mistake in cluster_mistakes(REFUSED[row])}
    assert refused[path].expected == "not in force in this version"
    assert refused[path].hint == NOT_IN_FORCE[row]


def test_their_defaults_may_be_written(cluster_mistakes: Mistakes) -> None:
    text = LISTEN + MODEL.replace(" }", ", nodes = 1 }") + 'exact_usage = false\nplacement = { fabric = "" }\n'
    assert cluster_mistakes(text) == []


def test_metrics_of_a_node(node_mistakes: Mistakes) -> None:
    (mistake,) = node_mistakes('[metrics]\nlisten = "127.0.0.1:9"\n')
    assert (mistake.path, mistake.expected) == ("metrics.listen", "not in force in this version")
