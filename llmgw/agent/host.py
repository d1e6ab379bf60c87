"""What a node has besides GPUs: processors, memory, disk, kernel, and the adapters of its fabrics.

Read from /proc and /sys, below roots that are arguments. Everything here can hang where a file system does, so the
caller keeps it off the event loop.
"""

import os
from pathlib import Path

import attrs

from llmgw.config.schema import FabricConfig
from llmgw.core.hardware import Fabric, Hca, Problem

PORT_ACTIVE = "ACTIVE"


@attrs.frozen
class Roots:
    """Where the kernel shows itself."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


@attrs.frozen
class HostReading:
    """All of it at one moment."""

    cpus: int = 0
    memory_total_bytes: int = 0
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    kernel: str = ""
    fabrics: tuple[Fabric, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_host(models_dir: Path, fabrics: tuple[FabricConfig, ...], roots: Roots = Roots()) -> HostReading:
    """What is there now. An adapter that is missing or down is unusable and a problem, never an error."""
    total, free, problems = _disk(models_dir)
    found = tuple(Fabric(fabric.name, tuple(read_hca(name, roots.sys) for name in fabric.hcas)) for fabric in fabrics)
    problems += [
        Problem("fabric", f"fabric {fabric.name}: {hca.name} {hca.problem}")
        for fabric in found
        for hca in fabric.hcas
        if not hca.usable
    ]
    return HostReading(
        cpus=len(os.sched_getaffinity(0)),
        memory_total_bytes=_memory_total(roots),
        disk_total_bytes=total,
        disk_free_bytes=free,
        kernel=os.uname().release,
        fabrics=found,
        problems=tuple(problems),
    )


def read_hca(name: str, sys: Path) -> Hca:
    """One adapter. Usable: it is there and a port of it is active."""
    folder = sys / "class" / "infiniband" / name
    if not folder.is_dir():
        return Hca(name, usable=False, problem="is not on this node")
    ports = sorted((folder / "ports").glob("*")) if (folder / "ports").is_dir() else []
    states = [(port, _line(port / "state").rpartition(":")[2].strip()) for port in ports]
    active = next((port for port, state in states if state == PORT_ACTIVE), None)
    problem = ""
    if active is None:
        seen = ", ".join(f"port {port.name} is {state or 'unreadable'}" for port, state in states)
        problem = f"has no active port: {seen}" if seen else "has no port"
    netdevs = sorted(entry.name for entry in (folder / "device" / "net").glob("*"))
    return Hca(
        name=name,
        usable=active is not None,
        problem=problem,
        guid=_line(folder / "node_guid"),
        rate_gbps=_rate(active),
        numa_node=_numa_node(folder / "device"),
        netdev=netdevs[0] if netdevs else "",
    )


def pci_numa_node(pci: str, sys: Path) -> int | None:
    """NUMA node of the PCI device `0000:65:00.0`; None: not told."""
    return _numa_node(sys / "bus" / "pci" / "devices" / pci.lower()[-12:]) if pci else None


def _numa_node(device: Path) -> int | None:
    text = _line(device / "numa_node")
    # -1 is the kernel's "none".
    return int(text) if text.isdecimal() else None


def _rate(port: Path | None) -> float | None:
    """`400 Gb/sec (4X NDR)` -> 400.0."""
    first = _line(port / "rate").partition(" ")[0] if port is not None else ""
    try:
        return float(first)
    except ValueError:
        return None


def _line(path: Path) -> str:
    """The first line of a small file of the kernel's; empty where there is none."""
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _memory_total(roots: Roots) -> int:
    """The machine's memory, or less where a container's limit is lower."""
    total = 0
    for line in (roots.proc / "meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _line(roots.sys / "fs" / "cgroup" / name)
        if limit.isdecimal():
            total = min(total, int(limit))
    return total


def _disk(folder: Path) -> tuple[int, int, list[Problem]]:
    """(total, free to us, problems) of the file system on which `folder` is or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        stats = os.statvfs(folder)
    except OSError as error:
        return 0, 0, [Problem("disk", f"{folder}: {error.strerror}")]
    return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize, []
