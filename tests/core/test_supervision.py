"""The agent's side of a shard's life: idempotent, fenced commands, and one table of transitions."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.held import Held, Spec, Supervision, next_deadline, not_gone, ports_avoided, ports_in_use, reports
from llmgw.core.lifecycle import TERMINAL, Cause, ShardState
from llmgw.core.shard_events import (
    Action,
    Answer,
    DrainAsked,
    EndProbe,
    EngineExited,
    EngineGone,
    EngineStarted,
    Event,
    Forget,
    Launch,
    Launched,
    Prepare,
    Prepared,
    Probe,
    ProbeFailed,
    ProbeSucceeded,
    Save,
    ShimEnded,
    StartAsked,
    StatusSettled,
    Stop,
    StopAll,
    StopAsked,
    Tell,
    Tick,
    Unprepared,
)
from llmgw.core.supervision import ENDED_MAX, KILL_GRACE_SECONDS, PORT_AVOIDED_SECONDS, restore, step
from llmgw.errors import InvariantBroken

S = ShardState
SHARD = "org/tiny/0/0"
A = TypeVar("A")


class World:
    """A supervision, the clock, and every action so far."""

    def __init__(self) -> None:
        self.supervision = Supervision()
        self.now = 100.0
        self.actions: list[Action] = []
        self.commands = 0

    def step(self, event: Event) -> tuple[Action, ...]:
        self.supervision, actions = step(self.supervision, event, self.now)
        self.actions.extend(actions)
        self.validate()
        return actions

    def validate(self) -> None:
        for shard, held in self.supervision.held.items():
            assert held.spec.shard == shard
            assert not held.gone or held.state in TERMINAL
            assert not held.waiting or not held.launched
            assert (held.deadline is not None) == (held.state in {S.STARTING, S.LOADING})

    def start(self, epoch: int = 7, *, shard: str = SHARD, refusal: str = "", port: int = 20001) -> tuple[Action, ...]:
        self.commands += 1
        spec = Spec(shard, epoch, port=port, start_deadline=1200.0, stop_grace=20.0)
        return self.step(StartAsked(1, self.commands, spec, refusal))

    def stop(self, epoch: int = 7, grace_seconds: float = 9.0) -> tuple[Action, ...]:
        self.commands += 1
        return self.step(StopAsked(1, self.commands, SHARD, epoch, grace_seconds, "scaled down"))

    def drain(self, epoch: int = 7) -> tuple[Action, ...]:
        self.commands += 1
        return self.step(DrainAsked(1, self.commands, SHARD, epoch))

    def until(self, state: ShardState, epoch: int = 7) -> None:
        """Bring the shard into `state` on the usual way, and forget the actions."""
        journey: dict[ShardState, tuple[Event, ...]] = {
            S.ACCEPTED: (),
            S.STARTING: (Prepared(SHARD, epoch), Launched(SHARD, epoch)),
            S.LOADING: (EngineStarted(SHARD, epoch, 4711),),
            S.READY: (ProbeSucceeded(SHARD, epoch),),
        }
        self.start(epoch)
        for reached, events in journey.items():
            for event in events:
                self.step(event)
            if reached is state:
                break
        else:
            raise AssertionError(state)
        assert self.held.state is state
        self.actions.clear()

    @property
    def held(self) -> Held:
        return self.supervision.held[SHARD]

    def tells(self) -> list[tuple[str, bool]]:
        return [(action.report.state, action.report.gone) for action in self.actions if isinstance(action, Tell)]


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose every action respects the order "saved, then told, then answered"."""
    made = World()
    yield made
    made.validate()


def of(actions: tuple[Action, ...] | list[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


# --- the usual life -------------------------------------------------------------------------------------------


def test_a_start_is_prepared_launched_probed_and_told_step_by_step(world: World) -> None:
    assert world.start() == (Prepare(world.held.spec),)
    assert world.step(Prepared(SHARD, 7)) == (Launch(world.held.spec),)

    actions = world.step(Launched(SHARD, 7))
    assert [type(action) for action in actions] == [Save, Tell, Answer]
    assert actions[-1] == Answer(1, 1, accepted=True, port=20001)

    actions = world.step(EngineStarted(SHARD, 7, 4711))
    assert [type(action) for action in actions] == [Save, Tell, Probe]
    actions = world.step(ProbeSucceeded(SHARD, 7, "listener known by its user"))
    assert [type(action) for action in actions] == [Save, Tell, EndProbe]

    assert world.tells() == [("starting", False), ("loading", False), ("ready", False)]
    (report,) = reports(world.supervision, world.now + 5)
    assert (report.pid, report.port, report.error, report.since_seconds) == (
        4711,
        20001,
        "listener known by its user",
        5.0,
    )


def test_a_stop_is_saved_before_it_is_answered_and_told_until_all_is_gone(world: World) -> None:
    world.until(S.READY)
    actions = world.stop(grace_seconds=9.0)
    assert [type(action) for action in actions] == [Save, Tell, Answer, Stop]
    assert actions[-1] == Stop(SHARD, 7, 9.0)

    world.step(EngineExited(SHARD, 7, code=0))
    assert not_gone(world.supervision) == (SHARD,)
    world.step(EngineGone(SHARD, 7))
    assert world.tells() == [("stopping", False), ("stopped", False), ("stopped", True)]
    assert not_gone(world.supervision) == ()
    assert world.held.exit_code == 0


def test_a_drain_marks_and_stops_nothing(world: World) -> None:
    world.until(S.READY)
    actions = world.drain()
    assert [type(action) for action in actions] == [Save, Tell, Answer]
    assert world.held.state is S.DRAINING
    assert of(world.drain(), Answer)[0].accepted
    assert of(world.stop(), Stop)


def test_a_drain_while_loading_ends_probing_and_the_start_deadline(world: World) -> None:
    world.until(S.LOADING)
    assert EndProbe(SHARD, 7) in world.drain()
    assert next_deadline(world.supervision) is None
    assert world.step(ProbeSucceeded(SHARD, 7)) == ()


def test_a_drain_of_what_is_not_up_is_refused(world: World) -> None:
    world.until(S.STARTING)
    (answer,) = of(world.drain(), Answer)
    assert not answer.accepted
    assert "starting" in answer.reason


# --- idempotent and fenced ------------------------------------------------------------------------------------


def test_a_repeated_start_is_answered_again_and_launches_nothing(world: World) -> None:
    world.until(S.READY)
    assert world.start() == (Answer(1, 2, accepted=True, port=20001),)


def test_a_start_repeated_before_the_launch_waits_for_the_same_answer(world: World) -> None:
    world.start()
    assert world.start() == ()
    world.step(Prepared(SHARD, 7))
    answers = of(world.step(Launched(SHARD, 7)), Answer)
    assert [answer.command_id for answer in answers] == [1, 2]
    assert all(answer.accepted for answer in answers)


@pytest.mark.parametrize("state", [S.ACCEPTED, S.STARTING, S.LOADING, S.READY])
def test_an_older_start_is_refused(world: World, state: ShardState) -> None:
    world.until(state)
    (answer,) = world.start(6)
    assert isinstance(answer, Answer)
    assert not answer.accepted
    assert "older than 7" in answer.reason


def test_a_newer_start_is_refused_until_the_older_launch_is_gone(world: World) -> None:
    world.until(S.READY)
    (answer,) = of(world.start(8), Answer)
    assert not answer.accepted
    assert answer.reason == "epoch 7 is ready and not gone yet"
    world.step(EngineExited(SHARD, 7, code=1))
    (answer,) = of(world.start(8), Answer)
    assert answer.reason == "epoch 7 is failed and not gone yet"
    world.step(EngineGone(SHARD, 7))

    actions = world.start(8)
    assert [type(action) for action in actions] == [Forget, Prepare]
    assert world.held.spec.epoch == 8


def test_events_of_the_epoch_before_change_nothing(world: World) -> None:
    world.until(S.READY)
    world.step(EngineExited(SHARD, 7, code=1))
    world.step(EngineGone(SHARD, 7))
    world.start(8)
    before = world.supervision
    for event in (
        Prepared(SHARD, 7),
        Unprepared(SHARD, 7, Cause.LAUNCH, "late"),
        EngineStarted(SHARD, 7, 1),
        EngineExited(SHARD, 7, code=3),
        ShimEnded(SHARD, 7, "late"),
        EngineGone(SHARD, 7),
        ProbeSucceeded(SHARD, 7),
        ProbeFailed(SHARD, 7, "late"),
        StatusSettled(SHARD, 7),
    ):
        assert world.step(event) == ()
    assert world.supervision is before


def test_a_launch_that_nobody_asked_for_is_our_bug(world: World) -> None:
    with pytest.raises(InvariantBroken, match="epoch 7 was launched and is not held"):
        world.step(Launched(SHARD, 7))


@pytest.mark.parametrize("kind", ["stop", "drain"])
def test_stop_and_drain_are_fenced_by_epoch(world: World, kind: str) -> None:
    ask = world.stop if kind == "stop" else world.drain
    (nothing,) = of(ask(), Answer)
    assert nothing.accepted
    assert nothing.reason == "nothing of it is here"
    world.until(S.READY)
    (older,) = of(ask(6), Answer)
    (newer,) = of(ask(8), Answer)
    assert (older.accepted, newer.accepted) == (False, True)
    assert newer.reason == "nothing of epoch 8 is here, only epoch 7"
    assert world.held.state is S.READY


def test_a_repeated_stop_is_a_no_op_answered_again(world: World) -> None:
    world.until(S.READY)
    world.stop()
    assert world.stop() == (Answer(1, 3, accepted=True, port=20001),)
    world.step(EngineExited(SHARD, 7, signal=15))
    assert world.stop() == (Answer(1, 4, accepted=True, port=20001),)
    assert world.drain() == (Answer(1, 5, accepted=True, port=20001),)


# --- before the launch ----------------------------------------------------------------------------------------


def test_a_start_without_a_port_is_refused_and_leaves_nothing(world: World) -> None:
    (answer,) = of(world.start(refusal="port 8000 is taken"), Answer)
    assert (answer.accepted, answer.reason) == (False, "port 8000 is taken")
    assert world.supervision == Supervision()


def test_what_cannot_be_launched_is_failed_and_gone_and_its_start_refused(world: World) -> None:
    world.start()
    actions = world.step(Unprepared(SHARD, 7, Cause.BAD_PROFILE, "args[1]: no"))
    (tell,) = of(actions, Tell)
    assert (tell.report.state, tell.report.gone, tell.report.cause) == ("failed", True, "bad profile")
    assert actions[-1] == Answer(1, 1, accepted=False, reason="args[1]: no")
    assert not of(actions, Save)  # nothing of it was ever on disk
    assert world.start() == (Answer(1, 2, accepted=False, reason="args[1]: no"),)
    assert step(world.supervision, StartAsked(1, 3, Spec(SHARD, 8)), world.now)[1] == (Prepare(Spec(SHARD, 8)),)
    assert world.step(StatusSettled(SHARD, 7)) == ()
    assert world.supervision.held == {}


def test_a_stop_before_the_launch_means_no_launch(world: World) -> None:
    world.start()
    assert not of(world.stop(), Stop)
    actions = world.step(Prepared(SHARD, 7))
    assert not of(actions, Launch)
    assert world.tells() == [("stopping", False), ("stopped", True)]
    assert not of(actions, Answer)[0].accepted


def test_a_stop_before_a_preparation_that_fails_is_a_stop(world: World) -> None:
    world.start()
    world.stop()
    world.step(Unprepared(SHARD, 7, Cause.LAUNCH, "no such program"))
    assert world.held.state is S.STOPPED
    assert world.held.error == "stopped before it was launched: no such program"


def test_a_stop_during_the_launch_is_carried_out_after_it(world: World) -> None:
    world.start()
    world.step(Prepared(SHARD, 7))
    world.stop(grace_seconds=3.0)
    actions = world.step(Launched(SHARD, 7))
    assert [type(action) for action in actions] == [Save, Answer, Stop]
    assert actions[-1] == Stop(SHARD, 7, 3.0)
    assert world.step(EngineStarted(SHARD, 7, 4711)) == ()
    assert world.held.pid == 4711
    world.step(EngineExited(SHARD, 7, signal=15))
    world.step(EngineGone(SHARD, 7))
    assert world.held.state is S.STOPPED


# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.STARTING, S.LOADING, S.READY])
def test_an_exit_that_nobody_asked_for_is_a_failure_with_its_output(world: World, state: ShardState) -> None:
    world.until(state)
    world.step(EngineExited(SHARD, 7, signal=9, cause="signalled", error="signal 9", output="x" * 20000 + "end"))
    (tell,) = of(world.actions, Tell)
    assert (tell.report.state, tell.report.gone, tell.report.signal, tell.report.cause) == (
        "failed",
        False,
        9,
        "signalled",
    )
    assert len(tell.output) == 16384
    assert tell.output.endswith("end")
    assert next_deadline(world.supervision) is None


def test_an_exit_is_as_old_as_it_is(world: World) -> None:
    world.until(S.READY)
    world.step(EngineExited(SHARD, 7, code=1, age_seconds=60.0))
    assert reports(world.supervision, world.now)[0].since_seconds == 60.0


def test_an_engine_that_found_its_port_taken_makes_the_port_avoided_for_a_while(world: World) -> None:
    world.until(S.LOADING)
    world.step(EngineExited(SHARD, 7, code=1, cause=Cause.PORT_TAKEN.value, error="address in use"))
    assert ports_avoided(world.supervision, world.now) == {20001}
    assert ports_avoided(world.supervision, world.now + PORT_AVOIDED_SECONDS) == frozenset()
    assert ports_in_use(world.supervision) == {20001}
    world.step(EngineGone(SHARD, 7))
    assert ports_in_use(world.supervision) == frozenset()


def test_the_start_deadline_fails_kills_and_says_what_the_last_probe_saw(world: World) -> None:
    world.until(S.LOADING)
    world.step(ProbeFailed(SHARD, 7, "no answer within 2s"))
    deadline = next_deadline(world.supervision)
    assert deadline == 1300.0
    world.now = deadline - 1
    assert world.step(Tick()) == ()
    world.now = deadline
    actions = world.step(Tick())
    assert [type(action) for action in actions] == [Save, Tell, EndProbe, Stop]
    assert actions[-1] == Stop(SHARD, 7, KILL_GRACE_SECONDS)
    assert world.held.cause == "start deadline"
    assert world.held.error == "not ready within 20m00s of its start: no answer within 2s"

    actions = world.step(EngineExited(SHARD, 7, signal=9, error="signal 9", output="stuck in the collective"))
    (tell,) = of(actions, Tell)
    assert tell.output == "stuck in the collective"
    assert tell.report.cause == "start deadline"
    world.step(EngineGone(SHARD, 7))
    assert world.tells() == [("failed", False), ("failed", False), ("failed", True)]


def test_a_dead_shim_is_a_failure_of_that_name_even_while_stopping(world: World) -> None:
    world.until(S.READY)
    world.stop()
    world.step(ShimEnded(SHARD, 7, "its shim was killed", "last words"))
    assert (world.held.state, world.held.cause) == (S.FAILED, "shim killed")
    world.step(EngineGone(SHARD, 7))
    assert world.held.gone


def test_vanished_processes_are_a_failure(world: World) -> None:
    world.until(S.LOADING)
    world.step(EngineGone(SHARD, 7))
    assert (world.held.state, world.held.gone, world.held.cause) == (S.FAILED, True, "shim killed")


def test_a_terminal_shard_is_forgotten_when_gone_and_settled(world: World) -> None:
    world.until(S.READY)
    assert world.step(StatusSettled(SHARD, 7)) == ()
    world.step(EngineExited(SHARD, 7, code=1))
    assert world.step(StatusSettled(SHARD, 7)) == ()  # its processes may be left
    world.step(EngineGone(SHARD, 7))
    assert world.step(StatusSettled(SHARD, 7)) == (Forget(SHARD, 7),)
    assert reports(world.supervision, world.now) == ()

    (answer,) = of(world.start(), Answer)
    assert not answer.accepted
    assert "epoch 7 has ended" in answer.reason
    assert of(world.start(8), Prepare)


def test_remembered_ends_are_bounded(world: World) -> None:
    world.supervision = Supervision(ended={f"m/{n}/0": 1 for n in range(ENDED_MAX)})
    world.start()
    world.step(Unprepared(SHARD, 7, Cause.LAUNCH, "no"))
    world.step(StatusSettled(SHARD, 7))
    assert len(world.supervision.ended) == ENDED_MAX
    assert list(world.supervision.ended)[-1] == SHARD
    assert "m/0/0" not in world.supervision.ended


def test_the_agents_own_end_stops_everything_and_refuses_starts(world: World) -> None:
    world.until(S.READY)
    world.start(shard="other/0/0", port=20002)
    actions = world.step(StopAll("the agent stops"))
    assert of(actions, Stop) == [Stop(SHARD, 7, 20.0)]
    assert {held.state for held in world.supervision.held.values()} == {S.STOPPING}
    (answer,) = of(world.start(shard="third/0/0", port=20003), Answer)
    assert (answer.accepted, answer.reason) == (False, "the agent stops")
    assert world.step(StopAll("the agent stops")) == ()


# --- restarts of the agent ------------------------------------------------------------------------------------


def held_in(state: ShardState, **changes: Any) -> Held:
    spec = Spec(SHARD, 7, port=20001)
    return attrs.evolve(Held(spec, since=50.0, state=state, launched=True), **changes)


def test_a_ready_shard_stays_ready_over_a_restart(world: World) -> None:
    world.supervision, actions = restore((held_in(S.READY),), world.now)
    assert actions == ()
    assert world.step(EngineStarted(SHARD, 7, 4711)) == ()
    assert world.held.state is S.READY


def test_what_was_under_way_is_taken_up_again(world: World) -> None:
    loading = held_in(S.LOADING, deadline=200.0)
    world.supervision, actions = restore((loading,), world.now)
    assert actions == (Probe(loading.spec),)
    _, actions = restore((held_in(S.STOPPING, stop_grace=4.0),), world.now)
    assert actions == (Stop(SHARD, 7, 4.0),)
    _, actions = restore((held_in(S.STOPPING),), world.now)
    assert actions == (Stop(SHARD, 7, 20.0),)
    _, actions = restore((held_in(S.FAILED),), world.now)
    assert [type(action) for action in actions] == [Tell, Stop]


def test_an_ended_shard_is_told_again_so_that_it_can_be_forgotten(world: World) -> None:
    world.supervision, actions = restore((held_in(S.FAILED, gone=True),), world.now)
    assert [type(action) for action in actions] == [Tell]
    (tell,) = of(world.step(EngineExited(SHARD, 7, code=1, output="trace")), Tell)
    assert (tell.output, tell.report.gone) == ("trace", True)
    world.step(EngineGone(SHARD, 7))
    assert world.step(StatusSettled(SHARD, 7)) == (Forget(SHARD, 7),)


# --- properties -----------------------------------------------------------------------------------------------


MAKERS: tuple[Callable[[int], Event], ...] = (
    lambda epoch: StartAsked(1, 1, Spec(SHARD, epoch, port=20001)),
    lambda epoch: StopAsked(1, 2, SHARD, epoch, 1.0),
    lambda epoch: DrainAsked(1, 3, SHARD, epoch),
    lambda epoch: Prepared(SHARD, epoch),
    lambda epoch: Unprepared(SHARD, epoch, Cause.LAUNCH, "no"),
    lambda epoch: EngineStarted(SHARD, epoch, 4711),
    lambda epoch: EngineExited(SHARD, epoch, 1),
    lambda epoch: ShimEnded(SHARD, epoch, "killed"),
    lambda epoch: EngineGone(SHARD, epoch),
    lambda epoch: ProbeSucceeded(SHARD, epoch),
    lambda epoch: ProbeFailed(SHARD, epoch, "refused"),
    lambda epoch: StatusSettled(SHARD, epoch),
    lambda _: StopAll("bye"),
    lambda _: Tick(),
)

MOMENTS = st.binary(max_size=40)
"""A byte a moment, since bytes draw much faster than events do: which event, of which epoch, how long after."""


def journey(world: World, moments: bytes) -> Iterator[Event]:
    for moment in moments:
        rest, which = divmod(moment, len(MAKERS))
        quarters, epoch = divmod(rest, 3)
        world.now += quarters * 300.0
        event = MAKERS[which](5 + epoch)
        if happens(world, event):
            yield event


def happens(world: World, event: Event) -> bool:
    """Whether the outside can send this now: a task reports only what its own launch can have come to."""
    held = world.supervision.held.get(SHARD)
    mine = held is not None and getattr(event, "epoch", None) == held.spec.epoch
    if isinstance(event, Prepared | Unprepared):
        return mine and held is not None and not held.launched and not held.terminal
    if isinstance(event, EngineStarted | EngineExited | ShimEnded | EngineGone | ProbeSucceeded):
        return mine and held is not None and held.launched
    return True


@given(MOMENTS)
def test_property_no_two_launches_of_a_shard_are_ever_there_together(moments: bytes) -> None:
    """Safety: a launch is begun only when every earlier one of that shard is gone; epochs launched only rise; every
    transition is legal."""
    world = World()
    launched: list[int] = []
    for event in journey(world, moments):
        before = world.supervision.held.get(SHARD)
        for action in world.step(event):
            if isinstance(action, Launch):
                launched.append(action.spec.epoch)
                world.step(Launched(SHARD, action.spec.epoch))
            if isinstance(action, Prepare):
                assert before is None or before.gone
    assert launched == sorted(set(launched))


@given(MOMENTS)
def test_property_saying_everything_twice_changes_nothing_more(moments: bytes) -> None:
    """Idempotence: a repeated command leads to the same state, and never to a second launch or stop."""
    world = World()
    for event in journey(world, moments):
        for action in world.step(event):
            if isinstance(action, Launch):
                world.step(Launched(SHARD, action.spec.epoch))
        if isinstance(event, StartAsked | StopAsked | DrainAsked):
            before = [attrs.evolve(held, waiting=()) for held in world.supervision.held.values()]
            again = world.step(event)
            assert [attrs.evolve(held, waiting=()) for held in world.supervision.held.values()] == before
            assert all(isinstance(action, Answer) for action in again)
