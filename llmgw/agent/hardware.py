"""What this node has, read again and again, and published whenever it is looked at.

`watch_hardware` is the actor: it calls the seam `read_hardware` and publishes a `HardwareView`. `NodeReader` is what
stands behind that seam on a real machine: the GPUs of `llmgw.agent.gpus` (or those that the configuration
declares), the rest from `llmgw.agent.host`.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import attrs
import structlog
import trio

from llmgw.agent.blocking import RunBlocking, StuckError
from llmgw.agent.gpus import GpuReader, GpuReading
from llmgw.agent.host import HostReading, Roots, pci_numa_node, read_host
from llmgw.config.schema import DeclaredGpu, GpuFilter, NodeConfig
from llmgw.core.hardware import Gpu, NodeHardware, Problem
from llmgw.core.problems import OpenProblems, update
from llmgw.latest import Latest

log = structlog.get_logger()

POLL_SECONDS = 2.0
"""As often as the shortest heartbeat."""

HOST_PATIENCE_SECONDS = 3.0
"""For /proc, /sys and the file system of models_dir: microseconds, unless a file server is away."""

DISK_CHANGE = 0.05
"""Of the whole disk: a free space that moved by less is not worth a registration."""


@attrs.frozen
class HardwareReading:
    """What `read_hardware` found."""

    hardware: NodeHardware = NodeHardware()
    complete: bool = True
    """False: there may be GPUs that are not listed."""
    gpu_memory_used_bytes: dict[str, int | None] = attrs.field(factory=dict)
    """By UUID."""
    gpu_memory_read_at: float | None = None
    """Trio's time of those numbers."""
    problems: tuple[Problem, ...] = ()
    """Of the node and its GPUs; their ages are kept by who asks."""


ReadHardware = Callable[[], Awaitable[HardwareReading]]
"""The seam. Returns within a second or so, whatever the hardware does."""


@attrs.frozen
class HardwareView:
    """The newest reading, and since when each of its problems is open."""

    reading: HardwareReading
    problems: OpenProblems = OpenProblems()

    def stale_seconds(self, now: float) -> float:
        """Age of the GPU numbers; 0 where there are none."""
        read_at = self.reading.gpu_memory_read_at
        return 0.0 if read_at is None else max(0.0, now - read_at)


async def read_view(read: ReadHardware, before: HardwareView | None = None) -> HardwareView:
    """One look at the hardware; logs each problem once as it opens and once as it clears."""
    reading = await read()
    known = OpenProblems() if before is None else before.problems
    problems, opened, cleared = update(known, reading.problems, trio.current_time())
    for problem in opened:
        log.warning("problem", code=problem.code, detail=problem.detail, gpu=problem.gpu)
    for problem in cleared:
        log.info("problem cleared", code=problem.code, detail=problem.detail, gpu=problem.gpu)
    return HardwareView(reading, problems)


async def watch_hardware(read: ReadHardware, latest: Latest[HardwareView]) -> NoReturn:
    """Read for ever and publish; the first view is in `latest` already."""
    while True:
        await trio.sleep(POLL_SECONDS)
        latest.publish(await read_view(read, latest.value))


def worth_registering(told: HardwareReading, now: HardwareReading) -> bool:
    """Whether control should hear of it: anything but a little more or less free disk."""
    if told.complete is not now.complete:
        return True
    moved = abs(now.hardware.disk_free_bytes - told.hardware.disk_free_bytes)
    if moved > DISK_CHANGE * now.hardware.disk_total_bytes:
        return True
    return attrs.evolve(told.hardware, disk_free_bytes=now.hardware.disk_free_bytes) != now.hardware


class NodeReader:
    """Reads the machine that we run on."""

    def __init__(
        self, config: NodeConfig, gpus: GpuReader | None, run_blocking: RunBlocking, roots: Roots | None = None
    ) -> None:
        """`gpus` is not asked where the configuration declares the GPUs."""
        self._config = config
        self._gpus = gpus
        self._run_blocking = run_blocking
        self._roots = Roots() if roots is None else roots
        self._host = HostReading()

    async def __call__(self) -> HardwareReading:
        stuck = await self._read_host()
        if self._config.gpus or self._gpus is None:
            found = GpuReading(gpus=declared(self._config.gpus), complete=True)
        else:
            found = await self._gpus.read()
        gpus, unknown = select(found.gpus, self._config.gpu_filter, complete=found.complete)
        return HardwareReading(
            hardware=NodeHardware(
                gpus=tuple(self._placed(gpu) for gpu in gpus),
                cpus=self._host.cpus,
                memory_total_bytes=self._host.memory_total_bytes,
                disk_total_bytes=self._host.disk_total_bytes,
                disk_free_bytes=self._host.disk_free_bytes,
                fabrics=self._host.fabrics,
                kernel=self._host.kernel,
                driver=found.driver,
            ),
            complete=found.complete,
            gpu_memory_used_bytes={gpu.uuid: found.memory_used_bytes.get(gpu.uuid) for gpu in gpus},
            gpu_memory_read_at=found.read_at,
            problems=(*found.problems, *unknown, *self._host.problems, *stuck),
        )

    async def _read_host(self) -> tuple[Problem, ...]:
        models_dir, fabrics, roots = Path(self._config.models_dir), self._config.fabrics, self._roots
        what = f"looking at {models_dir}"
        try:
            self._host = await self._run_blocking(
                lambda: read_host(models_dir, fabrics, roots), seconds=HOST_PATIENCE_SECONDS, what=what
            )
        except StuckError as error:
            return (Problem("disk", str(error)),)
        return ()

    def _placed(self, gpu: Gpu) -> Gpu:
        return (
            gpu if gpu.numa_node is not None else attrs.evolve(gpu, numa_node=pci_numa_node(gpu.pci, self._roots.sys))
        )


def declared(gpus: tuple[DeclaredGpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs of `[[gpus]]`."""
    return tuple(Gpu(gpu.uuid, gpu.name, gpu.memory, index) for index, gpu in enumerate(gpus))


def select(gpus: tuple[Gpu, ...], chosen: GpuFilter, *, complete: bool) -> tuple[tuple[Gpu, ...], tuple[Problem, ...]]:
    """The GPUs that `[gpu_filter]` leaves, and a problem for each that it names and nobody has seen."""
    there = {gpu.uuid for gpu in gpus}
    missing = [uuid for uuid in (*chosen.only, *chosen.exclude) if uuid not in there] if complete else []
    problems = tuple(Problem("gpu_filter", f"[gpu_filter] names {uuid}, which is not on this node") for uuid in missing)
    left = [gpu for gpu in gpus if (not chosen.only or gpu.uuid in chosen.only) and gpu.uuid not in chosen.exclude]
    return tuple(left), problems
