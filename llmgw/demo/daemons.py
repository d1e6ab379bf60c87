"""The demo's own processes: started in sessions of their own, watched, and ended so that none is left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import attrs

TAIL_LINES = 15
"""Of a log that is shown when something failed: the error and what led to it, on one screen."""
LOG_BYTES_READ_MAX = 64 * 1024
"""Of the end of a log: far more than the lines shown."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.02


@attrs.frozen
class Daemon:
    """One process of ours and where its output goes."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def ended(self) -> int | None:
        """Its exit code (minus the signal's number), or None while it runs."""
        return self.process.poll()

    def tail(self) -> list[str]:
        """The last lines of its log."""
        with self.log.open("rb") as opened:
            opened.seek(max(0, self.log.stat().st_size - LOG_BYTES_READ_MAX))
            return opened.read().decode(errors="replace").splitlines()[-TAIL_LINES:]

    def stop(self, seconds: float) -> bool:
        """SIGTERM, and SIGKILL after `seconds`. Whether it ended by itself."""
        if self.ended is None:
            self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to its whole session, for which it was made the leader."""
        if self.ended is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP as KeyboardInterrupt, except for moments in which a process would be lost by one."""

    def __init__(self) -> None:
        self._held = 0
        self._waiting = False

    def install(self) -> None:
        for number in ENDING_SIGNALS:
            signal.signal(number, self._handle)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One that comes meanwhile is raised at the end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._waiting and not self._held:
            self._waiting = False
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._held:
            self._waiting = True
        else:
            raise KeyboardInterrupt


def start(name: str, argv: list[str], environ: Mapping[str, str], log: Path) -> Daemon:
    """Start a daemon in a session of its own, so that Ctrl-C on the terminal reaches the demo alone."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Daemon(name, process, log)


# --- processes that are not our children ----------------------------------------------------------------------


@attrs.frozen
class Engine:
    """An engine that the agent started, so that it can be looked for when all should be gone."""

    pid: int
    session: int
    """Of the engine and of the process that supervises it."""
    started: int
    """In clock ticks since boot: another process with that number has another one."""

    @classmethod
    def of(cls, pid: int, proc: Path = Path("/proc")) -> "Engine | None":
        """The engine with that pid; None: it is gone."""
        stat = _read_stat(proc / str(pid))
        return None if stat is None else cls(pid, stat.session, stat.started)


def children_of(pid: int, proc: Path = Path("/proc")) -> list[Engine]:
    """What `pid` has started, for the moment before it is killed."""
    stats = ((int(folder.name), _read_stat(folder)) for folder in proc.glob("[0-9]*"))
    return [
        Engine(child, stat.session, stat.started) for child, stat in stats if stat is not None and stat.parent == pid
    ]


def left_of(engines: list[Engine], proc: Path = Path("/proc")) -> list[int]:
    """The processes that are left in these engines' sessions. Zombies do not count."""
    sessions = {engine.session for engine in engines if not _led_anew(engine, proc)}
    folders = sorted(proc.glob("[0-9]*"), key=lambda folder: int(folder.name))
    stats = ((int(folder.name), _read_stat(folder)) for folder in folders)
    return [pid for pid, stat in stats if stat is not None and stat.session in sessions]


def wait_until_gone(engines: list[Engine], seconds: float) -> list[int]:
    """What is left of these engines when nothing is, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := left_of(engines)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left


@attrs.frozen
class _Stat:
    parent: int
    session: int
    started: int


def _led_anew(engine: Engine, proc: Path) -> bool:
    """Whether the session's number was used again: its leader started after the engine, so none in it is ours."""
    leader = _read_stat(proc / str(engine.session))
    return leader is not None and leader.started > engine.started


def _read_stat(folder: Path) -> _Stat | None:
    try:
        text = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold blanks and parentheses; the fields are counted from behind it.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return _Stat(int(fields[1]), int(fields[3]), int(fields[19]))
