"""What is found, and what became of what was decided; restarts of control."""

from typing import Any

from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Memory
from llmgw.core.plan import Start


def kinds(cluster: Any) -> list[str]:
    """What was sent, in order."""
    return [f"{command.kind} {command.shard} {command.node}" for command in cluster.sent]


def test_a_shard_that_its_agent_no_longer_lists_is_started_again(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    agent.shards.clear()
    cluster.run(3)
    assert cluster.states() == {"tiny/0": "backing off"}
    assert "no longer lists it (it was ready)" in cluster.summary()
    cluster.run(30)
    assert cluster.states() == {"tiny/0": "ready"}


def test_after_a_restart_what_runs_is_adopted_without_a_command(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a", replicas=2), core.model("b"))
    cluster.add("n1")
    cluster.add("n2")
    cluster.settle()
    cluster.sent.clear()
    before = cluster.running()
    cluster.restart(down_for=30)
    cluster.run(10)
    assert not cluster.published.complete
    cluster.connect_all()
    cluster.run(400)
    assert cluster.sent == []
    assert cluster.running() == before
    assert cluster.published.complete
    assert {state for state, _ in cluster.endpoints().values()} == {"ready"}


def test_an_engine_that_died_meanwhile_is_replaced_while_recovering(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("b"))
    n1 = cluster.add("n1")
    cluster.add("n2")
    cluster.settle()
    cluster.restart()
    del n1.shards["a/0/0"]
    cluster.connect(n1)
    cluster.sent.clear()
    cluster.run(60)
    assert cluster.fleet.recovering
    assert kinds(cluster) == ["start a/0/0 n1"]


def test_d01_right_after_control_starts_nobody_is_dead(core: Any) -> None:
    """Right after control starts, everybody looks dead: the sixth node alone is replaced, once, after its time."""
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=10, gpus=1, gpu="H100"))
    for number in range(6):
        cluster.add(f"n{number}", 4)
    cluster.settle()
    on_sixth = [shard for shard, node in cluster.running().items() if node == "n2"]
    assert len(on_sixth) == 2
    gone = cluster.agents["n2"]
    cluster.restart(down_for=300)
    cluster.sent.clear()
    delays = {"n0": 1, "n1": 5, "n3": 10, "n4": 20, "n5": 40}
    for second in range(60):
        for name, delay in delays.items():
            if second == delay:
                cluster.connect(cluster.agents[name])
        cluster.step()
    assert cluster.sent == []
    started = cluster.now
    while not cluster.sent:
        cluster.step()
    assert cluster.now - started + 60 >= 180
    cluster.run(120)
    assert sorted(command.shard for command in cluster.sent) == sorted(on_sixth)
    assert all(isinstance(command, Start) for command in cluster.sent)
    assert gone.connection is None

    # The same with control's loop blocked: it was deaf, nobody was silent.
    cluster.sent.clear()
    cluster.now += 200
    cluster.run(10)
    assert cluster.sent == []
    states = {node.state.value for node in cluster.fleet.nodes.values() if node.id != "n2"}
    assert states == {"healthy"}


def test_without_a_file_control_serves_at_once_and_spares_what_it_finds(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.FIRST_START)
    cluster.set_models(core.model(replicas=1), core.model("b"))
    cluster.connect_all()
    cluster.sent.clear()
    cluster.run(250)
    assert kinds(cluster) == ["start b/0/0 n1"], "it serves at once"
    cluster.run(100)
    assert len(core.stops(cluster.sent)) == 1, "after recover_for the surplus goes"


def test_with_an_unreadable_file_nothing_is_started_or_stopped_until_it_is_over(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("gone"))
    cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.UNREADABLE)
    cluster.set_models(core.model("a"), core.model("b"))
    cluster.connect_all()
    cluster.sent.clear()
    cluster.run(295)
    assert cluster.sent == []
    assert cluster.states("a") == {"a/0": "ready"}
    assert "control is recovering, and does not know what runs" in cluster.summary("b")
    cluster.run(60)
    assert kinds(cluster) == ["start b/0/0 n1", "drain gone/0/0 n1", "stop gone/0/0 n1"]


def test_what_is_no_shard_of_ours_is_left_alone_and_its_gpus_are_taken(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(gpus=1))
    agent = cluster.add("n1", 1)
    agent.shards["mine"] = ShardReport("mine", 1, "h", "ready", gpus=("GPU-n1-0",))
    cluster.run(5)
    assert cluster.sent == []
    assert "1 in use" in cluster.summary()
    assert list(cluster.replicas.by_id) == ["tiny/0"]


def test_the_same_launch_on_a_second_machine_is_left_alone(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    first = cluster.add("n1")
    cluster.settle()
    copied = dict(first.shards)
    cluster.restart(memory=Memory.FIRST_START)
    cluster.add("n2", shards=copied)
    cluster.connect(first)
    cluster.sent.clear()
    cluster.run(400)
    assert cluster.sent == []
    assert len(cluster.replicas.by_id["tiny/0"].launches) == 1


def test_epochs_follow_what_agents_report_and_the_clock(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("b"))
    agent = cluster.add("n1")
    agent.shards["a/0/0"] = ShardReport("a/0/0", 4_000_000_000, "h", "ready")
    cluster.heartbeat(agent)
    cluster.settle()
    assert cluster.replicas.by_id["b/0"].launches[0].epoch == 4_000_000_001
    assert cluster.replicas.epoch_max >= 4_000_000_001


def test_an_engine_found_and_lost_without_a_file_is_not_restarted_before_the_time_is_over(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.UNREADABLE)
    cluster.connect_all()
    cluster.run(5)
    agent.fail("tiny/0/0")
    cluster.sent.clear()
    cluster.run(60)
    assert cluster.sent == []
    assert "not launched while control is recovering without its file" in cluster.summary()
    cluster.run(300)
    assert cluster.states() == {"tiny/0": "ready"}


def test_what_is_put_off_while_recovering_comes_when_that_is_over(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model(replicas=2))
    cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.UNREADABLE)
    cluster.set_models(core.model(replicas=0))
    cluster.connect_all()
    cluster.sent.clear()
    cluster.run(295)
    assert cluster.sent == []
    cluster.run(20)
    assert cluster.running() == {}


def test_what_an_agent_holds_is_found_whenever_it_comes(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("b"))
    cluster.add("n1")
    late = cluster.add("n2", labels={"late": "yes"})
    cluster.settle()
    held = dict(cluster.agents["n1"].shards)
    cluster.restart(memory=Memory.UNREADABLE)
    cluster.connect(late)
    cluster.run(50)
    assert cluster.states("a") == {}
    cluster.connect(cluster.agents["n1"])
    cluster.sent.clear()
    cluster.run(350)
    assert cluster.agents["n1"].shards == held
    assert cluster.sent == []


def test_outdated_strangers_are_left_alone_for_as_long_as_others(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1")
    cluster.settle()
    cluster.restart(memory=Memory.FIRST_START)
    cluster.set_models(core.model(args=("--new",)))
    cluster.connect_all()
    cluster.sent.clear()
    cluster.run(290)
    assert cluster.sent == []
    cluster.run(60)
    assert [command.kind for command in cluster.sent] == ["start", "drain", "stop"]


def test_while_recovering_nothing_is_rolled_and_a_stop_that_was_decided_waits(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model("a"), core.model("b", gpus=1))
    cluster.add("n1")
    cluster.add("n2", 1)
    cluster.settle()
    cluster.set_models(core.model("b", gpus=1))
    cluster.agents["n1"].refuses = "busy"
    cluster.run(3)
    assert cluster.replicas.by_id["a/0"].launches[0].stop
    cluster.restart()
    cluster.set_models(core.model("b", args=("--new",)))
    cluster.agents["n1"].refuses = ""
    cluster.connect(cluster.agents["n1"])
    cluster.sent.clear()
    cluster.run(100)
    assert cluster.sent == []
    cluster.connect(cluster.agents["n2"])
    cluster.settle()
    assert sorted(command.kind for command in cluster.sent) == ["drain", "start", "stop", "stop"]
