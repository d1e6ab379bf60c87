"""The messages: recorded bytes of version 1 decode for ever, and every class has a recording.

`recorded_v1.txt` holds frames in hexadecimal, each under the name of its message, in the order of RECORDED. It is only
ever added to: a field that is new has its default when old bytes are decoded. Each class is there with nothing but what
it requires, where the defaults are those that old peers left out, and with everything.
"""

from pathlib import Path

import attrs
import pytest

from llmgw.core.catalog import Profile, Secret
from llmgw.core.hardware import Fabric, Gpu, Hca, NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.routing import ClientKey, Endpoint, RoutedModel, Unavailable
from llmgw.core.units import Duration, Size
from llmgw.wire import messages
from llmgw.wire.codec import decode, encode, message_classes
from llmgw.wire.frames import FrameDecoder
from llmgw.wire.messages import (
    Ack,
    Certificate,
    DrainShard,
    EndpointReport,
    Follow,
    Goodbye,
    Heartbeat,
    LogCancel,
    LogChunk,
    LogEnd,
    LogRequest,
    Message,
    Ping,
    Refused,
    Register,
    Registered,
    RenewRequest,
    RouteChange,
    RouteRemoved,
    RouterReport,
    RouteSet,
    RouteTable,
    ShardStatus,
    StartShard,
    StatusAck,
    StopShard,
    Unsupported,
)

RECORDED: list[Message] = [
    Register(
        protocol=(1, 0),
        node="node",
        instance="instance",
        boot_id="",
        agent_version="",
        address="",
        labels={},
        ports=PortRange(first=20000, last=20999),
        hardware=NodeHardware(
            gpus=(),
            cpus=0,
            memory_total_bytes=0,
            disk_total_bytes=0,
            disk_free_bytes=0,
            fabrics=(),
            kernel="",
            driver="",
        ),
        hardware_complete=True,
        problems=(),
        shards=(),
    ),
    Register(
        protocol=(1, 0),
        node="node",
        instance="instance",
        boot_id="boot_id",
        agent_version="agent_version",
        address="address",
        labels={"label": "value"},
        ports=PortRange(first=2, last=3),
        hardware=NodeHardware(
            gpus=(
                Gpu(
                    uuid="uuid",
                    name="name",
                    memory_total_bytes=4,
                    index=5,
                    pci="pci",
                    numa_node=6,
                    mig=True,
                    memory_unified=True,
                    problems=("problem",),
                ),
            ),
            cpus=7,
            memory_total_bytes=8,
            disk_total_bytes=9,
            disk_free_bytes=10,
            fabrics=(
                Fabric(
                    name="name",
                    hcas=(
                        Hca(
                            name="name",
                            usable=False,
                            problem="problem",
                            guid="guid",
                            rate_gbps=11.5,
                            numa_node=12,
                            netdev="netdev",
                        ),
                    ),
                ),
            ),
            kernel="kernel",
            driver="driver",
        ),
        hardware_complete=False,
        problems=(Problem(code="code", detail="detail", gpu="gpu", since_seconds=13.5),),
        shards=(
            ShardReport(
                shard="shard",
                epoch=14,
                spec_hash="spec_hash",
                state="state",
                gone=True,
                pid=15,
                port=16,
                rendezvous_port=17,
                gpus=("gpu",),
                since_seconds=18.5,
                error="error",
                cause="cause",
                exit_code=19,
                signal=20,
            ),
        ),
    ),
    Heartbeat(number=21, gpu_memory_used_bytes={}, stale_seconds=0.0, problems=(), shards=()),
    Heartbeat(
        number=22,
        gpu_memory_used_bytes={"gpu_memory_used_byte": 23, "GPU-b": None},
        stale_seconds=24.5,
        problems=(Problem(code="code", detail="detail", gpu="gpu", since_seconds=25.5),),
        shards=(
            ShardReport(
                shard="shard",
                epoch=26,
                spec_hash="spec_hash",
                state="state",
                gone=True,
                pid=27,
                port=28,
                rendezvous_port=29,
                gpus=("gpu",),
                since_seconds=30.5,
                error="error",
                cause="cause",
                exit_code=31,
                signal=32,
            ),
        ),
    ),
    ShardStatus(
        number=33,
        report=ShardReport(
            shard="shard",
            epoch=34,
            spec_hash="",
            state="accepted",
            gone=False,
            pid=None,
            port=None,
            rendezvous_port=None,
            gpus=(),
            since_seconds=0.0,
            error="",
            cause="",
            exit_code=None,
            signal=None,
        ),
        output="",
    ),
    ShardStatus(
        number=35,
        report=ShardReport(
            shard="shard",
            epoch=36,
            spec_hash="spec_hash",
            state="state",
            gone=True,
            pid=37,
            port=38,
            rendezvous_port=39,
            gpus=("gpu",),
            since_seconds=40.5,
            error="error",
            cause="cause",
            exit_code=41,
            signal=42,
        ),
        output="output",
    ),
    Ack(command_id=43, accepted=True, reason="", port=None, rendezvous_port=None),
    Ack(command_id=44, accepted=True, reason="reason", port=45, rendezvous_port=46),
    LogChunk(request_id=47, data=b"\x00\xff"),
    LogChunk(request_id=48, data=b"\x00\xff"),
    LogEnd(request_id=49, reason="", dropped_bytes=0),
    LogEnd(request_id=50, reason="reason", dropped_bytes=51),
    RenewRequest(csr="csr", token=""),
    RenewRequest(csr="csr", token="token"),
    Goodbye(engines="kept", reason=""),
    Goodbye(engines="engines", reason="reason"),
    Unsupported(name="name", command_id=None),
    Unsupported(name="name", command_id=52),
    Ping(heartbeat_interval_seconds=None),
    Ping(heartbeat_interval_seconds=53.5),
    Registered(
        control_incarnation="control_incarnation",
        heartbeat_interval_seconds=54.5,
        status_acked=0,
        protocol=(1, 0),
        control_version="",
    ),
    Registered(
        control_incarnation="control_incarnation",
        heartbeat_interval_seconds=55.5,
        status_acked=56,
        protocol=(1, 0),
        control_version="control_version",
    ),
    Refused(reason="reason", retry_after_seconds=0.0, protocol=(1, 0)),
    Refused(reason="reason", retry_after_seconds=57.5, protocol=(1, 0)),
    StatusAck(number=58),
    StatusAck(number=59),
    StartShard(
        command_id=60,
        shard="shard",
        epoch=61,
        spec_hash="spec_hash",
        profile=Profile(
            engine="engine",
            model="",
            args=(),
            env={},
            gpus=0,
            nodes=1,
            gpu_memory=None,
            memory=Size(0),
            probe="chat",
            listener_check=True,
            port=None,
            start_deadline=Duration(1200.0),
            stop_grace=Duration(20.0),
        ),
        served_name="served_name",
        gpus=(),
        fabric="",
        peers=(),
        rank=0,
        key="",
    ),
    StartShard(
        command_id=62,
        shard="shard",
        epoch=63,
        spec_hash="spec_hash",
        profile=Profile(
            engine="engine",
            model="model",
            args=("arg",),
            env={"env": "value", "B": Secret(file="file")},
            gpus=64,
            nodes=65,
            gpu_memory=Size(66),
            memory=Size(67),
            probe="probe",
            listener_check=False,
            port=68,
            start_deadline=Duration(69.5),
            stop_grace=Duration(70.5),
        ),
        served_name="served_name",
        gpus=("gpu",),
        fabric="fabric",
        peers=("peer",),
        rank=71,
        key="key",
    ),
    StopShard(command_id=72, shard="shard", epoch=73, grace_seconds=20.0, reason=""),
    StopShard(command_id=74, shard="shard", epoch=75, grace_seconds=76.5, reason="reason"),
    DrainShard(command_id=77, shard="shard", epoch=78, deadline_seconds=60.0),
    DrainShard(command_id=79, shard="shard", epoch=80, deadline_seconds=81.5),
    LogRequest(request_id=82, shard="shard", previous=False, follow=False, bytes_max=65536),
    LogRequest(request_id=83, shard="shard", previous=True, follow=True, bytes_max=84),
    LogCancel(request_id=85),
    LogCancel(request_id=86),
    Certificate(chain="chain"),
    Follow(protocol=(1, 0), router="router", version="", incarnation_held="", revision_held=0),
    Follow(protocol=(1, 0), router="router", version="version", incarnation_held="incarnation_held", revision_held=87),
    RouterReport(incarnation="incarnation", revision=88, endpoints=(), queued={}, counters={}),
    RouterReport(
        incarnation="incarnation",
        revision=89,
        endpoints=(
            EndpointReport(
                id="id", epoch=90, in_flight=91, completion_age_seconds=92.5, state="state", reason="reason"
            ),
        ),
        queued={"queued": 93},
        counters={"counter": 94.5},
    ),
    RouteTable(
        incarnation="incarnation", revision=95, part=0, parts=1, complete=True, models=(), endpoints=(), keys=()
    ),
    RouteTable(
        incarnation="incarnation",
        revision=96,
        part=97,
        parts=98,
        complete=False,
        models=(
            RoutedModel(
                name="name",
                aliases=("alias",),
                created=99,
                exact_usage=True,
                unavailable=Unavailable(reason="reason", retry_after_seconds=100.5),
            ),
        ),
        endpoints=(
            Endpoint(
                id="id",
                model="model",
                address="address",
                epoch=101,
                state="state",
                reason="reason",
                upstream_model="upstream_model",
                key="key",
            ),
        ),
        keys=(ClientKey(name="name", sha256="sha256", models=("model",)),),
    ),
    RouteChange(
        incarnation="incarnation",
        revision=102,
        complete=True,
        set=RouteSet(models=(), endpoints=()),
        removed=RouteRemoved(models=(), endpoints=()),
    ),
    RouteChange(
        incarnation="incarnation",
        revision=103,
        complete=False,
        set=RouteSet(
            models=(
                RoutedModel(
                    name="name",
                    aliases=("alias",),
                    created=104,
                    exact_usage=True,
                    unavailable=Unavailable(reason="reason", retry_after_seconds=105.5),
                ),
            ),
            endpoints=(
                Endpoint(
                    id="id",
                    model="model",
                    address="address",
                    epoch=106,
                    state="state",
                    reason="reason",
                    upstream_model="upstream_model",
                    key="key",
                ),
            ),
        ),
        removed=RouteRemoved(models=("model",), endpoints=("endpoint",)),
    ),
]


def recordings() -> list[tuple[str, bytes]]:
    """(name, frame) of each, from the file."""
    found: list[tuple[str, bytes]] = []
    for line in Path(__file__).with_name("recorded_v1.txt").read_text().splitlines():
        if line.startswith(" "):
            name, frame = found[-1]
            found[-1] = (name, frame + bytes.fromhex(line))
        else:
            found.append((line, b""))
    return found


def test_every_message_class_is_recorded() -> None:
    """A class without a recording fails: record its frame when it is released, and never change it."""
    assert {name for name, _ in recordings()} == set(message_classes())


def test_there_is_a_message_for_each_recording() -> None:
    assert [name for name, _ in recordings()] == [type(message).__name__ for message in RECORDED]


@pytest.mark.parametrize("index", range(len(RECORDED)), ids=lambda index: f"{index}-{type(RECORDED[index]).__name__}")
def test_recorded_bytes_of_version_1_decode_for_ever(index: int) -> None:
    (fields,) = FrameDecoder().feed(recordings()[index][1])
    assert decode(fields) == RECORDED[index]


@pytest.mark.parametrize("message", RECORDED, ids=lambda message: type(message).__name__)
def test_messages_come_back_whole(message: Message) -> None:
    (fields,) = FrameDecoder().feed(encode(message))
    assert decode(fields) == message


@pytest.mark.parametrize("message", RECORDED, ids=lambda message: type(message).__name__)
def test_messages_are_frozen(message: Message) -> None:
    """What is received is shared between actors."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(message, attrs.fields(type(message))[0].name, None)


def test_every_message_is_in_a_union() -> None:
    """What nobody may send would be dead."""
    defined = {
        name: cls for name, cls in vars(messages).items() if attrs.has(cls) and cls.__module__ == messages.__name__
    }
    parts = {"EndpointReport", "RouteSet", "RouteRemoved"}
    assert set(defined) - parts == set(message_classes())
