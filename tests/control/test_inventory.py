"""The inventory actor: what it does with what it hears, and in which order."""

import itertools
from collections.abc import Mapping

import attrs
import pytest
import structlog
import trio
from trio.testing import MockClock

from llmgw.control.commands import Commands
from llmgw.control.inventory import BATCH_MAX, AckIn, Input, Inventory
from llmgw.control.metrics import HeartbeatLag
from llmgw.control.store import Stored, StoreError
from llmgw.core.catalog import Profile
from llmgw.core.fleet import Fleet, FleetSettings
from llmgw.core.fleet_events import Disconnected, Heard, HeartbeatIn, KnownNode, Registered, Registration, StatusIn
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import Memory
from llmgw.core.reconcile import Start, Stop
from llmgw.core.replicas import Replicas
from llmgw.wire import messages as wire

START = Start("n1", "m/0/0", 7, "0" * 16, Profile("llamacpp", "m.gguf"), "m", ("GPU-1",))


@attrs.define(eq=False)
class FakeLink:
    """Writes down what it is told."""

    connection: int
    told: list[tuple[object, ...]] = attrs.field(factory=list)

    def send_nowait(self, message: wire.AgentDown) -> None:
        self.told.append(("send", message))

    def accept(self, heartbeat_interval_seconds: float, status_acked: int) -> None:
        self.told.append(("accept", heartbeat_interval_seconds, status_acked))

    def refuse(self, reason: str, retry_after_seconds: float) -> None:
        self.told.append(("refuse", reason, retry_after_seconds))

    def supersede(self) -> None:
        self.told.append(("supersede",))

    def acknowledge(self, number: int) -> None:
        self.told.append(("acknowledge", number))


@attrs.define(eq=False)
class FakeStore:
    """Keeps rows, or is full."""

    stored: Stored = Stored(Memory.FIRST_START)
    rows: dict[str, KnownNode | None] = attrs.field(factory=dict)
    full: bool = False
    attempts: int = 0

    def save_nodes(self, rows: Mapping[str, KnownNode | None]) -> None:
        self.attempts += 1
        if self.full:
            raise StoreError("the disk is full")
        self.rows |= rows

    def save_replicas(self, old: Replicas, new: Replicas) -> None:
        raise AssertionError

    def save_created(self, created: Mapping[str, int]) -> None:
        raise AssertionError


@attrs.define(eq=False)
class Bench:
    """An inventory with two connections."""

    inventory: Inventory
    store: FakeStore
    links: dict[int, FakeLink]
    commands: Commands
    counted: list[tuple[str, str]]
    answered: list[None]
    lags: list[float]


@pytest.fixture
def bench() -> Bench:
    links = {1: FakeLink(1), 2: FakeLink(2)}
    store, counted, answered, lags = FakeStore(), [], [], []  # type: ignore[var-annotated]
    commands = Commands(lambda kind, result: counted.append((kind, result)))
    inventory = Inventory(
        fleet=Fleet(FleetSettings(), 0.0, Memory.FIRST_START),
        links=dict(links),
        commands=commands,
        store=store,
        lag=HeartbeatLag(lags.append, lambda: 2.0),
        answered=lambda: answered.append(None),
    )
    return Bench(inventory, store, links, commands, counted, answered, lags)


def registered(connection: int, *, instance: str = "i1") -> Registered:
    return Registered(connection, f"10.0.0.9:{connection}", Registration("n1", instance))


def test_effects_reach_the_connections_they_are_for(bench: Bench) -> None:
    bench.inventory.handle(registered(1), 0.0)
    assert bench.links[1].told == [("accept", 2.0, 0)]
    bench.inventory.handle(registered(2), 1.0)
    assert bench.links[1].told[1:] == [("supersede",)]
    assert bench.links[2].told == [("accept", 2.0, 0)]
    bench.links[1].told.clear()
    bench.inventory.handle(registered(1, instance="another"), 2.0)
    ((kind, reason, retry),) = bench.links[1].told
    assert (kind, "n1" in str(reason), retry) == ("refuse", True, 30.0)


def test_an_effect_for_a_connection_that_has_ended_meanwhile_is_nobody_s(bench: Bench) -> None:
    del bench.inventory.links[1]
    bench.inventory.handle(registered(1), 0.0)
    assert bench.links[1].told == []


def test_a_status_is_acknowledged_on_the_present_stream_only(bench: Bench) -> None:
    """What came on a superseded stream was not handled: it is sent again on the new one."""
    bench.inventory.handle(registered(1), 0.0)
    report = ShardReport("m/0/0", 7, state="loading")
    bench.inventory.handle(StatusIn(1, "n1", 5, report), 0.1)
    assert bench.links[1].told[-1] == ("acknowledge", 5)
    bench.inventory.handle(registered(2), 1.0)
    bench.links[1].told.clear()
    bench.inventory.handle(StatusIn(1, "n1", 6, attrs.evolve(report, state="ready")), 1.1)
    assert bench.links[1].told == []
    assert bench.inventory.view().nodes["n1"].shards.get("m/0/0", report).state != "ready"
    # One that was handled before is acknowledged again: the acknowledgement was lost.
    bench.inventory.handle(StatusIn(2, "n1", 5, report), 1.2)
    assert bench.links[2].told[-1] == ("acknowledge", 5)


def test_an_accepted_start_is_in_the_fleet_before_it_stops_being_on_its_way(bench: Bench) -> None:
    bench.inventory.handle(registered(1), 0.0)
    bench.commands.send(START, bench.links[1], 0.0)
    seen: list[tuple[int, bool]] = []

    def look() -> None:
        held = "m/0/0" in bench.inventory.view().nodes["n1"].shards
        seen.append((len(bench.commands.keys(bench.inventory.view().nodes)), held))

    bench.inventory.answered = look
    bench.inventory.handle(AckIn(1, "n1", wire.Ack(1, True, port=20000)), 0.5)
    assert seen == [(0, True)]
    shard = bench.inventory.view().nodes["n1"].shards["m/0/0"]
    assert (shard.epoch, shard.port, shard.gpus, shard.state) == (7, 20000, ("GPU-1",), "accepted")
    assert bench.counted == [("start", "accepted")]


def test_a_refused_start_and_an_accepted_stop_change_nothing_of_the_fleet(bench: Bench) -> None:
    bench.inventory.handle(registered(1), 0.0)
    bench.commands.send(START, bench.links[1], 0.0)
    bench.commands.send(Stop("n1", "m/1/0", 7, 20.0, ""), bench.links[1], 0.0)
    bench.inventory.handle(AckIn(1, "n1", wire.Ack(1, False, "no")), 0.5)
    bench.inventory.handle(AckIn(1, "n1", wire.Ack(2, True)), 0.5)
    assert bench.inventory.view().nodes["n1"].shards == {}
    assert bench.counted == [("start", "refused"), ("stop", "accepted")]


def test_an_answer_to_nothing_is_a_sign_of_life_and_no_more(bench: Bench) -> None:
    bench.inventory.handle(registered(1), 0.0)
    bench.inventory.handle(AckIn(1, "n1", wire.Ack(99, True)), 5.0)
    assert bench.inventory.view().pulses["n1"].last_heard == 5.0
    assert bench.answered == []


def test_the_end_of_a_stream_takes_its_commands_off_the_way(bench: Bench) -> None:
    bench.inventory.handle(registered(1), 0.0)
    bench.commands.send(START, bench.links[1], 0.0)
    bench.inventory.handle(Disconnected(1, "n1"), 1.0)
    assert bench.commands.keys(bench.inventory.view().nodes) == frozenset()
    assert bench.counted == [("start", "unanswered")]
    assert bench.answered == [None]


def test_what_changes_is_published_and_heartbeats_that_bring_nothing_new_are_not(bench: Bench) -> None:
    before = bench.inventory.latest.value
    bench.inventory.handle(registered(1), 0.0)
    bench.inventory.publish()
    after = bench.inventory.latest.value
    assert after.version > before.version
    bench.inventory.handle(HeartbeatIn(1, "n1"), 2.0)
    bench.inventory.handle(HeartbeatIn(1, "n1"), 5.0)
    bench.inventory.publish()
    assert bench.inventory.latest.value is after
    assert bench.inventory.view().pulses["n1"].last_heard == 5.0
    assert bench.lags == pytest.approx([0.6])


def test_nodes_are_remembered_and_a_full_disk_is_tried_again_seldom(bench: Bench) -> None:
    bench.inventory.handle(registered(1), 0.0)
    bench.store.full = True
    with structlog.testing.capture_logs() as lines:
        for now in (0.0, 1.0, 4.9):
            bench.inventory.save(now)
    assert bench.store.attempts == 1
    assert [line["event"] for line in lines] == ["nodes are not remembered"]
    bench.store.full = False
    bench.inventory.save(5.0)
    bench.inventory.save(6.0)
    assert bench.store.attempts == 2
    row = bench.store.rows["n1"]
    assert row is not None
    assert (row.id, row.instance) == ("n1", "i1")


async def test_time_passes_for_nodes_that_say_nothing(
    bench: Bench, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    bench.inventory.fleet = Fleet(FleetSettings(), trio.current_time(), Memory.FIRST_START)
    bench.inventory.handle(registered(1), trio.current_time())
    _send, inputs = trio.open_memory_channel[Input](1)
    nursery.start_soon(bench.inventory.run, inputs)
    await trio.sleep(8)
    assert bench.inventory.latest.value.nodes["n1"].state == "unreachable"
    await trio.sleep(180)
    assert bench.inventory.latest.value.nodes["n1"].state == "lost"


async def test_a_flood_is_handled_in_batches_with_a_checkpoint_between_them(
    bench: Bench, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Another task gets its turn however much is waiting, and nothing is left over."""
    bench.inventory.fleet = Fleet(FleetSettings(), trio.current_time(), Memory.FIRST_START)
    send, inputs = trio.open_memory_channel[Input](BATCH_MAX * 10)
    bench.inventory.handle(registered(1), trio.current_time())
    for _ in range(BATCH_MAX * 10):
        send.send_nowait(Heard(1, "n1"))
    waiting: list[int] = []
    nursery.start_soon(bench.inventory.run, inputs)
    while send.statistics().current_buffer_used:
        waiting.append(send.statistics().current_buffer_used)
        await trio.lowlevel.checkpoint()
    assert len(waiting) >= 10
    assert all(before - after <= BATCH_MAX for before, after in itertools.pairwise(waiting))
