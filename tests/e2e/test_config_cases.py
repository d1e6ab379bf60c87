"""The halves of field cases F01, F05, F07 and F08 that need real processes; each test is named after its case.

One cluster serves F05, F07 and F08: its daemons are started from / without a HOME, its addresses are IPv6, and its
models have dots in their names. The other halves are in tests/config.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest
from cluster import BIN, Cluster, free_port, get_json, running, wait_until

from llmgw.core.address import parse_address

pytestmark = pytest.mark.e2e

FROM_ROOT = ("/usr/bin/env", "-C", "/", "-u", "HOME", "-u", "XDG_STATE_HOME")
"""As a service manager starts a daemon of a unit that says nothing."""


class Upstream(ThreadingHTTPServer):
    """An engine that somebody else runs, at one address of one family; it keeps the heads of its requests."""

    daemon_threads = True

    def __init__(self, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.heads: list[dict[str, str]] = []
        super().__init__((host, 0), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Upstream

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.heads.append({name.lower(): value for name, value in self.headers.items()})
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        body = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def upstream(host: str) -> Iterator[Upstream]:
    with Upstream(host) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@attrs.frozen
class Cases:
    """What the tests look at."""

    cluster: Cluster
    static: Upstream
    """At ::1."""
    local: Upstream
    """At 127.0.0.1 alone, and called `localhost`."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Cases]:
    folder = tmp_path_factory.mktemp("cases")
    bin_ = folder / "bin"
    bin_.mkdir()
    script = bin_ / "llama-server"
    script.write_text(f"#!{sys.executable}\n{Path(__file__).with_name('fake_llama_server.py').read_text()}")
    script.chmod(0o755)
    (folder / "models").symlink_to(models_dir)
    (folder / "token").write_text("sk-0123456789\n")
    with ExitStack() as stack:
        static = stack.enter_context(upstream("::1"))
        local = stack.enter_context(upstream("127.0.0.1"))
        environ = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
        cluster = stack.enter_context(running(Cluster(folder, models_dir, environ=environ)))
        cluster.cluster_toml.write_text(f"""state_dir = "state/control"
[control]
listen = "[::1]:{cluster.agent_port}"
heartbeat = "500ms"
[admin]
listen = "127.0.0.1:{cluster.admin_port}"
[router]
listen = "[::]:{cluster.router_port}"
[[models]]
name = "fake.v1.5"
aliases = ["gpt-3.5"]
[models.profile]
engine = "llamacpp"
model = "tiny.gguf"
env = {{ FAKE_DUMP = "{folder}" }}
[[models]]
name = "llama.cpp"
endpoints = [{{ url = "http://[::1]:{static.server_address[1]}", key_file = "./token" }}]
[[models]]
name = "qwen2.5-7b"
endpoints = [{{ url = "http://localhost:{local.server_address[1]}" }}]
""")
        first = 28000 + os.getpid() % 400 * 10
        (folder / "n1.toml").write_text(f"""node_id = "n1.example.org"
control = "[::1]:{cluster.agent_port}"
address = "::1"
state_dir = "n1"
models_dir = "models"
ports = "{first}-{first + 9}"
""")
        control = cluster.start("control", *FROM_ROOT, str(BIN / "llmgw-control"), str(cluster.cluster_toml))
        wait_until("control's admin port", 50, lambda: cluster.status() or control.process.poll() is not None)
        cluster.start("n1", *FROM_ROOT, str(BIN / "llmgw-agent"), str(folder / "n1.toml"))
        cluster.ready("fake.v1.5")
        yield Cases(cluster, static, local)


def chat(cases: Cases, model: str, host: str = "127.0.0.1") -> Any:
    """The answer of the router at that address of its."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
    url = f"http://{host}:{cases.cluster.router_port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("command", "file", "variable", "value"),
    [
        ("llmgw-control", "cluster.toml", "LLMGW_CONTROL__INSECURE", "maybe"),
        ("llmgw-control", "cluster.toml", "LLMGW_ROUTER__WORKERS", "8e3"),
        ("llmgw-router", "cluster.toml", "LLMGW_ROUTER__BODY_MAX", ""),
        ("llmgw-agent", "node.toml", "LLMGW_STOP_ENGINES_ON_EXIT", "a/long/path"),
    ],
)
def test_f01_a_wrong_variable_ends_the_daemon_before_any_socket_is_opened(
    command: str, file: str, variable: str, value: str, tmp_path: Path
) -> None:
    """Its addresses are taken here: whoever tried to listen would say that instead, and try for 10 s."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = f'state_dir = "state"\n[control]\nlisten = "{address}"\n[router]\nlisten = "127.0.0.1:{free_port()}"\n'
        if file == "node.toml":
            text = f'state_dir = "state"\nmodels_dir = "models"\ncontrol = "{address}"\n'
        (tmp_path / file).write_text(text)
        done = subprocess.run(
            [str(BIN / command), file],
            cwd=tmp_path,
            env={**os.environ, variable: value},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        taken.settimeout(0)
        with pytest.raises(BlockingIOError):
            taken.accept()  # nobody dialled either
    assert (done.returncode, done.stdout) == (2, "")
    first, last = done.stderr.splitlines()
    assert first.startswith(f"{variable}: ")
    assert f"got {json.dumps(value)}" in first
    assert "expected " in first
    assert last == "1 mistake, nothing was started"
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_f05_names_with_dots_are_listed_routed_and_shown(cases: Cases) -> None:
    """In the list of models, in routing (by alias too), in the status and in a variable's place in it."""
    names = ["fake.v1.5", "llama.cpp", "qwen2.5-7b"]
    listed = get_json(f"http://127.0.0.1:{cases.cluster.router_port}/v1/models")
    assert sorted(model["id"] for model in listed["data"]) == names
    assert get_json(f"http://127.0.0.1:{cases.cluster.router_port}/v1/models/llama.cpp")["id"] == "llama.cpp"
    for name in (*names, "gpt-3.5"):
        assert chat(cases, name)["choices"][0]["message"]["content"] == "yes"
    for name in ("qwen2", "llama", "fake"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            chat(cases, name)
    status = cases.cluster.status()
    assert [model["name"] for model in status["models"]] == names
    (shard,) = cases.cluster.shards("fake.v1.5")
    assert (shard["id"], shard["node"]) == ("fake.v1.5/0/0", "n1.example.org")
    shown = subprocess.run(
        [str(BIN / "llmgw"), "--admin", f"127.0.0.1:{cases.cluster.admin_port}", "status"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    for name in (*names, "n1.example.org"):
        assert name in shown


def test_f07_an_engine_at_an_ipv6_address_serves(cases: Cases) -> None:
    """It binds there, its agent probes it there, and the router's URL has brackets."""
    (shard,) = cases.cluster.shards("fake.v1.5")
    argv = json.loads(next(cases.cluster.folder.glob("argv-*.json")).read_text())
    assert argv[argv.index("--host") + 1] == "::1"
    (node,) = cases.cluster.status()["nodes"]
    assert node["address"] == "::1"
    assert shard["state"] == "ready"
    assert chat(cases, "fake.v1.5")["choices"]


def test_f07_router_urls_have_brackets(cases: Cases) -> None:
    chat(cases, "llama.cpp")
    assert cases.static.heads[-1]["host"] == f"[::1]:{cases.static.server_address[1]}"


def test_f07_localhost_works_when_only_one_family_listens(cases: Cases) -> None:
    """A static endpoint called `localhost` that has 127.0.0.1 alone; and a router that listens at [::] has both."""
    assert chat(cases, "qwen2.5-7b")["choices"]
    assert cases.local.heads[-1]["host"] == f"localhost:{cases.local.server_address[1]}"
    for host in ("127.0.0.1", "[::1]", "localhost"):
        assert chat(cases, "llama.cpp", host)["choices"]


def test_f07_printed_addresses_can_be_pasted_back(cases: Cases) -> None:
    control = next(daemon for daemon in cases.cluster.daemons if daemon.name == "control")
    (started,) = control.events("control started")
    for key, written in (
        ("agents", f"[::1]:{cases.cluster.agent_port}"),
        ("admin", f"127.0.0.1:{cases.cluster.admin_port}"),
        ("router", f"[::]:{cases.cluster.router_port}"),
    ):
        assert started[key] == written
        assert str(parse_address(started[key])) == written


def test_f08_started_from_the_root_directory(cases: Cases) -> None:
    """Without a HOME, as a service manager does it: everything is where the files say, relative to themselves."""
    folder = cases.cluster.folder
    control, agent = cases.cluster.daemons[:2]
    for daemon in (control, agent):
        assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path("/")
        assert b"HOME=" not in Path(f"/proc/{daemon.pid}/environ").read_bytes()
    assert (folder / "state/control/control.db").is_file()
    assert (folder / "n1").is_dir()
    chat(cases, "llama.cpp")
    assert cases.static.heads[-1]["authorization"] == "Bearer sk-0123456789"


def test_f08_engines_get_absolute_paths_and_a_stated_working_directory(cases: Cases) -> None:
    (shard,) = cases.cluster.shards("fake.v1.5")
    argv = json.loads(next(cases.cluster.folder.glob("argv-*.json")).read_text())
    assert argv[argv.index("--model") + 1] == str(cases.cluster.folder / "models/tiny.gguf")
    assert Path(f"/proc/{shard['pid']}/cwd").readlink() == Path("/")


@pytest.mark.parametrize("command", ["llmgw-control", "llmgw-agent"])
def test_f08_a_missing_file_is_told_with_the_absolute_path(command: str) -> None:
    done = subprocess.run(
        [*FROM_ROOT, str(BIN / command), "etc/none.toml"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "/etc/none.toml: cannot be read: No such file or directory"
