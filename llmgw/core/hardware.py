"""What a node has: the inventory that an agent registers and control places by.

GPUs are known by UUID, never by index: NVML and CUDA number them differently, and a reboot may renumber them.
"""

import attrs


@attrs.frozen
class Gpu:
    """One GPU (or a MIG slice of one)."""

    uuid: str
    name: str = ""
    memory_total_bytes: int = 0
    index: int | None = None
    """NVML's number at the time of the report: for showing and for engines that take only numbers."""
    pci: str = ""
    numa_node: int | None = None
    mig: bool = False
    memory_unified: bool = False
    """The memory is the host's own (an integrated part): it is not booked beside host memory."""
    problems: tuple[str, ...] = ()
    """Why nothing may be placed on it; empty: usable."""


@attrs.frozen
class Hca:
    """One RDMA adapter."""

    name: str
    usable: bool = True
    problem: str = ""
    guid: str = ""
    rate_gbps: float | None = None
    numa_node: int | None = None
    netdev: str = ""


@attrs.frozen
class Fabric:
    """A labelled RDMA network, with the adapters that this node has on it."""

    name: str
    hcas: tuple[Hca, ...] = ()


@attrs.frozen
class NodeHardware:
    """Everything a node has that placement looks at."""

    gpus: tuple[Gpu, ...] = ()
    cpus: int = 0
    memory_total_bytes: int = 0
    disk_total_bytes: int = 0
    """Of the file system under `models_dir`."""
    disk_free_bytes: int = 0
    fabrics: tuple[Fabric, ...] = ()
    kernel: str = ""
    driver: str = ""
    """The GPU driver's version; empty without one."""

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of that UUID, or None."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


@attrs.frozen
class Problem:
    """Something wrong with a node or one of its GPUs, open until the agent's list lacks it."""

    code: str
    """A stable word, as `nvml`, `foreign_memory`, `disk_full`: what a rule or an alert matches."""
    detail: str
    gpu: str = ""
    """UUID; empty: the node as a whole."""
    since_seconds: float = 0.0
    """Age when it was reported."""


@attrs.frozen
class PortRange:
    """The ports that a node's engines may listen on, both ends included."""

    first: int
    last: int
