from typing import Any

import attrs

from llmgw.core.explain import Explanation, Reason
from llmgw.core.statusdoc import (
    ControlStatus,
    EndpointStatus,
    GpuStatus,
    ModelStatus,
    NodeStatus,
    ReplicaStatus,
    ShardStatus,
    Status,
)
from llmgw.demo.progress import Progress, Serving

CONTROL = ControlStatus("0.1.0", "serving", 1.0, 1, 1)
NODE = NodeStatus("local", "healthy", cpus=2, memory_total_bytes=24 * 1024**3)
READY = EndpointStatus("tiny/0", "http://127.0.0.1:20000", "ready")


def status(state: str, *endpoints: EndpointStatus, **shard: Any) -> Status:
    """One node and one replica in that state."""
    of_shard = ShardStatus("tiny/0/0", "local", state, **({"epoch": 1} | shard))
    replica = ReplicaStatus("tiny/0", state, shards=(of_shard,))
    return Status(CONTROL, (NODE,), models=(ModelStatus("tiny", replicas=(replica,), endpoints=endpoints),))


def test_each_fact_is_said_once_when_it_is_true() -> None:
    progress = Progress("tiny")
    assert progress.new_lines(Status(CONTROL)) == ["control is serving"]
    assert progress.new_lines(Status(attrs.evolve(CONTROL, reason="4m59s to go"))) == []
    assert progress.new_lines(Status(CONTROL, (NODE,))) == ["node local is healthy: 2 CPUs, 24 GiB, no GPU"]
    assert progress.new_lines(status("starting")) == ["tiny/0 is starting on node local"]
    assert progress.new_lines(status("starting")) == []
    assert progress.new_lines(status("ready", pid=7, port=20000)) == [
        "tiny/0 is ready on node local: engine pid 7, port 20000"
    ]


def test_a_failure_is_said_with_its_error_and_again_when_it_comes_back() -> None:
    progress = Progress("tiny")
    failed = status("failed", error="exited with code 1: no")
    assert progress.new_lines(failed)[-1] == "tiny/0 is failed on node local: exited with code 1: no"
    progress.new_lines(status("starting", epoch=2))
    assert progress.new_lines(failed) == ["tiny/0 is failed on node local: exited with code 1: no"]


def test_cards_and_troubles_of_a_node_are_named() -> None:
    one = GpuStatus("GPU-1", "H100", 1, None)
    _, *line = Progress("tiny").new_lines(Status(CONTROL, (NodeStatus("a", "healthy", gpus=(one,), cpus=1),)))
    assert line == ["node a is healthy: 1 CPUs, 0 B, 1 GPU (H100)"]
    two = (one, GpuStatus("GPU-2", "H100", 1, None))
    _, *line = Progress("tiny").new_lines(Status(CONTROL, (NodeStatus("a", "healthy", gpus=two, cpus=1),)))
    assert line == ["node a is healthy: 1 CPUs, 0 B, 2 GPUs (H100)"]
    _, *line = Progress("tiny").new_lines(Status(CONTROL, (NodeStatus("a", "incompatible", reason="protocol 2.0"),)))
    assert line == ["node a is incompatible: protocol 2.0"]


def test_another_state_of_control_and_why_nothing_fits_is_said() -> None:
    control = ControlStatus("0.1.0", "recovering", 1.0, 2, 1, reason="waiting for gpu-a")
    explanation = Explanation("no node fits", (Reason("memory", ("a", "b"), "needs 2 GiB"),), "free 1 GiB on a")
    models = (ModelStatus("tiny", explanation=explanation), ModelStatus("other", explanation=explanation))
    in_motion = (ModelStatus("tiny", explanation=Explanation("0 of 1 ready: tiny/0 is loading on a")),)
    assert Progress("tiny").new_lines(Status(CONTROL, models=in_motion)) == ["control is serving"]
    assert Progress("tiny").new_lines(Status(control, (NODE,), models=models)) == [
        "control is recovering",
        "node local is healthy: 2 CPUs, 24 GiB, no GPU",
        "no node fits",
        "  a, b: memory: needs 2 GiB",
        "  what would help: free 1 GiB on a",
    ]


def test_a_node_of_an_earlier_run_is_no_news() -> None:
    lost = NodeStatus("local", "lost", reason="was lost before control started")
    explanation = Explanation("fits nowhere", (Reason("state", ("local",), "lost"),))
    models = (ModelStatus("tiny", explanation=explanation),)
    assert Progress("tiny").new_lines(Status(CONTROL, (lost,), models=models)) == ["control is serving"]


def test_it_serves_when_the_replica_is_ready_and_routed() -> None:
    progress = Progress("tiny")
    assert progress.serving(status("loading", READY, pid=7, port=20000)) is None
    assert progress.serving(status("ready", pid=7, port=20000)) is None
    assert progress.serving(status("ready", READY, pid=7)) is None
    assert Progress("other").serving(status("ready", READY, pid=7, port=20000)) is None
    assert progress.serving(status("ready", READY, pid=7, port=20000)) == Serving("tiny/0", "local", 7, 20000)


def test_one_failure_may_pass_a_second_launch_that_fails_ends_it() -> None:
    progress = Progress("tiny")
    assert progress.hopeless(status("failed", error="port taken")) == []
    assert progress.hopeless(status("failed", error="port taken")) == []
    assert progress.hopeless(status("loading", epoch=2)) == []
    assert progress.hopeless(status("failed", epoch=2, error="exited", output="one\ntwo")) == [
        "tiny/0/0 failed: exited",
        "one",
        "two",
    ]


def test_a_profile_that_cannot_work_ends_it_at_once() -> None:
    assert Progress("tiny").hopeless(status("failed", cause="bad profile")) == ["tiny/0/0 failed: bad profile"]


def test_the_pids_are_those_of_engines_that_live() -> None:
    assert Progress("tiny").pids(status("ready", pid=7)) == [7]
    assert Progress("tiny").pids(status("failed", pid=7, gone=True)) == []
    assert Progress("tiny").pids(status("accepted")) == []
