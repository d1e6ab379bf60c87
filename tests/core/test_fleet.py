"""Liveness and identity of nodes: silence, recovering, two machines under one name, a late close."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.fleet import Fleet, FleetSettings, apply
from llmgw.core.fleet_events import (
    Accept,
    Disconnected,
    EngineAnswered,
    Event,
    Farewell,
    Forget,
    Forgotten,
    Heard,
    HeartbeatIn,
    Incompatible,
    KnownNode,
    Line,
    Marked,
    Refuse,
    Registered,
    Registration,
    Remember,
    StartAccepted,
    StatusIn,
    Supersede,
    Tick,
)
from llmgw.core.hardware import Gpu, NodeHardware, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Memory, NodeState

X = ShardReport("m/0/0", 7, "h", "ready", port=20000)


class Control:
    """A fleet, a clock that ticks, and everything that came out."""

    def __init__(self, memory: Memory = Memory.FIRST_START, known: tuple[KnownNode, ...] = (), **changes: Any) -> None:
        self.now = 100.0
        self.fleet = Fleet(FleetSettings(**changes), self.now, memory, known)
        self.effects: list[Any] = []

    def say(self, event: Event) -> list[Any]:
        effects = list(apply(self.fleet, event, self.now))
        self.effects += effects
        return [effect for effect in effects if not isinstance(effect, Line)]

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            self.say(Tick())

    def register(self, connection: int, name: str = "n1", instance: str = "i", **fields: Any) -> list[Any]:
        return self.say(
            Registered(connection, f"10.0.0.{connection}:4000", Registration(node=name, instance=instance, **fields))
        )

    def state(self, name: str = "n1") -> str:
        return self.fleet.nodes[name].state.value

    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects if not isinstance(effect, Line)]

    def logged(self) -> list[str]:
        return [effect.event for effect in self.effects if isinstance(effect, Line)]


# --- registration and identity ----------------------------------------------------------------------------------


def test_a_register_is_accepted_and_makes_the_node_healthy() -> None:
    control = Control()
    effects = control.register(1, labels={"zone": "a"}, shards=(X,))
    assert effects[0] == Accept(1, "n1", 2.0, 0)
    assert isinstance(effects[1], Remember)
    node = control.fleet.nodes["n1"]
    assert (node.state, node.address, node.peer, node.labels) == (
        NodeState.HEALTHY,
        "10.0.0.1",
        "10.0.0.1:4000",
        {"zone": "a"},
    )
    assert node.commandable
    assert node.shards == {"m/0/0": X}


def test_the_address_of_a_node_is_what_it_advertises_else_where_it_comes_from() -> None:
    control = Control()
    control.register(1, address="gpu-a.lan")
    assert control.fleet.nodes["n1"].address == "gpu-a.lan"
    control.say(Registered(2, "[fe80::1]:4000", Registration("n2", "i")))
    assert control.fleet.nodes["n2"].address == "fe80::1"


@pytest.mark.parametrize("late", [False, True])
def test_a02_late_close_of_the_old_connection_disconnects_the_new_one(late: bool) -> None:
    """Late close of the old connection: no state changes, the new stream has the commands, the old is superseded."""
    control = Control()
    control.register(1, shards=(X,))
    effects = control.register(2, shards=(X,))
    assert Supersede(1, "n1") in effects
    assert any(isinstance(effect, Accept) and effect.connection == 2 for effect in effects)
    version = control.fleet.version
    if late:
        for _ in range(3):
            control.wait(2)
            control.say(HeartbeatIn(2, "n1", shards=(X,)))
    assert control.say(Disconnected(1, "n1")) == []
    assert control.fleet.version == version
    node = control.fleet.nodes["n1"]
    assert (node.state, node.connection, node.shards) == (NodeState.HEALTHY, 2, {"m/0/0": X})
    assert node.commandable


def test_frames_of_a_superseded_connection_change_nothing() -> None:
    control = Control()
    control.register(1, shards=(X,))
    control.register(2, shards=(X,))
    before = control.fleet.snapshot()
    control.say(HeartbeatIn(1, "n1"))
    control.say(StatusIn(1, "n1", 5, attrs.evolve(X, state="failed")))
    control.say(StartAccepted(1, "n1", "y/0/0", 9, "h"))
    control.say(Heard(1, "n1"))
    control.say(Farewell(1, "n1", "stopped"))
    assert control.fleet.snapshot().nodes == before.nodes
    assert control.fleet.snapshot().pulses == before.pulses


def test_a03_two_machines_with_one_identity() -> None:
    """Two machines with one identity: the second is refused by name and address until the first is lost."""
    control = Control()
    first = NodeHardware(gpus=(Gpu("GPU-first"),))
    second = NodeHardware(gpus=(Gpu("GPU-second"),))
    control.register(1, hardware=first, shards=(X,))
    refusals = []
    for _ in range(60):
        control.wait(2)
        control.say(HeartbeatIn(1, "n1", shards=(X,)))
        effects = control.register(2, instance="other", hardware=second)
        refusals += effects
        node = control.fleet.nodes["n1"]
        assert [gpu.uuid for gpu in node.hardware.gpus] == ["GPU-first"]
        assert node.connection == 1
    assert {type(effect) for effect in refusals} == {Refuse}
    assert "n1" in refusals[0].reason
    assert "10.0.0.1:4000" in refusals[0].reason
    assert refusals[0].retry_after_seconds == 30
    control.say(Disconnected(1, "n1"))
    control.wait(100)
    assert isinstance(control.register(2, instance="other", hardware=second)[0], Refuse)
    control.wait(90)
    assert control.state() == "lost"
    assert isinstance(control.register(2, instance="other", hardware=second)[0], Accept)
    node = control.fleet.nodes["n1"]
    assert [gpu.uuid for gpu in node.hardware.gpus] == ["GPU-second"]
    assert node.shards == {}, "what it does not report is not assumed to run there"
    ended = node.report("m/0/0", 7)
    assert ended is not None
    assert (ended.gone, ended.cause) == (True, "node lost")


@pytest.mark.parametrize("engines", ["kept", "stopped"])
def test_a_name_is_free_after_a_goodbye(engines: str) -> None:
    control = Control()
    control.register(1)
    control.say(Farewell(1, "n1", engines))
    assert isinstance(control.register(2, instance="other")[0], Accept)


def test_a_name_is_free_after_an_operator_forgot_its_holder() -> None:
    control = Control()
    control.register(1)
    control.say(Forgotten("n1"))
    assert control.logged()[-1] == "node not forgotten: it is connected"
    control.say(Disconnected(1, "n1"))
    assert isinstance(control.register(2, instance="other")[0], Refuse)
    assert control.say(Forgotten("n1")) == [Forget("n1")]
    assert isinstance(control.register(2, instance="other")[0], Accept)
    assert control.say(Forgotten("nobody")) == []


def test_a_name_in_the_file_is_held_until_its_machine_is_lost() -> None:
    control = Control(Memory.LOADED, (KnownNode("n1", "i", peer="10.0.0.1:9"), KnownNode("n2", "j")))
    refused = control.register(1, instance="other")[0]
    assert "10.0.0.1:9 (not heard since control started)" in refused.reason
    assert isinstance(control.register(2)[0], Accept)


def test_registering_again_on_a_live_stream_replaces_the_hardware() -> None:
    control = Control()
    control.register(1, hardware=NodeHardware(gpus=(Gpu("a"), Gpu("b"))))
    assert control.register(1, hardware=NodeHardware(gpus=(Gpu("a"),)))[0] == Accept(1, "n1", 2.0, 0)
    assert [gpu.uuid for gpu in control.fleet.nodes["n1"].hardware.gpus] == ["a"]
    assert "Supersede" not in control.kinds()


def test_hardware_that_is_not_complete_never_takes_a_gpu_away() -> None:
    control = Control()
    control.register(1, hardware=NodeHardware(gpus=(Gpu("a"), Gpu("b")), cpus=4))
    control.register(1, hardware=NodeHardware(gpus=(Gpu("b", name="new"),), cpus=8), hardware_complete=False)
    hardware = control.fleet.nodes["n1"].hardware
    assert [(gpu.uuid, gpu.name) for gpu in hardware.gpus] == [("b", "new"), ("a", "")]
    assert hardware.cpus == 8


# --- silence ----------------------------------------------------------------------------------------------------


def test_a_closed_stream_by_itself_changes_no_state() -> None:
    control = Control()
    control.register(1)
    control.say(Disconnected(1, "n1"))
    control.wait(7)
    assert control.state() == "healthy"
    assert not control.fleet.nodes["n1"].commandable


def test_unreachable_after_three_missed_heartbeats_lost_after_its_time() -> None:
    control = Control()
    control.register(1)
    control.wait(7)  # three heartbeats of 1.2 intervals of 2 s are 7.2 s
    assert control.state() == "healthy"
    control.wait(0.5)
    assert (control.state(), control.fleet.nodes["n1"].reason) == ("unreachable", "3 heartbeats missed")
    control.wait(172)
    assert control.state() == "unreachable"
    control.wait(0.5)
    assert (control.state(), control.fleet.nodes["n1"].reason) == ("lost", "silent for 3m00s")
    assert control.fleet.rows["n1"].lost


def test_any_frame_ends_the_silence_and_a_heartbeat_makes_healthy_again() -> None:
    control = Control()
    control.register(1)
    control.wait(5)
    control.say(Heard(1, "n1"))
    control.wait(5)
    assert control.state() == "healthy"
    control.wait(5)
    assert control.state() == "unreachable"
    control.say(Heard(1, "n1"))
    assert control.state() == "unreachable", "its whole truth is not in"
    control.say(HeartbeatIn(1, "n1"))
    assert control.state() == "healthy"
    control.wait(200)
    assert control.state() == "lost"
    control.say(HeartbeatIn(1, "n1"))
    assert control.state() == "healthy"


def test_time_in_which_control_was_stalled_is_nobodys_silence() -> None:
    control = Control()
    control.register(1)
    control.wait(1)
    control.now += 500
    control.say(Tick())
    assert control.state() == "healthy"
    assert control.fleet.deaf_seconds == 500
    assert control.fleet.snapshot().silence("n1", control.now) == pytest.approx(1)
    control.wait(7)
    assert control.state() == "unreachable"
    assert "control was stalled: that time counts as nobody's silence" in control.logged()


def test_the_interval_grows_with_the_fleet_and_is_what_a_heartbeat_is_measured_by() -> None:
    control = Control()
    for number in range(2000):
        control.register(number, f"n{number:04}")
    assert control.fleet.heartbeat_interval_seconds() == 4
    assert control.fleet.snapshot().heartbeat_interval_seconds == 4
    control.wait(14)
    assert control.state("n0000") == "healthy"
    control.wait(1)
    assert control.state("n0000") == "unreachable"


# --- goodbye ----------------------------------------------------------------------------------------------------


def test_goodbye_stopped_is_lost_at_once_and_nothing_is_left_there() -> None:
    control = Control()
    control.register(1, shards=(X, attrs.evolve(X, shard="m/1/0", state="failed", cause="exited")))
    control.say(Farewell(1, "n1", "stopped", "SIGTERM"))
    node = control.fleet.nodes["n1"]
    assert (node.state, node.reason, node.shards) == (NodeState.LOST, "agent and engines stopped (SIGTERM)", {})
    assert [(report.state, report.gone, report.cause) for report in node.ended.values()] == [
        ("stopped", True, "agent stopped"),
        ("failed", True, "exited"),
    ]
    assert control.fleet.rows["n1"].lost
    control.register(2)
    assert (control.state(), control.fleet.nodes["n1"].engines_stopped) == ("healthy", False)


def test_goodbye_kept_is_unreachable_with_that_reason_for_as_long_as_an_engine_answers() -> None:
    control = Control()
    control.register(1, shards=(X,))
    control.say(Farewell(1, "n1", "kept"))
    node = control.fleet.nodes["n1"]
    assert (node.state, node.reason) == (NodeState.UNREACHABLE, "agent stopped, engines kept")
    assert control.fleet.rows["n1"].shards == (X,), "nobody else would report them after a restart of control"
    for _ in range(60):
        control.wait(10)
        control.say(EngineAnswered("n1"))
    assert control.state() == "unreachable"
    control.wait(180)
    assert control.state() == "lost"
    assert "none of them answered for 3m00s" in control.fleet.nodes["n1"].reason
    control.say(EngineAnswered("n1"))
    assert control.state() == "unreachable"
    control.register(2, shards=(X,))
    assert (control.state(), control.fleet.nodes["n1"].engines_kept) == ("healthy", False)
    assert control.say(EngineAnswered("n1")) == []
    assert not control.fleet.rows["n1"].shards


# --- other versions ---------------------------------------------------------------------------------------------


def test_an_incompatible_agent_is_listed_and_not_remembered() -> None:
    control = Control()
    assert control.say(Incompatible("n9", "10.0.0.9:1", "2.0", "1.0")) == []
    node = control.fleet.nodes["n9"]
    assert (node.state, node.reason) == (
        NodeState.INCOMPATIBLE,
        "its agent speaks protocol 2.0, this control 1.0",
    )
    control.wait(100)
    control.say(Incompatible("n9", "10.0.0.9:1", "2.0", "1.0"))
    control.wait(100)
    assert control.state("n9") == "incompatible"
    control.wait(100)
    assert "n9" not in control.fleet.nodes, "it has stopped trying"
    control.say(Incompatible("n9", "10.0.0.9:1", "2.0", "1.0"))
    assert isinstance(control.register(9, "n9")[0], Accept)


def test_a_known_node_that_became_incompatible_is_lost_only_when_it_stops_dialling() -> None:
    control = Control()
    control.register(1)
    control.say(Incompatible("n1", "10.0.0.8:1", "2.0", "1.0"))
    assert control.state() == "healthy", "the name is held by a machine that is understood"
    control.say(Disconnected(1, "n1"))
    for _ in range(20):
        control.say(Incompatible("n1", "10.0.0.8:1", "2.0", "1.0"))
        control.wait(30)
    assert control.state() == "incompatible"
    control.wait(160)
    assert control.state() == "lost"
    assert "n1" in control.fleet.rows


# --- recovering -------------------------------------------------------------------------------------------------

TWENTY = tuple(KnownNode(f"n{number:02}", "i") for number in range(20))


def test_recovering_ends_when_95_percent_of_the_known_nodes_are_back() -> None:
    control = Control(Memory.LOADED, TWENTY)
    recovery = control.fleet.snapshot().recovery
    assert recovery is not None
    assert (recovery.known, recovery.synced, recovery.until) == (20, 0, 400)
    assert recovery.reason.startswith("waiting for the known nodes: n00, n01, n02, n03, n04 and 15 more")
    for number in range(18):
        control.register(number, f"n{number:02}")
    assert control.fleet.recovering
    control.register(18, "n18")
    assert control.fleet.snapshot().recovery is None
    assert control.logged()[-1] == "recovered"


def test_while_recovering_nobody_is_lost_and_silence_acts_after() -> None:
    control = Control(Memory.LOADED, TWENTY)
    control.register(1, "n00")
    control.say(Disconnected(1, "n00"))
    control.wait(299)
    assert control.state("n00") == "unreachable"
    assert control.state("n01") == "syncing"
    control.wait(1.5)
    assert not control.fleet.recovering
    assert {node.state for node in control.fleet.nodes.values()} == {NodeState.LOST}


def test_a_node_that_is_missing_when_recovering_ends_early_is_unreachable_and_then_lost() -> None:
    control = Control(Memory.LOADED, TWENTY)
    for number in range(19):
        control.register(number, f"n{number:02}")
    control.wait(10)
    assert control.state("n19") == "unreachable"
    control.wait(169)
    assert control.state("n19") == "unreachable"
    control.wait(2)
    assert control.state("n19") == "lost"


def test_the_lost_and_the_forgotten_are_not_waited_for() -> None:
    known = (KnownNode("n1", lost=True), KnownNode("n2"), KnownNode("n3", "i"))
    control = Control(Memory.LOADED, known)
    assert control.state("n1") == "lost"
    control.register(3, "n3")
    assert control.fleet.recovering
    control.say(Forgotten("n2"))
    assert not control.fleet.recovering


def test_a_file_that_knows_no_node_and_a_first_start_serve_at_once() -> None:
    assert Control(Memory.LOADED).fleet.snapshot().recovery is None
    control = Control()
    view = control.fleet.snapshot()
    assert (view.recovery, view.spare_strangers_until) == (None, 400)


def test_an_unreadable_file_means_recovering_for_the_whole_time() -> None:
    control = Control(Memory.UNREADABLE)
    control.register(1)
    control.wait(299)
    recovery = control.fleet.snapshot().recovery
    assert recovery is not None
    assert recovery.reason == "the file of the control before could not be read"
    control.wait(2)
    assert not control.fleet.recovering


def test_a_kept_node_is_known_with_what_it_held_after_a_restart() -> None:
    control = Control(Memory.LOADED, (KnownNode("n1", "i", engines_kept=True, shards=(X,), address="h"),))
    node = control.fleet.nodes["n1"]
    assert (node.state, node.shards, node.address) == (NodeState.UNREACHABLE, {"m/0/0": X}, "h")


# --- marks, shards, problems ------------------------------------------------------------------------------------


def test_marks_are_remembered_and_survive_a_registration() -> None:
    control = Control()
    control.register(1)
    remembered = control.say(Marked("n1", cordoned=True))
    assert remembered == [Remember(control.fleet.rows["n1"])]
    assert control.say(Marked("n1", cordoned=True)) == []
    control.say(Marked("n1", draining=True))
    control.register(2)
    node = control.fleet.nodes["n1"]
    assert (node.cordoned, node.draining) == (True, True)
    control.say(Marked("n1", cordoned=False))
    assert (control.fleet.nodes["n1"].cordoned, control.fleet.nodes["n1"].draining) == (False, True)
    assert control.say(Marked("nobody", cordoned=True)) == []


def test_statuses_are_counted_per_instance_and_repeated_ones_are_ignored() -> None:
    control = Control()
    control.register(1, shards=(attrs.evolve(X, state="loading"),))
    control.say(StatusIn(1, "n1", 4, X))
    assert control.fleet.nodes["n1"].shards["m/0/0"].state == "ready"
    version = control.fleet.version
    control.say(StatusIn(1, "n1", 4, attrs.evolve(X, state="failed")))
    assert control.fleet.version == version
    assert control.register(2, shards=(X,))[1] == Accept(2, "n1", 2.0, 4)
    control.say(Farewell(2, "n1", "stopped"))
    assert control.register(3, instance="other")[0] == Accept(3, "n1", 2.0, 0)


def test_an_acknowledged_start_counts_as_a_report() -> None:
    control = Control()
    control.register(1)
    control.say(StartAccepted(1, "n1", "m/0/0", 7, "h", ("GPU-1",), 20001))
    assert control.fleet.nodes["n1"].shards["m/0/0"] == ShardReport("m/0/0", 7, "h", gpus=("GPU-1",), port=20001)
    control.say(HeartbeatIn(1, "n1"))
    ended = control.fleet.nodes["n1"].report("m/0/0", 7)
    assert ended is not None
    assert (ended.gone, ended.cause) == (True, "unknown to its agent")


def test_problems_open_once_and_clear_once_in_the_log() -> None:
    control = Control()
    control.register(1)
    for age in range(3):
        control.say(HeartbeatIn(1, "n1", problems=(Problem("xid", "79", "GPU-1", float(age)),)))
    control.say(HeartbeatIn(1, "n1"))
    assert control.logged() == ["node registered", "node healthy", "problem opened", "problem cleared"]


def test_heartbeats_that_bring_nothing_new_leave_version_and_nodes_as_they_are() -> None:
    control = Control()
    control.register(1, shards=(X,), problems=(Problem("a", "b"),))
    before = control.fleet.snapshot()
    control.wait(2)
    aged = attrs.evolve(X, since_seconds=2.0)
    control.say(HeartbeatIn(1, "n1", {"GPU-1": 5}, 0.5, (Problem("a", "b", since_seconds=2.0),), (aged,)))
    after = control.fleet.snapshot()
    assert after.version == before.version
    assert after.nodes is before.nodes
    assert after.pulses["n1"].gpu_memory_used_bytes == {"GPU-1": 5}
    assert after.pulses["n1"].last_heard == control.now
    assert before.pulses["n1"].gpu_memory_used_bytes == {}, "a view stays as it was"


def test_nodes_are_sorted_by_name_in_every_view() -> None:
    control = Control()
    for number, name in enumerate(("z", "a", "m")):
        control.register(number, name)
    assert list(control.fleet.snapshot().nodes) == ["a", "m", "z"]


# --- properties -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["n0", "n1"])
CONNECTIONS = st.integers(0, 5)
REPORT = st.builds(
    ShardReport,
    shard=st.sampled_from(["m/0/0", "m/1/0"]),
    epoch=st.integers(1, 3),
    state=st.sampled_from(["accepted", "loading", "ready", "failed", "stopped", "from the future"]),
    gone=st.booleans(),
)
REPORTS = st.lists(REPORT, max_size=2, unique_by=lambda report: report.shard).map(tuple)
EVENTS = st.one_of(
    st.builds(
        Registered,
        CONNECTIONS,
        st.just("10.0.0.1:1"),
        st.builds(Registration, node=NAMES, instance=st.sampled_from(["i", "j"]), shards=REPORTS),
    ),
    st.builds(HeartbeatIn, CONNECTIONS, NAMES, shards=REPORTS),
    st.builds(StatusIn, CONNECTIONS, NAMES, st.integers(1, 5), REPORT),
    st.builds(StartAccepted, CONNECTIONS, NAMES, st.just("m/0/0"), st.integers(1, 3), st.just("h")),
    st.builds(Heard, CONNECTIONS, NAMES),
    st.builds(Disconnected, CONNECTIONS, NAMES),
    st.builds(Farewell, CONNECTIONS, NAMES, st.sampled_from(["kept", "stopped", "?"])),
    st.builds(EngineAnswered, NAMES),
    st.builds(Incompatible, NAMES, st.just("p"), st.just("2.0"), st.just("1.0")),
    st.builds(Marked, NAMES, st.booleans(), st.booleans()),
    st.builds(Forgotten, NAMES),
    st.just(Tick()),
)
STORIES = st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.5, 1.9, 30.0])), max_size=40)


@settings(max_examples=max(1, settings().max_examples // 4))
@given(story=STORIES, memory=st.sampled_from(list(Memory)))
def test_whatever_happens_the_store_and_the_fleet_agree_and_nobody_is_lost_early(story: Any, memory: Memory) -> None:
    known = (KnownNode("n0", "i"),) if memory is Memory.LOADED else ()
    control = Control(memory, known)
    rows = {row.id: row for row in known}
    heard = {"n0": control.now, "n1": control.now}
    for event, seconds in story:
        before = dict(control.fleet.nodes)
        for effect in control.say(event):
            if isinstance(effect, Remember):
                rows[effect.node.id] = effect.node
            elif isinstance(effect, Forget):
                del rows[effect.node]
            elif isinstance(effect, Refuse):
                holder = before[effect.node]
                assert holder.instance != event.registration.instance
                assert holder.state is not NodeState.LOST
        for name, node in control.fleet.nodes.items():
            if control.fleet.pulses[name].last_heard == control.now:
                heard[name] = control.now
            if node.state is NodeState.LOST and before.get(name) is not node and not node.engines_stopped:
                assert before[name].state is NodeState.LOST or control.now - heard[name] >= 180
                assert before[name].state is NodeState.LOST or not control.fleet.recovering
            assert not node.commandable or node.state is NodeState.HEALTHY
            if node.state is NodeState.HEALTHY:
                assert not node.engines_kept
                assert not node.engines_stopped
        assert rows == control.fleet.rows
        assert sorted(control.fleet.nodes) == sorted(control.fleet.pulses)
        if seconds >= 2:
            control.wait(seconds)
        else:
            control.now += seconds


@settings(max_examples=max(1, settings().max_examples // 4))
@given(story=STORIES)
def test_two_live_machines_never_take_turns(story: Any) -> None:
    """The instance under a name changes only after its holder was lost, said Goodbye or was forgotten."""
    control = Control()
    for event, seconds in story:
        before = control.fleet.nodes.get("n0")
        control.say(event)
        after = control.fleet.nodes.get("n0")
        if before is not None and after is not None and before.instance not in ("", after.instance):
            assert before.state is NodeState.LOST or before.engines_kept
        control.wait(seconds)
