"""Lines, arguments and clients: no input raises anything but RefusedError, no client costs more than its limit."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.agent.shim_protocol import (
    LINE_BYTES_MAX,
    PENDING_BYTES_MAX,
    Client,
    RefusedError,
    bytes_argument,
    is_whole,
    read_command,
    read_request,
    signal_argument,
    stop_arguments,
)

FULL = {"mark": "m", "agent": "a", "state_dir": "/s", "shard": "m/1/0", "epoch": 1, "argv": ["x"], "env": {}}


@pytest.fixture
def pair() -> Iterator[tuple[Client, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours, theirs:
        yield Client(ours), theirs


def test_the_request_with_its_defaults() -> None:
    request = read_request(json.dumps(FULL).encode())
    assert request == {
        **FULL,
        "cwd": "/",
        "ports": [],
        "grace_seconds": 20.0,
        "second_term": False,
        "cgroup": "",
    }


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"mark": None, "env": None}, "lacks mark, env"),
        ({"argv": []}, "argv at least one"),
        ({"argv": ["x", 1]}, "strings only"),
        ({"env": {"A": 1}}, "strings only"),
    ],
)
def test_a_request_that_says_too_little(change: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_request(json.dumps({**FULL, **change}).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"nonsense"])
def test_no_request_at_all(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_request(text)


VALUE: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([])
)
FEW = settings(max_examples=200)  # the words are few, and a line is plain JSON


@FEW
@given(st.binary(max_size=60) | VALUE.map(lambda value: json.dumps({"v": value}).encode()))
def test_property_any_line_is_an_object_or_refused(line: bytes) -> None:
    with suppress(RefusedError):
        assert isinstance(read_command(line), dict)


@FEW
@given(VALUE, VALUE)
def test_property_arguments_are_in_range_or_refused(one: object, other: object) -> None:
    with suppress(RefusedError):
        grace, second_term = stop_arguments({"grace_seconds": one, "second_term": other})
        assert 0 <= grace <= 86400
        assert isinstance(second_term, bool)
    with suppress(RefusedError):
        assert 1 <= signal_argument({"signal": one}) <= 64
    with suppress(RefusedError):
        assert 0 <= bytes_argument({"bytes_max": one}) <= 1 << 20


@pytest.mark.parametrize(
    ("value", "whole"), [(1, True), (0, True), (True, False), (1.0, False), ("1", False), (None, False)]
)
def test_whole(value: object, whole: bool) -> None:
    assert is_whole(value) == whole


def test_lines_in_pieces(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    assert list(client.lines()) == []
    peer.sendall(b"one\ntwo\nthr")
    assert list(client.lines()) == [b"one", b"two"]
    peer.sendall(b"ee\n")
    assert list(client.lines()) == [b"three"]
    assert not client.closing
    peer.close()
    assert list(client.lines()) == []
    assert client.closing


def test_a_line_without_end_closes(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    for _ in range(2):
        peer.sendall(b"x" * (LINE_BYTES_MAX // 2 + 1))
        assert list(client.lines()) == []
    assert client.closing
    assert "longer than" in json.loads(peer.recv(1000))["error"]


def test_who_does_not_read_is_not_read_from_and_dropped_at_the_limit(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    message = {"x": "y" * (1 << 20)}
    client.send(message)
    assert client.pending
    peer.sendall(b"more\n")
    assert list(client.lines()) == []
    while not client.closing:
        client.send(message)
        assert len(client.pending) <= PENDING_BYTES_MAX
    assert not client.pending
    client.send(message)
    assert not client.pending


def test_what_is_pending_goes_out_as_it_is_taken(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    client.send({"x": "y" * (1 << 20)})
    received = b""
    while not received.endswith(b"\n"):
        received += peer.recv(1 << 16)
        client.flush()
    assert json.loads(received) == {"v": 1, "x": "y" * (1 << 20)}
    assert not client.pending


def test_a_peer_that_has_gone_is_no_trouble(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    peer.close()
    client.send({"x": 1})
    client.send({"x": 1})
    assert client.closing
    assert not client.pending
