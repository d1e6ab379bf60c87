"""Ports without clashes, and addresses where others can reach an engine and nobody else."""

import socket

import pytest

from llmgw.agent.ports import PortChoice, PortChooser, host_to_bind, host_to_dial, is_local, port_is_free
from llmgw.core.hardware import PortRange

RANGE = PortRange(20000, 20003)


def chooser(*taken: int) -> PortChooser:
    return PortChooser(RANGE, lambda port: port not in taken)


def test_ports_go_round_the_range() -> None:
    ports = chooser()
    chosen = [ports.choose(None, rendezvous=False, used=(), avoided=()).port for _ in range(5)]
    assert chosen == [20000, 20001, 20002, 20003, 20000]


def test_a_port_of_ours_of_a_stranger_or_lately_taken_is_passed_over() -> None:
    choice = chooser(20001).choose(None, rendezvous=False, used={20000}, avoided={20002})
    assert choice == PortChoice(20003)


def test_a_port_lately_taken_is_better_than_none() -> None:
    choice = chooser(20001).choose(None, rendezvous=False, used={20000, 20003}, avoided={20002})
    assert choice == PortChoice(20002)


def test_no_free_port_is_a_refusal_that_names_the_range() -> None:
    choice = chooser(20000, 20001).choose(None, rendezvous=False, used={20002, 20003}, avoided=())
    assert choice.refusal == "no port of 20000-20003 is free"


def test_the_leader_of_a_group_gets_a_second_port() -> None:
    assert chooser().choose(None, rendezvous=True, used=(), avoided=()) == PortChoice(20000, 20001)
    assert chooser().choose(9000, rendezvous=True, used=(), avoided=()) == PortChoice(9000, 20000)
    assert chooser(20001, 20002, 20003).choose(None, rendezvous=True, used=(), avoided=()).refusal


def test_c05_a_a_fixed_port_is_taken_or_refused_with_its_number() -> None:
    assert chooser().choose(9000, rendezvous=False, used=(), avoided={9000}) == PortChoice(9000)
    refusal = chooser(9000).choose(9000, rendezvous=False, used=(), avoided=()).refusal
    assert refusal == "port 9000 of the profile is taken by a process that is not ours"
    refusal = chooser().choose(9000, rendezvous=False, used={9000}, avoided=()).refusal
    assert refusal == "port 9000 of the profile is in use by another shard of this node"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
@pytest.mark.parametrize("shared", [False, True])
def test_a_listener_at_any_address_makes_a_port_taken(family: socket.AddressFamily, host: str, shared: bool) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            stranger.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        stranger.listen()
        port = stranger.getsockname()[1]
        assert not port_is_free(port)
    assert port_is_free(port)


def test_the_remains_of_old_connections_do_not_make_a_port_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first is left in TIME_WAIT
            assert client.recv(1) == b""
    assert port_is_free(port)


@pytest.mark.parametrize(
    ("address", "bound", "dialled"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("::1", "::1", "::1"),
        ("10.0.0.5", "10.0.0.5", "10.0.0.5"),
        ("192.0.2.1", "0.0.0.0", "127.0.0.1"),
        ("2001:db8::1", "::", "::1"),
        ("gpu-a.example.org", "0.0.0.0", "127.0.0.1"),
    ],
)
def test_an_engine_listens_where_it_is_reached(address: str, bound: str, dialled: str) -> None:
    host = host_to_bind(address, {"10.0.0.5"}.__contains__)
    assert (host, host_to_dial(host)) == (bound, dialled)


def test_what_is_local_is_asked_of_the_kernel() -> None:
    assert is_local("127.0.0.1")
    assert not is_local("192.0.2.1")
    assert not is_local("no address")
