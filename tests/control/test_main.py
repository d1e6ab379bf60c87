"""The command: what ends it before it begins, and how it ends in order."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from llmgw.commandline import read_control as read
from llmgw.control.listener import Arrival
from llmgw.control.main import ListenError, accept_agents, main, open_sockets, peer_of
from llmgw.control.store import state_dir_lock
from llmgw.core.address import Address
from llmgw.errors import ConfigError
from llmgw.net.listening import Inherited

MODEL = """
[[models]]
name = "tiny"
  [models.profile]
  engine = "llamacpp"
  model = "tiny.gguf"
"""


def write(folder: Path, text: str = "") -> str:
    file = folder / "cluster.toml"
    ports = [free_port() for _ in range(3)]
    file.write_text(
        f'state_dir = "state"\n[control]\nlisten = "127.0.0.1:{ports[0]}"\n[admin]\nlisten = "127.0.0.1:{ports[1]}"\n'
        f'[router]\nlisten = "127.0.0.1:{ports[2]}"\n{text}'
    )
    return str(file)


def free_port() -> int:
    """Below the ephemeral range, so that no outgoing connection of somebody else takes it before its use."""
    while True:
        port = random.randint(10_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def test_check_says_ok_and_opens_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([write(tmp_path, MODEL), "--check"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "ok\n"
    assert not (tmp_path / "state").exists()


def test_a_wrong_configuration_is_exit_2_before_anything_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([write(tmp_path, 'nonsense = 1\n[[models]]\nname = "x"\nreplica = 2\n')])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "nonsense" in said
    assert "replicas" in said
    assert not (tmp_path / "state").exists()


def test_what_an_engine_s_adapter_and_a_key_file_have_against_it_is_said_with_the_rest(tmp_path: Path) -> None:
    text = (
        MODEL
        + '  args = ["--port", "80"]\n[[models]]\nname = "s"\nendpoints = [{url = "http://x:1", key_file = "nope"}]\n'
    )
    with pytest.raises(ConfigError) as raised:
        read(write(tmp_path, text), {}, {})
    first, second = raised.value.mistakes
    assert first.path.startswith("models[0].profile.args")
    assert first.origin.endswith("cluster.toml:14")
    assert (second.path, second.expected) == (
        "models[1].endpoints[0].key_file",
        "cannot be read: No such file or directory",
    )


def test_keys_are_read_beside_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-abcdefgh")
    keys: dict[tuple[str, str], str] = {}
    text = '[[models]]\nname = "s"\nendpoints = [{url = "http://x:1", key_file = "key"}]\n'
    assert read(write(tmp_path, text), {}, keys).config.models[0].name == "s"
    assert keys == {("s", "http://x:1"): "sk-abcdefgh"}


async def test_an_address_that_is_not_ours_names_its_setting(tmp_path: Path) -> None:
    loaded = read(write(tmp_path), {"LLMGW_ADMIN__LISTEN": "192.0.2.1:1", "LLMGW_ADMIN__INSECURE": "true"}, {})
    loaded.config.state_dir.mkdir()
    with pytest.raises(ListenError, match=r"^\[admin\] listen = '192\.0\.2\.1:1' cannot be listened on: Cannot assign"):
        await open_sockets(loaded.config, Inherited([]))


async def test_without_an_agent_port_only_the_router_and_the_admin_address_are_opened(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'state_dir = "state"\n[admin]\nlisten = "127.0.0.1:0"\n[router]\nlisten = "127.0.0.1:{free_port()}"\n'
    )
    config = read(str(file), {}, {}).config
    config.state_dir.mkdir()
    sockets = await open_sockets(config, Inherited([]))
    assert sockets.agents is None
    sockets.admin.close()
    sockets.router.close()


async def test_who_connects_arrives_with_its_address(nursery: trio.Nursery) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", listener.getsockname()[1])
    listener.setblocking(False)
    send, arrivals = trio.open_memory_channel[Arrival](0)
    nursery.start_soon(accept_agents, listener, send)
    with trio.fail_after(10):
        async with await trio.open_tcp_stream(address.host, address.port) as refused:
            # Nobody takes it: it is hung up on rather than kept.
            assert await refused.receive_some() == b""
        taken: list[Arrival] = []

        async def take() -> None:
            taken.append(await arrivals.receive())

        async with trio.open_nursery() as taking:
            taking.start_soon(take)
            await trio.testing.wait_all_tasks_blocked()
            stream = await trio.open_tcp_stream(address.host, address.port)
        local = stream.socket.getsockname()
        assert taken[0].peer == f"127.0.0.1:{local[1]}"
        await taken[0].stream.aclose()
        await stream.aclose()


async def test_an_ipv4_peer_of_an_ipv6_socket_has_its_ipv4_address(nursery: trio.Nursery) -> None:
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as client:
        accepted, _ = listener.accept()
        with trio.socket.from_stdlib_socket(accepted) as connection:
            assert peer_of(connection) == f"127.0.0.1:{client.getsockname()[1]}"


def run(file: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "llmgw.control.main", file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def test_a_second_control_of_the_same_folder_is_exit_1_naming_the_first(tmp_path: Path) -> None:
    file = write(tmp_path)
    with state_dir_lock(tmp_path / "state"), run(file) as second:
        _, said = second.communicate(timeout=60)
    assert second.returncode == 1
    assert f"in use by another llmgw-control, pid {os.getpid()}".encode() in said


def test_a_taken_admin_address_is_exit_1_naming_the_holder(tmp_path: Path) -> None:
    file = write(tmp_path)
    port = int(Path(file).read_text().split("[admin]")[1].split('"')[1].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), run(file) as second:
        _, said = second.communicate(timeout=120)
    assert second.returncode == 1
    assert f"127.0.0.1:{port} is taken by".encode() in said
    assert f"pid {os.getpid()}".encode() in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with run(write(tmp_path)) as control:
        assert control.stderr is not None
        for line in control.stderr:
            if b"control started" in line:
                break
        control.send_signal(number)
        said = control.stderr.read()
        assert control.wait(timeout=60) == 0
    assert b'"event": "ended"' in said
    assert b"Traceback" not in said
