"""The whole agent in one process, over a control and engines that a test scripts, on a virtual clock."""

import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import pytest
import trio
from fake_control import ADDRESS, FakeControl
from fake_engines import LOADING, READY, EngineNetwork, FakeAdapter, FakeLauncher, Process, machine
from structlog.testing import capture_logs
from trio.testing import MockClock

from llmgw.agent.app import run_agent
from llmgw.agent.hardware import HardwareReading
from llmgw.config.schema import NodeConfig
from llmgw.core.address import Address
from llmgw.core.catalog import Profile
from llmgw.core.hardware import Gpu, NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.units import Duration
from llmgw.wire.messages import (
    Ack,
    DrainShard,
    Goodbye,
    Heartbeat,
    LogChunk,
    LogEnd,
    LogRequest,
    Refused,
    Register,
    Registered,
    ShardStatus,
    StartShard,
    StopShard,
)

T = TypeVar("T")
PROFILE = Profile("fake", "tiny.bin", start_deadline=Duration(1200.0), stop_grace=Duration(20.0))


async def inline(call: Callable[[], T], *, seconds: float, what: str) -> T:
    await trio.lowlevel.checkpoint()
    return call()


def start(shard: str = "tiny/0/0", epoch: int = 7, command_id: int = 1) -> StartShard:
    return StartShard(command_id, shard, epoch, "0123456789abcdef", PROFILE, "tiny")


class MovingControl:
    """A12: a name that resolves to one address after another, behind the seam `connect`."""

    def __init__(self, control: FakeControl) -> None:
        self.control = control
        self.resolves_to = "address 1"
        self.attempts = 0

    async def connect(self, address: Address) -> trio.abc.Stream:
        self.attempts += 1
        if self.resolves_to == "nothing":
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        if self.resolves_to == "a black hole":
            await trio.sleep_forever()
        return await self.control.connect(address)


class Cluster:
    """One control and one node, whose agent can be started, killed and ended."""

    def __init__(self, nursery: trio.Nursery, folder: Path) -> None:
        self.nursery = nursery
        self.control = FakeControl(nursery)
        self.launcher = FakeLauncher()
        self.network = EngineNetwork(self.launcher, nursery)
        self.hardware = HardwareReading(
            NodeHardware(gpus=(Gpu("GPU-a", "H100", 80),)), gpu_memory_used_bytes={"GPU-a": 3}
        )
        self.config = NodeConfig(
            "gpu-a", ADDRESS, state_dir=folder, models_dir=folder, ports=PortRange(20000, 20009), labels={"zone": "a"}
        )
        self.connect_through: FakeControl | MovingControl = self.control
        self.lives = 0

    async def agent(self, **changes: object) -> None:
        """Start the agent. The one before must have ended."""
        self.scope = trio.CancelScope()
        self.ending = trio.Event()
        self.ended = trio.Event()
        self.lives += 1
        await self.nursery.start(self._run, attrs.evolve(self.config, **changes))  # type: ignore[arg-type]

    async def _run(self, config: NodeConfig, task_status: "trio.TaskStatus[None]") -> None:
        with self.scope:
            await run_agent(
                config,
                instance="i1",
                boot_id="b1",
                connect=self.connect_through.connect,
                launcher=self.launcher,
                read_hardware=self._read_hardware,
                engines={"fake": FakeAdapter()},
                machine=machine(),
                run_blocking=inline,
                wall_clock=lambda: 1_700_000_000.0 + trio.current_time(),
                rng=random.Random(self.lives),
                ending=self.ending,
                open_engine=self.network.open,
                is_port_free=lambda _: True,
                task_status=task_status,
            )
        self.ended.set()

    async def _read_hardware(self) -> HardwareReading:
        await trio.lowlevel.checkpoint()
        return self.hardware

    async def kill_agent(self) -> None:
        self.scope.cancel()
        await self.ended.wait()

    async def end_agent(self) -> None:
        self.ending.set()
        with trio.fail_after(120):
            await self.ended.wait()

    async def ready(self, command: StartShard | None = None) -> Process:
        command = command or start()
        self.control.send(command)
        await self.report(command.shard, "ready")
        return self.launcher.process(command.shard)

    async def report(self, shard: str, state: str, *, gone: bool = False) -> ShardReport:
        """Wait until that status has come."""
        count = 1
        while True:
            report = (await self.control.next(ShardStatus, count)).report
            if (report.shard, report.state, report.gone) == (shard, state, gone):
                return report
            count += 1


@pytest.fixture
def cluster(nursery: trio.Nursery, tmp_path: Path) -> Cluster:
    return Cluster(nursery, tmp_path)


async def test_the_main_job(autojump_clock: MockClock, cluster: Cluster) -> None:
    """Register, start, ready, drain, stop, forgotten: one shard from the first word to the last."""
    await cluster.agent()
    register = await cluster.control.next(Register)
    assert (register.node, register.instance, register.boot_id, register.shards) == ("gpu-a", "i1", "b1", ())
    assert register.hardware == cluster.hardware.hardware
    await cluster.control.next(Heartbeat)

    process = await cluster.ready()
    assert cluster.control.of(Ack) == [Ack(1, accepted=True, port=20000)]
    beat = await cluster.control.next(Heartbeat, len(cluster.control.of(Heartbeat)) + 1)
    assert [(report.shard, report.state) for report in beat.shards] == [("tiny/0/0", "ready")]
    assert beat.gpu_memory_used_bytes == {"GPU-a": 3}

    process.output = b"hello\n"
    cluster.control.send(LogRequest(4, "tiny/0/0"))
    await cluster.control.next(LogEnd)
    assert cluster.control.of(LogChunk)[0].data == b"hello\n"

    cluster.control.send(DrainShard(2, "tiny/0/0", 7))
    cluster.control.send(StopShard(3, "tiny/0/0", 7))
    await cluster.report("tiny/0/0", "stopped", gone=True)
    states = [status.report.state for status in cluster.control.of(ShardStatus)]
    assert states == ["starting", "loading", "ready", "draining", "stopping", "stopped", "stopped"]
    assert [status.number for status in cluster.control.of(ShardStatus)] == list(range(1, 8))
    beat = await cluster.control.next(Heartbeat, len(cluster.control.of(Heartbeat)) + 1)
    assert beat.shards == ()
    assert process.forgotten


async def test_a11_control_away_for_hours_costs_no_engine_and_sends_no_word_twice(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    """The agent's part: it redials, reports what runs with its port, epoch and GPUs, and the dead one with its exit
    code. That control adopts is control's."""
    await cluster.agent()
    await cluster.control.next(Register)
    lives, dies = await cluster.ready(), await cluster.ready(start("b/0/0", 7, 2))
    cluster.control.up = False
    await cluster.control.hang_up()
    await trio.sleep(600)
    dies.exit(3, output="cuda error")
    await trio.sleep(2 * 3600)
    cluster.control.up = True
    register = await cluster.control.next(Register, 2)
    assert [(report.shard, report.state, report.gone, report.port) for report in register.shards] == [
        ("b/0/0", "failed", True, 20001),
        ("tiny/0/0", "ready", False, 20000),
    ]
    failed = await cluster.report("b/0/0", "failed", gone=True)
    assert failed.exit_code == 3
    assert cluster.control.of(ShardStatus)[-1].output == "cuda error"
    assert lives.stops == []
    assert cluster.launcher.launches == 2


async def test_an_acknowledgement_that_was_lost_leads_to_the_same_status_again(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    await cluster.agent()
    await cluster.control.next(Register)
    cluster.control.acknowledges = False
    await cluster.ready()
    cluster.control.status_acked = 2
    await cluster.control.hang_up()
    cluster.control.acknowledges = True
    await cluster.control.next(ShardStatus, 4)
    first, again = cluster.control.of(ShardStatus)[2:]
    assert (first.number, first.report.state) == (again.number, again.report.state) == (3, "ready")
    await trio.sleep(60)
    assert len(cluster.control.of(ShardStatus)) == 4


async def test_an_agent_that_was_killed_finds_its_engines_and_goes_on_numbering(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    await cluster.agent()
    await cluster.control.next(Register)
    process = await cluster.ready()
    await cluster.kill_agent()
    await trio.sleep(300)
    await cluster.agent()
    register = await cluster.control.next(Register, 2)
    (report,) = register.shards
    assert (report.state, report.pid, report.port) == ("ready", process.pid, 20000)
    assert report.since_seconds >= 300
    cluster.control.send(StopShard(3, "tiny/0/0", 7, 4.0))
    await cluster.report("tiny/0/0", "stopped", gone=True)
    assert process.stops == [(4.0, False)]
    assert [status.number for status in cluster.control.of(ShardStatus)] == list(range(1, 7))


async def test_c06_ready_after_twelve_minutes_of_loading_and_two_restarts_of_the_agent(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    await cluster.agent()
    await cluster.control.next(Register)
    begun = trio.current_time()
    cluster.launcher.prepare_process = lambda process: setattr(
        process, "reply", lambda: READY if trio.current_time() >= begun + 720 else LOADING
    )
    cluster.control.send(start())
    for _ in range(2):
        await trio.sleep(200)
        await cluster.kill_agent()
        await cluster.agent()
    await cluster.report("tiny/0/0", "ready")
    assert 720 <= trio.current_time() - begun <= 722


async def test_goodbye_kept_leaves_the_engines(autojump_clock: MockClock, cluster: Cluster) -> None:
    await cluster.agent()
    await cluster.control.next(Register)
    process = await cluster.ready()
    await cluster.end_agent()
    assert await cluster.control.next(Goodbye) == Goodbye("kept", "ended in order")
    assert isinstance(cluster.control.heard[-1][2], Goodbye)
    assert process.stops == []


async def test_goodbye_stopped_comes_after_the_last_engine_is_gone(autojump_clock: MockClock, cluster: Cluster) -> None:
    await cluster.agent(stop_engines_on_exit=True)
    await cluster.control.next(Register)
    processes = [await cluster.ready(), await cluster.ready(start("b/0/0", 7, 2))]
    await cluster.end_agent()
    assert await cluster.control.next(Goodbye) == Goodbye("stopped", "ended in order")
    assert isinstance(cluster.control.heard[-1][2], Goodbye)
    assert all(process.stops == [(20.0, False)] for process in processes)
    assert {(status.report.shard, status.report.gone) for status in cluster.control.of(ShardStatus)[-2:]} == {
        ("tiny/0/0", True),
        ("b/0/0", True),
    }


async def test_engines_that_would_not_end_are_named_and_not_called_stopped(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    await cluster.agent(stop_engines_on_exit=True)
    await cluster.control.next(Register)
    process = await cluster.ready()
    process.ignores_stop = True
    with capture_logs() as logs:
        await cluster.end_agent()
    assert await cluster.control.next(Goodbye) == Goodbye("kept", "ended in order; these would not end: tiny/0/0")
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["engines not stopped"]


async def test_an_agent_ends_in_order_without_control(autojump_clock: MockClock, cluster: Cluster) -> None:
    cluster.control.up = False
    await cluster.agent()
    await trio.sleep(100)
    await cluster.end_agent()


async def test_a_gpu_that_appears_later_is_registered_without_a_restart(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    """B09(b), the agent's part: registered with the problem, then with the GPUs."""
    mismatch = Problem("nvml", "NVML: RM has detected an NVML/RM version mismatch.")
    whole = cluster.hardware
    cluster.hardware = HardwareReading(complete=False, problems=(mismatch,))
    await cluster.agent()
    register = await cluster.control.next(Register)
    assert (register.hardware.gpus, register.hardware_complete) == ((), False)
    assert register.problems[0].detail == mismatch.detail
    process = await cluster.ready()
    await trio.sleep(300)
    beat = cluster.control.of(Heartbeat)[-1]
    assert beat.problems[0].since_seconds >= 295
    cluster.hardware = whole
    register = await cluster.control.next(Register, 2, seconds=5)
    assert [gpu.uuid for gpu in register.hardware.gpus] == ["GPU-a"]
    assert (register.hardware_complete, register.problems) == (True, ())
    assert [report.state for report in register.shards] == ["ready"]
    assert process.stops == []
    assert len(cluster.control.dialled) == 1


async def test_a03_a_refused_agent_keeps_trying_and_its_engines_run_on(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    """The agent's part: the reason is logged, and it retries with growing, jittered delay."""
    await cluster.agent()
    await cluster.control.next(Register)
    process = await cluster.ready()
    cluster.control.answer = lambda _: Refused("node gpu-a is held by 10.0.0.9:4711", 5.0)
    with capture_logs() as logs:
        await cluster.control.hang_up()
        await trio.sleep(1800)
    refusals = [entry for entry in logs if "held by 10.0.0.9:4711" in str(entry.get("reason"))]
    assert 40 <= len(refusals) <= 200
    assert process.stops == []
    cluster.control.answer = lambda _: Registered("c1", 2.0, cluster.control.status_acked)
    await cluster.control.next(Heartbeat, len(cluster.control.of(Heartbeat)) + 1, seconds=60)


async def test_a12_control_moves_to_another_address(autojump_clock: MockClock, cluster: Cluster) -> None:
    """The agent's part, beside that of the dialler: a failing resolver at its start is logged and retried, never an
    exit; a black-holed address costs the connect time-out; it is back within one backoff of the name being right."""
    moving = cluster.connect_through = MovingControl(cluster.control)
    moving.resolves_to = "nothing"
    with capture_logs() as logs:
        await cluster.agent()
        await trio.sleep(60)
    assert "the name control.example cannot be resolved: Temporary failure in name resolution" in logs[0]["reason"]
    assert not cluster.ended.is_set()
    moving.resolves_to = "address 1"
    await cluster.control.next(Register, seconds=31)

    moving.resolves_to = "a black hole"
    await cluster.control.hang_up()
    await trio.sleep(600)
    assert moving.attempts >= 15
    moving.resolves_to = "address 2"
    await cluster.control.next(Register, 2, seconds=41)


async def test_a_second_life_of_a_shard_is_another_launch(autojump_clock: MockClock, cluster: Cluster) -> None:
    await cluster.agent()
    await cluster.control.next(Register)
    first = await cluster.ready()
    first.exit(1)
    await cluster.report("tiny/0/0", "failed", gone=True)
    cluster.control.send(start(epoch=8, command_id=2))
    await trio.sleep(10)
    second = cluster.launcher.process("tiny/0/0")
    assert (second.request.epoch, second.request.port) == (8, 20001)
    assert cluster.control.of(Heartbeat)[-1].shards[0].state == "ready"
