"""Messages to bytes and back."""

import math
from typing import Any

import attrs
import pytest

from llmgw.core.catalog import Profile, Secret
from llmgw.core.hardware import Fabric, Gpu, Hca, NodeHardware, PortRange, Problem
from llmgw.core.lifecycle import ShardReport
from llmgw.core.routing import Endpoint, RoutedModel, Unavailable
from llmgw.core.units import Duration, Size
from llmgw.errors import InvariantBroken, PeerError, PeerReason
from llmgw.wire.codec import UnknownMessage, decode, encode, message_classes
from llmgw.wire.frames import DOWN_BYTES_MAX, decode_body
from llmgw.wire.messages import (
    AgentDown,
    AgentUp,
    Heartbeat,
    LogChunk,
    Message,
    Ping,
    Register,
    RouterReport,
    RouteTable,
    ShardStatus,
    StartShard,
)


def plain(message: Message) -> dict[str, Any]:
    return decode_body(encode(message)[4:])


def there_and_back(message: Message) -> Any:
    return decode(plain(message))


START = StartShard(
    command_id=7,
    shard="Qwen/Qwen2.5-7B/0/0",
    epoch=1_760_000_000,
    spec_hash="0123456789abcdef",
    profile=Profile(
        engine="llamacpp",
        model="tiny.gguf",
        args=("--ctx-size", "", "ü$HOME `id`"),
        env={"A": "literal", "HF_TOKEN": Secret("/etc/llmgw/hf")},
        gpus=2,
        gpu_memory=Size(40 * 2**30),
        port=None,
        start_deadline=Duration(60.0),
    ),
    served_name="qwen",
    gpus=("GPU-a", "GPU-b"),
    peers=("10.0.0.1:20001", "10.0.0.2"),
    rank=1,
)


def test_a_profile_comes_back_whole() -> None:
    back = there_and_back(START)
    assert back == START
    assert back.profile.env["HF_TOKEN"] == Secret("/etc/llmgw/hf")
    assert isinstance(back.gpus, tuple)


def test_a_registration_comes_back_whole() -> None:
    register = Register(
        protocol=(1, 0),
        node="gpu-a",
        instance="i",
        labels={"zone": "a", "": ""},
        ports=PortRange(1, 2),
        hardware=NodeHardware(
            gpus=(Gpu("GPU-a", index=0, problems=("xid 79",)), Gpu("MIG-b", mig=True)),
            fabrics=(Fabric("ib0", (Hca("mlx5_0", usable=False, problem="down", rate_gbps=400.0),)),),
        ),
        hardware_complete=False,
        problems=(Problem("nvml", "Unknown Error", since_seconds=3.0),),
        shards=(ShardReport("a/0/0", 1, state="warming", gone=True, exit_code=-9, signal=9),),
    )
    assert there_and_back(register) == register


def test_a_table_comes_back_whole() -> None:
    table = RouteTable(
        "inc",
        3,
        models=(RoutedModel("m", unavailable=Unavailable("loading: 1 of 2")),),
        endpoints=(Endpoint("m/0", "m", "http://[::1]:9000", 5, key="secret"),),
    )
    assert there_and_back(table) == table


def test_what_equals_its_default_is_not_sent() -> None:
    assert plain(Ping()) == {"type": "Ping"}
    assert plain(Heartbeat(3)) == {"type": "Heartbeat", "number": 3}


def test_a_heartbeat_of_8_gpus_and_8_shards_is_small() -> None:
    heartbeat = Heartbeat(
        number=1234,
        gpu_memory_used_bytes={f"GPU-{i:08x}-0000-0000": 70 * 2**30 for i in range(8)},
        stale_seconds=0.5,
        shards=tuple(ShardReport(f"model/{i}/0", 1_760_000_000 + i, state="ready", gone=False) for i in range(8)),
    )
    assert len(encode(heartbeat)) < 1024


def test_bytes_are_bytes() -> None:
    assert there_and_back(LogChunk(1, b"\xff\x00")) == LogChunk(1, b"\xff\x00")


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("\ud800", "\ufffd"),
        ("a\udcffb", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),  # both halves of one character, as some JSON decoders leave them
    ],
)
def test_text_never_fails(text: str, sent: str) -> None:
    assert there_and_back(ShardStatus(1, ShardReport(text, 1), text)) == ShardStatus(1, ShardReport(sent, 1), sent)


def test_keys_that_are_no_text_do_not_collide_into_a_bad_frame() -> None:
    message = Heartbeat(1, {chr(0xD800): 1, chr(0xD801): 2, "GPU-a": 3})
    assert there_and_back(message).gpu_memory_used_bytes == {"\ufffd": 2, "GPU-a": 3}


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(2**64),
        Heartbeat(-(2**63) - 1),
        Heartbeat(1, stale_seconds=math.nan),
        RouterReport("i", 1, counters={"x": math.inf}),
        LogChunk(1, bytes(DOWN_BYTES_MAX)),
        Heartbeat(1, {"a": object()}),  # type: ignore[dict-item]
    ],
    ids=["too large", "too small", "nan", "infinite", "too long", "no plain data"],
)
def test_what_no_peer_would_take_is_our_mistake(message: Message) -> None:
    with pytest.raises(InvariantBroken):
        encode(message)


def bad_field(fields: dict[str, Any]) -> str:
    with pytest.raises(PeerError) as caught:
        decode(fields)
    assert caught.value.reason is PeerReason.BAD_FIELD
    return caught.value.detail


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({}, "type: expected the name of a message, and it is missing"),
        ({"type": 3}, "type: expected the name of a message, got int 3"),
        ({"type": "Heartbeat"}, "Heartbeat.number: expected an integer, and it is missing"),
        (
            {"type": "Heartbeat", "number": 1, "shards": [{"shard": "a", "epoch": 8.9}]},
            "Heartbeat.shards[0].epoch: expected an integer of at most 64 bits, got float 8.9",
        ),
        (
            {"type": "Ack", "command_id": 1, "accepted": "false"},
            "Ack.accepted: expected true or false, got str 'false'",
        ),
        (
            {"type": "Ping", "heartbeat_interval_seconds": True},
            "Ping.heartbeat_interval_seconds: expected a finite number, got bool True",
        ),
        (
            {"type": "Ping", "heartbeat_interval_seconds": math.inf},
            "Ping.heartbeat_interval_seconds: expected a finite number, got float inf",
        ),
        ({"type": "LogChunk", "request_id": 1, "data": "text"}, "LogChunk.data: expected bytes, got str"),
        (
            {"type": "Heartbeat", "number": 1, "gpu_memory_used_bytes": {"G" * 100: "x"}},
            f"Heartbeat.gpu_memory_used_bytes.'{'G' * 64}...': expected an integer of at most 64 bits, got str 'x'",
        ),
    ],
)
def test_a_bad_field_is_named_with_path_expected_and_seen(fields: dict[str, Any], detail: str) -> None:
    assert bad_field(fields) == detail


@pytest.mark.parametrize(
    "change",
    [
        {"key": ["hunter2"]},
        {"profile": {"engine": "x", "env": "TOKEN=hunter2"}},
        {"profile": {"engine": "x", "env": {"TOKEN": 2}}},
    ],
)
def test_a_secret_of_the_wrong_type_is_not_shown(change: dict[str, Any]) -> None:
    detail = bad_field(plain(START) | change)
    assert "hunter2" not in detail
    assert detail.endswith(("got list", "got str", "got int"))


def test_an_unknown_message_is_no_error() -> None:
    assert decode({"type": "snapshot", "command_id": 9, "x": 1}) == UnknownMessage("snapshot", 9)
    assert decode({"type": "x" * 1000, "command_id": "9"}) == UnknownMessage("x" * 64, None)


def test_the_classes_that_a_sender_may_use_are_an_argument() -> None:
    fields = plain(START)
    assert decode(fields, AgentDown) == START
    assert decode(fields, AgentUp) == UnknownMessage("StartShard", 7)


def test_unknown_fields_are_ignored_at_every_level() -> None:
    fields = plain(START)
    fields["new"] = {"deep": [1]}
    fields["profile"]["new"] = None
    assert decode(fields) == START


@attrs.frozen
class Odd:
    type: str


def test_a_field_called_type_is_our_mistake() -> None:
    with pytest.raises(InvariantBroken):
        message_classes(Odd | Ping)
