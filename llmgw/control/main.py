"""`llmgw-control`: reads the configuration, opens what it listens on, and runs control, its admin server and workers.

Exit codes: 0 ended in order (SIGTERM, SIGINT), 1 could not run (the address or the state_dir is taken), 2 the
configuration or the command line is wrong, before any socket was opened.
"""

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import attrs
import structlog
import trio

import llmgw
import llmgw.logs
from llmgw.commandline import cluster_parser, init_parser, read_control, run_init, settle, state_base
from llmgw.config.schema import ClusterConfig
from llmgw.control.admin import serve_admin
from llmgw.control.app import run_control
from llmgw.control.init import init
from llmgw.control.listener import Arrival
from llmgw.control.store import ControlStore, StateDirError, state_dir_lock
from llmgw.core.address import Address
from llmgw.errors import LlmgwError
from llmgw.net.children import end_recorded_workers, run_workers
from llmgw.net.listening import (
    AddressTakenError,
    Inherited,
    accept_forever,
    bound_address,
    open_listener,
    raise_file_limit,
)
from llmgw.net.notify import ServiceManager, keep_informed
from llmgw.net.worker_settings import WorkerSettings, router_folder, worker_command

log = structlog.get_logger()

PURPOSE = "Place, watch and repair the replicas of a catalog on GPU nodes, and route requests to them."

ACCEPTED_MAX = 256
"""Connections between the listening socket and the listener actor, which takes them at once unless strangers fill it:
a whole fleet that comes back in one second passes, since each says at once who it is."""

EXIT_CANNOT_RUN = 1


class ListenError(LlmgwError):
    """An address of ours cannot be listened on."""


@attrs.frozen
class Sockets:
    """What is listened on."""

    agents: socket.socket | None
    admin: socket.socket
    router: socket.socket


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    run_init(argv, init_parser("llmgw-control", "cluster.toml"), write_configuration)
    arguments = cluster_parser("llmgw-control", PURPOSE, writes="cluster.toml").parse_args(argv)
    keys: dict[tuple[str, str], str] = {}
    loaded = settle(lambda: read_control(arguments.file, os.environ, keys), check=arguments.check)
    llmgw.logs.configure(loaded.config.log)
    for note in loaded.notes:
        log.info("configuration", note=note)
    sys.exit(trio.run(serve, loaded.config, keys))


def write_configuration(given: argparse.Namespace) -> list[str]:
    """`llmgw-control init DIR`."""
    return init(given.folder, given.models, os.environ, state_base=state_base(os.environ))


async def serve(config: ClusterConfig, keys: Mapping[tuple[str, str], str]) -> int:
    """Run until a signal; the exit code."""
    raise_file_limit()
    inherited = Inherited.from_environment(os.environ, os.getpid())
    try:
        with state_dir_lock(config.state_dir), contextlib.closing(ControlStore(config.state_dir)) as store:
            sockets = await open_sockets(config, inherited)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_at_signal, nursery.cancel_scope)
                await run(config, nursery, keys=keys, store=store, sockets=sockets)
    except (StateDirError, AddressTakenError, ListenError) as error:
        log.error("cannot run", reason=str(error))  # noqa: TRY400  a traceback says nothing here
        return EXIT_CANNOT_RUN
    log.info("ended")
    return 0


async def open_sockets(config: ClusterConfig, inherited: Inherited) -> Sockets:
    """Everything that is listened on. AddressTakenError or ListenError where that cannot be."""
    record = worker_record(config)
    record.parent.mkdir(mode=0o700, exist_ok=True)

    def end_leftovers() -> None:
        end_recorded_workers(record, config.router.listen.port)

    async def opened(address: Address, name: str, **options: Any) -> socket.socket:
        try:
            found = await open_listener(address, name=name, inherited=inherited, **options)
        except OSError as error:
            raise ListenError(f"[{name}] listen = {str(address)!r} cannot be listened on: {error.strerror}") from error
        return others.enter_context(found)

    with contextlib.ExitStack() as others:
        agents = None
        if config.control.listen is not None:
            # Our predecessor has let go of the state_dir, so it has of these too: who holds them is somebody else.
            agents = await opened(config.control.listen, "control", patience_seconds=0.0)
        admin = await opened(config.admin.listen, "admin", patience_seconds=0.0)
        router = await opened(config.router.listen, "router", end_leftovers=end_leftovers)
        others.pop_all()  # all of them are open: from here on they are closed by those who use them
    inherited.close()
    return Sockets(agents, admin, router)


async def run(
    config: ClusterConfig,
    nursery: trio.Nursery,
    *,
    keys: Mapping[tuple[str, str], str],
    store: ControlStore,
    sockets: Sockets,
) -> None:
    """Start everything in `nursery`."""
    rng = random.Random()  # noqa: S311  spreads delays and breaks ties; no secret comes from it
    send, arrivals = trio.open_memory_channel[Arrival](ACCEPTED_MAX)
    control = await nursery.start(
        partial(
            run_control,
            config,
            listen=arrivals,
            connect=trio.open_tcp_stream,
            store=store,
            wall_clock=time.time,
            rng=rng,
            static_keys=keys,
        )
    )
    admin_address = bound_address(sockets.admin)  # the server takes the socket over
    await nursery.start(serve_admin, control, sockets.admin)
    if sockets.agents is not None:
        nursery.start_soon(accept_agents, sockets.agents, send.clone())
    nursery.start_soon(
        partial(
            run_workers,
            count=config.router.workers,
            listener=sockets.router,
            command=partial(worker_command, worker_settings(config)),
            serve=partial(serve_worker, send),
            record=worker_record(config),
            rng=rng,
        )
    )
    nursery.start_soon(keep_informed, ServiceManager.from_environment(os.environ, os.getpid()))
    log.info(
        "control started",
        version=llmgw.__version__,
        agents=str(bound_address(sockets.agents)) if sockets.agents is not None else "no agent port",
        admin=str(admin_address),
        router=str(bound_address(sockets.router)),
        state_dir=str(config.state_dir),
        memory=store.stored.memory.value,
    )


async def accept_agents(listener: socket.socket, arrivals: trio.MemorySendChannel[Arrival]) -> NoReturn:
    """Pass on everybody who connects to the agent port; who finds no room is hung up on, and dials again."""

    def pass_on(connection: trio.socket.SocketType) -> None:
        try:
            arrivals.send_nowait(Arrival(trio.SocketStream(connection), peer_of(connection)))
        except trio.WouldBlock:
            connection.close()
            log.warning("connection closed", reason=f"{ACCEPTED_MAX} others wait to be served")
        except OSError:
            connection.close()  # reset before it could be asked where it comes from

    with trio.socket.from_stdlib_socket(listener) as accepting:
        await accept_forever(accepting, pass_on)


async def serve_worker(arrivals: trio.MemorySendChannel[Arrival], index: int, stream: trio.SocketStream) -> None:
    """Have a worker of the router served like any other router, until its stream is over."""
    arrival = Arrival(stream, f"worker {index} of this control")
    await arrivals.send(arrival)
    await arrival.ended.wait()


async def end_at_signal(scope: trio.CancelScope) -> None:
    """Cancel everything at SIGTERM or SIGINT: streams end, workers finish what is in flight, all of it bounded."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("ending", signal=signal.Signals(number).name)
            scope.cancel()


def worker_settings(config: ClusterConfig) -> WorkerSettings:
    """What the workers of the router are told."""
    folder = router_folder(config.state_dir, config.router.listen.port)
    return WorkerSettings(str(folder), config.router, config.log)


def worker_record(config: ClusterConfig) -> Path:
    """The file that lists the living workers."""
    return router_folder(config.state_dir, config.router.listen.port) / "workers.json"


def peer_of(connection: trio.socket.SocketType) -> str:
    """`10.0.0.5:43210` or `[::1]:43210`. OSError where the connection is gone."""
    host, port, *_ = connection.getpeername()
    return str(Address(host.removeprefix("::ffff:"), port))


if __name__ == "__main__":
    main()
