"""The command itself: its options, its exit codes and where its words go."""

import json
import socket
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from llmgw.cli.main import main
from llmgw.core import statusdoc as doc


def run(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    # None takes a variable away, so that the machine's own say nothing here.
    return CliRunner().invoke(main, arguments, env={"LLMGW_ADMIN_URL": None, "COLUMNS": None, **(env or {})})


def test_status_as_tables(fake_control: Any, status: doc.Status) -> None:
    fake_control.body = msgspec.json.encode(status)
    result = run("status", "--admin", fake_control.url)
    assert result.exit_code == 0
    assert result.stdout.startswith("Control  recovering, up 1m40s")
    assert fake_control.paths == ["/api/v1/status"]


def test_piped_lines_are_not_folded(fake_control: Any, status: doc.Status) -> None:
    node = doc.NodeStatus("n1", "healthy", labels={f"label-{number}": "x" * 10 for number in range(5)})
    fake_control.body = msgspec.json.encode(doc.Status(status.control, (node,)))
    line = next(line for line in run("status", "--admin", fake_control.url).stdout.splitlines() if "n1" in line)
    assert "label-0" in line
    assert "label-4" in line


def test_columns_are_obeyed_where_they_are_said(fake_control: Any, status: doc.Status) -> None:
    fake_control.body = msgspec.json.encode(status)
    result = run("status", "--admin", fake_control.url, env={"COLUMNS": "80"})
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_json_is_control_s_own_answer_fields_of_newer_versions_included(fake_control: Any, status: doc.Status) -> None:
    answer = json.loads(msgspec.json.encode(status)) | {"invented_later": "\x9b31m\N{BLACK STAR}"}
    fake_control.body = json.dumps(answer).encode()
    result = run("status", "--json", "--admin", fake_control.url)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == answer
    assert result.stdout.isascii()


def test_the_address_may_stand_before_the_command_or_in_the_environment(fake_control: Any, status: doc.Status) -> None:
    fake_control.body = msgspec.json.encode(status)
    assert run("--admin", fake_control.url, "status").exit_code == 0
    assert run("status", env={"LLMGW_ADMIN_URL": fake_control.url}).exit_code == 0
    assert len(fake_control.paths) == 2


def test_not_reached_is_exit_1_and_says_so_on_stderr() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = run("status", "--admin", f"127.0.0.1:{port}")
    assert result.exit_code == 1
    assert not result.stdout
    assert result.stderr.startswith(
        f"llmgw: cannot reach control at http://127.0.0.1:{port} (--admin): connection refused"
    )


@pytest.mark.parametrize("body", [b"{}", b"<html>", b'{"control": {"version": 1}}'])
def test_an_answer_of_another_server_is_exit_1(fake_control: Any, body: bytes) -> None:
    fake_control.body = body
    result = run("status", "--admin", fake_control.url)
    assert result.exit_code == 1
    assert "gave an answer that this llmgw cannot read" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("status", "--admin", "ftp://x"), ("status", "extra"), ("nope",), ("status", "--x")]
)
def test_wrong_usage_is_exit_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_version_and_help() -> None:
    assert run("--version").stdout == "llmgw, version 0.1.0\n"
    assert "each fact with its age" in run("--help").stdout
