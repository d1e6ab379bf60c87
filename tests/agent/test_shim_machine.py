"""The shim with real engines: session, tree, ports, output, clients. What it says on its socket is in test_shim."""

import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from real_shims import HANG_SECONDS, RawShim, Talk, talk, until
from short_paths import short

from llmgw.agent.procfs import descendants, every_stat, read_environment, read_stat
from llmgw.agent.shim_machine import CLIENTS_MAX, UNSAVED_SECONDS, UNTOLD_SECONDS, Shim
from llmgw.agent.shim_protocol import LINE_BYTES_MAX, read_request

StartRaw = Callable[..., RawShim]

# --- session, tree, memory ------------------------------------------------------------------------------------------


def test_session_group_mark_and_score(start_raw: StartRaw) -> None:
    """The engine has a group of its own in the shim's session, the mark, and a score no better than the shim's."""
    shim = start_raw(["sleep", "1000"], env={"PATH": os.environ["PATH"], "ONLY": "this"})
    pid = shim.process.pid
    assert shim.reply() == {"v": 1, "shim_pid": pid}
    with talk(shim) as client:
        engine = client.until(phase="running")["engine_pid"]
    assert os.getsid(pid) == pid == os.getsid(engine)
    assert os.getpgid(engine) == engine != os.getpgid(pid)
    environment = read_environment(engine)
    assert environment == {
        "PATH": os.environ["PATH"],
        "ONLY": "this",
        "SPT_NOENV": "1",
        "LLMGW_MARK": f"test.{shim.folder.name}",
    }
    before = int(Path("/proc/self/oom_score_adj").read_text())
    of_shim, of_engine = (int(Path(f"/proc/{one}/oom_score_adj").read_text()) for one in (pid, engine))
    assert (of_shim, of_engine) in {(-900, before), (before, before + 300)}
    assert Path(f"/proc/{engine}/fd/0").readlink() == Path(os.devnull)
    assert [str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in (0, 1)] == [os.devnull, os.devnull]


TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(int(sys.argv[1])):
    if not os.fork():
        if n % 2:
            os.setsid()
        if n % 3 and not os.fork():
            os.setsid()
        time.sleep(1000)
print("up", flush=True)
time.sleep(1000)
"""


def test_sigkill_reaches_every_descendant_in_whatever_session(start_raw: StartRaw) -> None:
    shim = start_raw([sys.executable, "-I", "-S", "-c", TREE, "30"])
    shim.reply()
    pid = shim.process.pid
    # the engine, thirty children, and a grandchild of two in three
    tree = until(lambda: descendants(pid), lambda found: len(found) == 1 + 30 + 20)
    assert len({stat.session for stat in tree}) > 20
    with talk(shim) as client:
        client.ask("attach")
        began = time.monotonic()
        client.ask("stop", grace_seconds=0)
        assert client.receive()["exit"]["signal"] == signal.SIGKILL
        assert client.receive()["event"] == "gone"
        assert time.monotonic() - began < 2.0
    assert [stat for stat in tree if (now := read_stat(stat.pid)) and now.start_time == stat.start_time] == []


def test_what_the_engine_leaves_behind_is_ended_with_it(start_raw: StartRaw) -> None:
    """`exited` comes first, `gone` when no process is left."""
    shim = start_raw(["sh", "-c", "setsid sleep 1000 & sleep 1000 & exit 3"])
    shim.reply()
    with talk(shim) as client:
        state = client.until(phase="gone")
    assert state["exit"]["code"] == 3
    assert not [stat for stat in every_stat() if stat.parent == shim.process.pid]


DOUBLE_FORK = """
import os
for n in range(300):
    pid = os.fork()
    if not pid:
        if os.fork():
            os._exit(n % 7)
        os._exit(n % 5)
    if n % 2:
        os.waitpid(pid, 0)
os._exit(42)
"""


def test_c15_the_engines_own_exit_code_among_hundreds_of_orphans(start_raw: StartRaw) -> None:
    shim = start_raw([sys.executable, "-I", "-S", "-c", DOUBLE_FORK])
    shim.reply()
    with talk(shim) as client:
        assert client.until(phase="gone")["exit"]["code"] == 42
    assert not [stat for stat in every_stat() if stat.parent == shim.process.pid]


def test_second_term_at_the_end_of_the_grace(start_raw: StartRaw) -> None:
    """An engine that hangs on the first SIGTERM ends by the second, with its own exit code and no SIGKILL."""
    code = "trap 'echo once; trap \"exit 5\" TERM' TERM; echo up; while :; do sleep 0.01; done"
    shim = start_raw(["sh", "-c", code])
    shim.reply()
    with talk(shim) as client:
        until(lambda: client.ask("output", bytes_max=9)["data"], bool)
        client.ask("attach")
        client.ask("stop", grace_seconds=0.1, second_term=True)
        ended = client.receive()["exit"]
    assert (ended["code"], ended["kill_sent"], ended["stop_requested"]) == (5, False, True)


def test_sigterm_to_the_shim_stops_its_engine_with_the_grace_of_the_launch(start_raw: StartRaw) -> None:
    code = "trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done"
    shim = start_raw(["sh", "-c", code], grace_seconds=HANG_SECONDS)
    shim.reply()
    with talk(shim) as client:
        until(lambda: client.ask("output", bytes_max=9)["data"], bool)
    shim.process.terminate()
    assert shim.wait() == 0
    ended = json.loads((shim.folder / "exit.json").read_text())
    assert (ended["code"], ended["stop_requested"], ended["gone"]) == (6, True, True)
    assert not (shim.folder / "shim.sock").exists()


def test_hangup_and_interrupt_do_nothing(start_raw: StartRaw) -> None:
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    shim.process.send_signal(signal.SIGHUP)
    shim.process.send_signal(signal.SIGINT)
    with talk(shim) as client:
        client.until(phase="running", stop_requested=False)


# --- ports, memory, output ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reuse", [False, True], ids=["plain", "SO_REUSEPORT"])
def test_c05_a_taken_port_means_that_nothing_is_launched(start_raw: StartRaw, tmp_path: Path, reuse: bool) -> None:
    with socket.socket() as other, socket.socket() as free:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse))
        other.bind(("127.0.0.1", 0))
        other.listen()
        free.bind(("127.0.0.1", 0))
        ports = [free.getsockname()[1], other.getsockname()[1]]
        free.close()
        shim = start_raw(["touch", str(tmp_path / "launched")], ports=ports)
        shim.reply()
        with talk(shim) as client:
            state = client.until(phase="gone")
    assert state["exit"]["port_taken"] == ports[1]
    assert (state["exit"]["code"], state["exit"]["signal"], state["engine_pid"]) == (None, None, None)
    assert not (tmp_path / "launched").exists()


def test_free_ports_are_recorded_as_tested(start_raw: StartRaw) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shim = start_raw(["sleep", "1000"], ports=[port])
    shim.reply()
    with talk(shim) as client:
        assert client.until(phase="running")["ports_free"] is True
    assert json.loads((shim.folder / "record.json").read_text())["ports_free"] is True


CGROUP_KILL = """
import os, signal, sys
kills = int(sys.argv[2])
with open(sys.argv[1] + "/memory.events", "w") as file:
    file.write(f"low 0\\nhigh 0\\nmax 9\\noom {kills}\\noom_kill {kills}\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kills", [0, 1])
def test_c11_the_counter_of_the_cgroup_over_the_engines_life(start_raw: StartRaw, tmp_path: Path, kills: int) -> None:
    """It stood at 3 before: only what it rose by is told."""
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "memory.events").write_text("oom 3\noom_kill 3\n")
    argv = [sys.executable, "-I", "-S", "-c", CGROUP_KILL, str(tmp_path), str(3 + kills)]
    shim = start_raw(argv, cgroup=str(tmp_path))
    shim.reply()
    with talk(shim) as client:
        ended = client.until(phase="gone")["exit"]
    assert (ended["signal"], ended["oom_kills"]) == (9, kills)
    assert (tmp_path / "cgroup.procs").read_text() == "0"


def test_a_cgroup_that_cannot_be_entered_fails_the_launch(start_raw: StartRaw) -> None:
    shim = start_raw(["sleep", "1000"], cgroup="/nowhere")
    shim.reply()
    with talk(shim) as client:
        error = client.until(phase="gone")["exit"]["launch_error"]
    assert error == "cannot enter the cgroup /nowhere: No such file or directory"


def test_a_full_disk_never_blocks_the_engine_and_is_counted(start_raw: StartRaw, tmp_path: Path) -> None:
    """Output to /dev/full: three megabytes are more than any pipe holds, so an engine that waited would never end."""
    code = "import os; [os.write(1, bytes(65536)) for _ in range(48)]"
    (tmp_path / "raw-0").mkdir()
    (tmp_path / "raw-0/output.log").symlink_to("/dev/full")
    shim = start_raw([sys.executable, "-I", "-S", "-c", code])
    shim.reply()
    with talk(shim) as client:
        state = client.until(phase="gone")
    assert (state["exit"]["code"], state["dropped_bytes"]) == (0, 48 * 65536)
    assert json.loads((shim.folder / "exit.json").read_text())["dropped_bytes"] == 48 * 65536


def test_a_record_that_finds_no_room_is_kept_and_told(start_raw: StartRaw) -> None:
    """The folder's exit.json cannot be replaced: the shim says so and goes on answering."""
    shim = start_raw(["sh", "-c", "exec sleep 1000"])
    shim.reply()
    with talk(shim) as client:
        client.until(phase="running")
        (shim.folder / "exit.json.new").mkdir()
        client.ask("stop", grace_seconds=5)
        state = client.until(phase="gone")
        assert state["unsaved"] == ["exit.json"]
        assert state["exit"]["gone"] is True
        client.ask("forget")
    assert shim.wait() == 0


# --- clients --------------------------------------------------------------------------------------------------------


def test_many_clients_lines_in_pieces_and_clients_that_never_read(start_raw: StartRaw) -> None:
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    with talk(shim) as one, talk(shim) as deaf, talk(shim) as long:
        one.until(phase="running")
        for client in (one, deaf):
            client.ask("attach")
        deaf.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):  # the shim takes no more from who does not read
            deaf.sock.sendall(b'{"v": 1, "command": "hello"}\n' * 1_000_000)
        long.sock.sendall(b"x" * (LINE_BYTES_MAX + 1))
        assert "longer than" in long.receive()["error"]
        for byte in b'{"v": 1, "id": 5, "command": "state"}\n':
            one.sock.sendall(bytes((byte,)))
        assert one.receive()["ok"]["phase"] == "running"
        for _ in range(3):
            with talk(shim) as brief:
                brief.sock.sendall(b'{"v": 1, "comm')
        one.ask("stop", grace_seconds=5)
        assert [one.receive()["event"] for _ in range(2)] == ["exited", "gone"]


def test_more_clients_than_allowed_are_told_so(start_raw: StartRaw) -> None:
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(CLIENTS_MAX + 1)]
    try:
        with short(shim.folder) as near:
            for client in clients:
                client.settimeout(HANG_SECONDS)
                client.connect(f"{near}/shim.sock")
                client.sendall(b'{"v": 1, "id": 1, "command": "state"}\n')
        answers = [Talk(client).receive() for client in clients]
    finally:
        for client in clients:
            client.close()
    assert ["ok" in answer for answer in answers] == [True] * CLIENTS_MAX + [False]
    assert answers[-1]["error"] == f"there are {CLIENTS_MAX} clients already"


def test_a_path_beyond_the_limit_of_sockets(tmp_path: Path, start_raw: StartRaw) -> None:
    """The folder may lie deeper than a socket's 108 bytes: the shim binds through its descriptor."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    assert len(str(deep)) > 108
    moved = deep / "folder"
    shim.folder.rename(moved)  # the shim goes by its descriptor, not by the name
    fd = os.open(moved, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"/proc/self/fd/{fd}/shim.sock")
            Talk(sock).until(phase="running")
            Talk(sock).ask("stop", grace_seconds=5)
            Talk(sock).until(phase="gone")
    finally:
        os.close(fd)
    assert json.loads((moved / "exit.json").read_text())["gone"] is True
    moved.rename(shim.folder)


def test_it_ends_by_itself_when_who_was_told_has_gone(start_raw: StartRaw) -> None:
    """Not as long as one is connected, told or not."""
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    with talk(shim) as watcher:
        with talk(shim) as client:
            client.until(phase="running")
            client.ask("attach")
            client.ask("stop", grace_seconds=5)
            client.until_event("gone")
        watcher.until(phase="gone")
        assert shim.process.poll() is None
    assert shim.wait() == 0
    assert not (shim.folder / "shim.sock").exists()


def test_how_long_it_waits_for_somebody_to_tell(tmp_path: Path) -> None:
    """Nobody came: a while, then the exit record says it all; an hour where that could not be written."""
    folder = os.open(tmp_path, os.O_RDONLY)
    request = {"mark": "m", "agent": "a", "state_dir": "/", "shard": "m/1/0", "epoch": 1, "argv": ["x"], "env": {}}
    shim = Shim(folder, read_request(json.dumps(request).encode()))
    try:
        assert shim.when_to_end(100.0) == 100.0 + UNTOLD_SECONDS
        shim.end_at = 105.0
        assert shim.when_to_end(101.0) == 105.0
        shim.end_at = math.inf
        shim.unsaved = {"exit.json": {}}
        shim.told_gone = True
        assert shim.when_to_end(100.0) == 100.0 + UNSAVED_SECONDS
        shim.end_at = 3700.0
        shim.unsaved = {}
        assert shim.when_to_end(200.0) == 200.0
    finally:
        shim.listener.close()
        for fd in (folder, shim.wake, shim.wake_write):
            os.close(fd)


def test_the_engine_gets_its_arguments_and_default_signals(start_raw: StartRaw) -> None:
    """Element by element, also what is no UTF-8; SIGPIPE, which Python ignores, is as it should be."""
    show = "grep -E 'SigBlk|SigIgn' /proc/self/status; for a; do printf '<%s>' \"$a\"; done"
    arguments = ["a b", "", '{"x": "y z"}', "ü$HOME `id` ;rm", "\udcff"]
    shim = start_raw(["sh", "-c", show, "sh", *arguments])
    shim.reply()
    with talk(shim) as client:
        client.until(phase="gone")
    output = (shim.folder / "output.log").read_bytes()
    assert output.split(b"\n")[:2] == [b"SigBlk:\t0000000000000000", b"SigIgn:\t0000000000000000"]
    assert output.split(b"\n")[2] == b"".join(b"<%s>" % os.fsencode(argument) for argument in arguments)


def test_a_killed_shim_leaves_its_record_and_no_exit(start_raw: StartRaw) -> None:
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    with talk(shim) as client:
        engine = client.until(phase="running")["engine_pid"]
    shim.process.kill()
    assert shim.wait() == -signal.SIGKILL
    record = json.loads((shim.folder / "record.json").read_text())
    assert record["engine_pid"] == engine
    assert not (shim.folder / "exit.json").exists()
    stat = read_stat(engine)
    assert stat is not None
    assert stat.start_time == record["engine_start_time"]
    assert stat.session == record["shim_pid"]
