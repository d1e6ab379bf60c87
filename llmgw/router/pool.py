"""Connections to engines: opened when needed, kept for the next request for a moment, the last one used first.

Sockets here are plain non-blocking ones: whoever uses one calls it directly and waits with `trio.lowlevel` only where
it would block, since a checkpoint for every call is a third of what a small request costs.
"""

import errno
import functools
import ipaddress
import os
import socket
from urllib.parse import urlsplit

import attrs
import trio

from llmgw.core.address import Address
from llmgw.errors import LlmgwError

IDLE_SECONDS = 3.0
"""How long a connection is kept: engines close theirs after 5 s, and a request must not cross with that."""

IDLE_PER_ENDPOINT_MAX = 256
"""Connections that are kept: a burst leaves its sockets here, for 3 s."""

SITES_MAX = 65_536
"""Addresses of engines that are remembered in their parsed form."""


class UnreachableError(LlmgwError):
    """No connection came about, so nothing was sent; says why."""


@attrs.frozen
class Site:
    """Where an engine is, from the URL of its endpoint."""

    host: str
    port: int
    numeric: bool
    """The host is an IP address, and need not be resolved."""
    authority: bytes
    """For the Host header."""
    prefix: bytes
    """Path that stands before that of a request."""


@functools.lru_cache(SITES_MAX)
def site(url: str) -> Site:
    """The parsed form of an endpoint's URL, `http://host:port[/prefix]`."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    try:
        ipaddress.ip_address(host)
        numeric = True
    except ValueError:
        numeric = False
    authority = str(Address(host, port)).encode("idna" if not host.isascii() else "ascii")
    return Site(host, port, numeric, authority, parts.path.rstrip("/").encode())


class Pool:
    """The idle connections, by the endpoint's URL. Belongs to one thread, as everything here."""

    def __init__(self, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._idle: dict[str, list[tuple[float, socket.socket]]] = {}

    def take(self, url: str, now: float) -> socket.socket | None:
        """An idle connection that the engine has hardly closed yet; None: `connect`."""
        kept = self._idle.get(url)
        while kept:
            since, connection = kept.pop()
            if now - since >= IDLE_SECONDS:
                connection.close()  # the newest is too old, so all of them are
                _close_all(kept)
                del self._idle[url]
                break
            if _is_quiet(connection):
                return connection
            connection.close()
        return None

    def give(self, url: str, connection: socket.socket, now: float) -> None:
        """Keep a connection whose last answer was complete."""
        kept = self._idle.setdefault(url, [])
        if len(kept) >= IDLE_PER_ENDPOINT_MAX:
            connection.close()
        else:
            kept.append((now, connection))

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long."""
        for url, kept in list(self._idle.items()):
            fresh = [entry for entry in kept if now - entry[0] < IDLE_SECONDS]
            _close_all([entry for entry in kept if now - entry[0] >= IDLE_SECONDS])
            if fresh:
                self._idle[url] = fresh
            else:
                del self._idle[url]

    def close(self) -> None:
        """Close everything."""
        for kept in self._idle.values():
            _close_all(kept)
        self._idle.clear()

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return sum(map(len, self._idle.values()))

    async def connect(self, url: str) -> socket.socket:
        """A new connection. Raises UnreachableError, after the connect time-out at the latest."""
        with trio.move_on_after(self._connect_seconds) as scope:
            try:
                where = site(url)
                return await (_connect(where) if where.numeric else _resolve_and_connect(where))
            except OSError as error:
                raise UnreachableError(_why(error)) from None
        assert scope.cancelled_caught
        raise UnreachableError(f"no connection within {self._connect_seconds:g} s")


async def _connect(where: Site) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connected = False
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = connection.connect_ex((where.host, where.port))
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(connection)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        connected = code == 0
    finally:
        if not connected:
            connection.close()
    if not connected:
        raise OSError(code, os.strerror(code))
    return connection


async def _resolve_and_connect(where: Site) -> socket.socket:
    """By name: resolved each time, since engines move; whichever of its addresses answers first."""
    stream = await trio.open_tcp_stream(where.host, where.port)
    opened = stream.socket
    connection = socket.socket(opened.family, opened.type, opened.proto, fileno=opened.detach())
    connection.setblocking(False)
    return connection


def _why(error: BaseException) -> str:
    """The innermost reason: "all attempts to connect failed" says nothing."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_why(inner) for inner in error.exceptions))
    if error.__cause__ is not None:
        return _why(error.__cause__)
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)


def _is_quiet(connection: socket.socket) -> bool:
    """Whether nothing has come since the last answer: neither its end, nor bytes that nobody had asked for, which
    would be taken for the next answer.
    """
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _close_all(kept: list[tuple[float, socket.socket]]) -> None:
    for _, connection in kept:
        connection.close()
