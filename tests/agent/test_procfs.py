"""Reading /proc, and signalling only the process that was seen."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from fake_proc import FakeProc

from llmgw.agent.procfs import (
    Stat,
    descendants,
    every_stat,
    open_process,
    read_boot_id,
    read_environment,
    read_stat,
    send_signal,
)


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("name", ["engine", "a b", ") R 1 2", "((", "x) S 9 9 9 (y"])
def test_a_name_with_anything_in_it_does_not_shift_the_fields(proc: FakeProc, name: str) -> None:
    proc.add(42, parent=7, session=40, start=1234, state="R", name=name)
    assert read_stat(42, proc.root) == Stat(42, "R", 7, 40, 1234)


def test_this_process_reads_as_itself() -> None:
    me = read_stat(os.getpid())
    assert me is not None
    assert (me.pid, me.parent, me.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert me.lives


def test_absent_processes_are_none(proc: FakeProc) -> None:
    assert read_stat(42, proc.root) is None
    assert read_environment(42, proc.root) is None


def test_every_process_in_order_and_nothing_else(proc: FakeProc) -> None:
    for pid in (300, 20, 1):
        proc.add(pid)
    assert [stat.pid for stat in every_stat(proc.root)] == [1, 20, 300]


def test_descendants_whatever_their_session_and_no_zombies(proc: FakeProc) -> None:
    proc.add(10)
    proc.add(11, parent=10)
    proc.add(12, parent=11, session=12)
    proc.add(13, parent=11, state="Z")
    proc.add(14, parent=13)
    proc.add(20, parent=1)
    assert [stat.pid for stat in descendants(10, proc.root)] == [11, 12, 14]
    assert descendants(20, proc.root) == []


def test_a_zombie_does_not_live(proc: FakeProc) -> None:
    proc.add(5, state="Z")
    stat = read_stat(5, proc.root)
    assert stat is not None
    assert not stat.lives


def test_a_signal_reaches_the_process_that_was_seen(sleeper: "subprocess.Popen[bytes]") -> None:
    stat = read_stat(sleeper.pid)
    assert stat is not None
    assert send_signal(stat, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not send_signal(stat, signal.SIGKILL)
    assert open_process(stat) is None


def test_another_start_time_is_another_process(sleeper: "subprocess.Popen[bytes]") -> None:
    stat = read_stat(sleeper.pid)
    assert stat is not None
    assert not send_signal(stat._replace(start_time=stat.start_time - 1), signal.SIGKILL)
    assert sleeper.poll() is None


def test_the_boot_id_is_stripped(proc: FakeProc) -> None:
    proc.boot("abc")
    assert read_boot_id(proc.root) == "abc"


def test_the_environment_at_exec(proc: FakeProc) -> None:
    proc.add(5, environ={"A": "1=2", "B": ""})
    assert read_environment(5, proc.root) == {"A": "1=2", "B": ""}
