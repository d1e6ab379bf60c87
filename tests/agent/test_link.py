"""The link against a control that speaks the real framing, on a virtual clock; the supervisor's part is scripted."""

import random
from itertools import pairwise

import attrs
import msgpack
import pytest
import trio
from fake_control import ADDRESS, FakeControl
from structlog.testing import capture_logs
from trio.testing import MockClock

from llmgw.agent.hardware import HardwareReading, HardwareView
from llmgw.agent.link import Identity, Link, Supplies, local_address
from llmgw.agent.log_sender import CHUNK_BYTES, REQUESTS_MAX
from llmgw.agent.uplink import (
    Accepted,
    Acked,
    Commanded,
    LinkEvent,
    ListAsked,
    Opened,
    Output,
    OutputAsked,
    ShardList,
    Uplink,
)
from llmgw.core.catalog import Profile
from llmgw.core.hardware import Gpu, NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.problems import OpenProblems
from llmgw.latest import Latest
from llmgw.net.framed import SILENCE_SECONDS
from llmgw.wire.messages import (
    PROTOCOL,
    Ack,
    Certificate,
    DrainShard,
    Goodbye,
    Heartbeat,
    LogCancel,
    LogChunk,
    LogEnd,
    LogRequest,
    Ping,
    Refused,
    Register,
    Registered,
    ShardStatus,
    StartShard,
    StopShard,
    Unsupported,
)

IDENTITY = Identity("gpu-a", "i1", "b1", "10.0.0.5", {"zone": "a"}, PortRange(21000, 21009))
GPU = Gpu("GPU-a", "H100", 80)
VIEW = HardwareView(HardwareReading(NodeHardware(gpus=(GPU,)), gpu_memory_used_bytes={"GPU-a": 7}))
READY = ShardReport("tiny/0/0", 7, state="ready")


class Scripted:
    """A node whose supervisor says what the test wants."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.control = FakeControl(nursery)
        self.hardware = Latest(VIEW)
        send, self._events = trio.open_memory_channel[LinkEvent](256)
        self.link = Link(Supplies(IDENTITY, send, self.hardware, random.Random(1)))
        self.shards: tuple[ShardReport, ...] = (READY,)
        self.events: list[LinkEvent] = []
        self.uplink: Uplink | None = None
        nursery.start_soon(self._supervise)
        nursery.start_soon(self.link.run, ADDRESS, self.control.connect)

    async def _supervise(self) -> None:
        async for event in self._events:
            self.events.append(event)
            if isinstance(event, Opened):
                self.uplink = event.uplink
            if isinstance(event, Opened | ListAsked):
                assert self.uplink is not None
                try:
                    self.uplink.send_nowait(ShardList(self.shards))
                except trio.BrokenResourceError:
                    continue  # the list was asked for by a connection that is over

    def say(self, *messages: Ack | ShardStatus | Output) -> None:
        assert self.uplink is not None
        for message in messages:
            self.uplink.send_nowait(message)

    def of(self, kind: type[LinkEvent]) -> list[LinkEvent]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def node(nursery: trio.Nursery) -> Scripted:
    return Scripted(nursery)


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


# --- registration ---------------------------------------------------------------------------------------------


async def test_it_registers_with_its_whole_hardware_and_every_shard(autojump_clock: MockClock, node: Scripted) -> None:
    problem = Problem("nvml", "x")
    node.hardware.publish(attrs.evolve(VIEW, problems=OpenProblems({problem: -30.0})))
    register = await node.control.next(Register)
    assert register == Register(
        PROTOCOL,
        "gpu-a",
        "i1",
        "b1",
        register.agent_version,
        "10.0.0.5",
        {"zone": "a"},
        PortRange(21000, 21009),
        VIEW.reading.hardware,
        True,
        (attrs.evolve(problem, since_seconds=30.0),),
        (READY,),
    )
    await settle()
    assert node.of(Accepted) == [Accepted(1, 0)]
    with capture_logs() as logs:
        node.control.status_acked = 41
        await node.control.hang_up()
        await node.control.next(Register, 2)
        await settle()
    assert node.of(Accepted)[-1] == Accepted(2, 41)
    assert [entry["event"] for entry in logs] == ["disconnected from control", "registered"]


async def test_an_address_of_its_own_is_that_of_the_connection() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listeners[0], await trio.testing.open_stream_to_socket_listener(listeners[0]) as stream:
        assert local_address(stream) == "127.0.0.1"
        (await listeners[0].accept()).socket.close()
    assert local_address(trio.testing.memory_stream_pair()[0]) == ""


async def test_changed_hardware_registers_again_on_the_live_stream(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Register)
    await trio.sleep(10)
    both = HardwareReading(NodeHardware(gpus=(GPU, Gpu("GPU-b", "H100", 80))))
    node.hardware.publish(HardwareView(both))
    again = await node.control.next(Register, 2, seconds=1)
    assert [gpu.uuid for gpu in again.hardware.gpus] == ["GPU-a", "GPU-b"]
    assert again.shards == (READY,)
    node.hardware.publish(HardwareView(attrs.evolve(both, gpu_memory_used_bytes={"GPU-a": 1})))
    await trio.sleep(60)
    assert len(node.control.of(Register)) == 2  # numbers are for heartbeats
    assert len(node.control.dialled) == 1
    assert len(node.of(Accepted)) == 2


async def test_a_refusal_is_obeyed_with_growing_delays(autojump_clock: MockClock, node: Scripted) -> None:
    node.control.answer = lambda _: Refused("node gpu-a is held by 10.0.0.9", 60.0)
    with capture_logs() as logs:
        await node.control.wait_ended(8)
        await settle()
    pauses = [later - earlier for earlier, later in pairwise(node.control.dialled)]
    assert all(60 <= pause <= 91 for pause in pauses)
    assert logs[0]["event"] == "cannot reach control"
    assert logs[0]["reason"] == "refused: node gpu-a is held by 10.0.0.9"
    assert node.of(Accepted) == []
    node.control.answer = lambda _: Registered("c1", 2.0)
    await node.control.next(Heartbeat)


async def test_a10_d_another_major_version_is_said_and_tried_at_the_slowest_pace(
    autojump_clock: MockClock, node: Scripted
) -> None:
    """The agent's side: both versions are named, it lives, and it tries on."""
    node.control.answer = lambda _: Registered("c1", 2.0, protocol=(2, 0))
    with capture_logs() as logs:
        await node.control.wait_ended(5)
        await settle()
    assert "2.0" in logs[0]["reason"]
    assert "1.0" in logs[0]["reason"]
    assert min(later - earlier for earlier, later in pairwise(node.control.dialled)) >= 30


# --- heartbeats -----------------------------------------------------------------------------------------------


async def test_heartbeats_come_at_the_directed_interval_and_never_late(
    autojump_clock: MockClock, node: Scripted
) -> None:
    await node.control.next(Heartbeat, 100)
    times = [at for _, at, message in node.control.heard if isinstance(message, Heartbeat)]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 1.6 <= min(pauses) < 1.65
    assert 1.95 < max(pauses) <= 2.0
    assert [beat.number for beat in node.control.of(Heartbeat)] == list(range(1, 101))
    beat = node.control.of(Heartbeat)[0]
    assert (beat.gpu_memory_used_bytes, beat.shards, beat.stale_seconds) == ({"GPU-a": 7}, (READY,), 0.0)

    node.control.send(Ping(10.0))
    await node.control.next(Heartbeat, 130)
    times = [at for _, at, message in node.control.heard if isinstance(message, Heartbeat)]
    assert all(8.0 <= later - earlier <= 10.0 for earlier, later in pairwise(times[101:]))


@pytest.mark.parametrize(("directed", "least", "most"), [(0.0, 0.04, 0.05), (-5.0, 0.04, 0.05), (1e9, 48.0, 60.0)])
async def test_an_absurd_interval_is_kept_within_bounds(
    autojump_clock: MockClock, node: Scripted, directed: float, least: float, most: float
) -> None:
    node.control.answer = lambda _: Registered("c1", directed)
    await node.control.next(Heartbeat, 20)
    times = [at for _, at, message in node.control.heard if isinstance(message, Heartbeat)]
    assert all(least <= later - earlier <= most for earlier, later in pairwise(times))


async def test_numbers_have_their_age_and_problems_theirs(autojump_clock: MockClock, node: Scripted) -> None:
    problem = Problem("nvml", "NVML: Unknown Error")
    reading = attrs.evolve(VIEW.reading, gpu_memory_read_at=trio.current_time())
    node.hardware.publish(HardwareView(reading, OpenProblems({problem: trio.current_time()})))
    beat = await node.control.next(Heartbeat, 10)
    assert 16 <= beat.stale_seconds <= 20
    assert [(one.code, one.since_seconds) for one in beat.problems] == [("nvml", beat.stale_seconds)]


# --- messages -------------------------------------------------------------------------------------------------


async def test_commands_go_to_the_supervisor_in_order_and_its_words_come_back_in_order(
    autojump_clock: MockClock, node: Scripted
) -> None:
    await node.control.next(Heartbeat)
    commands = (
        StartShard(1, "tiny/0/0", 7, "h", Profile("fake"), "tiny"),
        DrainShard(2, "tiny/0/0", 7),
        StopShard(3, "tiny/0/0", 7),
    )
    for command in commands:
        node.control.send(command)
    await settle()
    assert node.of(Commanded) == [Commanded(1, command) for command in commands]
    said = (Ack(1, accepted=True, port=21000), ShardStatus(1, READY), Ack(2, accepted=False, reason="no"))
    node.say(*said)
    await settle()
    assert [message for _, _, message in node.control.heard if isinstance(message, Ack | ShardStatus)] == list(said)
    assert node.of(Acked) == [Acked(1)]


async def test_a10_c_an_unknown_command_is_answered_and_costs_nothing(
    autojump_clock: MockClock, node: Scripted
) -> None:
    await node.control.next(Heartbeat)
    assert node.control.current is not None
    body = msgpack.packb({"type": "snapshot", "command_id": 9, "shard": "tiny/0/0"})
    with capture_logs() as logs:
        node.control.current._queue_in.send_nowait(len(body).to_bytes(4, "big") + body)
        assert await node.control.next(Unsupported) == Unsupported("snapshot", 9)
        await trio.sleep(60)
    assert [(entry["event"], entry["name"]) for entry in logs] == [("unsupported command", "snapshot")]
    assert node.control.ended == []
    assert node.control.of(Heartbeat)[-1].shards == (READY,)


async def test_what_an_agent_has_no_use_for_is_one_log_line(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Heartbeat)
    with capture_logs() as logs:
        node.control.send(Certificate("chain"))
        node.control.send(Unsupported("Heartbeat"))
        await settle()
    assert [entry["name"] for entry in logs] == ["Certificate", "Heartbeat"]


# --- endings --------------------------------------------------------------------------------------------------


async def test_it_dials_for_ever_while_control_is_away(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Heartbeat)
    node.control.up = False
    await node.control.hang_up()
    await trio.sleep(4 * 3600)
    pauses = [later - earlier for earlier, later in pairwise(node.control.dialled[9:])]
    assert min(pauses) >= 3.0
    assert max(pauses) <= 30.0
    node.control.up = True
    await node.control.next(Register, 2, seconds=31)


async def test_a_control_that_says_nothing_for_90_s_is_dialled_anew(autojump_clock: MockClock, node: Scripted) -> None:
    node.control.silent = True
    await node.control.next(Register)
    begun = trio.current_time()
    await node.control.wait_ended()
    assert SILENCE_SECONDS <= trio.current_time() - begun <= SILENCE_SECONDS + 3
    node.control.silent = False
    await node.control.next(Heartbeat)


async def test_a_supervisor_that_hangs_up_costs_the_connection_only(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Heartbeat)
    assert node.uplink is not None
    node.uplink.close()
    await node.control.next(Register, 2)


@pytest.mark.parametrize("engines", ["kept", "stopped"])
async def test_goodbye_is_said_after_all_that_was_to_be_said(
    autojump_clock: MockClock, node: Scripted, engines: str
) -> None:
    await node.control.next(Heartbeat)
    node.say(ShardStatus(1, READY))
    await settle()
    await node.link.say_goodbye(engines, "SIGTERM")
    assert await node.control.wait_ended() == "end of stream"
    assert node.control.heard[-1][2] == Goodbye(engines, "SIGTERM")
    await trio.sleep(100)
    assert len(node.control.dialled) == 1


async def test_goodbye_without_control_returns_too(autojump_clock: MockClock, node: Scripted) -> None:
    node.control.up = False
    await trio.sleep(100)
    await node.link.say_goodbye("kept", "SIGTERM")
    node.control.up = True
    dialled = len(node.control.dialled)
    await trio.sleep(100)
    assert len(node.control.dialled) == dialled


# --- output ---------------------------------------------------------------------------------------------------


async def test_output_goes_up_in_pieces_between_heartbeats(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Heartbeat)
    node.control.send(LogRequest(5, "tiny/0/0"))
    await settle()
    assert node.of(OutputAsked) == [OutputAsked(LogRequest(5, "tiny/0/0"))]
    data = bytes(range(256)) * 1024
    node.say(Output(5, data))
    assert await node.control.next(LogEnd) == LogEnd(5)
    chunks = node.control.of(LogChunk)
    assert b"".join(chunk.data for chunk in chunks) == data
    assert max(len(chunk.data) for chunk in chunks) == CHUNK_BYTES
    node.control.send(LogRequest(5, "tiny/0/0"))
    await settle()
    node.say(Output(5, reason="nothing of it is here"))
    assert await node.control.next(LogEnd, 2) == LogEnd(5, "nothing of it is here")


async def test_too_many_requests_for_output_are_refused(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Heartbeat)
    for request_id in range(REQUESTS_MAX + 1):
        node.control.send(LogRequest(request_id, "tiny/0/0"))
    end = await node.control.next(LogEnd)
    assert end.request_id == REQUESTS_MAX
    assert "at once" in end.reason
    assert len(node.of(OutputAsked)) == REQUESTS_MAX


async def test_a_cancelled_request_gets_its_end_and_no_more(autojump_clock: MockClock, node: Scripted) -> None:
    await node.control.next(Heartbeat)
    node.control.send(LogRequest(5, "tiny/0/0"))
    node.control.send(LogCancel(5))
    node.control.send(LogCancel(6))
    await settle()
    node.say(Output(5, b"x" * 100_000))
    assert await node.control.next(LogEnd) == LogEnd(5, "cancelled")
    assert node.control.of(LogChunk) == []
