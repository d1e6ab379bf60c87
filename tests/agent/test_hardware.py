"""The node's hardware as a whole: composed, filtered, watched, and told when it is worth telling."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from llmgw.agent.blocking import StuckError
from llmgw.agent.gpus import GpuReader, GpuReading
from llmgw.agent.hardware import (
    POLL_SECONDS,
    HardwareReading,
    HardwareView,
    NodeReader,
    read_view,
    select,
    watch_hardware,
    worth_registering,
)
from llmgw.agent.host import Roots
from llmgw.config.schema import DeclaredGpu, GpuFilter, NodeConfig
from llmgw.core.address import Address
from llmgw.core.hardware import Gpu, NodeHardware, Problem
from llmgw.core.units import Size
from llmgw.latest import Latest

T = TypeVar("T")
GIB = 1024**3


async def inline(call: Callable[[], T], *, seconds: float, what: str) -> T:
    await trio.lowlevel.checkpoint()
    return call()


async def stuck(call: Callable[[], T], *, seconds: float, what: str) -> T:
    await trio.sleep(seconds)
    raise StuckError(f"{what} did not return")


class KnownGpus(GpuReader):
    """A driver that always says the same."""

    def __init__(self, reading: GpuReading) -> None:
        super().__init__()
        self.known = reading

    async def read(self) -> GpuReading:
        await trio.lowlevel.checkpoint()
        return self.known


def config(tmp_path: Path, **changes: object) -> NodeConfig:
    made = NodeConfig("n1", Address("127.0.0.1", 7070), state_dir=tmp_path, models_dir=tmp_path)
    return attrs.evolve(made, **changes)  # type: ignore[arg-type]


TWO = (
    Gpu("GPU-a", "H100", 80 * GIB, 0, pci="0000:65:00.0"),
    Gpu("GPU-b", "H100", 80 * GIB, 1),
)


async def test_gpus_and_host_make_one_inventory(tmp_path: Path) -> None:
    problem = Problem("nvml", "x")
    reading = GpuReading(TWO, "550", {"GPU-a": 1, "GPU-b": None}, 12.0, complete=True, problems=(problem,))
    numa = tmp_path / "bus" / "pci" / "devices" / "0000:65:00.0"
    numa.mkdir(parents=True)
    (numa / "numa_node").write_text("1")
    read = NodeReader(config(tmp_path), KnownGpus(reading), inline, Roots(sys=tmp_path))
    found = await read()
    assert [gpu.uuid for gpu in found.hardware.gpus] == ["GPU-a", "GPU-b"]
    assert [gpu.numa_node for gpu in found.hardware.gpus] == [1, None]
    assert (found.hardware.driver, found.complete, found.gpu_memory_read_at) == ("550", True, 12.0)
    assert found.gpu_memory_used_bytes == {"GPU-a": 1, "GPU-b": None}
    assert found.hardware.cpus >= 1
    assert found.hardware.disk_total_bytes > 0
    assert found.problems == (problem,)


async def test_declared_gpus_stand_instead_of_the_drivers(tmp_path: Path) -> None:
    declared = (DeclaredGpu("GPU-fake-0", Size(80 * GIB), "H100"),)
    found = await NodeReader(config(tmp_path, gpus=declared), KnownGpus(GpuReading(TWO)), inline)()
    assert found.hardware.gpus == (Gpu("GPU-fake-0", "H100", 80 * GIB, 0),)
    assert found.complete
    assert found.gpu_memory_used_bytes == {"GPU-fake-0": None}


async def test_a_file_server_that_is_away_is_a_problem_and_keeps_the_last_numbers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    read = NodeReader(config(tmp_path), None, inline)
    before = await read()
    read._run_blocking = stuck
    after = await read()
    assert after.hardware == before.hardware
    assert after.problems == (Problem("disk", f"looking at {tmp_path} did not return"),)
    assert trio.current_time() <= 4.0


def test_the_filter_takes_gpus_away_by_uuid_and_says_what_it_cannot_find() -> None:
    assert select(TWO, GpuFilter(), complete=True) == (TWO, ())
    assert select(TWO, GpuFilter(only=("GPU-b",)), complete=True) == (TWO[1:], ())
    assert select(TWO, GpuFilter(exclude=("GPU-b",)), complete=True) == (TWO[:1], ())
    left, problems = select(TWO, GpuFilter(only=("GPU-c",), exclude=("GPU-d",)), complete=True)
    assert left == ()
    assert [problem.detail for problem in problems] == [
        "[gpu_filter] names GPU-c, which is not on this node",
        "[gpu_filter] names GPU-d, which is not on this node",
    ]
    assert select((), GpuFilter(only=("GPU-c",)), complete=False) == ((), ())


async def test_views_are_published_and_each_problem_logged_once(autojump_clock: MockClock) -> None:
    problem = Problem("nvml", "NVML: Unknown Error")
    found = HardwareReading()

    async def read() -> HardwareReading:
        await trio.lowlevel.checkpoint()
        return found

    with capture_logs() as logs:
        latest = Latest(await read_view(read))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_hardware, read, latest)
            found = HardwareReading(problems=(problem,))
            await trio.sleep(POLL_SECONDS * 10.5)
            (aged,) = latest.value.problems.aged(trio.current_time())
            assert aged.since_seconds == POLL_SECONDS * 9.5
            found = HardwareReading()
            await trio.sleep(POLL_SECONDS * 3)
            nursery.cancel_scope.cancel()
    assert [entry["event"] for entry in logs] == ["problem", "problem cleared"]
    assert logs[0]["detail"] == "NVML: Unknown Error"


def test_numbers_are_as_old_as_they_are() -> None:
    assert HardwareView(HardwareReading()).stale_seconds(50.0) == 0.0
    assert HardwareView(HardwareReading(gpu_memory_read_at=20.0)).stale_seconds(50.0) == 30.0


def test_what_is_worth_a_registration() -> None:
    told = HardwareReading(NodeHardware(gpus=TWO, disk_total_bytes=1000, disk_free_bytes=500))

    def changed(**changes: object) -> HardwareReading:
        return attrs.evolve(told, hardware=attrs.evolve(told.hardware, **changes))  # type: ignore[arg-type]

    assert not worth_registering(told, told)
    assert not worth_registering(told, attrs.evolve(told, gpu_memory_used_bytes={"GPU-a": 3}))
    assert not worth_registering(told, changed(disk_free_bytes=460))
    assert worth_registering(told, changed(disk_free_bytes=440))
    assert worth_registering(told, changed(gpus=TWO[:1]))
    assert worth_registering(told, attrs.evolve(told, complete=False))
