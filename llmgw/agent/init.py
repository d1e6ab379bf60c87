"""`llmgw-agent init DIR`: an annotated node.toml from what is found on this machine.

GPUs are found anew at every start of the agent, so they are only told; adapters are written, since which of them are
on one network is something that only a person knows.
"""

import contextlib
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from llmgw.agent.gpus import GpuReader, GpuReading, HelperProcess, StartHelper
from llmgw.agent.host import Roots, read_hca
from llmgw.config.annotated import node_text
from llmgw.config.load import Source, load_node
from llmgw.config.schema import AGENT_PORT
from llmgw.core.address import Address
from llmgw.core.hardware import Gpu, Hca, PortRange
from llmgw.core.units import format_bytes
from llmgw.errors import ConfigError, RefusedError
from llmgw.net.machine import (
    InterfaceAddress,
    ModelFile,
    addresses,
    ephemeral_ports,
    find_models_in_time,
    listening_ports,
    model_folders,
    must_be_new,
    write_new,
)

GPU_SECONDS = 15.0
"""Eight GPUs without persistence mode take some seconds to answer, and a driver that hangs never does."""
GPU_POLL_SECONDS = 0.1
SEARCH_SECONDS = 10.0
"""For model files on disks that may be slow."""

PORTS_FIRST = 20000
PORTS_COUNT = 1000
"""As the default has it."""

KINDS = {"InfiniBand": "ib0", "Ethernet": "roce0"}
"""The kernel's word for the network under an adapter -> what the fabric is called."""

TITLE = "# What llmgw-agent runs this node with. Written by `llmgw-agent init`.\n"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


@attrs.frozen
class Found:
    """What the file is made of."""

    host: str
    addresses: tuple[InterfaceAddress, ...]
    ports: PortRange
    gpus: GpuReading
    fabrics: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    """Name -> usable adapters."""
    unusable: tuple[Hca, ...] = ()
    models_dir: Path | None = None
    models: tuple[ModelFile, ...] = ()
    note: str = ""
    """What could not be looked at."""


def init(
    folder: Path,
    models: Path | None,
    environ: Mapping[str, str],
    *,
    server: str | None,
    node_id: str | None,
    state_base: Path | None,
) -> list[str]:
    """Write `folder`/node.toml; what was found and what to do next, as lines. RefusedError.

    state_base: the folder that holds the default `state_dir` and `models_dir`; None: they are written.
    """
    file = folder / "node.toml"
    must_be_new(file)
    found = trio.run(look, folder, models, environ, Roots(), HelperProcess.start)
    return write(file, found, server=server, node_id=node_id, state_base=state_base)


def write(file: Path, found: Found, *, server: str | None, node_id: str | None, state_base: Path | None) -> list[str]:
    """As `init`, of what was found."""
    text = text_of(found, server, node_id, state_known=state_base is not None)
    try:
        load_node(Source(str(file), file.parent, text), {}, options={}, host_name=found.host, state_base=state_base)
    except ConfigError as error:
        raise RefusedError(f"this would not be a right configuration: {error.mistakes[0]}") from None
    write_new(file, text)
    return told(found, file, server)


async def look(
    folder: Path,
    models: Path | None,
    environ: Mapping[str, str],
    roots: Roots,
    start_helper: StartHelper,
) -> Found:
    """Look at this machine."""
    home = Path(environ["HOME"]) if environ.get("HOME", "").startswith("/") else None
    folders = (models,) if models is not None else model_folders([folder / "models", Path.cwd() / "models"], home)
    found, note = await find_models_in_time(folders, SEARCH_SECONDS)
    models_dir = models or next((one for one in folders if any(one in model.path.parents for model in found)), None)
    fabrics, unusable = read_fabrics(roots.sys)
    return Found(
        socket.gethostname(),
        addresses(roots.proc),
        free_ports(listening_ports(roots.proc), ephemeral_ports(roots.proc)),
        await read_gpus(GpuReader(start_helper)),
        fabrics,
        unusable,
        models_dir,
        found,
        note,
    )


async def read_gpus(reader: GpuReader) -> GpuReading:
    """What the driver says within `GPU_SECONDS`."""
    reading = GpuReading()
    try:
        with trio.move_on_after(GPU_SECONDS):
            while not reading.complete and not reading.problems:
                reading = await reader.read()
                await trio.sleep(GPU_POLL_SECONDS)
    finally:
        reader.close()
    return reading


def read_fabrics(sys: Path) -> tuple[dict[str, tuple[str, ...]], tuple[Hca, ...]]:
    """(fabric -> its usable adapters, the adapters that are there and cannot be used)."""
    fabrics: dict[str, tuple[str, ...]] = {}
    unusable = []
    root = sys / "class/infiniband"
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        hca = read_hca(folder.name, sys)
        name = KINDS.get(_link_layer(folder), "rdma0")
        if hca.usable:
            fabrics[name] = (*fabrics.get(name, ()), hca.name)
        else:
            unusable.append(hca)
    return fabrics, tuple(unusable)


def _link_layer(adapter: Path) -> str:
    for port in sorted(adapter.glob("ports/*/link_layer")):
        with contextlib.suppress(OSError):  # it was taken out meanwhile
            return port.read_text().strip()
    return ""


def free_ports(taken: tuple[int, ...], ephemeral: tuple[int, int]) -> PortRange:
    """A range like the default's that nobody listens in and the kernel takes nothing from; else the default."""
    for first in range(PORTS_FIRST, 65536 - PORTS_COUNT, PORTS_COUNT):
        ports = PortRange(first, first + PORTS_COUNT - 1)
        apart = ports.last < ephemeral[0] or ports.first > ephemeral[1]
        if apart and not any(ports.first <= port <= ports.last for port in taken):
            return ports
    return PortRange(PORTS_FIRST, PORTS_FIRST + PORTS_COUNT - 1)


def text_of(found: Found, server: str | None, node_id: str | None, *, state_known: bool) -> str:
    """The file. state_known: `state_dir` and `models_dir` have defaults here."""
    values: dict[str, Any] = {"node_id": node_id or _plain(found.host)}
    if not state_known:
        values |= {"state_dir": "state", "models_dir": "models"}
    remarks: dict[str, list[str]] = {}
    values["control"] = server or str(Address("127.0.0.1", AGENT_PORT))
    if server is None:
        remarks["control"] = ["A guess: control on this machine. For one elsewhere write its address here."]
    if found.ports.first != PORTS_FIRST:
        values["ports"] = f"{found.ports.first}-{found.ports.last}"
    if found.models_dir is not None:
        values["models_dir"] = str(found.models_dir)
    if found.addresses:
        remarks["address"] = [f"This machine's: {', '.join(map(str, found.addresses))}."]
    if found.gpus.gpus:
        remarks["gpu_filter.only"] = ["Found:", *(f"  {_gpu(gpu)}" for gpu in found.gpus.gpus)]
    fabrics = [{"fabrics.name": name, "fabrics.hcas": list(hcas)} for name, hcas in found.fabrics.items()]
    if fabrics:
        remarks["fabrics.name"] = [
            "Found by the kind of network: give adapters on networks of their own fabrics of their own."
        ]
    return node_text(TITLE, values, fabrics, remarks)


def told(found: Found, file: Path, server: str | None) -> list[str]:
    """For whoever typed the command."""
    lines = [f"wrote {file}"]
    lines += [f"  GPU {_gpu(gpu)}" for gpu in found.gpus.gpus]
    lines += [f"  {problem.detail}" for problem in found.gpus.problems]
    if not found.gpus.gpus and not found.gpus.problems:
        said = "no GPU: models with gpus = 0 run here" if found.gpus.complete else "the GPU driver does not answer"
        lines.append(f"  {said}")
    lines += [f"  fabric {name}: {', '.join(hcas)}" for name, hcas in found.fabrics.items()]
    lines += [f"  adapter {hca.name} {hca.problem}, and is left out" for hca in found.unusable]
    if found.models:
        lines.append(f"  models_dir {found.models_dir}: {len(found.models)} in GGUF format found")
    if found.note:
        lines.append(f"  {found.note}")
    if server is None:
        lines.append("  control is taken to be on this machine; else change `control`, or use --server HOST:PORT")
    return [*lines, "next:", f"  llmgw-agent --check {file}", f"  llmgw-agent {file}"]


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.uuid} {gpu.name}, {format_bytes(gpu.memory_total_bytes)}"


def _plain(host: str) -> str:
    """A node id of a host's name."""
    return _UNFIT.sub("-", host).strip("-._")[:128] or "node"
