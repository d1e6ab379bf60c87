"""One router process, wired: the tasks of the gateway, the clients that are accepted, and its orderly end."""

import socket
from functools import partial

import trio

from llmgw.net.listening import accept_forever
from llmgw.router.connection import Connection
from llmgw.router.gateway import Gateway

QUEUED_MAX = 8192
"""Connections that are taken from the kernel's queue when the router stops accepting: more than fit in there."""


async def serve_clients(gateway: Gateway, listener: socket.socket, stop: trio.Event) -> None:
    """Accept and serve until `stop` is set; then serve who is queued, let go of the socket, finish, and return.

    Owns `listener`, and everything in `gateway`.
    """
    accepting = trio.socket.from_stdlib_socket(listener)
    start = partial(_start, gateway)
    try:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(gateway.pump.run)
            tasks.start_soon(gateway.watch.watch_clients)
            tasks.start_soon(gateway.watch.watch_deadlines, gateway)
            async with trio.open_nursery() as clients:
                await _accept_until(accepting, stop, partial(start, clients))
                _accept_queued(accepting, partial(start, clients))
                accepting.close()
                gateway.drain()
            tasks.cancel_scope.cancel()
    finally:
        # Only now that no task is left: an epoll object that is closed under a waiting task leaves it waiting.
        accepting.close()
        gateway.pool.close()
        gateway.pump.close()


async def _accept_until(listener: trio.socket.SocketType, stop: trio.Event, start: "partial[None]") -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_forever, listener, start)
        await stop.wait()
        nursery.cancel_scope.cancel()


def _accept_queued(listener: trio.socket.SocketType, start: "partial[None]") -> None:
    """They have connected, and were promised an answer by it."""
    with socket.socket(fileno=socket.dup(listener.fileno())) as plain:
        plain.setblocking(False)
        for _ in range(QUEUED_MAX):
            try:
                connection, _ = plain.accept()
            except OSError:
                return
            start(trio.socket.from_stdlib_socket(connection))


def _start(gateway: Gateway, clients: trio.Nursery, accepted: trio.socket.SocketType) -> None:
    # A plain socket from here on: see `llmgw.router.pool`.
    plain = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
    plain.setblocking(False)
    clients.start_soon(Connection(gateway, plain).run)
