"""The whole core together: what a cluster does, told by its commands, its table and its explanations.

The second half are the safety properties. Whatever happens to a cluster, in whatever order, the invariants of
`check` (in conftest.py) hold after every wake: never over-booked; at most one epoch of a replica in a table; nothing
launched on a node that is away, cordoned, drained or has a problem; recovering never stops; an explanation names each
refused node. And it comes to rest as the catalog says.
"""

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.catalog import Update
from llmgw.core.fleet_events import Forgotten, Marked
from llmgw.core.lifecycle import Cause, ShardState
from llmgw.core.nodes import Memory, NodeState
from llmgw.core.plan import DrainShard, RouterSeen, Stop
from llmgw.core.replicas import retried

EXAMPLES = max(1, settings().max_examples // 25)
"""One example is a story of some hundred wakes."""

NODES = ("n0", "n1", "n2")

Step = Callable[[Any, Any], None]


def _agent(cluster: Any, index: int) -> Any:
    return cluster.agents[NODES[index]]


def _cut(cluster: Any, _core: Any, index: int) -> None:
    if _agent(cluster, index).connection is not None:
        cluster.cut(_agent(cluster, index))


def _connect(cluster: Any, _core: Any, index: int) -> None:
    if _agent(cluster, index).connection is None:
        cluster.connect(_agent(cluster, index))


def _reconnect(cluster: Any, _core: Any, index: int) -> None:
    cluster.connect(_agent(cluster, index))  # the old stream is still open


def _goodbye_kept(cluster: Any, _core: Any, index: int) -> None:
    if _agent(cluster, index).connection is not None:
        cluster.goodbye(_agent(cluster, index), "kept")


def _goodbye_stopped(cluster: Any, _core: Any, index: int) -> None:
    if _agent(cluster, index).connection is not None:
        cluster.goodbye(_agent(cluster, index), "stopped")


def _crash(cluster: Any, _core: Any, index: int) -> None:
    for shard, report in _agent(cluster, index).shards.items():
        if report.state != ShardState.STOPPED:
            _agent(cluster, index).fail(shard, cause=Cause.SIGNALLED.value)
            return


def _crash_and_hold(cluster: Any, _core: Any, index: int) -> None:
    for shard, report in _agent(cluster, index).shards.items():
        if not report.gone:
            _agent(cluster, index).fail(shard, gone=False)
            return


def _forget_shards(cluster: Any, _core: Any, index: int) -> None:
    _agent(cluster, index).shards.clear()


def _slow(cluster: Any, _core: Any, index: int) -> None:
    _agent(cluster, index).slow = not _agent(cluster, index).slow


def _lossy(cluster: Any, _core: Any, index: int) -> None:
    cluster.lossy = index == 0


def _deaf(cluster: Any, _core: Any, index: int) -> None:
    cluster.now += (1, 10, 250)[index]


def _wall_steps(cluster: Any, _core: Any, index: int) -> None:
    cluster.wall_ahead += (-7200, 7200, 30)[index]


def _restart(cluster: Any, _core: Any, index: int) -> None:
    cluster.restart(down_for=(1, 60, 400)[index])


def _restart_without_file(cluster: Any, _core: Any, index: int) -> None:
    cluster.restart(memory=(Memory.FIRST_START, Memory.UNREADABLE, Memory.UNREADABLE)[index])


def _connect_all(cluster: Any, _core: Any, _index: int) -> None:
    cluster.connect_all()


def _busy(cluster: Any, _core: Any, index: int) -> None:
    in_flight = {(id_, epoch): index for id_, (_, epoch) in cluster.endpoints().items()}
    cluster.routers = {"r": RouterSeen("r", cluster.revision, in_flight)}


def _run(cluster: Any, _core: Any, index: int) -> None:
    cluster.run((2, 20, 240)[index], step=(1.0, 1.0, 4.0)[index])


def _cordon(cluster: Any, _core: Any, index: int) -> None:
    node = cluster.fleet.nodes.get(NODES[index])
    cluster.apply(Marked(NODES[index], cordoned=node is not None and not node.cordoned))


def _drain_node(cluster: Any, _core: Any, index: int) -> None:
    node = cluster.fleet.nodes.get(NODES[index])
    cluster.apply(Marked(NODES[index], draining=node is not None and not node.draining))


def _forget_node(cluster: Any, _core: Any, index: int) -> None:
    cluster.apply(Forgotten(NODES[index]))


def _profile(cluster: Any, core: Any, index: int) -> None:
    changed = core.model("a", gpus=1, replicas=2, args=(f"--v{index}",), update=list(Update)[index % 2])
    cluster.set_models(changed, *(one for one in cluster.catalog.models.values() if one.name != "a"))


def _count(cluster: Any, _core: Any, index: int) -> None:
    models = {name: attrs.evolve(one, replicas=index) for name, one in cluster.catalog.models.items()}
    cluster.set_models(*models.values())


def _remove(cluster: Any, core: Any, index: int) -> None:
    cluster.set_models(
        *[core.model("a", gpus=1, replicas=2), core.model("b/x", gpu_memory=30 * core.GIB, gpus=1)][:index]
    )


FAULTS: tuple[Callable[[Any, Any, int], None], ...] = (
    _cut,
    _connect,
    _reconnect,
    _goodbye_kept,
    _goodbye_stopped,
    _crash,
    _crash_and_hold,
    _forget_shards,
    _slow,
    _lossy,
    _deaf,
    _wall_steps,
    _restart,
    _restart_without_file,
    _connect_all,
    _busy,
    _run,
    _run,
    _run,
)
"""What the world does to a cluster."""

ORDERS = (_cordon, _drain_node, _forget_node, _profile, _count, _remove)
"""What operators do."""


def stories(*steps: Callable[[Any, Any, int], None]) -> Any:
    """Lists of steps, each with a choice."""
    return st.lists(st.tuples(st.sampled_from(steps), st.integers(0, 2)), max_size=25)


def cluster_of(core: Any) -> Any:
    """Three nodes of two GPUs, two models; everything fits twice."""
    cluster = core.Cluster()
    cluster.set_models(
        core.model("a", gpus=1, replicas=2), core.model("b/x", gpus=1, gpu_memory=30 * core.GIB, replicas=2)
    )
    for name in NODES:
        cluster.add(name, 2)
    return cluster


def heal(cluster: Any) -> None:
    """Everything is well again, and an operator has looked at what was given up."""
    cluster.lossy = False
    for agent in cluster.agents.values():
        agent.slow = False
        for shard, report in tuple(agent.shards.items()):
            if report.state == ShardState.FAILED:
                agent.shards[shard] = attrs.evolve(report, gone=True)
    cluster.connect_all()
    cluster.routers = {}
    cluster.run(10)
    for name in NODES:
        cluster.apply(Marked(name, cordoned=False, draining=False))
    for name in cluster.catalog.models:
        cluster.replicas = retried(cluster.replicas, name)


@settings(max_examples=EXAMPLES)
@given(story=stories(*FAULTS, *ORDERS))
def test_a_cluster_comes_to_rest_as_its_catalog_says_and_then_nothing_is_sent(core: Any, story: Any) -> None:
    cluster = cluster_of(core)
    for step, choice in story:
        step(cluster, core, choice)
    heal(cluster)
    for _ in range(40):
        cluster.run(60, step=2.0)
        for name in cluster.catalog.models:
            if name in cluster.replicas.halts:
                cluster.replicas = retried(cluster.replicas, name)
        wanted = {name: model.replicas for name, model in cluster.catalog.models.items()}
        if _ready_replicas(cluster) == wanted and not cluster.plan.explanations:
            break
    cluster.settle()
    assert cluster.plan.explanations == {}
    running = sorted(shard.rsplit("/", 2)[0] for shard in cluster.running())
    assert running == sorted(name for name, model in cluster.catalog.models.items() for _ in range(model.replicas))
    assert {state for state, _ in cluster.endpoints().values()} <= {"ready"}
    assert len(cluster.endpoints()) == len(running)
    cluster.sent.clear()
    cluster.run(30)
    assert cluster.sent == []
    assert cluster.plan.fired == {}, "a wake that changes nothing does nothing"


def _ready_replicas(cluster: Any) -> dict[str, int]:
    """Of every model that has any replica, also of removed ones."""
    views = cluster.plan.views
    return {name: sum(view.state == "ready" for view in of_model) or -len(of_model) for name, of_model in views.items()}


@settings(max_examples=EXAMPLES)
@given(story=stories(*FAULTS))
def test_no_ready_engine_is_ended_because_something_was_away(core: Any, story: Any) -> None:
    """With a catalog that stays as it is, only a copy goes, and only while another one of it is ready."""
    cluster = cluster_of(core)
    for step, choice in story:
        seen = len(cluster.sent)
        ready = _ready(cluster)
        step(cluster, core, choice)
        for command in cluster.sent[seen:]:
            if isinstance(command, (Stop, DrainShard)) and (command.shard, command.epoch) in ready:
                assert not isinstance(command, Stop) or "is kept" in command.reason or "wanted" in command.reason
                model = command.shard.rsplit("/", 2)[0]
                others = [key for key in ready | _ready(cluster) if key[0].startswith(f"{model}/")]
                assert len(others) > 1, f"{command} left nothing ready"


def _ready(cluster: Any) -> set[tuple[str, int]]:
    return {
        (report.shard, report.epoch)
        for agent in cluster.agents.values()
        for report in agent.shards.values()
        if report.state == ShardState.READY
    }


@settings(max_examples=EXAMPLES)
@given(story=stories(_cut, _connect, _reconnect, _deaf, _restart, _connect_all, _goodbye_kept, _run))
def test_adoption_and_short_absences_cost_no_command(core: Any, story: Any) -> None:
    """Cuts shorter than lost_after, agents' and control's restarts: not one command."""
    cluster = cluster_of(core)
    cluster.settle()
    before = cluster.running()
    cluster.sent.clear()
    for step, choice in story:
        if step is not _run:
            step(cluster, core, choice)
            continue
        cluster.run(20)
        cluster.connect_all()
        cluster.step()
        assert not [node for node in cluster.fleet.nodes.values() if node.state is NodeState.LOST]
    cluster.connect_all()
    cluster.run(400)
    assert cluster.sent == []
    assert cluster.running() == before


@given(story=stories(*FAULTS, *ORDERS))
@settings(max_examples=EXAMPLES // 5 + 1)
def test_the_same_story_twice_gives_the_same_commands(core: Any, story: Any) -> None:
    transcripts = []
    for _ in range(2):
        cluster = cluster_of(core)
        for step, choice in story:
            step(cluster, core, choice)
        transcripts.append((cluster.sent, cluster.said, cluster.replicas))
    assert transcripts[0] == transcripts[1]


def kinds(cluster: Any) -> list[str]:
    """What was sent, in order."""
    return [f"{command.kind} {command.shard} {command.node}" for command in cluster.sent]


def test_a_model_is_placed_started_and_then_left_alone(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1")
    cluster.settle()
    assert cluster.states() == {"tiny/0": "ready"}
    assert cluster.running() == {"tiny/0/0": "n1"}
    assert kinds(cluster) == ["start tiny/0/0 n1"]
    assert cluster.endpoints() == {"tiny/0": ("ready", cluster.sent[0].epoch)}
    assert cluster.summary() == ""
    assert cluster.plan.wake_after is None


def test_while_it_loads_the_table_says_loading(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1", slow=True)
    cluster.run(5)
    assert cluster.published.models[0].unavailable.reason == "loading: tiny/0 is loading on n1"
    assert cluster.summary() == "0 of 1 ready: tiny/0 is loading on n1"
    assert cluster.endpoints() == {}


def test_nothing_is_sent_twice_while_it_is_in_flight(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    plan = cluster.look()
    assert [command.kind for command in plan.commands] == ["start"]
    again = cluster.look()
    assert again.commands == plan.commands, "never sent: issued again"
    cluster.in_flight = {(command.shard, command.epoch, command.kind): 1 for command in plan.commands}
    assert cluster.look().commands == ()
    cluster.cut(agent)
    cluster.connect(agent)
    assert cluster.look().commands == plan.commands, "the stream ended: nothing is in flight on the new one"


def test_a_stop_that_is_refused_is_not_repeated_at_once(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    agent = cluster.add("n1")
    cluster.settle()
    cluster.set_models()
    agent.refuses = "not now"
    cluster.run(11)
    kinds_sent = [command.kind for command in cluster.sent]
    assert kinds_sent.count("drain") + kinds_sent.count("stop") <= 4


def test_a_command_that_was_acknowledged_without_effect_is_issued_again(core: Any) -> None:
    cluster = core.Cluster()
    cluster.set_models(core.model())
    cluster.add("n1", slow=True)
    cluster.run(5)
    cluster.set_models()
    (stop,) = cluster.look().commands
    cluster.in_flight = {("tiny/0/0", stop.epoch, "stop"): 1}
    assert cluster.look().commands == ()
    assert cluster.look().commands == ()
    cluster.in_flight = {}
    assert cluster.look().commands == (stop,)
