"""The agent's state directory: one agent at a time, and who this node is.

    lock            held (flock) as long as the agent lives; says who holds it, for the one that is refused
    instance.json   the instance id, and the machine that it is bound to
    shards/         a folder per launch: `llmgw.agent.shims`

The instance id tells two machines with one node name apart, and two agents with different directories on one machine.
It is random and kept here; a directory that was copied to another machine (a cloned image) gets a new one.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import structlog

from llmgw.agent.procfs import read_boot_id
from llmgw.agent.shim_files import read_json, write_json
from llmgw.errors import LlmgwError

LOCK, INSTANCE, SHARDS = "lock", "instance.json", "shards"

log = structlog.get_logger()


class Random(Protocol):
    """What draws the instance id: `random.SystemRandom()`, or a seeded generator in a simulation."""

    def getrandbits(self, bits: int, /) -> int:
        """An integer of that many random bits."""


class StateDirBusyError(LlmgwError):
    """Another agent holds the directory; the text names it."""


@attrs.frozen
class Machine:
    """What binds an instance to a machine."""

    boot_id: str
    machine_id: str
    macs: tuple[str, ...] = ()
    """Of the physical network interfaces; virtual ones come and go."""


@attrs.frozen
class StateDir:
    """The directory, ours while the agent lives."""

    path: Path
    instance: str
    """32 hex digits."""
    boot_id: str
    mark: str
    """16 hex digits, of the instance and the directory: what processes of this agent carry, and no others."""

    @property
    def shards(self) -> Path:
        """Where the folders of the launches are."""
        return self.path / SHARDS


def read_machine(root: Path = Path("/")) -> Machine:
    """What binds an instance to where we run."""
    boot_id = read_boot_id(str(root / "proc"))
    try:
        machine_id = (root / "etc/machine-id").read_text().strip()
    except OSError:
        machine_id = ""  # containers have none
    interfaces = root / "sys/class/net"
    macs = []
    for device in sorted(interfaces.glob("*/device")):
        try:
            macs.append((device.parent / "address").read_text().strip())
        except OSError:
            continue  # the interface went away
    return Machine(boot_id, machine_id, tuple(sorted(macs)))


def same_machine(recorded: Machine, now: Machine) -> bool:
    """Within one boot: yes. Else by machine id and physical interfaces, where both had some; one may be exchanged."""
    if recorded.boot_id == now.boot_id:
        return True
    if recorded.machine_id != now.machine_id:
        return False
    if not recorded.macs or not now.macs:
        return True
    return any(mac in now.macs for mac in recorded.macs)


@contextmanager
def open_state_dir(path: Path, node: str, machine: Machine, rng: Random) -> Iterator[StateDir]:
    """The directory, made where there is none, and locked until the block ends.

    StateDirBusyError: another agent holds it. OSError: it cannot be made or written.
    """
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(lock, path, node)
        (path / SHARDS).mkdir(mode=0o700, exist_ok=True)
        instance = _instance(path, machine, rng)
        mark = hashlib.sha256(f"{instance}\0{path}".encode(errors="surrogateescape")).hexdigest()[:16]
        yield StateDir(path, instance, machine.boot_id, mark)
    finally:
        os.close(lock)


def _lock(lock: int, path: Path, node: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 1024, 0).decode(errors="replace").strip() or "unknown"
        raise StateDirBusyError(
            f"{path} is in use by another agent: {holder}; give each agent on a host a state_dir of its own"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"node {node}, pid {os.getpid()}\n".encode(), 0)


def _instance(path: Path, machine: Machine, rng: Random) -> str:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        recorded = read_json(folder, INSTANCE)
        instance = _kept(recorded, machine)
        if recorded is not None and instance is None:
            log.warning("new instance id", state_dir=str(path), reason="the directory was written by another machine")
        instance = instance or f"{rng.getrandbits(128):032x}"
        write_json(folder, INSTANCE, {"instance": instance, **attrs.asdict(machine)})
    finally:
        os.close(folder)
    return instance


def _kept(recorded: dict[str, object] | None, machine: Machine) -> str | None:
    """The recorded instance if it was drawn on this machine."""
    if recorded is None:
        return None
    instance, macs = recorded.get("instance"), recorded.get("macs")
    if not isinstance(instance, str) or not isinstance(macs, list):
        return None
    before = Machine(str(recorded.get("boot_id")), str(recorded.get("machine_id")), tuple(map(str, macs)))
    return instance if same_machine(before, machine) else None
