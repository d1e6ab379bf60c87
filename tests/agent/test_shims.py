"""Shims really started and really found again: one agent after the other over a state directory."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import attrs
import pytest
import trio
from real_shims import HANG_SECONDS, Shards, life, until
from structlog.testing import capture_logs

from llmgw.agent.launch import Exited, Gone, ShimKilled, Started
from llmgw.agent.procfs import read_environment, read_stat
from llmgw.agent.shard_folders import read_file
from llmgw.agent.shims import ShimLauncher
from llmgw.agent.state_dir import open_state_dir, read_machine
from llmgw.errors import EngineError


async def test_launch_tells_a_whole_life(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sh", "-c", "echo hello; exit 42", port=None, state={"a": 1}))
        assert (engine.shard, engine.epoch, engine.port, engine.state) == ("m/1/0", 1, None, {"a": 1})
        started, exited, gone = await life(engine)
    assert started == Started(engine.pid or 0, port_free=False)
    assert isinstance(exited, Exited)
    assert attrs.evolve(exited, age_seconds=0.0) == Exited(
        code=42, cause="exited", error="exit code 42", output="hello\n", age_seconds=0.0
    )
    assert gone == Gone()


async def test_the_record_is_on_disk_when_launch_returns_and_holds_no_secret(shards: Shards) -> None:
    async with shards.agent() as launcher:
        request = shards.request("sleep", "1000", state={"spec_hash": "x"})
        engine = await launcher.launch(attrs.evolve(request, env={**request.env, "TOKEN": "hf_secret"}))
        folder = shards.folder(engine)
        assert json.loads((folder / "launch.json").read_text())["state"] == {"spec_hash": "x"}
        assert json.loads((folder / "record.json").read_text())["mark"] == f"{shards.state_dir.mark}.{folder.name}"
        assert isinstance(await engine.wait_event(), Started)
        assert [path.name for path in folder.iterdir() if b"hf_secret" in read_bytes(path)] == []
        assert (read_environment(engine.pid or 0) or {})["TOKEN"] == "hf_secret"
        await engine.stop(HANG_SECONDS)


def read_bytes(path: Path) -> bytes:
    return b"" if path.is_socket() else path.read_bytes()


async def test_the_same_launch_twice_is_refused(shards: Shards) -> None:
    async with shards.agent() as launcher:
        request = shards.request("sleep", "1000")
        engine = await launcher.launch(request)
        with pytest.raises(EngineError, match=r"m/1/0: .* cannot be made: File exists"):
            await launcher.launch(request)
        assert isinstance(await engine.wait_event(), Started)
        await engine.stop(HANG_SECONDS)


async def test_an_engine_outlives_its_agent_and_is_found_with_its_state(shards: Shards) -> None:
    """Same pid, nothing sent to it, everything told from the beginning; then stopped by the second agent."""
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000", state={"n": 1}))
        await engine.wait_event()
        engine.save_state({"n": 2})
        pid = engine.pid
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        assert (found.shard, found.epoch, found.pid, found.state) == ("m/1/0", 1, pid, {"n": 2})
        assert await found.wait_event() == Started(pid or 0, port_free=False)
        await found.stop(HANG_SECONDS)
        exited, gone = await life(found)
        assert isinstance(exited, Exited)
        assert (exited.signal, exited.requested, gone) == (15, True, Gone())
        await found.forget()
        assert await launcher.attach() == []


async def test_an_end_that_no_agent_saw_is_told_with_its_code_output_and_age(shards: Shards, tmp_path: Path) -> None:
    flag = tmp_path / "now"
    async with shards.agent() as launcher:
        await launcher.launch(shards.request("sh", "-c", f"until [ -e {flag} ]; do sleep 0.01; done; echo x; exit 7"))
    flag.touch()
    (folder,) = shards.state_dir.shards.iterdir()
    until(lambda: read_file(folder, "exit.json"), lambda record: record is not None and record["gone"])
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        started, exited, gone = await life(found)
    assert isinstance(started, Started)
    assert isinstance(exited, Exited)
    assert (exited.code, exited.output, gone) == (7, "x\n", Gone())
    assert 0.0 <= exited.age_seconds < HANG_SECONDS


async def test_found_in_order_of_shard_and_epoch(shards: Shards) -> None:
    async with shards.agent() as launcher:
        for shard in ("m/2/0", "m/10/0", "m/1/0", "m/2/0"):
            await launcher.launch(shards.request("true", shard=shard))
    async with shards.agent() as launcher:
        found = await launcher.attach()
        assert [(one.shard, one.epoch) for one in found] == [("m/1/0", 3), ("m/10/0", 2), ("m/2/0", 1), ("m/2/0", 4)]
        for one in found:
            await life(one)


async def test_an_agent_that_died_before_its_shim_had_started(shards: Shards) -> None:
    """A folder with its own file and nothing else: nothing was launched, and that is told."""
    folder = shards.state_dir.shards / "0123abcd-5"
    folder.mkdir()
    launch = {"shard": "m/1/0", "epoch": 5, "port": 20001, "mark": f"{shards.state_dir.mark}.{folder.name}"}
    (folder / "launch.json").write_text(json.dumps({**launch, "state": {"a": 1}}))
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        assert (found.pid, found.port, found.state) == (None, 20001, {"a": 1})
        assert await life(found) == [ShimKilled("the agent ended before its shim had started"), Gone()]
        await found.forget()
        assert await launcher.attach() == []


async def test_folders_that_are_nobodys(shards: Shards) -> None:
    """An empty one, and one of another instance: left alone, and said."""
    (shards.state_dir.shards / "0123abcd-5").mkdir()
    other = shards.state_dir.shards / "0123abcd-6"
    other.mkdir()
    (other / "launch.json").write_text(json.dumps({"shard": "m/1/0", "epoch": 6, "mark": "another.0123abcd-6"}))
    async with shards.agent() as launcher:
        with capture_logs() as logs:
            assert await launcher.attach() == []
    assert [line["event"] for line in logs] == ["folder of no launch", "launch of another instance, left alone"]
    assert other.exists()


async def test_our_own_file_lost_the_shims_record_says_whose_it_is(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000", state={"a": 1}))
        (shards.folder(engine) / "launch.json").write_text("")
        (found,) = await launcher.attach()
        assert (found.shard, found.epoch, found.state) == ("m/1/0", 1, {})
        await found.stop(0)
        await life(found)


async def test_a_shim_that_cannot_start_leaves_nothing(shards: Shards) -> None:
    """A record that cannot be written for want of a mark: the same path as a full disk."""
    async with shards.agent() as launcher:
        with pytest.raises(EngineError, match=r"m/1/0: its shim cannot be started: .* lacks argv") as caught:
            await launcher.launch(attrs.evolve(shards.request("x"), argv=None))  # type: ignore[arg-type]
        assert str(shards.state_dir.path) not in str(caught.value)
        assert list(shards.state_dir.shards.iterdir()) == []
        await trio.testing.wait_all_tasks_blocked()


async def test_a_shim_that_dies_with_a_word_is_quoted(shards: Shards) -> None:
    """What it had to complain about is in the error: here, an argument vector that is no list."""
    async with shards.agent() as launcher:
        with pytest.raises(EngineError, match=r"it died before it said a word; its last words: TypeError: .*"):
            await launcher.launch(attrs.evolve(shards.request("x"), argv=5))  # type: ignore[arg-type]
        assert list(shards.state_dir.shards.iterdir()) == []


async def test_shims_are_reaped_while_the_agent_lives(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("true"))
        shim = shards.record(engine)["shim_pid"]
        await life(engine)
        await engine.forget()
        await trio.testing.wait_all_tasks_blocked()
        assert read_stat(shim) is None


async def test_five_engines_at_once_each_with_its_own_code(shards: Shards) -> None:
    """Field case C15: each exit code is attributed to the right shard."""
    codes: dict[str, int | None] = {}

    async def run(launcher: ShimLauncher, number: int) -> None:
        engine = await launcher.launch(
            attrs.evolve(shards.request("sh", "-c", f"exit {number}"), shard=f"m/{number}/0")
        )
        exited = (await life(engine))[-2]
        assert isinstance(exited, Exited)
        codes[engine.shard] = exited.code

    async with shards.agent() as launcher, trio.open_nursery() as nursery:
        for number in range(11, 16):
            nursery.start_soon(run, launcher, number)
    assert codes == {f"m/{number}/0": number for number in range(11, 16)}


async def test_port_taken_is_told_as_an_end(shards: Shards) -> None:
    """Field case C05 (a): nothing was launched, and the port is named."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with shards.agent() as launcher:
            engine = await launcher.launch(shards.request("sleep", "1000", port=port))
            exited, gone = await life(engine)
    assert isinstance(exited, Exited)
    assert (exited.cause, exited.error, gone) == (
        "port taken",
        f"port {port} is taken, so nothing was launched",
        Gone(),
    )
    assert engine.pid is None


async def test_no_such_program_is_told_as_an_end(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("/no/such/engine"))
        exited, _ = await life(engine)
    assert isinstance(exited, Exited)
    assert exited.cause == "launch"
    assert exited.error == "cannot execute /no/such/engine: No such file or directory"
    assert engine.pid is None


async def test_d11_two_agents_on_one_host_leave_each_other_alone(shards: Shards, tmp_path: Path) -> None:
    """B restarts, then starts with an empty directory: A's engine keeps its pid and gets no signal."""
    with open_state_dir(tmp_path / "b", "n2", read_machine(), Random(2)) as other:
        theirs = Shards(other)
        async with shards.agent() as agent_a:
            engine = await agent_a.launch(shards.request("sleep", "1000"))
            assert isinstance(await engine.wait_event(), Started)
            async with theirs.agent() as agent_b:
                await life(await agent_b.launch(theirs.request("true")))
            async with theirs.agent() as agent_b:
                (found,) = await agent_b.attach()
                await life(found)
                await found.forget()
            for path in other.shards.iterdir():
                assert path.name.endswith(".forgotten")
            async with theirs.agent() as agent_b:
                assert await agent_b.attach() == []
            assert (read_environment(engine.pid or 0) or {})["LLMGW_MARK"].startswith(shards.state_dir.mark)
            await engine.stop(HANG_SECONDS)
            exited, _ = await life(engine)
    assert isinstance(exited, Exited)
    assert exited.signal == 15


NAMESPACE = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from random import Random
import trio
from llmgw.agent.launch import Exited, Gone, LaunchRequest
from llmgw.agent.procfs import every_stat
from llmgw.agent.shard_folders import read_file
from llmgw.agent.shims import open_launcher
from llmgw.agent.state_dir import open_state_dir, read_machine

HELPERS = '''{helpers}'''

async def main():
    with open_state_dir(Path(sys.argv[1]), "n1", read_machine(), Random(1)) as state_dir:
        async with open_launcher(state_dir) as launcher:
            for epoch in range(1, 4):
                engine = await launcher.launch(
                    LaunchRequest("m/1/0", epoch, (sys.executable, "-I", "-S", "-c", HELPERS), dict(os.environ)))
                event = None
                while not isinstance(event, Gone):
                    event = await engine.wait_event()
                    if isinstance(event, Exited):
                        print("code", event.code)
                await engine.forget()
                await trio.testing.wait_all_tasks_blocked()
                print("left", [stat.pid for stat in every_stat() if stat.pid != os.getpid()])

import trio.testing
assert os.getpid() == 1
trio.run(main)
"""

HELPERS = """
import os
for n in range(100):
    if not os.fork():
        if os.fork():
            os._exit(1)
        os._exit(2)
os._exit(42)
"""


def test_c15_the_agent_as_process_1_of_its_namespace(tmp_path: Path) -> None:
    """An engine leaves hundreds of orphans, then exits 42: that code each time, and no process after each round."""
    script = tmp_path / "agent.py"
    script.write_text(NAMESPACE.format(path=sys.path, helpers=HELPERS))
    enter = ["unshare", "-Ur", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*enter, "true"], check=True, capture_output=True, timeout=HANG_SECONDS)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespaces here: {error}")
    done = subprocess.run(
        [*enter, sys.executable, str(script), str(tmp_path / "state")],
        capture_output=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.stdout.decode() == "code 42\nleft []\n" * 3, done.stderr.decode()


def links_of(pid: int) -> list[str]:
    return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]


async def test_the_shim_inherits_next_to_nothing(shards: Shards, tmp_path: Path) -> None:
    """It lives for months: neither our environment nor our descriptors, and its engine neither."""
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        async with shards.agent() as launcher:
            engine = await launcher.launch(shards.request("sleep", "1000"))
            await engine.wait_event()
            record = shards.record(engine)
            for pid in (record["shim_pid"], record["engine_pid"]):
                links = links_of(pid)
                assert links
                assert [link for link in links if str(tmp_path / "held") in link or "/lock" in link] == []
            environment = read_environment(record["shim_pid"]) or {}
            assert set(environment) - {"LD_LIBRARY_PATH"} == {"LLMGW_MARK"}
            await engine.stop(HANG_SECONDS)
            await life(engine)
