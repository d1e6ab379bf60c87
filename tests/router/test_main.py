"""`llmgw-router` as a command: static endpoints without control, mistakes before sockets, a taken address."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.router.main import main

HANG_GUARD_SECONDS = 100


def write(folder: Path, port: int, more: str = "") -> str:
    path = folder / "cluster.toml"
    path.write_text(
        f"""state_dir = "state"
[router]
listen = "127.0.0.1:{port}"
{more}
[[models]]
name = "legacy"
aliases = ["old"]
endpoints = [{{ url = "http://127.0.0.1:9" }}]
"""
    )
    return str(path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def run(file: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "llmgw.router.main", file], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def test_check_says_ok_and_opens_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([write(tmp_path, free_port()), "--check"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "ok\n"
    assert not (tmp_path / "state").exists()


def test_a_mistake_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([write(tmp_path, free_port(), "workerz = 2")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "router.workerz" in said
    assert "workers" in said
    assert not (tmp_path / "state").exists()


def test_alone_it_serves_static_endpoints_with_two_workers_and_ends_in_order(tmp_path: Path) -> None:
    port = free_port()
    with run(write(tmp_path, port, "workers = 2")) as router:
        assert router.stderr is not None
        followed = 0
        for line in router.stderr:
            followed += json.loads(line)["event"] == "router worker started"
            if followed == 2:
                break
        for _ in range(4):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_GUARD_SECONDS)
            connection.request("GET", "/v1/models")
            assert [entry["id"] for entry in json.loads(connection.getresponse().read())["data"]] == ["legacy"]
            connection.request("POST", "/v1/completions", json.dumps({"model": "old", "prompt": "x"}))
            refused = connection.getresponse()
            assert refused.status == 503
            assert "legacy@http://127.0.0.1:9" in refused.read().decode()
            connection.close()
        router.send_signal(signal.SIGTERM)
        said = router.stderr.read()
        assert router.wait(HANG_GUARD_SECONDS) == 0
    assert b'"event": "ended"' in said
    assert b"Traceback" not in said
