"""The supervisor over engines that a test scripts, on a virtual clock: what control is told, what engines suffer."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import attrs
import pytest
import trio
from fake_engines import LOADING, READY, EngineNetwork, FakeAdapter, FakeLauncher, Process, machine
from structlog.testing import capture_logs
from trio.testing import MockClock

from llmgw.agent.blocking import StuckError
from llmgw.agent.hardware import HardwareReading, HardwareView
from llmgw.agent.launch import Gone, Started, Stranger
from llmgw.agent.ports import PortChooser
from llmgw.agent.supervisor import OUTPUT_BYTES_MAX, Supervisor, Supplies
from llmgw.agent.uplink import (
    UPLINK_MAX,
    Accepted,
    Acked,
    Commanded,
    ListAsked,
    Opened,
    Output,
    OutputAsked,
    ShardList,
    Upward,
    open_uplink,
)
from llmgw.core.catalog import Profile, Secret
from llmgw.core.hardware import Gpu, NodeHardware, PortRange
from llmgw.core.lifecycle import ShardReport
from llmgw.core.units import Duration
from llmgw.latest import Latest
from llmgw.wire.messages import Ack, DrainShard, LogRequest, ShardStatus, StartShard, StopShard

T = TypeVar("T")
M = TypeVar("M", Ack, ShardStatus, ShardList, Output)
SHARD = "tiny/0/0"
PROFILE = Profile("fake", "tiny.bin", start_deadline=Duration(1200.0), stop_grace=Duration(20.0))
UNIX = 1_700_000_000.0


async def inline(call: Callable[[], T], *, seconds: float, what: str) -> T:
    await trio.lowlevel.checkpoint()
    return call()


def start(epoch: int = 7, *, command_id: int = 1, shard: str = SHARD, profile: Profile = PROFILE) -> StartShard:
    return StartShard(command_id, shard, epoch, "0123456789abcdef", profile, "tiny")


class Node:
    """A node with a supervisor, and the link's end of its conversation. It can lose its agent and get a new one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.launcher = FakeLauncher()
        self.network = EngineNetwork(self.launcher, nursery)
        self.taken: set[int] = set()
        self.engines = {"fake": FakeAdapter(), "stubborn": FakeAdapter(second_term_seconds=2.0)}
        self.hardware = Latest(HardwareView(HardwareReading(NodeHardware(gpus=(Gpu("GPU-a", "H100", 80),)))))
        self.run_blocking = inline
        self.said: list[Upward] = []
        self.heard = trio.Event()
        self.connection = 0
        self.acknowledge = False
        self.scope = trio.CancelScope()

    async def agent(self) -> None:
        """Start an agent's supervisor; kills the one before."""
        self.scope.cancel()
        self.scope = trio.CancelScope()
        self.supervisor = Supervisor(
            Supplies(
                launcher=self.launcher,
                engines=self.engines,
                machine=machine(),
                ports=PortChooser(PortRange(20000, 20009), lambda port: port not in self.taken),
                hardware=self.hardware,
                open_engine=self.network.open,
                run_blocking=self.run_blocking,
                wall_clock=lambda: UNIX + trio.current_time(),
            )
        )
        await self.nursery.start(self._run)

    async def _run(self, task_status: "trio.TaskStatus[None]") -> None:
        with self.scope:
            await self.supervisor.run(task_status)

    async def connect(self, status_acked: int = 0) -> tuple[ShardReport, ...]:
        """A new connection to control, registered; the list that it registered with."""
        self.connection += 1
        uplink, self.from_supervisor = open_uplink()
        await self.supervisor.inbox.send(Opened(self.connection, uplink, "127.0.0.1"))
        first = await self.from_supervisor.receive()
        assert isinstance(first, ShardList)
        self.nursery.start_soon(self._collect, self.from_supervisor)
        await self.supervisor.inbox.send(Accepted(self.connection, status_acked))
        return first.shards

    def disconnect(self) -> None:
        self.from_supervisor.close()

    async def _collect(self, channel: "trio.MemoryReceiveChannel[Upward]") -> None:
        try:
            async for message in channel:
                self.said.append(message)
                self.heard.set()
                self.heard = trio.Event()
                if self.acknowledge and isinstance(message, ShardStatus):
                    await self.supervisor.inbox.send(Acked(message.number))
        except trio.ClosedResourceError:
            return

    async def command(self, command: StartShard | StopShard | DrainShard) -> Ack | None:
        """What it was answered by now; None: nothing yet."""
        before = len(self.of(Ack))
        await self.supervisor.inbox.send(Commanded(self.connection, command))
        await trio.testing.wait_all_tasks_blocked()
        answers = self.of(Ack)[before:]
        return answers[-1] if answers else None

    async def ready(self, command: StartShard | None = None) -> Process:
        """Start a shard and wait until it is ready."""
        command = command or start()
        await self.command(command)
        await self.wait_for(command.shard, "ready")
        return self.launcher.process(command.shard)

    async def wait_for(self, shard: str, state: str, *, gone: bool = False) -> ShardReport:
        with trio.fail_after(4000):
            while True:
                for status in self.of(ShardStatus):
                    report = status.report
                    if (report.shard, report.state, report.gone) == (shard, state, gone):
                        return report
                await self.heard.wait()

    async def shards(self) -> tuple[ShardReport, ...]:
        """The shard list, made now."""
        await self.supervisor.inbox.send(ListAsked())
        await trio.testing.wait_all_tasks_blocked()
        return self.of(ShardList)[-1].shards

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.said if isinstance(message, kind)]

    def states(self) -> list[str]:
        """The states told, a `+` for gone."""
        return [status.report.state + "+" * status.report.gone for status in self.of(ShardStatus)]


@pytest.fixture
async def node(nursery: trio.Nursery) -> AsyncIterator[Node]:
    made = Node(nursery)
    await made.agent()
    assert await made.connect() == ()
    yield made
    nursery.cancel_scope.cancel()


# --- the usual life -------------------------------------------------------------------------------------------


async def test_a_shard_is_started_told_drained_and_stopped(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready()
    (ack,) = node.of(Ack)
    assert (ack.command_id, ack.accepted, ack.port) == (1, True, 20000)
    assert node.states() == ["starting", "loading", "ready"]
    assert [status.number for status in node.of(ShardStatus)] == [1, 2, 3]
    assert process.request.argv == ("/usr/bin/engine", "tiny.bin", "20000")
    assert (process.request.port, process.request.grace_seconds) == (20000, 20.0)
    (report,) = await node.shards()
    assert (report.state, report.pid, report.port, report.spec_hash) == ("ready", 1001, 20000, "0123456789abcdef")

    assert await node.command(DrainShard(2, SHARD, 7)) == Ack(2, accepted=True, port=20000)
    assert await node.command(StopShard(3, SHARD, 7, 9.0, "scaled down")) == Ack(3, accepted=True, port=20000)
    await node.wait_for(SHARD, "stopped", gone=True)
    assert node.states()[3:] == ["draining", "stopping", "stopped", "stopped+"]
    assert process.stops == [(9.0, False)]


async def test_the_record_is_on_disk_before_the_acknowledgement(autojump_clock: MockClock, node: Node) -> None:
    """The launch returns with its record on disk; the answer waits for it."""
    node.launcher.delay_seconds = 5.0
    assert await node.command(start()) is None
    (report,) = await node.shards()  # made after the command was handled
    assert report.state == "accepted"
    await trio.sleep(6.0)
    assert [ack.accepted for ack in node.of(Ack)] == [True]
    assert node.launcher.process(SHARD).state["state"] in {"starting", "loading", "ready"}


async def test_the_list_is_made_after_every_earlier_command_was_handled(autojump_clock: MockClock, node: Node) -> None:
    for n in range(20):
        await node.supervisor.inbox.send(Commanded(node.connection, start(shard=f"m/{n}/0", command_id=n)))
        await node.supervisor.inbox.send(ListAsked())
    await trio.testing.wait_all_tasks_blocked()
    assert [len(shards.shards) for shards in node.of(ShardList)] == list(range(1, 11)) + [10] * 10  # ten ports


async def test_a_terminal_shard_is_forgotten_once_its_last_status_is_acknowledged(
    autojump_clock: MockClock, node: Node
) -> None:
    process = await node.ready()
    process.exit(1)
    await node.wait_for(SHARD, "failed", gone=True)
    last = node.of(ShardStatus)[-1].number
    await node.supervisor.inbox.send(Acked(last - 1))
    assert len(await node.shards()) == 1
    assert not process.forgotten
    await node.supervisor.inbox.send(Acked(last))
    assert await node.shards() == ()
    assert await node.launcher.attach() == []
    ack = await node.command(start(command_id=9))
    assert ack is not None
    assert not ack.accepted


# --- commands -------------------------------------------------------------------------------------------------


async def test_commands_are_idempotent_and_fenced_by_epoch(autojump_clock: MockClock, node: Node) -> None:
    await node.ready()
    assert await node.command(start(command_id=2)) == Ack(2, accepted=True, port=20000)
    for epoch, accepted, reason in ((6, False, "older than 7"), (8, False, "epoch 7 is ready and not gone yet")):
        ack = await node.command(start(epoch, command_id=3))
        assert ack is not None
        assert ack.accepted is accepted
        assert reason in ack.reason
    assert await node.command(StopShard(4, "else/0/0", 7)) == Ack(4, accepted=True, reason="nothing of it is here")
    ack = await node.command(StopShard(5, SHARD, 6))
    assert ack is not None
    assert not ack.accepted
    assert node.launcher.launches == 1
    assert (await node.shards())[0].state == "ready"


async def test_a_newer_epoch_starts_once_the_older_is_gone(autojump_clock: MockClock, node: Node) -> None:
    old = await node.ready()
    await node.command(StopShard(2, SHARD, 7))
    await node.wait_for(SHARD, "stopped", gone=True)
    await node.command(start(8, command_id=3))
    await trio.sleep(5)
    assert (await node.shards())[0].epoch == 8
    assert old.forgotten
    assert node.launcher.process(SHARD) is not old


async def test_answers_go_only_to_the_connection_that_asked(autojump_clock: MockClock, node: Node) -> None:
    await node.supervisor.inbox.send(Commanded(99, start()))
    await node.wait_for(SHARD, "ready")
    assert node.of(Ack) == []


async def test_a_drain_does_not_outlive_its_meaning(autojump_clock: MockClock, node: Node) -> None:
    node.launcher.prepare_process = lambda process: setattr(process, "reply", lambda: LOADING)
    await node.command(start())
    await node.wait_for(SHARD, "loading")
    await node.command(DrainShard(2, SHARD, 7))
    await trio.sleep(3000)
    assert (await node.shards())[0].state == "draining"  # nothing was stopped by it, nor by the start deadline


# --- what cannot be launched ----------------------------------------------------------------------------------


async def test_c12_a_bad_argument_is_refused_with_index_and_value_before_anything_is_launched(
    autojump_clock: MockClock, node: Node
) -> None:
    """The agent's part: validation by the adapter. That the dump equals the list is tests/e2e; that wrong types are
    refused is the wire's and the configuration's."""
    profile = attrs.evolve(PROFILE, args=("--ok", " --reasoning-parser=x"))
    ack = await node.command(start(profile=profile))
    assert ack is not None
    assert not ack.accepted
    assert "args[1]" in ack.reason
    assert "' --reasoning-parser=x'" in ack.reason
    (status,) = node.of(ShardStatus)
    assert (status.report.state, status.report.gone, status.report.cause) == ("failed", True, "bad profile")
    assert node.launcher.launches == 0
    await node.supervisor.inbox.send(Acked(status.number))
    assert await node.shards() == ()


async def test_c12_arguments_reach_the_launch_element_by_element(autojump_clock: MockClock, node: Node) -> None:
    args = ("--speculative-config", '{"n": 3, "m": "mtp"}', "foo bar", "--k=q4_0", "", "ü$HOME `id` ;rm")
    process = await node.ready(start(profile=attrs.evolve(PROFILE, args=args)))
    assert process.request.argv[3:] == args


async def test_a_missing_secret_refuses_the_start_and_nothing_secret_is_said(
    autojump_clock: MockClock, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "there").write_text("hunter2-hunter2\n")
    env: dict[str, str | Secret] = {
        "A_TOKEN": Secret(str(folder / "there")),
        "B_TOKEN": Secret(str(folder / "missing")),
    }
    ack = await node.command(start(profile=attrs.evolve(PROFILE, env=env)))
    assert ack is not None
    assert not ack.accepted
    assert ack.reason == f"profile.env.B_TOKEN: the file {folder}/missing cannot be read: No such file or directory"
    assert node.of(ShardStatus)[-1].report.cause == "bad profile"

    (folder / "missing").write_text("s3cret")
    process = await node.ready(start(8, command_id=2, profile=attrs.evolve(PROFILE, env=env)))
    assert process.request.env["A_TOKEN"] == "hunter2-hunter2"
    assert "hunter2" not in str(process.state)


async def test_an_unknown_engine_and_a_missing_gpu_are_said(autojump_clock: MockClock, node: Node) -> None:
    ack = await node.command(start(profile=attrs.evolve(PROFILE, engine="vlmm")))
    assert ack is not None
    assert ack.reason == "profile.engine: this agent does not know the engine 'vlmm', only fake, stubborn"
    ack = await node.command(attrs.evolve(start(8, command_id=2), gpus=("GPU-z",)))
    assert ack is not None
    assert ack.reason == "GPU-z is not on this node now"
    assert node.of(ShardStatus)[-1].report.cause == "launch"


async def test_a_launcher_that_fails_is_a_failed_shard(autojump_clock: MockClock, node: Node) -> None:
    node.launcher.fails = "no space left on device"
    ack = await node.command(start())
    assert ack is not None
    assert (ack.accepted, ack.reason) == (False, "no space left on device")
    assert node.states() == ["failed+"]


async def test_a_file_server_that_is_away_fails_the_start_and_holds_nothing_up(
    autojump_clock: MockClock, node: Node
) -> None:
    async def stuck(call: Callable[[], T], *, seconds: float, what: str) -> T:
        await trio.sleep(seconds)
        raise StuckError(f"{what} did not return")

    node.run_blocking = stuck
    await node.agent()
    await node.connect()
    assert await node.command(start()) is None
    assert len(await node.shards()) == 1
    await trio.sleep(31)
    assert node.of(Ack)[-1].reason == "preparing tiny/0/0 did not return"
    assert node.of(ShardStatus)[-1].report.cause == "launch"


async def test_a_stop_while_it_is_prepared_or_launched_is_kept(autojump_clock: MockClock, node: Node) -> None:
    node.launcher.delay_seconds = 5.0
    await node.command(start())
    await node.command(StopShard(2, SHARD, 7, 3.0))
    await trio.sleep(6)
    await node.wait_for(SHARD, "stopped", gone=True)
    assert node.launcher.process(SHARD).stops == [(3.0, False)]


# --- C05, C06: readiness --------------------------------------------------------------------------------------


async def test_c05_a_a_fixed_port_taken_is_refused_with_its_number_and_another_is_chosen_otherwise(
    autojump_clock: MockClock,
    node: Node,
) -> None:
    node.taken = {9000, 20000}
    ack = await node.command(start(profile=attrs.evolve(PROFILE, port=9000)))
    assert ack is not None
    assert not ack.accepted
    assert "port 9000 of the profile is taken" in ack.reason
    assert node.launcher.launches == 0
    assert await node.shards() == ()
    process = await node.ready(start(command_id=2))
    assert process.request.port == 20001


async def test_c05_b_a_port_lost_after_validation_fails_with_the_output_and_a_retry_uses_another(
    autojump_clock: MockClock, node: Node
) -> None:
    node.launcher.prepare_process = lambda process: setattr(process, "reply", lambda: LOADING)
    await node.command(start())
    await node.wait_for(SHARD, "loading")
    bind = "error: [Errno 98] address already in use"
    node.launcher.process(SHARD).exit(1, cause="port taken", error="exit code 1: the port is taken", output=bind)
    report = await node.wait_for(SHARD, "failed", gone=True)
    assert (report.cause, report.port) == ("port taken", 20000)
    assert node.of(ShardStatus)[-1].output == bind
    node.launcher.prepare_process = lambda _: None
    assert (await node.ready(start(8, command_id=2))).request.port == 20001


async def test_c05_c_a_stranger_that_answers_while_ours_loads_never_makes_it_ready(
    autojump_clock: MockClock, node: Node
) -> None:
    """It answers 200 to everything; the listener is not ours. At the start deadline that is the error."""
    node.launcher.prepare_process = lambda process: setattr(process, "listens", Stranger(42, "nginx"))
    await node.command(start())
    report = await node.wait_for(SHARD, "failed")
    assert "ready" not in node.states()
    assert report.error == (
        "not ready within 20m00s of its start: port 20000 is listened on by nginx (pid 42), which is not of this shard"
    )


async def test_c06_slow_loading_is_not_failure_and_early_exit_is_not_slow_loading(
    autojump_clock: MockClock, node: Node
) -> None:
    """A loads for 12 minutes and becomes ready; B exits after 3 s and is failed within 2 s of it, with code and
    output; C listens and never answers: failed at 20 minutes, its processes gone. Each can be started again."""
    begun = trio.current_time()

    def prepare_process(process: Process) -> None:
        if process.request.shard == "a/0/0":
            process.reply = lambda: READY if trio.current_time() >= begun + 720 else LOADING
        elif process.request.shard == "c/0/0":
            process.reply = lambda: None

    node.launcher.prepare_process = prepare_process
    for shard in "abc":
        await node.command(start(shard=f"{shard}/0/0"))

    await trio.sleep(3)
    node.launcher.process("b/0/0").exit(1, output="cannot open model")
    exited = trio.current_time()
    report = await node.wait_for("b/0/0", "failed", gone=True)
    assert trio.current_time() - exited < 2
    assert (report.exit_code, report.cause) == (1, "exited")
    assert node.of(ShardStatus)[-1].output == "cannot open model"

    await node.wait_for("a/0/0", "ready")
    assert 720 <= trio.current_time() - begun <= 722

    report = await node.wait_for("c/0/0", "failed")
    assert 1200 <= trio.current_time() - begun <= 1201
    assert report.cause == "start deadline"
    assert "gave no answer" in report.error
    await node.wait_for("c/0/0", "failed", gone=True)
    assert node.launcher.process("c/0/0").stops == [(5.0, False)]

    node.launcher.prepare_process = lambda _: None
    for shard in ("b/0/0", "c/0/0"):
        await node.ready(start(8, shard=shard, command_id=4))


# --- the end --------------------------------------------------------------------------------------------------


async def test_an_engine_that_dies_is_failed_at_once_and_gone_when_its_workers_are(
    autojump_clock: MockClock, node: Node
) -> None:
    process = await node.ready()
    process.lingers = True
    process.exit(signal=9, output="last words")
    report = await node.wait_for(SHARD, "failed")
    assert (report.signal, report.error, report.cause) == (9, "signal 9, sender unknown", "signalled")
    assert node.states()[-1] == "failed"
    process.vanish()
    await node.wait_for(SHARD, "failed", gone=True)


async def test_an_engine_known_to_hang_gets_its_second_signal_early(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready(start(profile=attrs.evolve(PROFILE, engine="stubborn")))
    assert (process.request.grace_seconds, process.request.second_term) == (2.0, True)
    await node.command(StopShard(2, SHARD, 7, 20.0))
    await node.wait_for(SHARD, "stopped", gone=True)
    assert process.stops == [(2.0, True)]


async def test_a_dead_shim_is_failed_with_that_cause(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready()
    process.lose_shim()
    report = await node.wait_for(SHARD, "failed", gone=True)
    assert (report.cause, report.error) == ("shim killed", "its shim was killed")


async def test_a_full_disk_stops_no_engine(autojump_clock: MockClock, node: Node) -> None:
    node.launcher.prepare_process = lambda process: setattr(process, "disk_full", True)
    process = await node.ready()
    assert process.stops == []
    await node.command(StopShard(2, SHARD, 7))
    await node.wait_for(SHARD, "stopped", gone=True)


async def test_stop_all_waits_for_the_end_of_every_engine(autojump_clock: MockClock, node: Node) -> None:
    first, second = await node.ready(), await node.ready(start(shard="b/0/0", command_id=2))
    assert await node.supervisor.stop_all("the agent stops") == ()
    assert (first.ended, second.ended) == (True, True)
    assert await node.supervisor.stop_all("the agent stops") == ()


async def test_stop_all_is_bounded_and_names_what_is_left(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready()
    process.ignores_stop = True
    before = trio.current_time()
    assert await node.supervisor.stop_all("the agent stops") == (SHARD,)
    assert trio.current_time() - before <= 40


# --- control and the agent come and go ------------------------------------------------------------------------


async def test_control_away_for_hours_stops_nothing_and_is_told_everything_when_it_is_back(
    autojump_clock: MockClock, node: Node
) -> None:
    stays, dies = await node.ready(), await node.ready(start(shard="b/0/0", command_id=2))
    await node.supervisor.inbox.send(Acked(node.of(ShardStatus)[-1].number))
    node.disconnect()
    node.said.clear()
    await trio.sleep(1800)
    dies.exit(3, output="cuda error")
    await trio.sleep(6 * 3600)
    assert stays.stops == []

    shards = await node.connect(status_acked=6)
    assert {report.shard: (report.state, report.gone) for report in shards} == {
        SHARD: ("ready", False),
        "b/0/0": ("failed", True),
    }
    await trio.testing.wait_all_tasks_blocked()
    assert node.states() == ["failed", "failed+"]
    status = node.of(ShardStatus)[0]
    assert (status.number, status.output, status.report.exit_code) == (7, "cuda error", 3)
    assert status.report.since_seconds == pytest.approx(6 * 3600, abs=1)


async def test_unacknowledged_statuses_are_sent_again_after_the_registration(
    autojump_clock: MockClock, node: Node
) -> None:
    await node.ready()
    node.disconnect()
    node.said.clear()
    await node.connect(status_acked=1)
    await trio.testing.wait_all_tasks_blocked()
    assert [(status.number, status.report.state) for status in node.of(ShardStatus)] == [(2, "loading"), (3, "ready")]


async def test_nothing_is_sent_before_the_registration_is_accepted(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready()
    node.disconnect()
    node.said.clear()
    uplink, channel = open_uplink()
    await node.supervisor.inbox.send(Opened(50, uplink, "127.0.0.1"))
    process.exit(1)
    await node.supervisor.inbox.send(Accepted(49, 0))  # of a connection that is no more
    await trio.testing.wait_all_tasks_blocked()
    assert isinstance(channel.receive_nowait(), ShardList)
    with pytest.raises(trio.WouldBlock):
        channel.receive_nowait()


async def test_an_agent_that_restarts_finds_its_engines_as_they_were(autojump_clock: MockClock, node: Node) -> None:
    ready = await node.ready()
    drained = await node.ready(start(shard="b/0/0", command_id=2))
    await node.command(DrainShard(3, "b/0/0", 7))
    node.launcher.prepare_process = lambda process: setattr(process, "reply", lambda: LOADING)
    await node.command(start(shard="c/0/0", command_id=4))
    await node.wait_for("c/0/0", "loading")
    await trio.sleep(60)
    node.said.clear()

    await node.agent()
    shards = await node.connect(status_acked=10)
    assert [(report.shard, report.state, report.port) for report in shards] == [
        ("b/0/0", "draining", 20001),
        ("c/0/0", "loading", 20002),
        (SHARD, "ready", 20000),
    ]
    assert shards[2].since_seconds >= 60
    assert (shards[2].pid, shards[2].spec_hash) == (ready.pid, "0123456789abcdef")
    await trio.sleep(10)
    assert node.states() == []  # nothing blinked
    assert ready.stops == drained.stops == []

    node.launcher.process("c/0/0").reply = lambda: READY
    await node.wait_for("c/0/0", "ready")
    assert node.of(ShardStatus)[0].number == 11
    await node.command(StopShard(5, SHARD, 7))
    await node.wait_for(SHARD, "stopped", gone=True)


async def test_what_ended_while_the_agent_was_away_is_told_with_its_age(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready()
    node.scope.cancel()
    process.exit(42, output="gone wrong", age_seconds=300.0)
    node.said.clear()
    await node.agent()
    (report,) = await node.connect()
    assert report.state in {"ready", "failed"}
    report = await node.wait_for(SHARD, "failed", gone=True)
    assert (report.exit_code, round(report.since_seconds)) == (42, 300)
    assert node.of(ShardStatus)[-1].output == "gone wrong"


async def test_an_end_that_was_told_and_not_acknowledged_is_told_again_by_the_next_agent(
    autojump_clock: MockClock, node: Node
) -> None:
    process = await node.ready()
    process.exit(42)
    await node.wait_for(SHARD, "failed", gone=True)
    node.said.clear()
    node.acknowledge = True
    await node.agent()
    await node.connect()
    await node.wait_for(SHARD, "failed", gone=True)
    assert await node.shards() == ()
    assert process.forgotten


async def test_a_stop_that_the_agent_did_not_live_to_see_is_taken_up_again(
    autojump_clock: MockClock, node: Node
) -> None:
    process = await node.ready()
    process.ignores_stop = True
    await node.command(StopShard(2, SHARD, 7, 9.0))
    await node.agent()
    process.ignores_stop = False
    await node.connect()
    await node.wait_for(SHARD, "stopped", gone=True)
    assert process.stops == [(9.0, False), (9.0, False)]


async def test_an_older_launch_found_beside_a_newer_one_is_seen_off(autojump_clock: MockClock, node: Node) -> None:
    old = await node.ready()
    newer = Process(attrs.evolve(old.request, epoch=8), 2000)
    newer.happens(Started(2000))
    newer.state = {**old.state}
    node.launcher.processes.append(newer)
    await node.agent()
    (report,) = await node.connect()
    await trio.sleep(1)
    assert (report.epoch, report.state) == (8, "ready")
    assert old.stops == [(0.0, False)]
    assert old.forgotten
    assert newer.stops == []


async def test_a_link_that_does_not_keep_up_is_hung_up_on(autojump_clock: MockClock, node: Node) -> None:
    uplink, channel = open_uplink()
    await node.supervisor.inbox.send(Opened(50, uplink, "127.0.0.1"))
    for _ in range(UPLINK_MAX + 1):
        await node.supervisor.inbox.send(ListAsked())
    await trio.testing.wait_all_tasks_blocked()
    assert len([message async for message in channel]) == UPLINK_MAX  # and then its end
    await node.supervisor.inbox.send(ListAsked())


# --- output and logs ------------------------------------------------------------------------------------------


async def output(node: Node, **request: object) -> Output:
    asked = attrs.evolve(LogRequest(4, SHARD), **request)  # type: ignore[arg-type]
    await node.supervisor.inbox.send(OutputAsked(asked))
    await trio.testing.wait_all_tasks_blocked()
    return node.of(Output)[-1]


async def test_the_end_of_an_output_is_given_bounded_or_a_reason(autojump_clock: MockClock, node: Node) -> None:
    assert await output(node) == Output(4, reason="nothing of tiny/0/0 is on this node")
    process = await node.ready()
    process.output = b"x" * 300_000 + b"end"
    assert await output(node, bytes_max=3) == Output(4, b"end")
    assert len((await output(node, bytes_max=10**9)).data) == OUTPUT_BYTES_MAX
    assert (await output(node, bytes_max=-1)).data == b""
    assert (await output(node, bytes_max=3, follow=True)).reason == "this agent sends what there is and does not follow"
    assert (await output(node, previous=True)).reason == "there was none before"


async def test_each_command_and_each_state_is_one_log_line(autojump_clock: MockClock, node: Node) -> None:
    with capture_logs() as logs:
        process = await node.ready()
        await node.command(start(6, command_id=2))
        process.exit(1, error="exit code 1", output="first\nlast words")
        await node.wait_for(SHARD, "failed", gone=True)
    lines = [(entry["event"], entry.get("state", entry.get("epoch", entry.get("reason")))) for entry in logs]
    assert lines == [
        ("command received", 7),
        ("shard state", "starting"),
        ("shard state", "loading"),
        ("shard state", "ready"),
        ("command received", 6),
        ("command refused", "epoch 6 is older than 7, which this node has"),
        ("shard state", "failed"),
        ("shard state", "failed"),
    ]
    assert logs[-1]["error"] == "exited with code 1: last words"
    assert logs[-1]["output"] == "first\nlast words"


async def test_processes_that_were_left_alone_are_named(autojump_clock: MockClock, node: Node) -> None:
    process = await node.ready()
    process.lingers = True
    process.exit(1)
    with capture_logs() as logs:
        process.happens(Gone(unproven=(99,)))
        await node.wait_for(SHARD, "failed", gone=True)
    assert [entry["pids"] for entry in logs if "pids" in entry] == [(99,)]


async def test_two_gpus_of_a_group_leader_get_a_rendezvous_port(autojump_clock: MockClock, node: Node) -> None:
    command = attrs.evolve(start(profile=attrs.evolve(PROFILE, nodes=2)), gpus=("GPU-a",))
    process = await node.ready(command)
    assert node.of(Ack)[-1].rendezvous_port == 20001
    assert process.request.other_ports == (20001,)
    assert process.request.env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
