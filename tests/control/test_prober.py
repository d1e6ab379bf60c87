"""Knocking on the engines of nodes whose agents have gone and left them running."""

import attrs
import trio
import trio.testing

from llmgw.control.inventory import Input
from llmgw.control.prober import probe_kept_nodes
from llmgw.core.fleet_events import EngineAnswered
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import FleetView, Node, NodeState
from llmgw.latest import Latest


def kept(name: str, *ports: int, connection: int | None = None, gone: bool = False) -> Node:
    shards = {f"m/{port}/0": ShardReport(f"m/{port}/0", 1, state="ready", port=port, gone=gone) for port in ports}
    return Node(name, NodeState.UNREACHABLE, address=name, connection=connection, shards=shards, engines_kept=True)


@attrs.define
class Network:
    """The addresses at which somebody listens; the others refuse, or say nothing for ever."""

    listening: set[tuple[str, int]] = attrs.field(factory=set)
    silent: set[tuple[str, int]] = attrs.field(factory=set)
    attempts: list[tuple[float, str, int]] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        self.attempts.append((trio.current_time(), host, port))
        if (host, port) in self.silent:
            await trio.sleep_forever()
        await trio.sleep(0.1)
        if (host, port) not in self.listening:
            raise ConnectionRefusedError
        return trio.testing.memory_stream_pair()[0]


def answers(channel: trio.MemoryReceiveChannel[Input]) -> list[Input]:
    found = []
    while True:
        try:
            found.append(channel.receive_nowait())
        except trio.WouldBlock:
            return found


async def test_each_kept_node_with_an_open_port_is_said_once_a_round(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network(listening={("a", 1), ("a", 2), ("c", 1)}, silent={("a", 3)})
    nodes = [kept("a", 1, 2, 3), kept("b", 1), kept("c", 1, connection=7), kept("d", 9, gone=True)]
    fleet = Latest(FleetView(nodes={node.id: node for node in nodes}))
    send, receive = trio.open_memory_channel[Input](10)
    nursery.start_soon(probe_kept_nodes, fleet, network.connect, send)
    await trio.sleep(9)
    assert answers(receive) == [EngineAnswered("a")]
    # Neither a node whose agent is back nor an engine that is gone is asked.
    assert {host for _, host, _ in network.attempts} == {"a", "b"}
    await trio.sleep(10)
    assert answers(receive) == [EngineAnswered("a")]


async def test_a_node_where_nobody_answers_within_three_seconds_is_not_said(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network(silent={("a", 1)})
    fleet = Latest(FleetView(nodes={"a": kept("a", 1)}))
    send, receive = trio.open_memory_channel[Input](10)
    nursery.start_soon(probe_kept_nodes, fleet, network.connect, send)
    await trio.sleep(30)
    assert answers(receive) == []
    assert [round(time) for time, _, _ in network.attempts] == [0, 13, 26]


async def test_attempts_at_one_time_are_bounded(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    nodes = [kept(f"n{number}", 1) for number in range(200)]
    network = Network(silent={(node.id, 1) for node in nodes})
    fleet = Latest(FleetView(nodes={node.id: node for node in nodes}))
    send, _receive = trio.open_memory_channel[Input](10)
    nursery.start_soon(probe_kept_nodes, fleet, network.connect, send)
    await trio.sleep(1)
    assert len(network.attempts) == 64
    await trio.sleep(12)
    assert len(network.attempts) == 200
