"""`llmgw-agent`: reads the configuration, takes the state directory, and runs the agent of this node.

Exit codes: 0 ended in order (SIGTERM, SIGINT), 1 could not run (the state directory is another agent's or cannot be
written), 2 the configuration or the command line is wrong.
"""

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

import structlog
import trio

import llmgw
import llmgw.logs
from llmgw.agent.app import run_agent
from llmgw.agent.blocking import Threads
from llmgw.agent.gpus import GpuReader
from llmgw.agent.hardware import NodeReader
from llmgw.agent.init import init
from llmgw.agent.shims import open_launcher
from llmgw.agent.state_dir import StateDir, StateDirBusyError, open_state_dir, read_machine
from llmgw.commandline import control_beside, node_init_parser, node_parser, read_node, run_init, settle, state_base
from llmgw.config.schema import NodeConfig
from llmgw.engines import ENGINES
from llmgw.engines.base import Machine
from llmgw.net.dial import connect_tcp
from llmgw.net.listening import raise_file_limit
from llmgw.net.notify import ServiceManager, keep_informed

log = structlog.get_logger()

PURPOSE = "Run and watch the engines of this GPU node, as llmgw-control says."

EXIT_CANNOT_RUN = 1


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    run_init(argv, node_init_parser("llmgw-agent"), write_configuration)
    arguments = node_parser("llmgw-agent", PURPOSE).parse_args(argv)
    read = partial(read_node, arguments.file, os.environ, server=arguments.server, node_id=arguments.node_id)
    loaded = settle(read, check=arguments.check)
    llmgw.logs.configure(loaded.config.log)
    for note in loaded.notes:
        log.info("configuration", note=note)
    sys.exit(trio.run(serve, loaded.config))


def write_configuration(given: argparse.Namespace) -> list[str]:
    """`llmgw-agent init DIR`."""
    server = given.server or control_beside(given.folder, os.environ)
    base = state_base(os.environ)
    return init(given.folder, given.models, os.environ, server=server, node_id=given.node_id, state_base=base)


async def serve(config: NodeConfig) -> int:
    """Run until a signal; the exit code."""
    raise_file_limit()
    with contextlib.ExitStack() as stack:
        try:
            opened = open_state_dir(config.state_dir, config.node_id, read_machine(), random.SystemRandom())
            state_dir = stack.enter_context(opened)
        except (StateDirBusyError, OSError) as error:
            log.error("cannot run", reason=str(error))  # noqa: TRY400  a traceback says nothing here
            return EXIT_CANNOT_RUN
        await run(config, state_dir)
    log.info("ended")
    return 0


async def run(config: NodeConfig, state_dir: StateDir) -> None:
    """Run until a signal, on this machine."""
    threads = Threads()
    gpus = GpuReader()
    ending = trio.Event()
    try:
        async with open_launcher(state_dir) as launcher, trio.open_nursery() as nursery:
            await nursery.start(end_at_signal, ending, nursery.cancel_scope)
            log.info(
                "agent started",
                version=llmgw.__version__,
                node=config.node_id,
                control=str(config.control),
                state_dir=str(state_dir.path),
                ports=f"{config.ports.first}-{config.ports.last}",
            )
            nursery.start_soon(keep_informed, ServiceManager.from_environment(os.environ, os.getpid()))
            await run_agent(
                config,
                instance=state_dir.instance,
                boot_id=state_dir.boot_id,
                connect=connect_tcp,
                launcher=launcher,
                read_hardware=NodeReader(config, gpus, threads),
                engines=ENGINES,
                machine=this_machine(config),
                run_blocking=threads,
                wall_clock=time.time,
                rng=random.Random(),  # noqa: S311  spreads delays; no secret comes from it
                ending=ending,
            )
            nursery.cancel_scope.cancel()
    finally:
        gpus.close()


async def end_at_signal(
    ending: trio.Event, scope: trio.CancelScope, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
) -> None:
    """End in order at SIGTERM or SIGINT; at once at another, and engines still to end are left to their shims."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("ending at once" if ending.is_set() else "ending", signal=signal.Signals(number).name)
            if ending.is_set():
                scope.cancel()
            ending.set()


def this_machine(config: NodeConfig) -> Machine:
    """What engine adapters ask about the node that we run on."""
    return Machine(
        python=sys.executable,
        models_dir=str(config.models_dir),
        environ=os.environ,
        on_path=shutil.which,
        is_file=os.path.isfile,
        has_module=lambda name: importlib.util.find_spec(name) is not None,
    )


if __name__ == "__main__":
    main()
