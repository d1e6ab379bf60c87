"""A small cluster around the pure control core: real `Fleet`, real `reconcile`, real route tables; agents that obey.

`Cluster.step()` is one wake: look, check the invariants, deliver the commands, let the agents move, report. Nothing
here waits: time is a number.
"""

import random
from collections.abc import Iterable

import attrs
import pytest

from llmgw.core.catalog import Catalog, Model, Placement, Profile, spec_hash
from llmgw.core.fleet import Fleet, FleetSettings, Memory, apply
from llmgw.core.fleet_events import (
    Disconnected,
    Effect,
    Event,
    Farewell,
    Forget,
    HeartbeatIn,
    KnownNode,
    Registered,
    Registration,
    Remember,
    StartAccepted,
    StatusIn,
    Tick,
)
from llmgw.core.hardware import Gpu, NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import COMING_UP, TERMINAL, Cause, ShardReport, ShardState
from llmgw.core.nodes import NodeState
from llmgw.core.plan import Command, CommandKey, DrainShard, Plan, Refused, RouterSeen, Start, Stop, World, key_of
from llmgw.core.reconcile import reconcile
from llmgw.core.replicas import Launch, Replicas
from llmgw.core.routes import Table, table, withdrawn
from llmgw.core.units import Duration, Size

GIB = 2**30
WALL = 1_800_000_000.0
S = ShardState

NEXT = {S.ACCEPTED: S.STARTING, S.STARTING: S.LOADING, S.LOADING: S.READY}


def model(name: str = "tiny", *, labels: dict[str, str] | None = None, gpu: str = "", **changes: object) -> Model:
    """A model; what is not of `Model` goes into its profile."""
    own = {field.name for field in attrs.fields(Model)}
    profile = Profile(engine="llamacpp", model="tiny.gguf")
    profile = attrs.evolve(profile, **{key: value for key, value in changes.items() if key not in own})  # type: ignore[arg-type]
    made = Model(name=name, profile=profile, placement=Placement(labels=labels or {}, gpu=gpu))
    return attrs.evolve(made, **{key: value for key, value in changes.items() if key in own})  # type: ignore[arg-type]


def hardware(
    gpus: int = 0, *, node: str = "n", gpu_gib: int = 80, name: str = "H100", memory_gib: int = 64
) -> NodeHardware:
    """A machine with so many GPUs, `GPU-<node>-<k>`."""
    return NodeHardware(
        gpus=tuple(Gpu(f"GPU-{node}-{k}", name, gpu_gib * GIB) for k in range(gpus)),
        cpus=16,
        memory_total_bytes=memory_gib * GIB,
    )


@attrs.define
class Agent:
    """A node that does what it is told, unless it is told otherwise by the test."""

    name: str
    hardware: NodeHardware
    labels: dict[str, str] = attrs.field(factory=dict)
    instance: str = "i"
    shards: dict[str, ShardReport] = attrs.field(factory=dict)
    problems: tuple[Problem, ...] = ()
    connection: int | None = None
    """None: it cannot be heard, whatever it does."""
    broken: tuple[str, ...] = ()
    """Spec hashes of profiles that fail when they load."""
    cause: str = Cause.EXITED.value
    refuses: str = ""
    """Why it does nothing that it is told; empty: it does."""
    slow: bool = False
    """Nothing that loads gets ready."""
    received: list[Command] = attrs.field(factory=list)
    number: int = 0
    """Of the last status."""

    def registration(self) -> Registration:
        return Registration(
            node=self.name,
            instance=self.instance,
            address="10.0.0.1",
            labels=self.labels,
            ports=PortRange(20000, 20999),
            hardware=self.hardware,
            problems=self.problems,
            shards=tuple(self.shards.values()),
        )

    def obey(self, command: Command) -> str:
        """Do it; the reason of a refusal, or nothing."""
        self.received.append(command)
        if self.refuses:
            return self.refuses
        held = self.shards.get(command.shard)
        if isinstance(command, Start):
            if held is not None and held.epoch == command.epoch:
                return ""
            if held is not None and (held.epoch > command.epoch or not held.gone):
                return f"launch {held.epoch} is still there"
            for other in self.shards.values():
                shared = set(other.gpus) & set(command.gpus)
                assert other.gone or not shared or command.profile.gpu_memory, (
                    f"{command.shard} was given {shared}, which {other.shard} holds"
                )
            port = 20000 + len(self.received)
            self.shards[command.shard] = ShardReport(
                command.shard, command.epoch, command.spec_hash, gpus=command.gpus, port=port, pid=port
            )
            return ""
        if held is None or held.epoch != command.epoch:
            return "no such launch"
        if isinstance(command, DrainShard):
            if held.state == S.READY:
                self._to(command.shard, S.DRAINING)
        elif held.known_state not in TERMINAL:
            self._to(command.shard, S.STOPPING)
        return ""

    def move(self) -> None:
        """Each shard takes its next step."""
        for shard, report in tuple(self.shards.items()):
            state = report.known_state
            if state is S.LOADING and report.spec_hash in self.broken:
                self.fail(shard, cause=self.cause)
            elif state is S.STOPPING:
                self._to(shard, S.STOPPED, gone=True)
            elif state in COMING_UP and state is not None and not (self.slow and state is S.LOADING):
                self._to(shard, NEXT[state])

    def fail(self, shard: str, *, cause: str = Cause.SIGNALLED.value, gone: bool = True) -> None:
        """Its engine dies."""
        report = self.shards[shard]
        self.shards[shard] = attrs.evolve(
            report, state=S.FAILED.value, gone=gone, cause=cause, error=f"died: {cause}", signal=9
        )

    def _to(self, shard: str, state: ShardState, *, gone: bool = False) -> None:
        self.shards[shard] = attrs.evolve(self.shards[shard], state=state.value, gone=gone)


@attrs.define
class Cluster:
    """Control and its agents."""

    catalog: Catalog = Catalog()
    settings: FleetSettings = FleetSettings()
    now: float = 1000.0
    memory: Memory = Memory.FIRST_START
    rows: dict[str, KnownNode] = attrs.field(factory=dict)
    replicas: Replicas = Replicas()
    agents: dict[str, Agent] = attrs.field(factory=dict)
    plan: Plan | None = None
    published: Table = Table()
    revision: int = 0
    withdrawn: dict[tuple[str, int], int] = attrs.field(factory=dict)
    routers: dict[str, RouterSeen] = attrs.field(factory=dict)
    routers_follow: bool = True
    """Whether they take each new table at once."""
    in_flight: dict[CommandKey, int] = attrs.field(factory=dict)
    refused: list[Refused] = attrs.field(factory=list)
    fired: dict[str, int] = attrs.field(factory=dict)
    said: list[str] = attrs.field(factory=list)
    sent: list[Command] = attrs.field(factory=list)
    effects: list[Effect] = attrs.field(factory=list)
    rng: random.Random = attrs.field(factory=lambda: random.Random(7))
    wall_ahead: float = WALL
    lossy: bool = False
    """Neither commands nor statuses arrive; heartbeats do."""
    connections: int = 0
    served: dict[str, list[int]] = attrs.field(factory=dict)
    """Model -> how many of its endpoints were ready, at each step."""
    fleet: Fleet = attrs.field(
        default=attrs.Factory(lambda self: Fleet(self.settings, self.now, self.memory), takes_self=True)
    )

    # --- what a test does -----------------------------------------------------------------------------------

    def set_models(self, *models: Model) -> None:
        """The operator's file."""
        self.catalog = Catalog({one.name: one for one in models})

    def add(self, name: str, gpus: int = 0, *, labels: dict[str, str] | None = None, **changes: object) -> Agent:
        """A node joins."""
        changes.setdefault("hardware", hardware(gpus, node=name))
        agent = Agent(name=name, labels=labels or {}, **changes)  # type: ignore[arg-type]
        self.agents[name] = agent
        self.connect(agent)
        return agent

    def connect(self, agent: Agent) -> None:
        """It dials and registers."""
        self.connections += 1
        agent.connection = self.connections
        self.apply(Registered(self.connections, f"10.0.0.1:{40000 + self.connections}", agent.registration()))

    def cut(self, agent: Agent) -> None:
        """Its machine is not heard any more, and its stream is closed."""
        assert agent.connection is not None
        connection, agent.connection = agent.connection, None
        self.apply(Disconnected(connection, agent.name))
        self._forget_in_flight(connection)

    def goodbye(self, agent: Agent, engines: str) -> None:
        """Its agent ends in order."""
        assert agent.connection is not None
        if engines == "stopped":
            agent.shards.clear()
        connection, agent.connection = agent.connection, None
        self.apply(Farewell(connection, agent.name, engines))
        self.apply(Disconnected(connection, agent.name))
        self._forget_in_flight(connection)

    def restart(self, *, down_for: float = 5.0, memory: Memory = Memory.LOADED) -> None:
        """Control dies and comes back; agents do not notice but for their streams."""
        self.now += down_for
        known = tuple(self.rows.values()) if memory is Memory.LOADED else ()
        if memory is not Memory.LOADED:
            self.replicas, self.rows = Replicas(), {}
        self.memory = memory
        self.fleet = Fleet(self.settings, self.now, memory, known)
        self.plan, self.published, self.revision, self.withdrawn = None, Table(), 0, {}
        self.in_flight, self.refused = {}, []
        self.routers = {id_: attrs.evolve(seen, revision=0) for id_, seen in self.routers.items()}
        for agent in self.agents.values():
            agent.connection = None

    def connect_all(self) -> None:
        """Every agent dials."""
        for agent in self.agents.values():
            if agent.connection is None:
                self.connect(agent)

    def run(self, seconds: float, *, step: float = 1.0) -> None:
        """So many seconds, a wake each."""
        end = self.now + seconds
        while self.now < end:
            self.step(step)

    def settle(self, *, limit: int = 200) -> None:
        """Until nothing happens any more."""
        for _ in range(limit):
            before = (self.replicas, [dict(agent.shards) for agent in self.agents.values()])
            plan = self.step()
            if not plan.commands and before == (self.replicas, [dict(agent.shards) for agent in self.agents.values()]):
                return
        raise AssertionError(f"not settled: {self.plan}")

    # --- one wake -------------------------------------------------------------------------------------------

    def step(self, seconds: float = 1.0) -> Plan:
        """Time passes, control looks and decides, agents obey, move and report."""
        self._pass(seconds)
        plan = self.look()
        for command in plan.commands:
            agent = self.agents[command.node]
            node = self.fleet.nodes[command.node]
            assert node.connection == agent.connection, "a command to a node that cannot be reached"
            if agent.connection is None:
                continue
            if self.lossy:
                continue
            self.sent.append(command)
            reason = agent.obey(command)
            if reason:
                self.refused.append(Refused(*key_of(command), reason))
            elif isinstance(command, Start):
                report = agent.shards[command.shard]
                self.apply(
                    StartAccepted(
                        agent.connection,
                        agent.name,
                        command.shard,
                        command.epoch,
                        command.spec_hash,
                        command.gpus,
                        report.port,
                    )
                )
        for agent in self.agents.values():
            before = dict(agent.shards)
            agent.move()
            self._statuses(agent, before)
        self._follow()
        return plan

    def look(self) -> Plan:
        """One call of reconcile, with every invariant that can be seen from outside."""
        before = self.replicas
        world = World(
            catalog=self.catalog,
            fleet=self.fleet.snapshot(),
            replicas=before,
            now=self.now,
            wall=self.now + self.wall_ahead,
            routers=tuple(self.routers.values()),
            withdrawn=self.withdrawn,
            in_flight=frozenset(self.in_flight),
            refused=tuple(self.refused),
        )
        self.refused = []
        plan = reconcile(world, self.rng, self.plan)
        self.plan, self.replicas = plan, plan.replicas
        for rule, times in plan.fired.items():
            self.fired[rule] = self.fired.get(rule, 0) + times
        self.said += [line.event for line in plan.log]
        self._publish(plan)
        check(self, plan, before)
        return plan

    def apply(self, *events: Event) -> list[Effect]:
        """To the fleet; rows are kept as the store would."""
        effects = [effect for event in events for effect in apply(self.fleet, event, self.now)]
        for effect in effects:
            if isinstance(effect, Remember):
                self.rows[effect.node.id] = effect.node
            elif isinstance(effect, Forget):
                self.rows.pop(effect.node, None)
        self.effects += effects
        return effects

    def heartbeat(self, agent: Agent) -> None:
        """It reports all that it holds."""
        if agent.connection is not None:
            self.apply(
                HeartbeatIn(agent.connection, agent.name, problems=agent.problems, shards=tuple(agent.shards.values()))
            )

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.apply(Tick())
        for agent in self.agents.values():
            self.heartbeat(agent)

    def _statuses(self, agent: Agent, before: dict[str, ShardReport]) -> None:
        if self.lossy:
            return
        for shard, report in tuple(agent.shards.items()):
            if before.get(shard) != report and agent.connection is not None:
                agent.number += 1
                self.apply(StatusIn(agent.connection, agent.name, agent.number, report))
            if report.gone and agent.connection is not None and agent.connection == self._connection_of(agent):
                del agent.shards[shard]  # acknowledged

    def _connection_of(self, agent: Agent) -> int | None:
        node = self.fleet.nodes.get(agent.name)
        return node.connection if node is not None else None

    def _publish(self, plan: Plan) -> None:
        new = table(self.catalog, self.fleet.snapshot(), plan.replicas, plan.explanations, static_keys={}, created={})
        if new != self.published:
            self.revision += 1
        self.published = new
        self.withdrawn = withdrawn(self.withdrawn, plan.replicas, new, self.revision)
        for name in self.catalog.models:
            ready = sum(one.model == name and one.state == "ready" for one in new.endpoints)
            self.served.setdefault(name, []).append(ready)

    def _follow(self) -> None:
        if not self.routers_follow:
            return
        self.routers = {id_: attrs.evolve(seen, revision=self.revision) for id_, seen in self.routers.items()}

    def _forget_in_flight(self, connection: int) -> None:
        self.in_flight = {key: of for key, of in self.in_flight.items() if of != connection}

    # --- what a test asks -----------------------------------------------------------------------------------

    def states(self, name: str = "tiny") -> dict[str, str]:
        """Replica id -> its state, as the status shows it."""
        assert self.plan is not None
        return {view.id: view.state for view in self.plan.views.get(name, ())}

    def running(self) -> dict[str, str]:
        """Shard -> node, of everything that an agent holds and that is not gone."""
        return {
            shard: agent.name
            for agent in self.agents.values()
            for shard, report in agent.shards.items()
            if not report.gone
        }

    def endpoints(self) -> dict[str, tuple[str, int]]:
        """Replica id -> (state, epoch) in the table."""
        return {one.id: (one.state, one.epoch) for one in self.published.endpoints}

    def summary(self, name: str = "tiny") -> str:
        """Of the explanation; empty: there is none."""
        assert self.plan is not None
        explanation = self.plan.explanations.get(name)
        return explanation.summary if explanation is not None else ""


def check(cluster: Cluster, plan: Plan, before: Replicas) -> None:
    """The safety properties, after every wake."""
    fleet = cluster.fleet.snapshot()
    booked: dict[tuple[str, str], list[Launch]] = {}
    for replica in plan.replicas.by_id.values():
        epochs = [launch.epoch for launch in replica.launches]
        assert epochs == sorted(set(epochs), reverse=True), "epochs are unique, newest first"
        for launch in replica.launches:
            assert launch.epoch <= plan.replicas.epoch_max
            for rank, member in enumerate(launch.members):
                node = fleet.nodes.get(member.node)
                report = node.report(f"{replica.id}/{rank}", launch.epoch) if node is not None else None
                if report is None or not report.gone:
                    for uuid in member.gpus:
                        booked.setdefault((member.node, uuid), []).append(launch)
    for (name, uuid), holders in booked.items():
        if len(holders) > 1 and any(launch.ours for launch in holders):  # what is found is as it is
            gpu = fleet.nodes[name].hardware.gpu(uuid) if name in fleet.nodes else None
            shares = [launch.gpu_memory for launch in holders if launch.gpu_memory is not None]
            assert len(shares) == len(holders), f"{uuid} is booked whole and again"
            assert gpu is None or sum(shares) <= gpu.memory_total_bytes, f"{uuid} is over-booked"
    ids = [endpoint.id for endpoint in cluster.published.endpoints]
    assert len(ids) == len(set(ids)), "two epochs of a replica in one table"
    old_epochs = {launch.epoch for replica in before.by_id.values() for launch in replica.launches}
    for replica in plan.replicas.by_id.values():
        for launch in replica.launches:
            if launch.epoch in old_epochs or not launch.ours:
                continue
            for member in launch.members:
                node = fleet.nodes[member.node]
                assert node.state is NodeState.HEALTHY, f"launched on a node that is {node.state}"
                assert not node.cordoned
                assert not node.draining
                assert not [one for one in node.problems if not one.gpu or one.gpu in member.gpus]
    for command in plan.commands:
        assert fleet.nodes[command.node].state is NodeState.HEALTHY
        assert key_of(command) not in cluster.in_flight
        if fleet.recovery is not None:
            assert not isinstance(command, (Stop, DrainShard)), "recovering never stops"
    for name, explanation in plan.explanations.items():
        for reason in explanation.reasons:
            assert reason.rule
            assert reason.detail
        if explanation.reasons:
            named = sorted(node for reason in explanation.reasons for node in reason.nodes)
            assert named == sorted(fleet.nodes), f"{name}: every refused node is named once"


class Tools:
    """What the tests build with."""

    Cluster = Cluster
    Agent = Agent
    GIB = GIB
    WALL = WALL

    model = staticmethod(model)
    hardware = staticmethod(hardware)
    spec_hash = staticmethod(spec_hash)

    @staticmethod
    def starts(commands: Iterable[Command]) -> list[Start]:
        return [one for one in commands if isinstance(one, Start)]

    @staticmethod
    def stops(commands: Iterable[Command]) -> list[Stop]:
        return [one for one in commands if isinstance(one, Stop)]

    @staticmethod
    def seconds(value: float) -> Duration:
        return Duration(value)

    @staticmethod
    def gib(value: float) -> Size:
        return Size(int(value * GIB))


@pytest.fixture(scope="session")
def core() -> type[Tools]:
    """Builders and the small cluster."""
    return Tools
