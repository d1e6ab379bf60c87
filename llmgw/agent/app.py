"""The agent, wired on one page.

    control <-> link <-> supervisor -> launcher (shims, engines)
                  ^          ^
                  +-- hardware

Three actors. The link puts commands into the supervisor's inbox, the supervisor what it has to say into the channel
of the link's connection; both only read what the hardware actor publishes. No arrow out of hardware can block, and
the supervisor never waits for the link.
"""

from collections.abc import Callable, Mapping

import structlog
import trio

from llmgw.agent import link as links
from llmgw.agent import supervisor as supervisors
from llmgw.agent.blocking import RunBlocking
from llmgw.agent.hardware import ReadHardware, read_view, watch_hardware
from llmgw.agent.launch import Launcher
from llmgw.agent.ports import PortChooser, port_is_free
from llmgw.agent.probe import OpenEngine
from llmgw.config.schema import NodeConfig
from llmgw.core.backoff import Uniform
from llmgw.engines.base import Engine, Machine
from llmgw.latest import Latest
from llmgw.net.dial import Connect

log = structlog.get_logger()


async def run_agent(
    config: NodeConfig,
    *,
    instance: str,
    boot_id: str,
    connect: Connect,
    launcher: Launcher,
    read_hardware: ReadHardware,
    engines: Mapping[str, Engine],
    machine: Machine,
    run_blocking: RunBlocking,
    wall_clock: Callable[[], float],
    rng: Uniform,
    ending: trio.Event,
    open_engine: OpenEngine = trio.open_tcp_stream,
    is_port_free: Callable[[int], bool] = port_is_free,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the agent of one node until `ending` is set, then end in order: engines stopped if the configuration says
    so, else kept, and control told which. Started once the engines of the agent before are found.

    instance, boot_id: as `llmgw.agent.state_dir` keeps them. wall_clock: unix seconds.
    """
    hardware = Latest(await read_view(read_hardware))
    supervisor = supervisors.Supervisor(
        supervisors.Supplies(
            launcher=launcher,
            engines=engines,
            machine=machine,
            ports=PortChooser(config.ports, is_port_free),
            hardware=hardware,
            open_engine=open_engine,
            run_blocking=run_blocking,
            wall_clock=wall_clock,
        )
    )
    identity = links.Identity(config.node_id, instance, boot_id, config.address, config.labels, config.ports)
    link = links.Link(links.Supplies(identity, supervisor.inbox, hardware, rng))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_hardware, read_hardware, hardware)
        await nursery.start(supervisor.run)
        nursery.start_soon(link.run, config.control, connect)
        task_status.started()
        await ending.wait()
        await _end(supervisor, link, stop_engines=config.stop_engines_on_exit)
        nursery.cancel_scope.cancel()


async def _end(supervisor: supervisors.Supervisor, link: links.Link, *, stop_engines: bool) -> None:
    if not stop_engines:
        await link.say_goodbye("kept", "ended in order")
        return
    left = await supervisor.stop_all("the agent ends, and its engines with it")
    if left:
        log.error("engines not stopped", shards=left)
        await link.say_goodbye("kept", f"ended in order; these would not end: {', '.join(left)}")
    else:
        await link.say_goodbye("stopped", "ended in order")
