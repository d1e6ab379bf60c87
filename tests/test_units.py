"""The units in conf/systemd: what systemd says of them, and the lines that promises hang on."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "conf/systemd"
SERVICES = ("llmgw-control.service", "llmgw-agent.service", "llmgw-router.service")
INSTALLED = "/opt/llmgw/bin/"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd minds the case of letters
    parser.read(UNITS / name)
    return parser


def test_there_is_nothing_else() -> None:
    assert sorted(path.name for path in UNITS.iterdir()) == sorted((*SERVICES, "llmgw-router.socket"))


@pytest.mark.parametrize("name", SERVICES)
def test_engines_and_workers_outlive_the_daemon(name: str) -> None:
    assert unit(name)["Service"]["KillMode"] == "process"


@pytest.mark.parametrize("name", SERVICES)
def test_readiness_and_watchdog(name: str) -> None:
    """What `llmgw.net.notify` says is asked for, and a configuration that is wrong is not tried again."""
    service = unit(name)["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_started_is_a_command_of_ours(name: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    program, file = unit(name)["Service"]["ExecStart"].split()
    assert program.removeprefix(INSTALLED) in scripts
    assert program.removeprefix(INSTALLED) == name.removesuffix(".service")
    assert file in {"/etc/llmgw/cluster.toml", "/etc/llmgw/node.toml"}


def test_an_engine_out_of_memory_does_not_stop_its_agent() -> None:
    assert unit("llmgw-agent.service")["Service"]["OOMPolicy"] == "continue"


def test_the_router_s_socket_goes_by_the_name_that_it_looks_for() -> None:
    source = (ROOT / "llmgw/router/main.py").read_text()
    name = unit("llmgw-router.socket")["Socket"]["FileDescriptorName"]
    assert re.search(rf'open_listener\([^)]*name="{name}"', source, re.DOTALL)
    assert unit("llmgw-router.service")["Service"]["Sockets"] == "llmgw-router.socket"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine")
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    """With the commands where they are here, since it looks whether they exist."""
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace(INSTALLED, f"{Path(sys.executable).parent}/"))
    units = sorted(map(str, tmp_path.iterdir()))

    def faults() -> str:
        command = ["systemd-analyze", "verify", "--man=no", *units]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    # Other units of the machine may have faults of their own.
    assert not [line for line in faults().splitlines() if "llmgw" in line]
    agent = tmp_path / "llmgw-agent.service"
    agent.write_text(agent.read_text().replace("KillMode=process", "KillMode=none-such"))
    assert "llmgw-agent.service" in faults()
