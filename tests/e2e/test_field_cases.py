"""Field cases that need real processes; each test is named after its case."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, alive, wait_until

pytestmark = pytest.mark.e2e

FAKE = """
[[models]]
name = "fake"
  [models.profile]
  engine = "llamacpp"
  model = "tiny.gguf"
  args = {args}
  start_deadline = "{deadline}"
  env = {env}
"""


def fake_models(folder: Path, args: list[str] | None = None, deadline: str = "60s", silent: str = "") -> str:
    """A model run by the script that stands in for llama-server."""
    env = {"FAKE_DUMP": str(folder), "FAKE_SILENT": silent}
    toml = "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in env.items() if value) + " }"
    return FAKE.format(args=json.dumps(args or [], ensure_ascii=False), deadline=deadline, env=toml)


@pytest.fixture
def fake_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `llama-server` is the script beside this file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "llama-server"
    body = Path(__file__).with_name("fake_llama_server.py").read_text()
    script.write_text(f"#!{sys.executable}\n{body}")
    script.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def process(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A stranger's process, ended with the block."""
    stranger = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield stranger
    finally:
        stranger.kill()
        stranger.wait()


LISTENER = """
import http.server, json, sys
class H(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"data": [{"id": "somebody-else"}], "choices": [{"message": {"content": "hi"}}],
                           "usage": {"completion_tokens": 1}}).encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


def test_c12_arguments_reach_the_engine_unchanged(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fake_path: dict[str, str]
) -> None:
    """The dump equals the list, element by element: no shell, no expansion, no rewriting."""
    args = [
        "--speculative-config",
        '{"num_speculative_tokens": 3, "method": "mtp"}',
        "--served-model-name",
        "foo bar",
        "--cache-type-k=q4_0",
        "",
        "ü$HOME `id` ;rm",
    ]
    cluster = make_cluster(fake_models(tmp_path, args))
    cluster.control()
    cluster.agent("gpu-a", environ=fake_path)
    (shard,) = cluster.ready("fake")
    dumped = json.loads((tmp_path / f"argv-{shard['port']}.json").read_text())
    assert dumped[-len(args) :] == args


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ('[" --reasoning-parser=x"]', ["args[0]", " --reasoning-parser=x"]),
        ('["--a", 3]', ["args[1]", "3"]),
        ('"--a 1 --b 2"', ["args", "--a 1 --b 2"]),
    ],
)
def test_c12_wrong_arguments_are_refused_before_anything_is_launched(
    make_cluster: Callable[..., Cluster], args: str, words: list[str]
) -> None:
    """A leading blank and wrong types: refused by `--check` and by the start, with index and value."""
    cluster = make_cluster(FAKE.format(args=args, deadline="60s", env="{}"))
    cluster.write_cluster()
    for check in (["--check"], []):
        command = cluster.start("refused", "llmgw-control", str(cluster.cluster_toml), *check)
        assert command.process.wait(timeout=50) == 2
        said = command.log.read_text()
        assert all(word in said for word in words), said
        assert "Traceback" not in said
        command.log.unlink()
    assert not (cluster.folder / "control").exists()


def test_c05_a_port_taken_when_start_arrives(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fake_path: dict[str, str]
) -> None:
    """A stranger has the first port of the range: another is taken, and the stranger is left alone."""
    cluster = make_cluster(fake_models(tmp_path))
    cluster.control()
    first = int(cluster.write_node("gpu-a").read_text().partition('ports = "')[2].partition("-")[0])
    with process(sys.executable, "-c", LISTENER, str(first)) as stranger:
        cluster.agent("gpu-a", environ=fake_path)
        (shard,) = cluster.ready("fake")
        assert shard["port"] != first
        assert stranger.poll() is None


def test_c05_a_fixed_port_taken_is_refused_before_launch(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fake_path: dict[str, str]
) -> None:
    """With the port fixed by the profile nothing is launched, and the reason names the port."""
    cluster = make_cluster("")
    cluster.engine_ports += 10
    port = cluster._ten_free_ports()
    cluster.models = fake_models(tmp_path).replace("[models.profile]", f"[models.profile]\n  port = {port}")
    cluster.control()
    with process(sys.executable, "-c", LISTENER, str(port)):
        agent = cluster.agent("gpu-a", environ=fake_path)
        wait_until("a refusal", 50, lambda: agent.events("command received"))
        wait_until(
            "the reason in the status",
            50,
            lambda: (
                str(port) in json.dumps(cluster.model("fake").get("replicas", []))
                and "taken" in json.dumps(cluster.model("fake"))
            ),
        )
    assert not list(tmp_path.glob("argv-*.json"))


def test_c05_c_a_stranger_answers_while_ours_loads(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fake_path: dict[str, str]
) -> None:
    """A stranger binds the port after the launch and answers everything with 200: never `ready`."""
    cluster = make_cluster(fake_models(tmp_path, silent="1", deadline="8s"))
    cluster.control()
    agent = cluster.agent("gpu-a", environ=fake_path)
    dump = wait_until("the launch", 100, lambda: list(tmp_path.glob("argv-*.json")))[0]
    port = int(dump.stem.removeprefix("argv-"))
    with process(sys.executable, "-c", LISTENER, str(port)) as stranger:
        (failed,) = wait_until(
            "the start deadline",
            80,
            lambda: [event for event in agent.events("shard state") if event["state"] == "failed"][:1],
        )
        assert str(port) in failed["error"]
        assert not [event for event in agent.events("shard state") if event["state"] == "ready"]
        assert stranger.poll() is None


@pytest.mark.parametrize("same_name", [False, True], ids=["another program", "same executable name"])
def test_c03_pid_reuse_never_hits_a_stranger(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fake_path: dict[str, str], *, same_name: bool
) -> None:
    """Agent and engine killed, the saved pid made a stranger's: failed and gone, and no stranger gets a signal."""
    cluster = make_cluster(fake_models(tmp_path))
    control = cluster.control()
    agent = cluster.agent("gpu-a", environ=fake_path)
    (before,) = cluster.ready("fake")
    control.kill()
    agent.kill()
    records = [path for path in (cluster.folder / "gpu-a").rglob("*.json") if str(before["pid"]) in path.read_text()]
    assert records
    shim = next(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"shim" in _read(path) and str(cluster.folder).encode() in _read(path)
    )
    os.kill(before["pid"], 9)
    os.kill(shim, 9)
    wait_until("the engine's end", 20, lambda: not alive(before["pid"]) and not alive(shim))
    sleep = shutil.which("sleep")
    assert sleep
    program = sleep
    if same_name:
        program = str(tmp_path / "python3")
        shutil.copy(sleep, program)
    with process(program, "1000") as stranger:
        for path in records:
            text = path.read_text()
            path.write_text(text.replace(str(before["pid"]), str(stranger.pid)).replace(str(shim), str(stranger.pid)))
        cluster.control()
        agent = cluster.agent("gpu-a", environ=fake_path)
        (after,) = cluster.ready("fake")
        assert after["epoch"] > before["epoch"]
        assert after["pid"] != stranger.pid
        assert stranger.poll() is None
        assert [event for event in agent.events("shard state") if event["state"] == "failed"]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
