"""A worker of the router: one process with the shared listening socket and a socketpair to its parent.

Started by control or by a llmgw-router (`llmgw.net.children`), never by hand. It serves from the last table on disk
until its parent brings a newer one, accepts nobody before it has a table, and ends in order when its parent closes
the socketpair, dies, or sends SIGTERM: it serves who is queued already, finishes what is in flight, and is gone.
"""

import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import structlog
import trio

import llmgw.logs
from llmgw.errors import PeerError
from llmgw.net.listening import raise_file_limit
from llmgw.net.worker_settings import WorkerArguments, parse_worker_arguments
from llmgw.router.access import open_access_log
from llmgw.router.app import serve_clients
from llmgw.router.follow import Bell, Following
from llmgw.router.gateway import Gateway
from llmgw.router.kept import keep, restore
from llmgw.router.pool import Pool
from llmgw.router.table import Table
from llmgw.wire.messages import RouterReport

log = structlog.get_logger()

FRESH_WITHIN_SECONDS = 1.0
"""How long a worker with a table of last time waits for its parent's before it serves by the old one. A parent that
lives answers in milliseconds.
"""

KEEP_SPACING_SECONDS = 1.0
"""Between two writings of the table: a fleet that comes up changes it a hundred times a second."""


def main(argv: Sequence[str] | None = None) -> None:
    """The process."""
    arguments = parse_worker_arguments(sys.argv[1:] if argv is None else argv)
    llmgw.logs.configure(arguments.settings.log)
    raise_file_limit()
    # A Ctrl-C at the terminal is for the parent, whose end we follow in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trio.run(run, arguments)


async def run(arguments: WorkerArguments) -> None:
    """Serve until the parent is gone or says so."""
    stream = trio.SocketStream(trio.socket.socket(fileno=arguments.stream_fd))
    worker = Worker(arguments)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.stop_at_signal)
        nursery.start_soon(worker.follow, stream)
        nursery.start_soon(worker.keep_table)
        nursery.start_soon(worker.write_records)
        await worker.serve(socket.socket(fileno=arguments.listener_fd))
        nursery.cancel_scope.cancel()


class Worker:
    """What the tasks of the process share."""

    def __init__(self, arguments: WorkerArguments) -> None:
        settings = arguments.settings
        self._index = arguments.index
        self._folder = Path(settings.folder)
        self._news = Bell()
        self._changed = Bell()
        self._fresh = trio.Event()
        """The parent has brought a table."""
        self._stop = trio.Event()
        rng = random.Random()  # noqa: S311  breaks ties and makes request ids; no secret comes from it
        self._table = Table(self._news.ring)
        self._access = open_access_log(settings.log, sys.stderr, time.time)
        self._gateway = Gateway(settings.router, self._table, self._access, rng, Pool(settings.router.connect_timeout))
        restore(self._folder, self._table)
        self._following = Following(
            f"worker-{self._index}", self._table, self._news, report=self._report, applied=self._applied
        )

    def _report(self) -> RouterReport:
        table, now = self._table, trio.current_time()
        revision = 0 if table.stale else table.revision
        return RouterReport(table.incarnation, revision, table.reports(now), counters=self._gateway.counters.samples())

    def _applied(self, _message: object) -> None:
        self._fresh.set()
        self._changed.ring()

    async def follow(self, stream: trio.abc.Stream) -> None:
        """Follow the parent; its end is ours."""
        try:
            await self._following.converse(stream, refused=self._refused)
        except (PeerError, trio.BrokenResourceError) as error:
            log.error("lost the parent", reason=str(error))  # noqa: TRY400  a traceback says nothing here
        self._stop.set()

    @staticmethod
    def _refused(reason: str, _retry_after: float) -> None:
        log.error("refused by the parent", reason=reason)

    async def stop_at_signal(self) -> None:
        """SIGTERM is the parent's word too."""
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self._stop.set()

    async def keep_table(self) -> NoReturn:
        """Write the table whenever it has changed. One worker does: they all have the same."""
        while True:
            await self._changed.wait(float("inf"))
            if self._index == 0:
                keep(self._folder, self._table)
            await trio.sleep(KEEP_SPACING_SECONDS)

    async def write_records(self) -> None:
        """Write the access log."""
        await self._access.run()

    async def serve(self, listener: socket.socket) -> None:
        """Accept as soon as there is a table, until we are to stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_stop, nursery.cancel_scope)
            with trio.move_on_after(FRESH_WITHIN_SECONDS if self._table.known else float("inf")):
                await self._fresh.wait()
            nursery.cancel_scope.cancel()
        if not self._table.known:
            listener.close()
            return
        await serve_clients(self._gateway, listener, self._stop)

    async def _cancel_at_stop(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()


if __name__ == "__main__":
    main()
