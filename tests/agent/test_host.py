"""What the kernel shows of a node, from trees that a test writes."""

import os
from pathlib import Path

import pytest

from llmgw.agent.host import Roots, pci_numa_node, read_host
from llmgw.config.schema import FabricConfig
from llmgw.core.hardware import Hca, Problem


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    made = Roots(tmp_path / "proc", tmp_path / "sys")
    made.proc.mkdir()
    made.sys.mkdir()
    (made.proc / "meminfo").write_text("MemTotal:       1048576 kB\nMemFree: 1 kB\n")
    return made


def add_hca(roots: Roots, name: str, **states: str) -> Path:
    folder = roots.sys / "class" / "infiniband" / name
    for port, state in states.items():
        (folder / "ports" / port[1:]).mkdir(parents=True)
        (folder / "ports" / port[1:] / "state").write_text(state + "\n")
        (folder / "ports" / port[1:] / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (folder / "device" / "net" / "ibs0").mkdir(parents=True)
    (folder / "device" / "numa_node").write_text("1\n")
    (folder / "node_guid").write_text("b8ce:f603:00a0:0001\n")
    return folder


def test_an_active_adapter_is_read_whole(roots: Roots, tmp_path: Path) -> None:
    add_hca(roots, "mlx5_0", p1="4: ACTIVE")
    reading = read_host(tmp_path, (FabricConfig("ib0", ("mlx5_0",)),), roots)
    (fabric,) = reading.fabrics
    assert fabric.name == "ib0"
    assert fabric.hcas == (Hca("mlx5_0", guid="b8ce:f603:00a0:0001", rate_gbps=400.0, numa_node=1, netdev="ibs0"),)
    assert reading.problems == ()


def test_one_active_port_of_two_is_enough(roots: Roots, tmp_path: Path) -> None:
    add_hca(roots, "mlx5_0", p1="1: DOWN", p2="4: ACTIVE")
    (fabric,) = read_host(tmp_path, (FabricConfig("ib0", ("mlx5_0",)),), roots).fabrics
    assert fabric.hcas[0].usable


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        (None, "is not on this node"),
        ({"p1": "1: DOWN", "p2": ""}, "has no active port: port 1 is DOWN, port 2 is unreadable"),
        ({}, "has no port"),
    ],
)
def test_an_adapter_that_is_missing_or_down_is_unusable_and_a_problem(
    roots: Roots, tmp_path: Path, states: dict[str, str] | None, problem: str
) -> None:
    if states is not None:
        add_hca(roots, "mlx5_10", **states)
    reading = read_host(tmp_path, (FabricConfig("ib0", ("mlx5_10",)),), roots)
    (hca,) = reading.fabrics[0].hcas
    assert (hca.usable, hca.problem) == (False, problem)
    assert reading.problems == (Problem("fabric", f"fabric ib0: mlx5_10 {problem}"),)


def test_odd_files_are_no_errors(roots: Roots, tmp_path: Path) -> None:
    folder = add_hca(roots, "mlx5_0", p1="4: ACTIVE")
    (folder / "ports" / "1" / "rate").write_bytes(b"\xff")
    (folder / "device" / "numa_node").write_text("-1\n")
    (hca,) = read_host(tmp_path, (FabricConfig("ib0", ("mlx5_0",)),), roots).fabrics[0].hcas
    assert (hca.rate_gbps, hca.numa_node) == (None, None)


def test_memory_is_the_machines_or_the_containers(roots: Roots, tmp_path: Path) -> None:
    assert read_host(tmp_path, (), roots).memory_total_bytes == 1024**3
    cgroup = roots.sys / "fs" / "cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    assert read_host(tmp_path, (), roots).memory_total_bytes == 1024**3
    (cgroup / "memory.max").write_text("4096\n")
    assert read_host(tmp_path, (), roots).memory_total_bytes == 4096


def test_a_models_dir_that_is_not_there_yet_has_the_disk_of_the_folder_above(roots: Roots, tmp_path: Path) -> None:
    reading = read_host(tmp_path / "not" / "yet", (), roots)
    assert reading.disk_total_bytes == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert 0 < reading.disk_free_bytes <= reading.disk_total_bytes


def test_this_machine(tmp_path: Path) -> None:
    reading = read_host(tmp_path, ())
    assert reading.cpus >= 1
    assert reading.memory_total_bytes > 2**20
    assert reading.kernel == os.uname().release


def test_the_numa_node_of_a_gpu(roots: Roots) -> None:
    device = roots.sys / "bus" / "pci" / "devices" / "0000:65:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    assert pci_numa_node("00000000:65:00.0", roots.sys) == 1
    assert pci_numa_node("0000:66:00.0", roots.sys) is None
    assert pci_numa_node("", roots.sys) is None
