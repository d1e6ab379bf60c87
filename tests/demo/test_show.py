"""The demo where it fails; where it succeeds is shown by tests/e2e with real processes."""

import os
import socket
from pathlib import Path

import attrs
import pytest

from llmgw.config.schema import Admin, ClusterConfig, Control, Router
from llmgw.core.address import Address
from llmgw.demo.daemons import Interrupts
from llmgw.demo.show import EXIT_FAILED, Plan, Show


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan whose three addresses are free."""
    ports = []
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    control, admin, router = (Address("127.0.0.1", port) for port in ports)
    config = ClusterConfig(tmp_path, Control(listen=control), Admin(listen=admin), Router(listen=router))
    files = (tmp_path / "conf/cluster.toml", tmp_path / "conf/node.toml")
    return Plan(tmp_path, *files, dict(os.environ), config, "tiny", None, once=True)


def test_every_taken_address_is_told_with_its_holder_and_a_way_out(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    control, router = plan.config.control.listen, plan.config.router.listen
    assert control is not None
    with socket.create_server((control.host, control.port)), socket.create_server((router.host, router.port)):
        assert Show(plan, Interrupts()).perform() == EXIT_FAILED
    said = capsys.readouterr().out
    assert f"{control} is taken by" in said
    assert f"pid {os.getpid()}" in said
    assert "LLMGW_CONTROL__LISTEN=127.0.0.1:PORT LLMGW_CONTROL=127.0.0.1:PORT scripts/demo" in said
    assert f"{router} is taken by" in said
    assert "LLMGW_ROUTER__LISTEN=127.0.0.1:PORT scripts/demo" in said
    assert str(plan.config.admin.listen) not in said
    assert "started" not in said
    assert not list(plan.root.iterdir())


def test_no_agent_port_is_told(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    config = attrs.evolve(plan.config, control=Control(listen=None))
    assert Show(attrs.evolve(plan, config=config), Interrupts()).perform() == EXIT_FAILED
    assert "conf/cluster.toml has no [control] listen" in capsys.readouterr().out


def test_a_daemon_that_ends_is_told_with_its_last_words(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no conf/ here, so both end at once; which is seen first is open."""
    show = Show(plan, Interrupts())
    assert show.perform() == EXIT_FAILED
    said = capsys.readouterr().out
    assert "made a model, var/models/tiny.gguf: random weights" in said
    assert "started llmgw-control conf/cluster.toml (pid " in said
    assert "has ended, code " in said
    assert ".toml: cannot be read: No such file or directory" in said
    show.abort()
