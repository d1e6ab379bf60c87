"""A control with scripted agents and routers around it, over memory streams and on a clock that jumps.

Everything goes through the seams of `run_control`; the store is the real one, in a folder of the test.
"""

import itertools
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from llmgw.config.schema import ClusterConfig
from llmgw.config.schema import Control as ControlSettings
from llmgw.control.app import Control, run_control
from llmgw.control.listener import Arrival
from llmgw.control.store import ControlStore
from llmgw.core import statusdoc as doc
from llmgw.core.address import Address
from llmgw.core.catalog import Model, Profile
from llmgw.core.hardware import Gpu, NodeHardware
from llmgw.core.lifecycle import ShardReport
from llmgw.core.routing import Endpoint, RoutedModel
from llmgw.core.units import Size
from llmgw.net.framed import MessageStream
from llmgw.wire import messages as wire
from llmgw.wire.codec import Received
from llmgw.wire.session import AgentSession, RouterSession

GIB = 2**30
WALL_AT_START = 1_764_540_000.0


def gpus(*uuids: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(uuid, "NVIDIA H100", 80 * GIB) for uuid in uuids)


def hardware(*uuids: str) -> NodeHardware:
    return NodeHardware(gpus(*uuids), cpus=8, memory_total_bytes=64 * GIB)


def model(name: str, replicas: int = 1, *, gpus_each: int = 0, **settings: Any) -> Model:
    """A model that runs on llama.cpp."""
    profile = Profile("llamacpp", f"{name}.gguf", gpus=gpus_each, memory=Size(GIB))
    return Model(name, replicas=replicas, profile=profile, **settings)


@attrs.define(eq=False)
class Peer:
    """The dialling side of a connection to control."""

    stream: MessageStream
    raw: trio.abc.Stream
    received: list[Received] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)
    failure: BaseException | None = None

    async def read(self) -> None:
        try:
            while messages := await self.stream.receive():
                for message in messages:
                    self.received.append(message)
                    self.handle(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.failure = error
        finally:
            self.ended.set()

    def handle(self, message: Received) -> None:
        pass

    def of(self, kind: type) -> list[Any]:
        """The messages of that class that arrived."""
        return [message for message in self.received if isinstance(message, kind)]

    async def cut(self) -> None:
        """The connection ends without a word."""
        await trio.aclose_forcefully(self.raw)


@attrs.define(eq=False)
class Agent(Peer):
    """An agent that does what it is told at once, unless a switch says otherwise."""

    node: str = ""
    instance: str = ""
    hardware: NodeHardware = NodeHardware()
    shards: dict[str, ShardReport] = attrs.field(factory=dict)
    refuse: str = ""
    """Every command is refused with this reason."""
    answers: bool = True
    """Commands are acknowledged."""
    becomes: str = "ready"
    """The state in which a started shard ends up; empty: it stays accepted."""
    numbers: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))
    next_port: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(20000))
    heartbeats: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    outbox: Any = attrs.field(factory=lambda: trio.open_memory_channel[Any](float("inf")))
    """What it says of its own accord, which may be more than the queue of its stream holds."""

    def say(self, message: wire.AgentUp) -> None:
        self.outbox[0].send_nowait(message)

    async def speak(self) -> None:
        async for message in self.outbox[1]:
            try:
                await self.stream.send(message)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                return

    @property
    def commands(self) -> list[tuple[str, str, int]]:
        """(message, shard, epoch) of every command that arrived, repeats included."""
        kinds = (wire.StartShard, wire.StopShard, wire.DrainShard)
        return [
            (type(command).__name__, command.shard, command.epoch)
            for command in self.received
            if isinstance(command, kinds)
        ]

    @property
    def registered(self) -> list[wire.Registered]:
        return self.of(wire.Registered)

    @property
    def refusals(self) -> list[wire.Refused]:
        return self.of(wire.Refused)

    def register(self, **fields: Any) -> None:
        known: dict[str, Any] = {"hardware": self.hardware, "shards": tuple(self.shards.values())}
        self.say(wire.Register((1, 0), self.node, self.instance, **(known | fields)))

    def report(self, report: ShardReport, output: str = "") -> None:
        """A transition, at once."""
        self.shards[report.shard] = report
        self.say(wire.ShardStatus(next(self.numbers), report, output))

    def becomes_now(self, shard: str, state: str, **changes: Any) -> None:
        self.report(attrs.evolve(self.shards[shard], state=state, **changes))

    async def beat(self, interval: float = 2.0) -> None:
        """Heartbeats for ever, or until `heartbeats` is cancelled."""
        with self.heartbeats:
            for number in itertools.count(1):
                await trio.sleep(interval)
                self.say(wire.Heartbeat(number, shards=tuple(self.shards.values())))

    def handle(self, message: Received) -> None:
        match message:
            case wire.StartShard() | wire.StopShard() | wire.DrainShard() if self.refuse:
                self.say(wire.Ack(message.command_id, False, self.refuse))
            case wire.StartShard() if self.answers:
                port = next(self.next_port)
                accepted = ShardReport(
                    message.shard, message.epoch, message.spec_hash, port=port, gpus=message.gpus, pid=port + 10_000
                )
                self.shards[message.shard] = accepted
                self.say(wire.Ack(message.command_id, True, port=port))
                if self.becomes:
                    self.report(attrs.evolve(accepted, state=self.becomes))
            case wire.StopShard() if self.answers:
                self.say(wire.Ack(message.command_id, True))
                held = self.shards.get(message.shard)
                if held is not None:
                    self.report(attrs.evolve(held, state="stopped", gone=True))
            case wire.DrainShard() if self.answers:
                self.say(wire.Ack(message.command_id, True))
                held = self.shards.get(message.shard)
                if held is not None:
                    self.report(attrs.evolve(held, state="draining"))
            case wire.StatusAck():
                for shard in [id_ for id_, report in self.shards.items() if report.gone]:
                    del self.shards[shard]
            case _:
                pass


@attrs.define(eq=False)
class Router(Peer):
    """A router that keeps the table it is sent, and reports when it is told to."""

    name: str = ""
    incarnation: str = ""
    revision: int = 0
    complete: bool = False
    models: dict[str, RoutedModel] = attrs.field(factory=dict)
    endpoints: dict[str, Endpoint] = attrs.field(factory=dict)
    blinks: list[dict[str, str]] = attrs.field(factory=list)
    """Endpoint -> state after each message."""
    in_flight: dict[tuple[str, int], int] = attrs.field(factory=dict)
    counters: dict[str, float] = attrs.field(factory=dict)
    parts: list[wire.RouteTable] = attrs.field(factory=list)
    silent: bool = False
    """No regular reports any more."""

    def handle(self, message: Received) -> None:
        match message:
            case wire.RouteTable():
                self.parts.append(message)
                if len(self.parts) == message.parts:
                    self.take_table(self.parts)
                    self.parts = []
            case wire.RouteChange():
                assert message.incarnation == self.incarnation
                assert message.revision == self.revision + 1
                self.models |= {entry.name: entry for entry in message.set.models}
                self.endpoints |= {entry.id: entry for entry in message.set.endpoints}
                if message.complete:
                    for name in message.removed.models:
                        self.models.pop(name, None)
                    for name in message.removed.endpoints:
                        self.endpoints.pop(name, None)
                self.revision, self.complete = message.revision, message.complete
            case _:
                return
        self.blinks.append({id_: endpoint.state for id_, endpoint in self.endpoints.items()})

    def take_table(self, parts: list[wire.RouteTable]) -> None:
        if parts[0].complete:
            self.models, self.endpoints = {}, {}
        for part in parts:
            self.models |= {entry.name: entry for entry in part.models}
            self.endpoints |= {entry.id: entry for entry in part.endpoints}
        self.incarnation, self.revision, self.complete = parts[0].incarnation, parts[0].revision, parts[0].complete

    async def report_regularly(self) -> None:
        while not self.silent:
            try:
                self.report()
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                return
            await trio.sleep(2)

    def report(self) -> None:
        seen = tuple(
            wire.EndpointReport(endpoint.id, endpoint.epoch, self.in_flight.get((endpoint.id, endpoint.epoch), 0))
            for endpoint in self.endpoints.values()
        )
        self.stream.send_nowait(wire.RouterReport(self.incarnation, self.revision, seen, counters=self.counters))


@attrs.define(eq=False)
class World:
    """One control (at a time), and whoever is around it."""

    nursery: trio.Nursery
    state_dir: Path
    models: tuple[Model, ...] = ()
    settings: ControlSettings = ControlSettings(listen=Address("127.0.0.1", 7070))
    keys: tuple[Any, ...] = ()
    connect: Callable[[str, int], Any] | None = None
    seed: int = 1
    control: Control | None = None
    arrivals: "trio.MemorySendChannel[Arrival] | None" = None
    scope: trio.CancelScope | None = None
    down: trio.Event | None = None
    store: ControlStore | None = None
    ports: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(40000))

    async def start(self) -> Control:
        """Start control; with what an earlier one left in the folder."""
        await self.nursery.start(self._run)
        assert self.control is not None
        return self.control

    async def _run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        config = ClusterConfig(self.state_dir, self.settings, models=self.models, keys=self.keys)
        self.store = ControlStore(self.state_dir)
        self.arrivals, arrivals = trio.open_memory_channel[Arrival](1000)
        self.scope, self.down = trio.CancelScope(), trio.Event()
        self.seed += 1
        start = trio.current_time()
        with self.scope:
            async with trio.open_nursery() as nursery:
                self.control = await nursery.start(
                    lambda task_status: run_control(
                        config,
                        listen=arrivals,
                        connect=self.connect or refuse_all,
                        store=self.store,  # type: ignore[arg-type]
                        wall_clock=lambda: WALL_AT_START + trio.current_time(),
                        rng=random.Random(self.seed),
                        static_keys={},
                        task_status=task_status,
                    )
                )
                assert trio.current_time() == start
                task_status.started()
        self.store.close()
        self.down.set()

    async def kill(self) -> None:
        """Control ends; its streams break."""
        assert self.scope is not None
        assert self.down is not None
        self.scope.cancel()
        await self.down.wait()
        self.control = None

    def dial(self) -> trio.abc.Stream:
        """A connection to control that says nothing yet."""
        assert self.arrivals is not None
        ours, theirs = trio.testing.memory_stream_pair()
        self.arrivals.send_nowait(Arrival(theirs, f"10.0.0.9:{next(self.ports)}"))
        return ours

    async def agent(
        self, node: str = "gpu-a", instance: str = "i1", *, register: bool = True, beat: bool = True, **settings: Any
    ) -> Agent:
        """An agent, connected, and registered unless told otherwise."""
        raw = self.dial()
        agent = Agent(MessageStream(raw, AgentSession()), raw, node=node, instance=instance, **settings)
        self.nursery.start_soon(agent.stream.run)
        self.nursery.start_soon(agent.read)
        self.nursery.start_soon(agent.speak)
        if register:
            agent.register()
            await settle()
            if agent.registered and beat:
                self.nursery.start_soon(agent.beat)
        return agent

    async def router(self, name: str = "r1", *, held: tuple[str, int] = ("", 0), report: bool = True) -> Router:
        """A router that follows, and reports every 2 s."""
        raw = self.dial()
        router = Router(MessageStream(raw, RouterSession()), raw, name=name, incarnation=held[0], revision=held[1])
        self.nursery.start_soon(router.stream.run)
        self.nursery.start_soon(router.read)
        router.stream.send_nowait(wire.Follow((1, 0), name, "0.1.0", *held))
        await settle()
        if report:
            self.nursery.start_soon(router.report_regularly)
        return router

    @property
    def status(self) -> doc.Status:
        assert self.control is not None
        return self.control.status()

    def node(self, name: str = "gpu-a") -> doc.NodeStatus:
        return next(node for node in self.status.nodes if node.id == name)

    def model(self, name: str) -> doc.ModelStatus:
        return next(model for model in self.status.models if model.name == name)


async def settle() -> None:
    """Until everything that can happen without the clock moving (but for the spacing of the actors) has happened."""
    await trio.sleep(0.1)


async def refuse_all(host: str, port: int) -> trio.abc.Stream:
    raise ConnectionRefusedError


@pytest.fixture
async def world(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, tmp_path: Path) -> AsyncIterator[World]:
    """A World in which nothing runs yet."""
    world = World(nursery, tmp_path)
    yield world
    assert_bookings(world)


def assert_bookings(world: World) -> None:
    """No GPU is booked whole for two launches, whatever the test did."""
    if world.control is None:
        return
    holders: dict[tuple[str, str], list[str]] = {}
    for replica in world.control.reconciler.latest.value.replicas.by_id.values():
        for launch in replica.launches:
            for member in launch.members if launch.gpu_memory is None else ():
                for uuid in member.gpus:
                    holders.setdefault((member.node, uuid), []).append(replica.id)
    assert all(len(held) == 1 for held in holders.values()), holders
