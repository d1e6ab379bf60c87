"""Whose listener is on a port: by inode, and where that cannot be read by user and a port that was free."""

import os
import socket
from pathlib import Path

import pytest
from fake_proc import BOOT, FakeProc

from llmgw.agent.launch import Ours, Stranger, Unknown
from llmgw.agent.listeners import (
    Foreign,
    Held,
    Socket,
    find_listener,
    held_sockets,
    judge,
    listening_sockets,
    read_command,
    read_uid,
)
from llmgw.agent.processes import Identity
from llmgw.agent.procfs import read_stat

SHIM, START, PORT = 50, 1000, 20001
IDENTITY = Identity("m", BOOT, SHIM, START)
ANY4, ANY6 = "00000000", "0" * 32
LOOPBACK4, LOOPBACK6 = "0100007F", "00000000000000000000000001000000"
MAPPED_LOOPBACK = "0000000000000000FFFF0000" + LOOPBACK4
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def listen(proc: FakeProc, address: str, inode: int, *, port: int = PORT, uid: int = 1000, state: str = "0A") -> None:
    file = proc.path / "net" / ("tcp" if len(address) == 8 else "tcp6")
    file.parent.mkdir(exist_ok=True)
    before = file.read_text() if file.exists() else HEAD
    peer = "0" * len(address) + ":0000"
    queues = "00000000:00000000 00:00000000 00000000"
    file.write_text(before + f"   0: {address}:{port:04X} {peer} {state} {queues} {uid:5d}        0 {inode} 1\n")


@pytest.fixture
def world(proc: FakeProc) -> FakeProc:
    """A shim, its engine with socket 700 in a worker with a session of its own, and a stranger with socket 900."""
    proc.add(SHIM, session=SHIM, start=START)
    proc.add(51, parent=SHIM, session=SHIM, start=START + 1, inodes=(600,))
    proc.add(52, parent=51, session=52, start=START + 2, inodes=(700, 701))
    proc.add(80, session=80, start=5, name="nginx", inodes=(900,), uid=33)
    return proc


def test_nobody_listens(world: FakeProc) -> None:
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=world.root) is None
    listen(world, ANY4, 700, state="01")
    listen(world, ANY4, 700, port=PORT + 1)
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=world.root) is None


@pytest.mark.parametrize("address", [ANY4, LOOPBACK4, ANY6, LOOPBACK6])
def test_ours_by_inode(world: FakeProc, address: str) -> None:
    listen(world, address, 700)
    assert find_listener(PORT, IDENTITY, port_was_free=False, root=world.root) == Ours()


def test_c05_a_stranger_alone_is_named_without_its_arguments(world: FakeProc) -> None:
    listen(world, ANY4, 900, uid=33)
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=world.root) == Stranger(80, "/opt/nginx")


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        (ANY4, ANY4, True),
        (LOOPBACK4, ANY4, True),
        (ANY4, LOOPBACK4, True),
        (LOOPBACK4, LOOPBACK4, True),
        (MAPPED_LOOPBACK, LOOPBACK4, True),
        (ANY6, ANY4, True),
        (LOOPBACK4, "0200007F", False),
        (LOOPBACK4, LOOPBACK6, False),
    ],
)
def test_c05_a_stranger_beside_ours_is_a_conflict_where_clients_could_reach_either(
    world: FakeProc, ours: str, theirs: str, shared: bool
) -> None:
    listen(world, ours, 700)
    listen(world, theirs, 900, uid=33)
    expected = Stranger(80, "/opt/nginx", shared=True) if shared else Ours()
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=world.root) == expected


def test_several_of_ours_share_the_port(world: FakeProc) -> None:
    listen(world, ANY4, 600)
    listen(world, ANY4, 700)
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=world.root) == Ours()


def test_a_stranger_of_another_user_is_named_by_its_user(world: FakeProc) -> None:
    listen(world, ANY4, 12345, uid=77)
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=world.root) == Stranger(
        None, "a process of user id 77"
    )


def test_with_the_shim_dead_the_session_decides(proc: FakeProc) -> None:
    proc.add(51, session=SHIM, start=START + 1, inodes=(700,), environ={"LLMGW_MARK": "m"})
    proc.add(52, session=52, start=START + 1, inodes=(701,), environ={"LLMGW_MARK": "m"})
    listen(proc, ANY4, 700)
    assert find_listener(PORT, IDENTITY, port_was_free=True, root=proc.root) == Ours()
    listen(proc, ANY4, 701, port=PORT + 1)
    assert find_listener(PORT + 1, IDENTITY, port_was_free=True, root=proc.root) == Stranger(
        52, "/opt/engine", shared=False
    )


@pytest.mark.parametrize(
    ("sockets", "uids", "free", "expected"),
    [
        ([(700, 1000)], {51: 1000}, True, "by user"),
        ([(700, 1000)], {51: 1000, 52: 0}, True, "by user"),
        ([(700, 1000)], {51: 1000}, False, "untested"),
        ([(700, 33)], {51: 1000}, True, "foreign"),
        ([(700, 1000), (701, 33)], {51: 1000}, True, "foreign"),
        ([(700, 1000)], {}, True, "foreign"),
        ([(700, 1000)], {51: None}, True, "foreign"),
        ([(600, 1000), (700, 1000)], {51: 1000}, True, "by user"),
        ([(600, 1000), (700, 33)], {51: 1000}, True, "shared"),
        ([(600, 1000)], {51: 1000}, False, "ours"),
    ],
)
def test_where_descriptors_cannot_be_read_user_and_a_free_port_decide(
    sockets: list[tuple[int, int]], uids: dict[int, int | None], free: bool, expected: str
) -> None:
    """600 is known to be ours; whoever holds the others is one of `uids`, or a stranger."""
    listening = tuple(Socket(inode, uid, "") for inode, uid in sockets)
    others = tuple(socket for socket in listening if socket.inode != 600)
    unreadable = "the descriptors of process 51 cannot be read"
    assert (
        judge(listening, Held(frozenset({600}), tuple(uids)), uids, port_was_free=free)
        == {
            "ours": Ours(),
            "by user": Ours(f"judged by user id 1000: {unreadable}; the port was free just before the launch"),
            "untested": Unknown(f"{unreadable}, and the port was not tested before the launch"),
            "foreign": Foreign(others, shared=False),
            "shared": Foreign(others, shared=True),
        }[expected]
    )


def test_descriptors_that_cannot_be_read(proc: FakeProc) -> None:
    """Root reads them all, so this one takes an ordinary user."""
    if os.geteuid() == 0:
        pytest.skip("root reads every descriptor")
    proc.add(51)
    stat = read_stat(51, proc.root)
    assert stat is not None
    (proc.path / "51/fd").chmod(0)
    held = held_sockets((stat,), proc.root)
    (proc.path / "51/fd").chmod(0o700)
    assert held == Held(frozenset(), (51,))


def test_the_pieces_with_real_sockets() -> None:
    """This process listens on both families; its own sockets are found by inode and named by its program."""
    me = read_stat(os.getpid())
    assert me is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (found,) = listening_sockets(port)
        assert found == Socket(os.fstat(listener.fileno()).st_ino, os.geteuid(), LOOPBACK4)
        assert found.inode in held_sockets((me,)).inodes
    assert listening_sockets(port) == []
    assert read_uid(os.getpid()) == os.geteuid()
    assert read_command(os.getpid()) == Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()


def test_processes_that_end_meanwhile(proc: FakeProc) -> None:
    proc.add(51)
    stat = read_stat(51, proc.root)
    assert stat is not None
    assert held_sockets((stat._replace(pid=52),), proc.root) == Held(frozenset(), ())
    assert read_uid(52, proc.root) is None
    assert read_command(52, proc.root) == ""
