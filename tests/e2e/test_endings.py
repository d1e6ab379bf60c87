"""How nodes go: an agent that dies, and the two ways of saying goodbye."""

from collections.abc import Callable

import openai
import pytest
from cluster import Cluster, alive, wait_until

pytestmark = pytest.mark.e2e

TINY = """
[[models]]
name = "tiny"
replace_after = "6s"
  [models.profile]
  engine = "llamacpp"
  model = "tiny.gguf"
  args = ["-t", "1"]
"""
QUICK = 'heartbeat = "300ms"\nunreachable_after_missed = 3\nlost_after = "6s"\nrecover_for = "1s"'


def test_agent_killed_without_traffic_is_unreachable_then_lost(make_cluster: Callable[..., Cluster]) -> None:
    """Two stages; meanwhile the engine serves; then the explanation says why nothing can run."""
    cluster = make_cluster(TINY, control_settings=QUICK)
    cluster.control()
    agent = cluster.agent("gpu-a")
    (shard,) = cluster.ready("tiny")
    agent.kill()
    wait_until("unreachable", 30, lambda: cluster.node("gpu-a").get("state") == "unreachable")
    answer = cluster.client().completions.create(model="tiny", prompt="Hello", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    wait_until("lost", 100, lambda: cluster.node("gpu-a").get("state") == "lost")
    explanation = wait_until("an explanation", 50, lambda: cluster.model("tiny").get("explanation"))
    (reason,) = [reason for reason in explanation["reasons"] if "gpu-a" in reason["nodes"]]
    assert reason["rule"] == "state"
    assert "lost" in reason["detail"]
    assert cluster.model("tiny")["ready"] == 0
    assert alive(shard["pid"])
    with pytest.raises(openai.InternalServerError):
        cluster.client().completions.create(model="tiny", prompt="Hello", max_tokens=4)


def test_goodbye_with_engines_kept(make_cluster: Callable[..., Cluster]) -> None:
    """The agent ends, the engine serves on, nothing is replaced, and the agent adopts it when it is back."""
    cluster = make_cluster(TINY, control_settings=QUICK)
    cluster.control()
    agent = cluster.agent("gpu-a")
    (before,) = cluster.ready("tiny")
    assert agent.stop() == 0
    node = wait_until(
        "the goodbye", 30, lambda: cluster.node("gpu-a") if cluster.node("gpu-a")["state"] == "unreachable" else None
    )
    assert "engines kept" in node["reason"]
    cluster.client().completions.create(model="tiny", prompt="Hello", max_tokens=4)
    assert alive(before["pid"])
    cluster.agent("gpu-a")
    wait_until("the node to be back", 100, lambda: cluster.node("gpu-a")["state"] == "healthy")
    (after,) = cluster.ready("tiny")
    assert after["pid"] == before["pid"]


def test_goodbye_with_engines_stopped(make_cluster: Callable[..., Cluster]) -> None:
    """Lost at once, and replaced on another node without waiting for `replace_after`."""
    cluster = make_cluster(TINY.replace('"6s"', '"never"'), control_settings=QUICK.replace('"6s"', '"600s"'))
    cluster.control()
    agent = cluster.agent("gpu-a", environ={"LLMGW_STOP_ENGINES_ON_EXIT": "true"})
    (before,) = cluster.ready("tiny")
    cluster.agent("gpu-b")
    wait_until("gpu-b", 50, lambda: cluster.node("gpu-b").get("state") == "healthy")
    assert agent.stop() == 0
    assert not alive(before["pid"])
    wait_until("lost", 20, lambda: cluster.node("gpu-a").get("state") == "lost")
    (after,) = cluster.ready("tiny")
    assert after["node"] == "gpu-b"
