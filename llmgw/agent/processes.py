"""Which processes are ours, and ending them. No signal goes to a process that is not proven ours.

Theory of operation
    An engine runs in the session of its shim, and a session's number is the pid of its leader, the shim. The kernel
    gives that number to nobody else as long as the session has a member, and to anybody afterwards. So the proof is,
    in this order (`why_not_ours`):

    1. the machine has not been booted since;
    2. the process lives, is a member of the recorded session, and started no earlier than the shim;
    3. the number of the session is held by the recorded shim, dead or alive: then the session is ours. Held by a
       process with another start time, or without our mark: the number was free once, so all of ours are gone. Held
       by nobody: either ours have outlived the shim or a later session of that number its leader, and only the mark
       in the process's environment decides.

    While the shim lives, its descendants are ours too, in whatever session: it is their subreaper.

    A process is named by pid and start time, and is signalled through a pidfd that was opened before the start time
    was read again: whoever got the number meanwhile is not hit.
"""

import enum
import os
import signal
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from llmgw.agent.procfs import (
    PROC,
    Stat,
    descendants,
    every_stat,
    open_process,
    read_boot_id,
    read_environment,
    read_stat,
)
from llmgw.agent.shim_engine import MARK_VARIABLE

KILL_ROUND_SECONDS = 0.5
"""Waited for those that were sent SIGKILL before looking again: for who was forked meanwhile."""


@attrs.frozen
class Identity:
    """What the record of a launch says of its processes."""

    mark: str
    boot_id: str
    shim_pid: int
    """And so the number of the session."""
    shim_start_time: int


def read_identity(record: Mapping[str, Any] | None) -> Identity | None:
    """None: there is no record, or it is damaged; nothing can then be proven ours."""
    if record is None:
        return None
    mark, boot_id = record.get("mark"), record.get("boot_id")
    pid, start_time = record.get("shim_pid"), record.get("shim_start_time")
    if not isinstance(mark, str) or not isinstance(boot_id, str) or not mark:
        return None
    if type(pid) is not int or type(start_time) is not int or pid <= 0:
        return None
    return Identity(mark, boot_id, pid, start_time)


class Leader(enum.Enum):
    """Who holds the number of the session."""

    SHIM = "the recorded shim"
    DEAD_SHIM = "the recorded shim, which has ended and is not reaped"
    NOBODY = "nobody"
    STRANGER = "another process"
    REBOOT = "nobody of ours: the machine was booted since"


def find_leader(identity: Identity, root: str = PROC) -> Leader:
    """Who holds the session's number now."""
    if read_boot_id(root) != identity.boot_id:
        return Leader.REBOOT
    stat = read_stat(identity.shim_pid, root)
    if stat is None:
        return Leader.NOBODY
    if stat.start_time != identity.shim_start_time:
        return Leader.STRANGER
    # Start times are in hundredths of a second. A process on its way out has no environment any more: no verdict.
    environment = read_environment(identity.shim_pid, root)
    if environment and environment.get(MARK_VARIABLE) != identity.mark:
        return Leader.STRANGER
    return Leader.SHIM if stat.lives else Leader.DEAD_SHIM


def shim_stat(identity: Identity, root: str = PROC) -> Stat | None:
    """The live shim, or None."""
    if find_leader(identity, root) is not Leader.SHIM:
        return None
    return read_stat(identity.shim_pid, root)


def carries_mark(pid: int, identity: Identity, root: str = PROC) -> bool:
    """Whether it was executed with this launch's mark. False also where that cannot be read."""
    return (read_environment(pid, root) or {}).get(MARK_VARIABLE) == identity.mark


def why_not_ours(stat: Stat, identity: Identity, leader: Leader, root: str = PROC) -> str:
    """Empty: a member of the recorded session, proven. Else the first rule that it fails.

    `leader` must have been looked up after `stat`: as long as the shim holds the number, no stranger has had it.
    """
    if not stat.lives:
        return "it has ended"
    if leader is Leader.REBOOT:
        return "the machine was booted since"
    if leader is Leader.STRANGER:
        return "the session's number has been free since: all of ours are gone"
    if stat.session != identity.shim_pid:
        return f"its session is {stat.session}, ours {identity.shim_pid}"
    if stat.start_time < identity.shim_start_time:
        return "it is older than the shim"
    if leader is Leader.NOBODY and not carries_mark(stat.pid, identity, root):
        return "the shim is gone and it does not carry our mark"
    return ""


@attrs.frozen
class Survivors:
    """What is left of a launch, its shim apart."""

    ours: tuple[Stat, ...] = ()
    unproven: tuple[Stat, ...] = ()
    """In the session or with the mark, and not proven: left alone, and named."""


def find_survivors(identity: Identity, root: str = PROC) -> Survivors:
    """Who is left now, in order of pid."""
    stats = [stat for stat in every_stat(root) if stat.pid != identity.shim_pid]
    leader = find_leader(identity, root)
    if leader in (Leader.STRANGER, Leader.REBOOT):
        return Survivors()
    ours = {stat.pid: stat for stat in stats if not why_not_ours(stat, identity, leader, root)}
    if leader is Leader.SHIM:
        ours.update((stat.pid, stat) for stat in descendants(identity.shim_pid, root))
        if find_leader(identity, root) is not Leader.SHIM:  # it died while its children were read
            return find_survivors(identity, root)
    unproven = [
        stat
        for stat in stats
        if stat.lives
        and stat.pid not in ours
        and stat.start_time >= identity.shim_start_time
        and (stat.session == identity.shim_pid or carries_mark(stat.pid, identity, root))
    ]
    return Survivors(tuple(ours[pid] for pid in sorted(ours)), tuple(unproven))


async def end_all(identity: Identity, seconds: float) -> Survivors:
    """SIGKILL to everything proven ours until none is left, the shim last; what is left after `seconds`.

    The shim last, because with it goes the proof for descendants that moved to a session of their own.
    """
    with trio.move_on_after(seconds):
        while ours := find_survivors(identity).ours:
            await _kill(ours)
        shim = shim_stat(identity)
        if shim is not None:
            await _kill((shim,))
        while ours := find_survivors(identity).ours:  # forked between the last look and the shim's end
            await _kill(ours)
    return find_survivors(identity)


async def _kill(stats: tuple[Stat, ...]) -> None:
    """SIGKILL, and a bounded wait for their end."""
    pidfds: list[int] = []
    try:
        for stat in stats:
            pidfd = open_process(stat)
            if pidfd is None:
                continue
            pidfds.append(pidfd)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # ended by itself; or another user's by now, and then it shows among the survivors
        with trio.move_on_after(KILL_ROUND_SECONDS):
            for pidfd in pidfds:
                await trio.lowlevel.wait_readable(pidfd)
    finally:
        for pidfd in pidfds:
            trio.lowlevel.notify_closing(pidfd)
            os.close(pidfd)
    await trio.lowlevel.checkpoint()


async def wait_ended(stat: Stat) -> None:
    """Return when that very process has ended, also if it is nobody's child here and not reaped."""
    pidfd = open_process(stat)
    if pidfd is None:
        await trio.lowlevel.checkpoint()
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def find_marked(mark: str, root: str = PROC) -> tuple[Stat, ...]:
    """Live processes with a launch's mark. No proof: whoever started them may have passed it on."""
    return tuple(
        stat
        for stat in every_stat(root)
        if stat.lives and (read_environment(stat.pid, root) or {}).get(MARK_VARIABLE) == mark
    )
