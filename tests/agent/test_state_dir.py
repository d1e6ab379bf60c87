"""One agent per directory; an instance id that stays with the machine."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from llmgw.agent.state_dir import Machine, StateDirBusyError, open_state_dir, read_machine, same_machine

HERE = Machine("boot 1", "machine", ("aa:aa", "bb:bb"))


def open_once(path: Path, machine: Machine = HERE, seed: int = 1) -> str:
    with open_state_dir(path, "n1", machine, Random(seed)) as state_dir:
        return state_dir.instance


def test_a_new_directory(tmp_path: Path) -> None:
    with open_state_dir(tmp_path / "a/b", "n1", HERE, Random(1)) as state_dir:
        assert state_dir.path == tmp_path / "a/b"
        assert state_dir.boot_id == "boot 1"
        assert len(state_dir.instance) == 32
        assert len(state_dir.mark) == 16
        assert state_dir.shards == tmp_path / "a/b/shards"
        assert state_dir.shards.stat().st_mode & 0o777 == 0o700


def test_the_instance_stays_and_the_mark_with_it(tmp_path: Path) -> None:
    with open_state_dir(tmp_path, "n1", HERE, Random(1)) as before:
        pass
    with open_state_dir(tmp_path, "n1", HERE, Random(2)) as after:
        assert (after.instance, after.mark) == (before.instance, before.mark)


def test_d11_the_second_agent_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    expected = rf"{tmp_path} is in use by another agent: node n1, pid {os.getpid()}; give each agent .* of its own"
    with ExitStack() as stack:
        stack.enter_context(open_state_dir(tmp_path, "n1", HERE, Random(1)))
        with pytest.raises(StateDirBusyError, match=expected):
            stack.enter_context(open_state_dir(tmp_path, "n2", HERE, Random(2)))
    assert open_once(tmp_path)


def test_the_lock_goes_with_its_holder_and_no_child_inherits_it(tmp_path: Path) -> None:
    code = "print('up', flush=True); input()"
    with open_state_dir(tmp_path, "n1", HERE, Random(1)):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
    try:
        assert open_once(tmp_path)
    finally:
        child.communicate(b"\n")


def test_d11_two_directories_are_two_agents(tmp_path: Path) -> None:
    with (
        open_state_dir(tmp_path / "a", "n1", HERE, Random(1)) as one,
        open_state_dir(tmp_path / "b", "n1", HERE, Random(1)) as other,
    ):
        assert one.instance == other.instance
        assert one.mark != other.mark


def test_a_symlink_is_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    with open_state_dir(tmp_path / "link", "n1", HERE, Random(1)) as one:
        assert one.path == tmp_path / "real"


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (Machine("boot 1", "machine", ("aa:aa", "bb:bb")), True),
        (Machine("boot 1", "another", ("cc:cc",)), True),
        (Machine("boot 2", "machine", ("aa:aa", "bb:bb")), True),
        (Machine("boot 2", "machine", ("aa:aa", "cc:cc")), True),
        (Machine("boot 2", "machine", ("cc:cc",)), False),
        (Machine("boot 2", "another", ("aa:aa", "bb:bb")), False),
        (Machine("boot 2", "machine"), True),
        (Machine("boot 2", "another"), False),
    ],
)
def test_the_same_machine(tmp_path: Path, now: Machine, same: bool) -> None:
    """Within a boot always; else machine id and one physical interface, where both had some."""
    assert same_machine(HERE, now) == same
    before = open_once(tmp_path)
    with capture_logs() as logs:
        after = open_once(tmp_path, now, seed=2)
    assert (after == before) == same
    assert [line["event"] for line in logs] == ([] if same else ["new instance id"])
    assert open_once(tmp_path, now, seed=3) == after


def test_virtual_interfaces_do_not_count() -> None:
    assert same_machine(Machine("1", "m"), Machine("2", "m"))
    assert same_machine(Machine("1", "m"), Machine("2", "m", ("aa:aa",)))


@pytest.mark.parametrize("text", ["", "[]", '{"instance": 5, "macs": []}', '{"instance": "x"}'])
def test_a_damaged_file_means_a_new_instance(tmp_path: Path, text: str) -> None:
    open_once(tmp_path)
    (tmp_path / "instance.json").write_text(text)
    instance = open_once(tmp_path, seed=7)
    assert json.loads((tmp_path / "instance.json").read_text())["instance"] == instance


def test_reading_a_machine(tmp_path: Path) -> None:
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot\n")
    for name, physical in (("eth1", True), ("eth0", True), ("lo", False), ("veth0", False)):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "address").write_text(f"00:{name}\n")
        if physical:
            (folder / "device").mkdir()
    (tmp_path / "sys/class/net/away/device").mkdir(parents=True)
    assert read_machine(tmp_path) == Machine("boot", "", ("00:eth0", "00:eth1"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("id\n")
    assert read_machine(tmp_path).machine_id == "id"
    assert read_machine().boot_id
