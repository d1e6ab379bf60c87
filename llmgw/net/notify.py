"""Tells the service manager that we are ready, alive, reloading and ending: the sd_notify protocol, without a library.

A message is one datagram of `NAME=VALUE` lines to the Unix socket that `NOTIFY_SOCKET` names; nobody answers. Without
that variable everything here does nothing. A message that cannot be sent is lost and never an error of ours: a service
manager that is restarting must not take an engine's agent with it.
"""

import socket
from collections.abc import Mapping
from typing import NoReturn

import structlog
import trio

log = structlog.get_logger()

PATH_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"

WATCHDOG_SHARE = 0.5
"""Of the time after which we are taken for hung: as the manual of sd_watchdog_enabled advises."""


class ServiceManager:
    """Whoever started us, if it wants to hear of us."""

    def __init__(self, path: str = "", watchdog_seconds: float | None = None) -> None:
        """`path` of its socket, `@` first for an abstract one, or empty; how long we may be silent, or None."""
        self._path = path
        self.watchdog_seconds = watchdog_seconds
        self._said = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> "ServiceManager":
        """As its variables say; those of the watchdog count only for the process that they name."""
        path = environ.get(PATH_VARIABLE, "")
        if not path.startswith(("/", "@")):
            return cls()  # a vsock of a virtual machine's monitor, or nothing
        microseconds = environ.get(WATCHDOG_VARIABLE, "")
        meant = environ.get(WATCHDOG_PID_VARIABLE, str(pid)) == str(pid)
        watched = meant and microseconds.isascii() and microseconds.isdecimal() and int(microseconds) > 0
        return cls(path, int(microseconds) / 1e6 if watched else None)

    def ready(self) -> None:
        """We serve; also after a reload."""
        self._send("READY=1")

    def stopping(self) -> None:
        """We are ending, in order."""
        self._send("STOPPING=1")

    def reloading(self, monotonic_seconds: float) -> None:
        """We read our configuration anew, since that moment of CLOCK_MONOTONIC; `ready` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_seconds * 1e6)}")

    def alive(self) -> None:
        """We are not hung."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
                sending.sendto(message.encode(), address)
        except OSError as error:
            if not self._said:
                log.warning("service manager not reached", socket=self._path, error=error.strerror)
                self._said = True


async def keep_informed(manager: ServiceManager) -> NoReturn:
    """Say that we are ready, then that we are alive for as long as this task gets its turn, and at its end so too.

    It does no work of its own: what it proves is that the event loop goes round.
    """
    manager.ready()
    try:
        while True:
            if manager.watchdog_seconds is None:
                await trio.sleep_forever()
            manager.alive()
            await trio.sleep(manager.watchdog_seconds * WATCHDOG_SHARE)
    finally:
        manager.stopping()
