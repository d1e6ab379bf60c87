"""Listening sockets: taken over from LISTEN_FDS or bound once, and accepted from for ever.

A socket is bound **without** SO_REUSEPORT: of two processes that want one address the second is refused and can say
so, and worker processes share the one socket that their parent bound. (With a socket per worker the kernel deals
connections to workers that hang or are dying, where nobody accepts them.)
"""

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import structlog
import trio

from llmgw.core.address import Address, is_loopback, parse_address
from llmgw.errors import LlmgwError

__all__ = [
    "Address",
    "AddressTakenError",
    "Inherited",
    "accept_forever",
    "bind",
    "bound_address",
    "holder_of",
    "is_loopback",
    "listens_on",
    "open_listener",
    "parse_address",
    "raise_file_limit",
]

log = structlog.get_logger()

BACKLOG = 4096
"""Connections the kernel may complete before we accept them: a storm of clients after a restart fits in."""

TAKEN_PATIENCE_SECONDS = 10.0
"""How long a taken address is tried: a predecessor's workers need a moment to let go."""

TAKEN_RETRY_SECONDS = 0.1

LEFTOVERS_VANISH_SECONDS = 1.0
"""From SIGKILL of a process to the kernel's closing of its sockets."""

EXHAUSTED_PAUSE_SECONDS = 0.2
"""Pause of accepting when files or memory have run out: long enough for requests to end and free some."""

EXHAUSTED_SAID_EVERY_SECONDS = 10.0

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

FIRST_INHERITED_FD = 3
"""By the LISTEN_FDS convention."""


class AddressTakenError(LlmgwError):
    """Somebody else listens on the address; says who, where that can be seen."""


class Inherited:
    """The listening sockets that a service manager handed over (LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES).

    `take` finds one by the address that it is bound to, else by its name. Read once per process, before anything
    else opens files.
    """

    def __init__(self, sockets: list[tuple[str, socket.socket]]) -> None:
        self._sockets = sockets

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> "Inherited":
        """Those meant for process `pid`; none where the variables are absent or meant for another process."""
        if environ.get("LISTEN_PID") != str(pid):
            return cls([])
        count = environ.get("LISTEN_FDS", "")
        if not (count.isascii() and count.isdecimal()):
            return cls([])
        names = environ.get("LISTEN_FDNAMES", "").split(":")
        found = []
        for index, fd in enumerate(range(FIRST_INHERITED_FD, FIRST_INHERITED_FD + int(count))):
            try:
                inherited = socket.socket(fileno=fd)
            except OSError as error:
                log.warning("inherited file descriptor is no socket", fd=fd, error=str(error))
                continue
            inherited.setblocking(False)
            os.set_inheritable(fd, False)
            found.append((names[index] if index < len(names) else "", inherited))
        return cls(found)

    def take(self, address: Address, name: str) -> socket.socket | None:
        """The socket bound to `address`, else the one named `name`; None: bind your own."""
        wanted = _resolve(address)
        by_address = [entry for entry in self._sockets if any(_same(entry[1].getsockname(), to) for _, to in wanted)]
        by_name = [entry for entry in self._sockets if entry[0] == name]
        for entry in (*by_address, *by_name):
            self._sockets.remove(entry)
            return entry[1]
        return None

    def close(self) -> None:
        """Close those that nobody took; an operator handed them over for nothing, so it is said."""
        for name, unused in self._sockets:
            log.warning("inherited socket is not used", name=name, address=str(bound_address(unused)))
            unused.close()
        self._sockets.clear()


def bind(address: Address) -> socket.socket:
    """A non-blocking listening socket on the first of the host's addresses that can be bound.

    Raises AddressTakenError where somebody listens there already, OSError otherwise.
    """
    bound = _bind_unless_taken(address)
    if bound is None:
        raise AddressTakenError(f"{address} is taken by {holder_of(address)}")
    return bound


async def open_listener(
    address: Address,
    *,
    name: str,
    inherited: Inherited,
    end_leftovers: Callable[[], None] | None = None,
    patience_seconds: float = TAKEN_PATIENCE_SECONDS,
) -> socket.socket:
    """The listening socket for `address`: inherited, else bound, trying for `patience_seconds` while it is taken.

    `end_leftovers` is called once, when patience is over: it ends processes of our own that ought to have let go;
    then the address is tried for as long as they need to vanish. Raises AddressTakenError.
    """
    found = inherited.take(address, name) or _bind_unless_taken(address)
    if found is None:
        log.warning("address is taken, trying on", address=str(address), holder=holder_of(address))
        found = await _bind_within(address, patience_seconds)
    if found is None and end_leftovers is not None:
        end_leftovers()
        found = await _bind_within(address, LEFTOVERS_VANISH_SECONDS)
    return found or bind(address)


async def _bind_within(address: Address, patience_seconds: float) -> socket.socket | None:
    deadline = trio.current_time() + patience_seconds
    while trio.current_time() < deadline:
        await trio.sleep(TAKEN_RETRY_SECONDS)
        bound = _bind_unless_taken(address)
        if bound is not None:
            return bound
    return None


def _bind_unless_taken(address: Address) -> socket.socket | None:
    """As `bind`, with None for an address that somebody listens on."""
    failure: OSError | None = None
    for family, to in _resolve(address):
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # [::] serves IPv4 clients too, which is what whoever writes it means.
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(to)
            bound.listen(BACKLOG)
        except OSError as error:
            bound.close()
            failure = failure or error
        else:
            return bound
    assert failure is not None
    if failure.errno == errno.EADDRINUSE:
        return None
    raise failure


async def accept_forever(
    listener: trio.socket.SocketType,
    start: Callable[[trio.socket.SocketType], None],
) -> NoReturn:
    """Call `start` with each accepted connection (TCP_NODELAY set where it is TCP); it must not block.

    When files or memory run out it says so and pauses, since the connections in hand are what frees them.
    Ends by cancellation or by OSError when the listener is closed.
    """
    said_at = -EXHAUSTED_SAID_EVERY_SECONDS
    tcp = listener.family in {socket.AF_INET, socket.AF_INET6}
    while True:
        try:
            connection, _ = await listener.accept()
        except OSError as error:
            if error.errno in EXHAUSTED:
                if trio.current_time() >= said_at + EXHAUSTED_SAID_EVERY_SECONDS:
                    said_at = trio.current_time()
                    log.error(  # noqa: TRY400  a traceback says nothing here
                        "accepting pauses", reason=os.strerror(error.errno), pause_s=EXHAUSTED_PAUSE_SECONDS
                    )
                await trio.sleep(EXHAUSTED_PAUSE_SECONDS)
                continue
            if error.errno == errno.EBADF or listener.fileno() < 0:
                raise
            # The connection failed before it was accepted (ECONNABORTED and its kin): that peer's affair.
            continue
        if tcp:
            with contextlib.suppress(OSError):  # reset already: the first read will say so
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start(connection)


def bound_address(listener: socket.socket | trio.socket.SocketType) -> Address:
    """Where a socket is bound; with port 0 asked for, the one it got."""
    name = listener.getsockname()
    if not isinstance(name, tuple):
        return Address(str(name) or "unnamed", 0)
    return Address(str(name[0]), int(name[1]))


def raise_file_limit() -> int:
    """Raise this process's soft limit of open files to the hard one; the limit in force.

    The usual soft limit of 1024 is 500 streams: a client and an engine each.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def holder_of(address: Address, proc: Path = Path("/proc")) -> str:
    """Who listens on `address`' port: `llmgw-control, pid 123`, or that it cannot be seen."""
    inodes = _listening_inodes(address.port, proc)
    for process in sorted(proc.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        if any(inode in inodes for inode in _socket_inodes(process)):
            return f"{_command(process)}, pid {process.name}"
    return "a process that is not visible to this user"


def listens_on(pid: int, port: int, proc: Path = Path("/proc")) -> bool:
    """Whether process `pid` holds a socket that listens on `port`."""
    inodes = _listening_inodes(port, proc)
    return any(inode in inodes for inode in _socket_inodes(proc / str(pid)))


def _resolve(address: Address) -> list[tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, to) for family, _, _, _, to in found if len(to) in {2, 4}]  # type: ignore[misc]


def _same(bound: object, wanted: tuple[object, ...]) -> bool:
    return isinstance(bound, tuple) and bound[:2] == wanted[:2]


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, _, state, *rest = line.split()[1:]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                inodes.add(rest[5])
    return inodes


def _socket_inodes(process: Path) -> list[str]:
    inodes = []
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # that file was closed meanwhile
                link = str(entry.readlink())
                if link.startswith("socket:["):
                    inodes.append(link[len("socket:[") : -1])
    return inodes


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "a process"
    return b" ".join(word for word in words[:3] if word).decode(errors="replace")[:100] or "a process"
