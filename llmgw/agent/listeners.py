"""Whose listener is on a port: the sockets in LISTEN state of /proc/net/tcp and tcp6, by inode to the descriptors of
the processes of a launch. An answer on the port proves nothing: it may come from whoever had it before.
"""

import os
from collections.abc import Iterable, Mapping

import attrs

from llmgw.agent.launch import Listener, Ours, Stranger, Unknown
from llmgw.agent.processes import Identity, find_survivors
from llmgw.agent.procfs import PROC, Stat, every_stat

LISTEN = "0A"
"""The state's number in /proc/net/tcp."""
MAPPED = "0000000000000000FFFF0000"
"""An IPv4 address within IPv6, as /proc writes it."""
COMMAND_CHARS_MAX = 120
"""Enough for a path; only the program is named, since arguments of a stranger may hold secrets."""


@attrs.frozen
class Socket:
    """One listening socket."""

    inode: int
    uid: int
    address: str
    """In hexadecimal, as /proc writes it; empty: any address."""

    def meets(self, other: "Socket") -> bool:
        """Whether some client could reach either of the two."""
        return not self.address or not other.address or self.address == other.address


def listening_sockets(port: int, root: str = PROC) -> list[Socket]:
    """Every socket that listens on the port, at whatever address."""
    found: list[Socket] = []
    needle = f":{port:04X} "
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{root}/net/{name}") as file:  # noqa: PTH123
                lines = [line for line in file if needle in line]
        except FileNotFoundError:
            continue  # no IPv6 on this machine
        for fields in map(str.split, lines):
            address, _, local_port = fields[1].partition(":")
            if fields[3] == LISTEN and int(local_port, 16) == port:
                address = address.removeprefix(MAPPED) if len(address) > len(MAPPED) else address
                found.append(Socket(int(fields[9]), int(fields[7]), address if address.strip("0") else ""))
    return found


@attrs.frozen
class Held:
    """Which sockets a number of processes hold."""

    inodes: frozenset[int]
    unreadable: tuple[int, ...]
    """Pids whose descriptors are not ours to read: another user's, or a process that may not be looked into."""


def held_sockets(stats: Iterable[Stat], root: str = PROC) -> Held:
    """The inodes of all sockets that these processes have open."""
    inodes: set[int] = set()
    unreadable: list[int] = []
    for stat in stats:
        try:
            names = os.listdir(f"{root}/{stat.pid}/fd")  # noqa: PTH208
            links = [_read_link(f"{root}/{stat.pid}/fd/{name}") for name in names]
        except PermissionError:
            unreadable.append(stat.pid)
            continue
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        inodes.update(int(link[8:-1]) for link in links if link.startswith("socket:["))
    return Held(frozenset(inodes), tuple(unreadable))


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except FileNotFoundError:
        return ""  # closed meanwhile


@attrs.frozen
class Foreign:
    """Sockets that none of ours holds."""

    sockets: tuple[Socket, ...]
    shared: bool
    """Ours listens there too."""


def find_listener(port: int, identity: Identity, *, port_was_free: bool, root: str = PROC) -> Listener:
    """Whose listener is on the port now.

    `port_was_free`: the shim tested it just before it executed the engine.
    """
    sockets = listening_sockets(port, root)
    if not sockets:
        return None
    held = held_sockets(find_survivors(identity, root).ours, root)
    uids = {pid: read_uid(pid, root) for pid in held.unreadable}
    found = judge(sockets, held, uids, port_was_free=port_was_free)
    return _name_stranger(found, root) if isinstance(found, Foreign) else found


def judge(
    sockets: Iterable[Socket], held: Held, uids: Mapping[int, int | None], *, port_was_free: bool
) -> Ours | Unknown | Foreign:
    """`uids`: of the processes of ours whose descriptors cannot be read (we are not root, and the engine may not be
    looked into). There the user id of the socket has to do, if the port was free before; the note says so.
    """
    ours = [socket for socket in sockets if socket.inode in held.inodes]
    others = [socket for socket in sockets if socket.inode not in held.inodes]
    if ours:
        others = [other for other in others if any(other.meets(socket) for socket in ours)]
    if not others:
        return Ours()
    if not uids or any(other.uid not in uids.values() for other in others):
        return Foreign(tuple(others), shared=bool(ours))
    unreadable = f"the descriptors of process {min(uids)} cannot be read"
    if not port_was_free:
        return Unknown(f"{unreadable}, and the port was not tested before the launch")
    return Ours(f"judged by user id {others[0].uid}: {unreadable}; the port was free just before the launch")


def _name_stranger(foreign: Foreign, root: str) -> Stranger:
    wanted = {socket.inode for socket in foreign.sockets}
    for stat in every_stat(root):
        if wanted & held_sockets((stat,), root).inodes:
            return Stranger(stat.pid, read_command(stat.pid, root), foreign.shared)
    return Stranger(None, f"a process of user id {foreign.sockets[0].uid}", foreign.shared)


def read_uid(pid: int, root: str = PROC) -> int | None:
    """The effective user of a process, also of one that may not be looked into; None: it has ended."""
    try:
        with open(f"{root}/{pid}/status", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[2])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


def read_command(pid: int, root: str = PROC) -> str:
    """The program of a process, without its arguments; empty: it has ended."""
    for name in ("cmdline", "comm"):  # a kernel thread and a zombie have no command line
        try:
            with open(f"{root}/{pid}/{name}", "rb") as file:  # noqa: PTH123
                text = file.read().partition(b"\0")[0].strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if text:
            return os.fsdecode(text)[:COMMAND_CHARS_MAX]
    return ""
