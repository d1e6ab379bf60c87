import os
import signal
import sys
from pathlib import Path

import pytest

from llmgw.demo.daemons import Daemon, Engine, Interrupts, children_of, left_of, start, wait_until_gone

HANG_SECONDS = 20.0

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def run(code: str, log: Path) -> Daemon:
    return start("llmgw-x", [sys.executable, "-I", "-S", "-c", code], os.environ, log)


def wait_for(log: Path, words: str, daemon: Daemon) -> None:
    while words not in log.read_text():
        assert daemon.ended is None


def test_a_daemon_has_a_session_of_its_own_and_its_output_in_the_log(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getsid(0) == os.getpid()); print('error', file=sys.stderr); sys.exit(3)"
    daemon = run(code, tmp_path / "new/x.log")
    daemon.process.wait(HANG_SECONDS)
    assert daemon.ended == 3
    assert sorted(daemon.tail()) == ["True", "error"]


def test_the_tail_is_the_end_of_a_long_log(tmp_path: Path) -> None:
    daemon = run("for n in range(100000): print('line', n)", tmp_path / "x.log")
    daemon.process.wait(HANG_SECONDS)
    assert daemon.tail() == [f"line {n}" for n in range(99985, 100000)]


def test_stop_asks_first(tmp_path: Path) -> None:
    daemon = run("import time; print('up', flush=True); time.sleep(60)", tmp_path / "x.log")
    assert daemon.stop(HANG_SECONDS)
    assert daemon.ended == -signal.SIGTERM
    assert daemon.stop(0), "one that has ended is stopped"


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    daemon = run(DEAF, tmp_path / "x.log")
    wait_for(tmp_path / "x.log", "deaf", daemon)
    assert not daemon.stop(0.05)
    assert daemon.ended == -signal.SIGKILL
    daemon.kill()


def test_engines_and_all_in_their_session_are_found_until_they_are_gone(tmp_path: Path) -> None:
    """A supervisor that leads a session, an engine in it: the engine is left when the supervisor is killed."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    daemon = run(code, tmp_path / "x.log")
    wait_for(tmp_path / "x.log", "\n", daemon)
    pid = int((tmp_path / "x.log").read_text())
    engine = Engine.of(pid)
    assert engine is not None
    assert engine.session == daemon.process.pid
    assert [child.pid for child in children_of(daemon.process.pid)] == [pid]
    assert left_of([engine]) == sorted([daemon.process.pid, pid])

    daemon.process.kill()
    daemon.process.wait()
    assert wait_until_gone([engine], 0.05) == [pid]
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone([engine], HANG_SECONDS) == []
    assert Engine.of(pid) is None


def write_stat(proc: Path, pid: int, *, parent: int, session: int, started: int, state: str = "S") -> None:
    fields = [state, str(parent), "0", str(session), *["0"] * 15, str(started)]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")


def test_a_session_number_that_was_used_again_is_nobody_of_ours(tmp_path: Path) -> None:
    write_stat(tmp_path, 50, parent=1, session=50, started=900)
    write_stat(tmp_path, 51, parent=50, session=50, started=901)
    assert left_of([Engine(pid=60, session=50, started=100)], tmp_path) == []
    assert left_of([Engine(pid=51, session=50, started=901)], tmp_path) == [50, 51]


def test_a_zombie_is_gone(tmp_path: Path) -> None:
    write_stat(tmp_path, 60, parent=1, session=50, started=100, state="Z")
    assert left_of([Engine(pid=60, session=50, started=100)], tmp_path) == []
    assert Engine.of(60, tmp_path) is None


def hold_a_signal(interrupts: Interrupts, reached: list[str]) -> None:
    with interrupts.held():
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            reached.append("inner")
        reached.append("outer")


def test_a_signal_waits_for_the_end_of_a_held_moment() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    interrupts = Interrupts()
    interrupts.install()
    reached: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            hold_a_signal(interrupts, reached)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    assert reached == ["inner", "outer"]


def test_the_terminal_s_interrupt_does_not_reach_a_daemon(tmp_path: Path) -> None:
    daemon = run("import time; time.sleep(60)", tmp_path / "x.log")
    assert os.getpgid(daemon.process.pid) != os.getpgid(0)
    daemon.kill()
