"""Engines without an agent: a node whose agent said Goodbye(kept) lives for as long as one of its engines answers.

Nobody reports for such a node, and it is silent because it said so. A reboot says "kept" first, too. So control
knocks on the engines' ports now and then, and tells the inventory of each node where somebody opened.
"""

from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from llmgw.control.inventory import Input
from llmgw.core.fleet_events import EngineAnswered
from llmgw.core.nodes import FleetView, Node
from llmgw.latest import Latest

PROBE_EVERY_SECONDS = 10.0
"""Many times within `lost_after`, so that a few lost attempts decide nothing."""

CONNECT_SECONDS_MAX = 3.0
"""A live listener in the same network takes milliseconds."""

ATTEMPTS_MAX = 64
"""At one time: a thousand kept nodes are asked within seconds, and no burst of connections looks like an attack."""

Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""(host, port) -> an open stream; the name is resolved inside. OSError where nobody answers."""


async def probe_kept_nodes(
    fleet: Latest[FleetView], connect: Connect, inventory: trio.MemorySendChannel[Input]
) -> NoReturn:
    """Knock for ever."""
    limit = trio.CapacityLimiter(ATTEMPTS_MAX)
    while True:
        async with trio.open_nursery() as nursery:
            for node in fleet.value.nodes.values():
                if node.engines_kept and node.connection is None:
                    nursery.start_soon(_probe, node, connect, limit, inventory)
        await trio.sleep(PROBE_EVERY_SECONDS)


async def _probe(
    node: Node, connect: Connect, limit: trio.CapacityLimiter, inventory: trio.MemorySendChannel[Input]
) -> None:
    answered = trio.Event()

    async def knock(port: int) -> None:
        async with limit:
            with trio.move_on_after(CONNECT_SECONDS_MAX):
                try:
                    stream = await connect(node.address, port)
                except OSError:
                    return
                await trio.aclose_forcefully(stream)
                answered.set()
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for port in dict.fromkeys(report.port for report in node.shards.values() if report.port and not report.gone):
            nursery.start_soon(knock, port)
    if answered.is_set():
        await inventory.send(EngineAnswered(node.id))
