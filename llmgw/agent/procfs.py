"""What /proc says of processes, read as plainly as possible. Standard library only: the shim reads it too.

`root` is /proc everywhere but in tests, which build one of their own. A process may end between any two reads:
everything here takes that for an answer.
"""

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

PROC = "/proc"
DEAD = "ZX"
"""States of a process that has ended and only waits to be reaped: it runs no code and counts as gone."""


class Stat(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    state: str
    parent: int
    session: int
    start_time: int
    """Clock ticks since boot: with the pid and the boot id it names one process for ever."""

    @property
    def lives(self) -> bool:
        """False for a zombie."""
        return self.state not in DEAD


def read_stat(pid: int, root: str = PROC) -> Stat | None:
    """None: there is no such process."""
    try:
        with open(f"{root}/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def every_stat(root: str = PROC) -> Iterator[Stat]:
    """Every process, in order of pid."""
    for pid in sorted(int(name) for name in os.listdir(root) if name.isdigit()):  # noqa: PTH208
        stat = read_stat(pid, root)
        if stat is not None:
            yield stat


def descendants(ancestor: int, root: str = PROC) -> list[Stat]:
    """Children, their children and so on, whatever session they moved to; zombies left out.

    A parent's number may have passed to a stranger while we read, whose children then look like ours: so each parent
    is looked at again. Who lost a parent that way has been handed to the subreaper, and is found the next time.
    """
    children: dict[int, list[Stat]] = {}
    for stat in every_stat(root):
        children.setdefault(stat.parent, []).append(stat)
    found = list(children.get(ancestor, ()))
    for stat in found:
        below = children.get(stat.pid)
        if below and same_process(stat, root):
            found.extend(below)
    return [stat for stat in found if stat.lives]


def same_process(stat: Stat, root: str = PROC) -> bool:
    """Whether the number still belongs to the process that was seen."""
    now = read_stat(stat.pid, root)
    return now is not None and now.start_time == stat.start_time


def open_process(stat: Stat) -> int | None:
    """A pidfd of that very process, never of another that got its number meanwhile; None: it is gone.

    OSError: something else is wrong (no descriptors left).
    """
    try:
        pidfd = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return None
    if not same_process(stat):
        os.close(pidfd)
        return None
    return pidfd


def send_signal(stat: Stat, number: int) -> bool:
    """Signal that very process. False: it is gone. PermissionError: it is another user's."""
    pidfd = open_process(stat)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def read_boot_id(root: str = PROC) -> str:
    """Drawn by the kernel at each boot: a pid of another boot means nothing."""
    with open(f"{root}/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return file.read().strip()


def read_environment(pid: int, root: str = PROC) -> dict[str, str] | None:
    """What the process was executed with; None: gone, or not ours to read."""
    try:
        with open(f"{root}/{pid}/environ", "rb") as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    pairs = (os.fsdecode(item).partition("=") for item in text.split(b"\0") if item)
    return {name: value for name, _, value in pairs}
