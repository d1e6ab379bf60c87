"""The command: its exit codes, and one real agent that registers with a control of the test's and ends in order."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from llmgw.agent.main import end_at_signal, main, this_machine
from llmgw.config.schema import NodeConfig
from llmgw.core.address import Address
from llmgw.net.framed import MessageStream
from llmgw.wire.messages import Goodbye, Heartbeat, Register, Registered
from llmgw.wire.session import ControlSession

HANG_SECONDS = 30.0
"""Some thirty times what it takes."""


def node_toml(folder: Path, more: str = "") -> Path:
    path = folder / "node.toml"
    path.write_text(f'node_id = "gpu-a"\ncontrol = "127.0.0.1:1"\nstate_dir = "state"\n{more}\n')
    return path


@contextmanager
def agent(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real agent; killed if the test leaves it running."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw.agent.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "LLMGW_STATE_DIR": str(folder / "state")},
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_check_says_ok_or_every_mistake_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(node_toml(tmp_path)), "--check"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "ok\n"
    with pytest.raises(SystemExit) as ended:
        main([str(node_toml(tmp_path, 'prots = "1-2"\nstop_engines_on_exit = "yes"')), "--check"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "prots" in said
    assert "stop_engines_on_exit" in said
    assert not (tmp_path / "state").exists()


def test_a_state_dir_that_cannot_be_made_is_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with agent(str(node_toml(tmp_path)), folder=tmp_path) as process:
        assert process.wait(timeout=HANG_SECONDS) == 1
    assert "cannot run" in (tmp_path / "log").read_text()


def test_adapters_ask_the_real_machine(tmp_path: Path) -> None:
    config = NodeConfig("n", Address("127.0.0.1", 1), state_dir=tmp_path, models_dir=tmp_path / "models")
    machine = this_machine(config)
    assert machine.models_dir == str(tmp_path / "models")
    assert machine.on_path("sh") is not None
    assert machine.is_file(__file__)
    assert (machine.has_module("json"), machine.has_module("no_such_module")) == (True, False)


async def test_without_a_file_it_registers_says_goodbye_and_ends(tmp_path: Path) -> None:
    """`--server` and `--node-id` are enough. The first process holds the state directory against a second one."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    arguments = ("--server", address, "--node-id", "gpu-a")
    with trio.fail_after(HANG_SECONDS), agent(*arguments, folder=tmp_path) as process:
        async with listener, trio.open_nursery() as nursery:
            messages = MessageStream(await listener.accept(), ControlSession())
            nursery.start_soon(messages.run)
            (register,) = await messages.receive()
            assert isinstance(register, Register)
            assert (register.node, register.address, register.shards) == ("gpu-a", "127.0.0.1", ())
            assert register.hardware.cpus >= 1
            assert len(register.instance) == 32
            messages.send_nowait(Registered("c1", 0.1))
            assert isinstance((await messages.receive())[0], Heartbeat)

            with agent(*arguments, folder=tmp_path) as second:
                assert await trio.to_thread.run_sync(second.wait) == 1
            assert f"node gpu-a, pid {process.pid}" in (tmp_path / "log").read_text()

            process.send_signal(signal.SIGTERM)
            said = [message async for message in messages]
            assert said[-1] == Goodbye("kept", "ended in order")
            assert await trio.to_thread.run_sync(process.wait) == 0
            nursery.cancel_scope.cancel()
        await messages.aclose()


async def test_a_second_signal_ends_it_at_once(autojump_clock: MockClock) -> None:
    """The first sets `ending`; whatever that waits for, the second cancels."""
    ending, scope = trio.Event(), trio.CancelScope()
    with scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_at_signal, ending, scope)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)
            await ending.wait()
            assert not scope.cancel_called
            os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep_forever()
    assert scope.cancelled_caught
