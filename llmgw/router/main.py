"""`llmgw-router`: a router of its own, which follows control from afar and serves on while control is away.

Exit codes: 0 ended in order (SIGTERM, SIGINT), 1 could not run (the address is taken), 2 the configuration or the
command line is wrong, before any socket was opened.
"""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

import structlog
import trio

import llmgw
import llmgw.logs
from llmgw.commandline import cluster_parser, read_cluster, settle
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig
from llmgw.core.nodes import FleetView
from llmgw.core.replicas import Replicas
from llmgw.core.routes import table as routes
from llmgw.keyfiles import read_key_files
from llmgw.net.children import end_recorded_workers, run_workers
from llmgw.net.dial import Attempt, keep_dialling
from llmgw.net.listening import AddressTakenError, Inherited, bound_address, open_listener, raise_file_limit
from llmgw.net.notify import ServiceManager, keep_informed
from llmgw.net.worker_settings import WorkerSettings, router_folder, worker_command
from llmgw.router.follow import Bell, Following
from llmgw.router.kept import restore
from llmgw.router.table import Table
from llmgw.router.workers import Workers
from llmgw.wire.messages import RouteTable

log = structlog.get_logger()

PURPOSE = "Route OpenAI-compatible requests to the engines of a cluster, as its control says, also while it is away."

EXIT_CANNOT_RUN = 1


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = cluster_parser("llmgw-router", PURPOSE).parse_args(argv)
    keys: dict[tuple[str, str], str] = {}
    loaded = settle(lambda: read(arguments.file, os.environ, keys), check=arguments.check)
    llmgw.logs.configure(loaded.config.log)
    for note in loaded.notes:
        log.info("configuration", note=note)
    sys.exit(trio.run(serve, loaded.config, keys))


def read(file: str, environ: Mapping[str, str], keys: dict[tuple[str, str], str]) -> Loaded[ClusterConfig]:
    """The configuration, and the key files of static endpoints read into `keys`."""
    loaded = read_cluster(file, environ)
    keys.update(read_key_files(loaded.config))
    return loaded


async def serve(config: ClusterConfig, keys: Mapping[tuple[str, str], str]) -> int:
    """Run until a signal; the exit code."""
    raise_file_limit()
    inherited = Inherited.from_environment(os.environ, os.getpid())
    folder = router_folder(config.state_dir, config.router.listen.port)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = folder / "workers.json"

    def end_leftovers() -> None:
        end_recorded_workers(record, config.router.listen.port)

    try:
        listener = await open_listener(
            config.router.listen, name="router", inherited=inherited, end_leftovers=end_leftovers
        )
    except (AddressTakenError, OSError) as error:
        log.error("cannot run", reason=str(error))  # noqa: TRY400  a traceback says nothing here
        return EXIT_CANNOT_RUN
    inherited.close()
    news, rng = Bell(), random.Random()  # noqa: S311  spreads delays; no secret comes from it
    table = Table()
    workers = Workers(table, news.ring)
    if not restore(folder, table) or config.router.control is None:
        use_own_file(table, config, keys)
    log.info(
        "router started",
        version=llmgw.__version__,
        listen=str(bound_address(listener)),
        control=str(config.router.control) if config.router.control is not None else "none: static endpoints only",
        revision=table.revision,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_at_signal, nursery.cancel_scope)
        nursery.start_soon(keep_informed, ServiceManager.from_environment(os.environ, os.getpid()))
        if config.router.control is not None:
            following = Following(router_name(listener), table, news, report=workers.report, applied=workers.applied)
            nursery.start_soon(partial(keep_dialling, config.router.control, partial(converse, following), rng=rng))
        nursery.start_soon(
            partial(
                run_workers,
                count=config.router.workers,
                listener=listener,
                command=partial(worker_command, WorkerSettings(str(folder), config.router, config.log)),
                serve=workers.serve,
                record=record,
                rng=rng,
            )
        )
    log.info("ended")
    return 0


def use_own_file(table: Table, config: ClusterConfig, keys: Mapping[tuple[str, str], str]) -> None:
    """What this router knows by itself: the static endpoints of its file. Revision 0 gives way to any of control's."""
    known = routes(
        config.catalog,
        FleetView(),
        Replicas(),
        {},
        static_keys=keys,
        created=dict.fromkeys(config.catalog.models, int(time.time())),
    )
    part = RouteTable("", 0, models=known.models, endpoints=known.endpoints, keys=config.keys)
    table.put(part, stale=config.router.control is not None)


async def converse(following: Following, stream: trio.abc.Stream, attempt: Attempt) -> None:
    """One conversation with control."""
    await following.converse(stream, opened=attempt.accepted, refused=attempt.refused)


def router_name(listener: socket.socket) -> str:
    """What the status calls this router: its host and the port that it serves."""
    return f"{socket.gethostname()}:{listener.getsockname()[1]}"


async def end_at_signal(scope: trio.CancelScope) -> None:
    """Cancel everything at SIGTERM or SIGINT: workers finish what is in flight."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("ending", signal=signal.Signals(number).name)
            scope.cancel()


if __name__ == "__main__":
    main()
