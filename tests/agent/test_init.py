"""What `llmgw-agent init` writes: always a file that loads, with what was found."""

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from llmgw.agent.gpus import GpuReader, GpuReading, Helper
from llmgw.agent.host import Roots
from llmgw.agent.init import GPU_SECONDS, Found, free_ports, init, look, read_fabrics, read_gpus, text_of, told, write
from llmgw.commandline import read_node
from llmgw.config.schema import FabricConfig, NodeConfig
from llmgw.core.address import Address
from llmgw.core.hardware import Gpu, Hca, PortRange, Problem
from llmgw.errors import RefusedError
from llmgw.net.machine import InterfaceAddress, ModelFile

GIB = 1024**3
USUAL = Found("gpu1.example.org", (), PortRange(20000, 20999), GpuReading(complete=True))


def loaded(text: str, folder: Path) -> NodeConfig:
    file = folder / "node.toml"
    file.write_text(text)
    return read_node(str(file), {"HOME": "/home/u"}).config


def found_with(**changes: Any) -> Found:
    return Found(**{name: changes.get(name, getattr(USUAL, name)) for name in Found.__annotations__})


def test_of_nothing(tmp_path: Path) -> None:
    config = loaded(text_of(USUAL, None, None, state_known=True), tmp_path)
    assert (config.node_id, config.control) == ("gpu1.example.org", Address("127.0.0.1", 7070))
    assert (config.ports, config.fabrics, config.gpus) == (PortRange(20000, 20999), (), ())
    lines = told(USUAL, tmp_path / "node.toml", None)
    assert "  no GPU: models with gpus = 0 run here" in lines
    assert "  control is taken to be on this machine; else change `control`, or use --server HOST:PORT" in lines
    assert f"  llmgw-agent --check {tmp_path}/node.toml" in lines


def test_what_was_asked_for_is_written(tmp_path: Path) -> None:
    text = text_of(USUAL, "[::1]:7070", "a", state_known=True)
    config = loaded(text, tmp_path)
    assert (config.node_id, config.control) == ("a", Address("::1", 7070))
    assert "A guess" not in text
    assert "A guess" in text_of(USUAL, None, "a", state_known=True)
    assert not any("--server" in line for line in told(USUAL, tmp_path, "[::1]:7070"))


def test_gpus_are_told_and_found_again_at_each_start(tmp_path: Path) -> None:
    """Whatever a driver calls them."""
    gpus = (Gpu("GPU-1", "NVIDIA H100", 80 * GIB), Gpu("GPU-2", "A\n[x]\x1b", 24 * GIB))
    found = found_with(gpus=GpuReading(gpus=gpus, complete=True))
    text = text_of(found, None, None, state_known=True)
    assert "# Found:\n#   GPU-1 NVIDIA H100, 80 GiB\n#   GPU-2 A?[x]?, 24 GiB\n#only = []\n" in text
    assert loaded(text, tmp_path).gpus == ()
    assert "  GPU GPU-1 NVIDIA H100, 80 GiB" in told(found, tmp_path, None)


def test_a_driver_that_does_not_answer_is_told(tmp_path: Path) -> None:
    assert "  the GPU driver does not answer" in told(found_with(gpus=GpuReading()), tmp_path, None)
    broken = GpuReading(problems=(Problem("nvml", "NVML: driver mismatch"),))
    assert "  NVML: driver mismatch" in told(found_with(gpus=broken), tmp_path, None)


def test_adapters_are_written_and_those_that_are_down_told(tmp_path: Path) -> None:
    found = found_with(
        fabrics={"ib0": ("mlx5_0", "mlx5_1"), "roce0": ("mlx5_2",)},
        unusable=(Hca("mlx5_3", usable=False, problem="has no active port: port 1 is DOWN"),),
    )
    config = loaded(text_of(found, None, None, state_known=True), tmp_path)
    assert config.fabrics == (FabricConfig("ib0", ("mlx5_0", "mlx5_1")), FabricConfig("roce0", ("mlx5_2",)))
    lines = told(found, tmp_path, None)
    assert "  fabric ib0: mlx5_0, mlx5_1" in lines
    assert "  adapter mlx5_3 has no active port: port 1 is DOWN, and is left out" in lines


def test_adapters_of_sys(tmp_path: Path) -> None:
    def adapter(name: str, state: str, layer: str | None) -> None:
        port = tmp_path / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
        if layer is not None:
            (port / "link_layer").write_text(f"{layer}\n")

    adapter("mlx5_0", "4: ACTIVE\n", "InfiniBand")
    adapter("mlx5_1", "4: ACTIVE\n", "InfiniBand")
    adapter("mlx5_2", "4: ACTIVE\n", "Ethernet")
    adapter("mlx5_3", "1: DOWN\n", "InfiniBand")
    adapter("odd0", "4: ACTIVE\n", None)
    fabrics, unusable = read_fabrics(tmp_path)
    assert fabrics == {"ib0": ("mlx5_0", "mlx5_1"), "roce0": ("mlx5_2",), "rdma0": ("odd0",)}
    assert [hca.name for hca in unusable] == ["mlx5_3"]
    assert read_fabrics(tmp_path / "none") == ({}, ())


@pytest.mark.parametrize(
    ("taken", "ephemeral", "first"),
    [
        ((), (32768, 60999), 20000),
        ((20005, 21999), (32768, 60999), 22000),
        ((), (15000, 30500), 31000),
        (tuple(range(20000, 65536, 500)), (32768, 60999), 20000),
    ],
)
def test_a_range_of_ports(taken: tuple[int, ...], ephemeral: tuple[int, int], first: int) -> None:
    assert free_ports(taken, ephemeral) == PortRange(first, first + 999)


def test_other_ports_models_and_addresses(tmp_path: Path) -> None:
    found = found_with(
        ports=PortRange(22000, 22999),
        models_dir=Path("/srv/models"),
        models=(ModelFile(Path("/srv/models/a.gguf"), 1),),
        addresses=(InterfaceAddress("10.0.0.5", "eth0"),),
        note="looking for models in /x took more than 10 s",
    )
    text = text_of(found, None, None, state_known=True)
    config = loaded(text, tmp_path)
    assert (config.ports, config.models_dir) == (PortRange(22000, 22999), Path("/srv/models"))
    assert "# This machine's: 10.0.0.5 (eth0).\n" in text
    lines = told(found, tmp_path, None)
    assert "  models_dir /srv/models: 1 in GGUF format found" in lines
    assert "  looking for models in /x took more than 10 s" in lines


def test_without_a_place_for_state_it_is_beside_the_file(tmp_path: Path) -> None:
    config = loaded(text_of(USUAL, None, None, state_known=False), tmp_path)
    assert (config.state_dir, config.models_dir) == (tmp_path / "state", tmp_path / "models")


@settings(max_examples=settings().max_examples // 20)
@given(st.text(max_size=200))
def test_whatever_the_host_is_called_the_file_is_right(tmp_path_factory: pytest.TempPathFactory, host: str) -> None:
    """Property: a node id is made of it."""
    text = text_of(found_with(host=host), None, None, state_known=True)
    assert loaded(text, tmp_path_factory.getbasetemp()).node_id


async def no_helper() -> Helper:
    await trio.lowlevel.checkpoint()
    raise OSError("no such program")


class Silent:
    """A helper whose driver hangs."""

    async def send(self, line: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        await trio.sleep(math.inf)
        return b""

    def kill(self) -> None:
        self.killed = True

    def ended(self) -> bool:
        return False


async def test_a_driver_that_hangs_is_given_up(autojump_clock: MockClock) -> None:
    helper = Silent()

    async def start() -> Helper:
        await trio.lowlevel.checkpoint()
        return helper

    reading = await read_gpus(GpuReader(start))
    assert (reading.complete, reading.gpus) == (False, ())
    assert trio.current_time() <= GPU_SECONDS + 1
    assert helper.killed


async def test_looking_at_a_machine(tmp_path: Path) -> None:
    (tmp_path / "m/sub").mkdir(parents=True)
    (tmp_path / "m/sub/a.gguf").write_bytes(b"GGUF")
    found = await look(tmp_path, tmp_path / "m", {}, Roots(tmp_path / "proc", tmp_path / "sys"), no_helper)
    assert [problem.code for problem in found.gpus.problems] == ["nvml"]
    assert (found.models_dir, len(found.models)) == (tmp_path / "m", 1)
    assert found.ports == PortRange(20000, 20999)
    beside = await look(tmp_path / "m", None, {"HOME": str(tmp_path)}, Roots(tmp_path, tmp_path), no_helper)
    assert beside.models_dir is None or beside.models_dir.is_dir()


def test_it_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "a/node.toml"
    lines = write(file, USUAL, server=None, node_id=None, state_base=None)
    assert lines == told(USUAL, file, None)
    assert read_node(str(file), {}).config.node_id == "gpu1.example.org"
    before = file.read_text()
    with pytest.raises(RefusedError, match="exists already"):
        write(file, USUAL, server=None, node_id="b", state_base=None)
    with pytest.raises(RefusedError, match="exists already"):
        init(file.parent, None, {}, server=None, node_id=None, state_base=None)
    assert file.read_text() == before


def test_a_name_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"not be a right configuration: .*node_id"):
        write(tmp_path / "node.toml", USUAL, server=None, node_id="a b", state_base=None)
    assert list(tmp_path.iterdir()) == []
