"""Which processes are ours. Each rule is tried alone, with all the others in favour."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from fake_proc import BOOT, FakeProc

from llmgw.agent.processes import (
    Identity,
    Leader,
    Survivors,
    carries_mark,
    end_all,
    find_leader,
    find_marked,
    find_survivors,
    read_identity,
    shim_stat,
    wait_ended,
    why_not_ours,
)
from llmgw.agent.procfs import Stat, read_boot_id, read_stat

SHIM, START, MARK = 50, 1000, "aaaa.0000-7"
IDENTITY = Identity(MARK, BOOT, SHIM, START)
OURS = {"LLMGW_MARK": MARK}


def pids(survivors: Survivors) -> tuple[list[int], list[int]]:
    return [stat.pid for stat in survivors.ours], [stat.pid for stat in survivors.unproven]


# --- who leads --------------------------------------------------------------------------------------------------------


def test_the_shim_leads(proc: FakeProc) -> None:
    proc.add(SHIM, session=SHIM, start=START)
    assert find_leader(IDENTITY, proc.root) is Leader.SHIM
    stat = shim_stat(IDENTITY, proc.root)
    assert stat is not None
    assert stat.pid == SHIM


def test_a_zombie_still_holds_its_number(proc: FakeProc) -> None:
    proc.add(SHIM, session=SHIM, start=START, state="Z")
    assert find_leader(IDENTITY, proc.root) is Leader.DEAD_SHIM
    assert shim_stat(IDENTITY, proc.root) is None


def test_nobody_and_a_stranger(proc: FakeProc) -> None:
    assert find_leader(IDENTITY, proc.root) is Leader.NOBODY
    proc.add(SHIM, session=SHIM, start=START + 1)
    assert find_leader(IDENTITY, proc.root) is Leader.STRANGER


@pytest.mark.parametrize(
    ("environ", "leader"),
    [
        (OURS, Leader.SHIM),
        ({"LLMGW_MARK": "another"}, Leader.STRANGER),
        ({"A": "1"}, Leader.STRANGER),
        ({}, Leader.SHIM),
    ],
)
def test_the_same_pid_and_hundredth_of_a_second_and_another_mark(
    proc: FakeProc, environ: dict[str, str], leader: Leader
) -> None:
    """A process that is ending has no environment any more, and that is no verdict."""
    proc.add(SHIM, session=SHIM, start=START, environ=environ)
    assert find_leader(IDENTITY, proc.root) is leader


def test_after_a_reboot_nothing_is_ours_whatever_it_looks_like(proc: FakeProc) -> None:
    """Same pid, same start time, same session, same mark, another boot."""
    proc.add(SHIM, session=SHIM, start=START)
    proc.add(51, parent=SHIM, session=SHIM, start=START + 1, environ=OURS)
    proc.boot("another")
    assert find_leader(IDENTITY, proc.root) is Leader.REBOOT
    assert find_survivors(IDENTITY, proc.root) == Survivors()


# --- the rules --------------------------------------------------------------------------------------------------------

MEMBER = Stat(51, "S", SHIM, SHIM, START + 1)


@pytest.mark.parametrize(
    ("change", "leader", "environ", "why"),
    [
        ({}, Leader.SHIM, None, ""),
        ({}, Leader.DEAD_SHIM, None, ""),
        ({"start_time": START}, Leader.SHIM, None, ""),
        ({}, Leader.NOBODY, OURS, ""),
        ({"state": "Z"}, Leader.SHIM, OURS, "it has ended"),
        ({"state": "X"}, Leader.SHIM, OURS, "it has ended"),
        ({"session": 49}, Leader.SHIM, OURS, "its session is 49, ours 50"),
        ({"start_time": START - 1}, Leader.SHIM, OURS, "it is older than the shim"),
        ({}, Leader.STRANGER, OURS, "the session's number has been free since: all of ours are gone"),
        ({}, Leader.REBOOT, OURS, "the machine was booted since"),
        ({}, Leader.NOBODY, None, "the shim is gone and it does not carry our mark"),
        ({}, Leader.NOBODY, {"LLMGW_MARK": "bbbb.0000-7"}, "the shim is gone and it does not carry our mark"),
        ({}, Leader.NOBODY, {"LLMGW_MARK": "aaaa.0000-8"}, "the shim is gone and it does not carry our mark"),
        ({}, Leader.NOBODY, {"OTHER": MARK}, "the shim is gone and it does not carry our mark"),
    ],
)
def test_why_not_ours(
    proc: FakeProc, change: dict[str, Any], leader: Leader, environ: dict[str, str] | None, why: str
) -> None:
    proc.add(51, environ=environ)
    assert why_not_ours(MEMBER._replace(**change), IDENTITY, leader, proc.root) == why


def test_survivors_of_a_live_shim(proc: FakeProc) -> None:
    """Members of the session, and descendants in whatever session; no zombies, not the shim itself, no strangers."""
    proc.add(1)
    proc.add(SHIM, session=SHIM, start=START)
    proc.add(51, parent=SHIM, session=SHIM, start=START + 1)
    proc.add(52, parent=51, session=52, start=START + 2)
    proc.add(53, parent=52, session=53, start=START + 3, state="Z")
    proc.add(60, session=60, start=START + 5)
    proc.add(61, parent=60, session=60, start=START + 5)
    assert pids(find_survivors(IDENTITY, proc.root)) == ([51, 52], [])


def test_survivors_of_a_dead_shim_are_proven_by_session_and_mark(proc: FakeProc) -> None:
    """Who moved to another session, or hides its environment, is named and left alone."""
    proc.add(1)
    proc.add(51, session=SHIM, start=START + 1, environ=OURS)
    proc.add(52, session=52, start=START + 2, environ=OURS)
    proc.add(53, session=SHIM, start=START + 3)
    proc.add(54, session=SHIM, start=START + 3, environ={"LLMGW_MARK": "of another"})
    proc.add(55, session=SHIM, start=START - 9, environ=OURS)
    proc.add(56, session=56, start=START + 9, environ={"LLMGW_MARK": "of another"})
    assert pids(find_survivors(IDENTITY, proc.root)) == ([51], [52, 53, 54])


def test_a_stranger_with_the_sessions_number_ends_the_search(proc: FakeProc) -> None:
    proc.add(SHIM, session=SHIM, start=START + 500)
    proc.add(51, parent=SHIM, session=SHIM, start=START + 501, environ=OURS)
    assert find_survivors(IDENTITY, proc.root) == Survivors()


def test_the_mark_alone(proc: FakeProc) -> None:
    proc.add(51, environ=OURS)
    proc.add(52, environ=OURS, state="Z")
    proc.add(53)
    assert carries_mark(51, IDENTITY, proc.root)
    assert not carries_mark(53, IDENTITY, proc.root)
    assert [stat.pid for stat in find_marked(MARK, proc.root)] == [51]


# --- the record -------------------------------------------------------------------------------------------------------

RECORD = {"v": 1, "mark": MARK, "boot_id": BOOT, "shim_pid": SHIM, "shim_start_time": START, "more": []}


def test_identity_of_a_record() -> None:
    assert read_identity(RECORD) == IDENTITY


@pytest.mark.parametrize(
    "change",
    [
        {"mark": ""},
        {"mark": None},
        {"boot_id": 1},
        {"shim_pid": "50"},
        {"shim_pid": True},
        {"shim_pid": 0},
        {"shim_pid": -50},
        {"shim_start_time": None},
        {"shim_start_time": 1.5},
    ],
)
def test_a_damaged_record_proves_nothing(change: dict[str, object]) -> None:
    """Session 0 above all, and a negative pid, would be everybody's."""
    assert read_identity({**RECORD, **change}) is None
    assert read_identity(None) is None


# --- ending -----------------------------------------------------------------------------------------------------------

SESSION = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(5):
    if not os.fork():
        time.sleep(1000)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def session() -> Iterator["subprocess.Popen[bytes]"]:
    """What a shim would lead: a leader and five children, with the mark."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SESSION], env=OURS, start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def identity_of(process: "subprocess.Popen[bytes]") -> Identity:
    stat = read_stat(process.pid)
    assert stat is not None
    return Identity(MARK, read_boot_id(), stat.pid, stat.start_time)


async def test_everything_is_ended_the_leader_last(session: "subprocess.Popen[bytes]") -> None:
    identity = identity_of(session)
    assert len(find_survivors(identity).ours) == 5
    assert await end_all(identity, 10) == Survivors()
    assert session.wait() == -9


async def test_those_that_outlived_their_leader_are_ended(session: "subprocess.Popen[bytes]") -> None:
    identity = identity_of(session)
    left = find_survivors(identity).ours
    session.kill()
    session.wait()
    assert [stat.pid for stat in find_survivors(identity).ours] == [stat.pid for stat in left]
    assert len(left) == 5
    assert await end_all(identity, 10) == Survivors()
    assert [stat for stat in left if (now := read_stat(stat.pid)) is not None and now.lives] == []


@pytest.mark.parametrize(
    "change",
    [{"boot_id": "another"}, {"shim_start_time": 1}, {"shim_start_time": 1 << 60}],
    ids=["boot", "earlier", "later"],
)
async def test_c03_a_recorded_number_that_is_a_strangers_now(
    session: "subprocess.Popen[bytes]", change: dict[str, Any]
) -> None:
    """Identity is pid plus start time plus boot id; on a mismatch nobody gets a signal."""
    await end_all(attrs.evolve(identity_of(session), **change), 10)
    assert session.poll() is None
    assert len(find_survivors(identity_of(session)).ours) == 5


async def test_d11_another_agents_mark_is_not_ours(session: "subprocess.Popen[bytes]") -> None:
    """With the leader dead the mark decides: the processes of an agent with another identity are left alone."""
    identity = attrs.evolve(identity_of(session), mark="bbbb.0000-7")
    session.kill()
    session.wait()
    left = await end_all(identity, 10)
    assert (len(left.ours), len(left.unproven)) == (0, 5)
    assert await end_all(attrs.evolve(identity, mark=MARK), 10) == Survivors()


async def test_waiting_for_the_end_of_a_process_that_is_not_reaped(session: "subprocess.Popen[bytes]") -> None:
    stat = read_stat(session.pid)
    assert stat is not None
    session.kill()
    await wait_ended(stat)
    session.wait()
    await wait_ended(stat)
    await end_all(Identity(MARK, read_boot_id(), stat.pid, stat.start_time), 10)
