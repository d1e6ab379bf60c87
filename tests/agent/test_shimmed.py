"""One launch behind a shim that lives, dies, hangs, or was never there; and strangers who get no signal."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from real_shims import HANG_SECONDS, Shards, life, printed, talk, until
from short_paths import short

from llmgw.agent.launch import EngineEvent, Exited, Gone, Ours, RunningEngine, ShimKilled, Started, Stranger, Unknown
from llmgw.agent.listeners import listening_sockets, read_command
from llmgw.agent.procfs import descendants, read_stat
from llmgw.agent.shard_folders import read_file
from llmgw.agent.shim_files import EXIT
from llmgw.agent.shimmed import ShimmedEngine
from llmgw.errors import EngineError, InvariantBroken


async def started(engine: RunningEngine) -> int:
    assert isinstance(await engine.wait_event(), Started)
    assert engine.pid is not None
    return engine.pid


def lives(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.lives


# --- events ---------------------------------------------------------------------------------------------------------


async def test_waiting_after_the_last_event_is_for_ever_and_cancelling_loses_nothing(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        events: list[EngineEvent] = []
        for seconds in (0, 0, 0.01):
            with trio.move_on_after(seconds):
                events.append(await engine.wait_event())
        os.kill(engine.pid or shards.record(engine)["engine_pid"], signal.SIGKILL)
        while len(events) < 3:
            with trio.move_on_after(0.005):
                events.append(await engine.wait_event())
        assert [type(event) for event in events] == [Started, Exited, Gone]
        with trio.move_on_after(0.01) as scope:
            await engine.wait_event()
        assert scope.cancelled_caught


async def test_two_objects_of_one_launch_are_told_the_same(shards: Shards) -> None:
    async with shards.agent() as launcher:
        one = await launcher.launch(shards.request("sh", "-c", "exit 3"))
        (other,) = await launcher.attach()
        first, second = await life(one), await life(other)
    ages = [attrs.evolve(event, age_seconds=0.0) for event in (first[1], second[1]) if isinstance(event, Exited)]
    assert ages[0] == ages[1]
    assert (first[0], first[2]) == (second[0], second[2])


async def test_c11_an_operators_kill_is_told_within_moments(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sh", "-c", "echo CUDA out of memory; exec sleep 1000"))
        pid = await started(engine)
        await printed(engine, b"CUDA out of memory\n")
        os.kill(pid, signal.SIGKILL)
        with trio.fail_after(2):
            exited = await engine.wait_event()
    assert isinstance(exited, Exited)
    assert (exited.code, exited.signal, exited.error) == (None, 9, "signal 9, sender unknown")
    assert exited.output == "CUDA out of memory\n"


# --- stopping -------------------------------------------------------------------------------------------------------


async def test_stop_with_a_second_term(shards: Shards) -> None:
    code = "trap 'echo one; trap \"exit 5\" TERM' TERM; echo up; while :; do sleep 0.01; done"
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sh", "-c", code))
        await started(engine)
        await printed(engine, b"up\n")
        await engine.stop(0.05, second_term=True)
        exited, _ = await life(engine)
        await engine.stop(0.0)
    assert isinstance(exited, Exited)
    assert (exited.code, exited.requested) == (5, True)


async def test_sigkill_when_the_grace_is_over(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(
            shards.python("import signal, time; signal.signal(15, 1); print('up', flush=True); time.sleep(1000)")
        )
        await started(engine)
        await printed(engine, b"up\n")
        await engine.stop(0.05)
        exited, _ = await life(engine)
    assert isinstance(exited, Exited)
    assert exited.error == "signal 9, sent by us when its grace was over"


async def test_a_shim_that_hangs_does_not_keep_its_engine_from_being_stopped(
    shards: Shards, mock_clock: trio.testing.MockClock
) -> None:
    """Stopped by somebody (SIGSTOP; seconds pass ten times as fast): once its time to answer is over, the whole
    session is ended, the shim last.
    """
    mock_clock.rate = 1.0
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        await started(engine)
        record = shards.record(engine)
        os.kill(record["shim_pid"], signal.SIGSTOP)
        mock_clock.rate = 10.0
        await engine.stop(HANG_SECONDS)
        killed, gone = await life(engine)
        assert isinstance(killed, ShimKilled)
        assert gone == Gone()
        assert not lives(record["engine_pid"])
        assert not lives(record["shim_pid"])


# --- the shim dies --------------------------------------------------------------------------------------------------

FAMILY = "echo last words; sleep 1000 & setsid sleep 1000 & sleep 1000 & wait"


async def test_a_killed_shim_is_told_at_once_and_its_session_ended(shards: Shards) -> None:
    """Who moved to a session of its own is not proven ours any more: named, left alone."""
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sh", "-c", FAMILY))
        await started(engine)
        shim = shards.record(engine)["shim_pid"]
        family = until(lambda: descendants(shim), lambda found: len(found) == 4)
        (outside,) = until(
            lambda: [stat for stat in descendants(shim) if stat.session != shim], lambda found: len(found) == 1
        )
        os.kill(shim, signal.SIGKILL)
        with trio.fail_after(2):
            killed = await engine.wait_event()
            assert killed == ShimKilled(
                f"its shim (pid {shim}) ended without a record of how the engine ended", "last words\n"
            )
            assert await engine.wait_event() == Gone(unproven=(outside.pid,))
        assert [stat.pid for stat in family if lives(stat.pid)] == [outside.pid]
        os.kill(outside.pid, signal.SIGKILL)
        await engine.forget()
        assert await launcher.attach() == []


async def test_a_shim_killed_while_no_agent_was_there(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000", state={"state": "ready"}))
        pid = await started(engine)
        record = shards.record(engine)
    os.kill(record["shim_pid"], signal.SIGKILL)
    assert lives(pid)
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        assert found.state == {"state": "ready"}
        killed, gone = await life(found)
        assert isinstance(killed, ShimKilled)
        assert gone == Gone()
        assert not lives(pid)


async def test_a_shim_killed_after_its_engine_had_ended_is_no_failure(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sh", "-c", "exit 4"))
        with talk(shards.folder(engine)):  # or it would have ended by itself
            await life(engine)
            os.kill(shards.record(engine)["shim_pid"], signal.SIGKILL)
        (found,) = await launcher.attach()
        _, exited, gone = await life(found)
        assert isinstance(exited, Exited)
        assert (exited.code, gone) == (4, Gone())
        await found.forget()


async def test_a_socket_that_was_removed_leaves_the_files(shards: Shards, mock_clock: trio.testing.MockClock) -> None:
    """The shim lives and cannot be reached: its engine is left alone, and its end is read from the exit record."""
    mock_clock.rate = 1.0
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        pid = await started(engine)
        (shards.folder(engine) / "shim.sock").unlink()
        (found,) = await launcher.attach()
        with trio.move_on_after(0.05):
            await found.wait_event()
        assert lives(pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda: read_file(shards.folder(engine), EXIT), lambda record: record is not None and record["gone"])
        _, exited, gone = await life(found)
        assert isinstance(exited, Exited)
        assert (exited.signal, gone) == (9, Gone())
        mock_clock.rate = 10.0
        await found.forget()


# --- field case C03 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_record", [True, False], ids=["exit recorded", "exit record lost"])
async def test_c03_a_recorded_pid_that_is_a_strangers(
    shards: Shards, stranger: "subprocess.Popen[bytes]", exit_record: bool
) -> None:
    """The agent is killed, the engine and its shim end, and the saved state names an unrelated live `sleep`. On the
    mismatch of its start time the shard is failed and gone; the stranger, and its session, get no signal.
    """
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        os.kill(await started(engine), signal.SIGKILL)
        await life(engine)
    until(lambda: lives(shards.record(engine)["shim_pid"]), lambda alive: not alive)
    shards.edit_record(engine, shim_pid=stranger.pid, engine_pid=stranger.pid)
    if not exit_record:
        (shards.folder(engine) / EXIT).unlink()
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        await found.stop(0.0)
        events = await life(found)
        assert type(events[-2]) is (Exited if exit_record else ShimKilled)
        assert events[-1] == Gone()
        await found.stop(0.0)
        await found.forget()


@pytest.mark.parametrize("later", [1, 0], ids=["later", "in the same hundredth of a second"])
async def test_c03_the_same_program_started_later_with_the_recorded_pid(
    shards: Shards, stranger: "subprocess.Popen[bytes]", later: int
) -> None:
    """Same executable, same pid as recorded, a later start time: another process. Where the clock is too coarse to
    tell, it lacks our mark.
    """
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        await started(engine)
        os.kill(shards.record(engine)["shim_pid"], signal.SIGKILL)
        await life(engine)
    stat = read_stat(stranger.pid)
    assert stat is not None
    shards.edit_record(engine, shim_pid=stranger.pid, engine_pid=stranger.pid, shim_start_time=stat.start_time - later)
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        await found.stop(0.0)
        assert [type(event) for event in await life(found)] == [ShimKilled, Gone]


async def test_c03_after_a_reboot_nothing_that_looks_like_ours_is_touched(shards: Shards) -> None:
    """Same pids, same names, same start times, same marks and a live shim: only the boot id differs."""
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        pid = await started(engine)
        record = shards.record(engine)
        shards.edit_record(engine, boot_id="another")
        (found,) = await launcher.attach()
        await found.stop(0.0)
        assert await life(found) == [ShimKilled("the machine was booted since"), Gone()]
        assert lives(pid)
        assert lives(record["shim_pid"])
        shards.edit_record(engine, boot_id=record["boot_id"])
        await engine.stop(HANG_SECONDS)


async def test_c03_a_stranger_listens_on_the_socket_of_the_folder(
    shards: Shards, stranger: "subprocess.Popen[bytes]"
) -> None:
    """The kernel's word for who listens counts, not what it says: this process is not the recorded shim."""
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        pid = await started(engine)
        folder = shards.folder(engine)
        (folder / "shim.sock").unlink()
        with socket.socket(socket.AF_UNIX) as other, short(folder) as near:
            other.bind(f"{near}/shim.sock")
            other.listen()
            (found,) = await launcher.attach()
            with trio.move_on_after(0.1) as scope:
                await found.wait_event()
            assert scope.cancelled_caught
            assert lives(pid)
            await found.stop(0.0)  # nobody of ours answers, so the session is ended
        assert not lives(pid)


async def test_a_damaged_record_proves_nothing_and_hides_nothing(shards: Shards) -> None:
    """What carries our mark is named, and left alone."""
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        pid = await started(engine)
        record = shards.record(engine)
        shards.edit_record(engine, shim_start_time=None)
        (found,) = await launcher.attach()
        assert found.listener(1) == Unknown("the record of its shim cannot be read")
        await found.stop(0.0)
        assert await life(found) == [
            ShimKilled("the shim's record is damaged"),
            Gone(unproven=tuple(sorted((record["shim_pid"], pid)))),
        ]
        shards.edit_record(engine, **record)
        await engine.stop(HANG_SECONDS)


# --- listeners ------------------------------------------------------------------------------------------------------

LISTEN = """
import socket, sys, time
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
sock.bind(("127.0.0.1", int(sys.argv[1])))
sock.listen()
time.sleep(1000)
"""


async def test_c05_whose_listener_is_on_the_port(shards: Shards) -> None:
    """Nobody's; ours; ours with a stranger who shares the port by SO_REUSEPORT, which is a conflict; the stranger's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.python(LISTEN, str(port), port=port))
        assert await engine.wait_event() == Started(engine.pid or 0, port_free=True)
        until(lambda: listening_sockets(port), bool)
        assert engine.listener(port) == Ours()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            me = Stranger(os.getpid(), read_command(os.getpid()), shared=True)
            assert engine.listener(port) == me
            await engine.stop(0.0)
            await life(engine)
            assert engine.listener(port) == attrs.evolve(me, shared=False)
        assert engine.listener(port) is None


# --- state, output, forgetting --------------------------------------------------------------------------------------


async def test_state_that_cannot_be_saved_leaves_the_old_one(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("true", state={"n": 1}))
        (shards.folder(engine) / "launch.json.new").symlink_to("/dev/full")
        with pytest.raises(EngineError, match=r"the state of m/1/0 cannot be written .*No space left"):
            engine.save_state({"n": 2})
        assert engine.state == {"n": 1}
        (found,) = await launcher.attach()
        assert found.state == {"n": 1}
        found.state["n"] = 3
        assert found.state == {"n": 1}


async def test_output_of_this_launch_and_of_the_one_before(shards: Shards) -> None:
    async with shards.agent() as launcher:
        for word in ("one", "two", "three"):
            engine = await launcher.launch(shards.request("echo", word))
            before = await engine.output_tail(100, previous=True)
            await life(engine)
            tail = await engine.output_tail(100)
            await engine.forget()
            assert (word, before, tail) in {
                ("one", b"", b"one\n"),
                ("two", b"one\n", b"two\n"),
                ("three", b"two\n", b"three\n"),
            }
        assert len(list(shards.state_dir.shards.iterdir())) == 1


async def test_output_that_cannot_be_read_is_an_error_and_no_end(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        await started(engine)
        (shards.folder(engine) / "output.1.log").mkdir()
        with pytest.raises(EngineError, match=r"the output of m/1/0 in .* cannot be read: .*Is a directory"):
            await engine.output_tail(10)
        await engine.stop(HANG_SECONDS)
        exited, _ = await life(engine)
        assert isinstance(exited, Exited)
        assert "cannot be read" in exited.output


async def test_a_shim_ends_once_all_is_told(shards: Shards) -> None:
    """An agent that ends with its engines, before control has heard of it, leaves no process behind."""
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("true"))
        await life(engine)
        shim = shards.record(engine)["shim_pid"]
        until(lambda: lives(shim), lambda alive: not alive)
    async with shards.agent() as launcher:
        (found,) = await launcher.attach()
        assert [type(event) for event in await life(found)] == [Started, Exited, Gone]
        await found.forget()


async def test_forgetting_before_gone_is_our_own_mistake(shards: Shards) -> None:
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("sleep", "1000"))
        with pytest.raises(InvariantBroken, match="m/1/0 epoch 1 is forgotten and not gone"):
            await engine.forget()
        await engine.stop(0.0)
        await life(engine)
        await engine.forget()
        await engine.forget()


async def test_a_shim_that_does_not_end_when_forgotten_is_killed(
    shards: Shards, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1.0
    async with shards.agent() as launcher:
        engine = await launcher.launch(shards.request("true"))
        with talk(shards.folder(engine)):  # or it would end by itself
            await life(engine)
            shim = shards.record(engine)["shim_pid"]
            assert lives(shim)
            (shards.folder(engine) / "shim.sock").unlink()
            mock_clock.rate = 10.0
            await engine.forget()
            assert not lives(shim)
        assert await launcher.attach() == []


def test_fields_of_the_wrong_type_are_absent(tmp_path: Path) -> None:
    """The folder's files may have been edited, or be of another version."""
    (tmp_path / "record.json").write_text(json.dumps({"engine_pid": "x"}))
    engine = ShimmedEngine(tmp_path, {"shard": "m/1/0", "epoch": 1, "port": "x", "state": []}, "m")
    assert (engine.pid, engine.port, engine.state) == (None, None, {})
