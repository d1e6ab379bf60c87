"""What must live on: engines and streams while control or an agent is killed and comes back."""

import os
import signal
import time
from collections.abc import Callable

import pytest
from cluster import Cluster, alive, wait_until
from streams import Stream

pytestmark = pytest.mark.e2e

SLOW = """
[[models]]
name = "slow"
replicas = {replicas}
  [models.profile]
  engine = "llamacpp"
  model = "slow.gguf"
  args = ["-t", "1", "-c", "8192", "-np", "2"]
  gpus = {gpus}
"""
ONE_GPU = '[[gpus]]\nuuid = "GPU-NODE"\nname = "declared"\nmemory = "1GiB"'
"""So that a node holds one replica that needs a GPU, and no more."""
STREAM_TOKENS = 1800
"""About a minute, while two engines share two cores with everything else."""


def test_control_killed_costs_no_engine_and_no_stream(make_cluster: Callable[..., Cluster]) -> None:
    """`kill -9` of control with two agents: same pids, not one command, the router's stream is not cut."""
    cluster = make_cluster(SLOW.format(replicas=2, gpus=1), node_settings=ONE_GPU)
    control = cluster.control()
    agents = [cluster.agent("gpu-a"), cluster.agent("gpu-b")]
    before = cluster.ready("slow", 2)
    assert {shard["node"] for shard in before} == {"gpu-a", "gpu-b"}
    commands = [len(agent.events("command received")) for agent in agents]
    assert sum(commands) == 2
    _router, port = cluster.router()

    through_router = Stream(cluster.client(port), "slow", STREAM_TOKENS)
    through_control = Stream(cluster.client(), "slow", 400)
    through_router.flowing("before the kill")
    through_control.flowing("through control's own router before the kill")
    control.kill()
    through_router.flowing("while control is away")
    assert through_control.finished(120) == "length"

    cluster.control()
    wait_until(
        "both nodes to be synced",
        300,
        lambda: (cluster.status() or {"control": {}})["control"].get("synced_nodes") == 2,
    )
    after = cluster.ready("slow", 2)
    through_router.flowing("after both nodes are synced")
    assert [(shard["id"], shard["pid"], shard["epoch"]) for shard in after] == [
        (shard["id"], shard["pid"], shard["epoch"]) for shard in before
    ]
    assert through_router.finished(600) == "length"
    assert [len(agent.events("command received")) for agent in agents] == commands
    # and the router that control started anew serves them again
    assert Stream(cluster.client(), "slow", 20).finished(60) == "length"


def test_agent_killed_and_restarted_adopts_its_engine(make_cluster: Callable[..., Cluster]) -> None:
    """`kill -9` of the agent in mid-stream: same engine pid, the stream goes on, then a clean stop."""
    cluster = make_cluster(SLOW.format(replicas=1, gpus=0))
    cluster.control()
    agent = cluster.agent("gpu-a")
    (before,) = cluster.ready("slow")
    stream = Stream(cluster.client(), "slow", 1000)
    stream.flowing("before the kill")
    agent.kill()
    stream.flowing("while the agent is away")
    agent = cluster.agent("gpu-a", environ={"LLMGW_STOP_ENGINES_ON_EXIT": "true"})
    wait_until(
        "the node to be healthy again",
        100,
        lambda: agent.events("registered") and cluster.node("gpu-a")["state"] == "healthy",
    )
    (after,) = cluster.ready("slow")
    assert (after["pid"], after["epoch"]) == (before["pid"], before["epoch"])
    stream.flowing("after the agent has re-attached")
    assert stream.finished(200) == "length"
    assert agent.stop() == 0
    assert not alive(before["pid"])


def test_engine_killed_is_failed_within_two_seconds_and_replaced(make_cluster: Callable[..., Cluster]) -> None:
    """A killed engine is `failed` with the signal and its last output, and a new epoch takes its place."""
    cluster = make_cluster(SLOW.format(replicas=1, gpus=0))
    cluster.control()
    cluster.agent("gpu-a")
    (before,) = cluster.ready("slow")
    os.kill(before["pid"], signal.SIGKILL)
    killed = time.monotonic()
    agent = next(daemon for daemon in cluster.daemons if daemon.name == "gpu-a")
    failed, *_ = wait_until(
        "the agent to report the failure",
        20,
        lambda: [event for event in agent.events("shard state") if event["state"] == "failed"],
    )
    assert failed["signal"] == signal.SIGKILL
    assert "signal 9" in failed["error"]
    assert failed["output"]
    assert wait_until("control to leave it", 20, lambda: cluster.model("slow").get("ready") == 0)
    assert time.monotonic() - killed < 20  # hang guard: ten times the 2 s that are promised
    (after,) = cluster.ready("slow", seconds=300)
    assert after["epoch"] > before["epoch"]
    assert after["pid"] != before["pid"]
