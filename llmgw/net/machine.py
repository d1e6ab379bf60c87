"""What can be found on this machine by whoever sets it up: its addresses, free ports, model files.

Everything here is bounded in what it looks at. A file system or a driver that hangs is the caller's to give up on.
"""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import trio

from llmgw.core.address import Address
from llmgw.errors import RefusedError

SIOCGIFADDR = 0x8915
"""The ioctl that tells an interface's IPv4 address."""

NO_LINK = ("fe80",)
"""An IPv6 address of one link only, which means nothing without the name of an interface."""

PORTS_TRIED_MAX = 100

MODEL_FOLDERS = ("models", ".cache/llama.cpp", ".cache/huggingface/hub", ".lmstudio/models")
"""Below somebody's home, where programs put models."""
SHARED_MODEL_FOLDERS = ("/models", "/srv/models", "/opt/models", "/data/models", "/var/lib/llmgw/models")

ENTRIES_MAX = 20_000
"""Of folders that are looked through for models: a second of a local disk."""
DEPTH_MAX = 4
"""Below a folder of models: a hub's cache has models--NAME/snapshots/REVISION/FILE."""
GGUF = b"GGUF"
"""What a model file begins with."""


@attrs.frozen
class InterfaceAddress:
    """One address of this machine, as others may reach it."""

    host: str
    interface: str

    def __str__(self) -> str:
        return f"{self.host} ({self.interface})"


@attrs.frozen
class ModelFile:
    """One model in GGUF format."""

    path: Path
    size_bytes: int

    @property
    def name(self) -> str:
        """What clients may call it: the file's name without its end, `-00001-of-00003` of a split one included."""
        stem = self.path.stem
        head, dash, tail = stem.rpartition("-00001-of-")
        return head if dash and tail.isdecimal() else stem


def addresses(proc: Path = Path("/proc")) -> tuple[InterfaceAddress, ...]:
    """The addresses of this machine but those of loopback and of a single link; IPv4 first."""
    found = [*_ipv4(), *_ipv6(proc)]
    return tuple(found)


def free_address(host: str, port: int, taken: Iterable[int] = ()) -> Address:
    """`host` with the first port from `port` on that nobody listens on and that is not in `taken`."""
    excluded = tuple(taken)
    for candidate in range(port, min(port + PORTS_TRIED_MAX, 65536)):
        if candidate not in excluded and _can_listen(Address(host, candidate)):
            return Address(host, candidate)
    return Address(host, port)


def listening_ports(proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Every TCP port that somebody on this machine listens on, at whatever address."""
    ports = {
        int(local.rpartition(":")[2], 16)
        for table in ("tcp", "tcp6")
        for local, state in _sockets(proc / "net" / table)
        if state == "0A"
    }
    return tuple(sorted(ports))


def ephemeral_ports(proc: Path = Path("/proc")) -> tuple[int, int]:
    """The range that the kernel takes for outgoing connections, both ends included."""
    try:
        first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return (32768, 60999)
    return int(first), int(last)


def model_folders(folders: Iterable[Path], home: Path | None) -> tuple[Path, ...]:
    """Where models usually are: the given folders first, then those of the user and of the machine, if they exist."""
    usual = [*folders, *([home / name for name in MODEL_FOLDERS] if home is not None else [])]
    usual += [Path(name) for name in SHARED_MODEL_FOLDERS]
    return tuple(folder for folder in dict.fromkeys(usual) if folder.is_dir())


def find_models(folders: Iterable[Path], entries_max: int = ENTRIES_MAX) -> tuple[ModelFile, ...]:
    """The models in GGUF format below the folders, the smallest first, each file once.

    Parts of a split model but its first, and projectors (`mmproj`), are none of their own.
    """
    found: dict[Path, ModelFile] = {}
    left = entries_max
    for folder in folders:
        for path in _entries(folder, DEPTH_MAX):
            left -= 1
            if left < 0:
                break
            model = _model(path)
            if model is not None:
                found.setdefault(path.resolve(), model)
    return tuple(sorted(found.values(), key=lambda model: (model.size_bytes, model.path)))


async def find_models_in_time(folders: Sequence[Path], seconds: float) -> tuple[tuple[ModelFile, ...], str]:
    """What `find_models` gives, or nothing and why: the server of a network file system may be away."""
    with trio.move_on_after(seconds):
        return await trio.to_thread.run_sync(find_models, folders, abandon_on_cancel=True), ""
    return (), f"looking for models in {', '.join(map(str, folders))} took more than {seconds:g} s"


def must_be_new(file: Path) -> None:
    """RefusedError where the file exists: before time is spent on what to write."""
    if file.exists():
        raise RefusedError(f"{file} exists already, and is left as it is: name another folder")


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet, with its folder. RefusedError with what to do."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"the folder {file.parent} cannot be made: {error.strerror}") from None
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise RefusedError(f"{file} exists already, and is left as it is: name another folder") from None
    except OSError as error:
        raise RefusedError(f"{file} cannot be written: {error.strerror}") from None


def gpus_of_the_driver(proc: Path = Path("/proc")) -> int:
    """How many GPUs the kernel's driver knows; it is not asked, so that nothing can hang."""
    with contextlib.suppress(OSError):
        return len(list((proc / "driver/nvidia/gpus").iterdir()))
    return 0


def _ipv4() -> Iterator[InterfaceAddress]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
                host = socket.inet_ntoa(answer[20:24])
                if not host.startswith("127."):
                    yield InterfaceAddress(host, name)


def _ipv6(proc: Path) -> Iterator[InterfaceAddress]:
    """From lines as `fe80...01 02 40 20 80 eth0`."""
    try:
        lines = (proc / "net/if_inet6").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, *_, name = line.split()
        if not number.startswith(NO_LINK) and name != "lo":
            yield InterfaceAddress(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)), name)


def _can_listen(address: Address) -> bool:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError:
        return False
    return True


def _sockets(table: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        _, local, _, state, *_ = line.split()
        yield local, state


def _entries(folder: Path, depth: int) -> Iterator[Path]:
    """Everything below the folder. Links to folders are not followed: they may go in circles."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):  # gone meanwhile
            yield Path(entry.path)
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), depth - 1)


def _model(path: Path) -> ModelFile | None:
    stem = path.stem
    _, dash, count = stem.rpartition("-of-")
    is_part = bool(dash) and count.isdecimal() and not stem.endswith(f"-00001-of-{count}")
    if path.suffix != ".gguf" or not str(path).isprintable() or "mmproj" in stem.lower() or is_part:
        return None
    try:
        with path.open("rb") as opened:
            if opened.read(len(GGUF)) != GGUF:
                return None
            return ModelFile(path, os.fstat(opened.fileno()).st_size)
    except OSError:
        return None
