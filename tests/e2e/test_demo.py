"""The demo as a user runs it: real control, agent, router and engine; and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from cluster import alive, free_port, get_json, wait_until

from llmgw.demo.talk import question
from llmgw.demo.tiny_model import Shape, write_tiny_model

pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")
pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ANSWER_SECONDS_MAX = 60.0
"""A run takes about six seconds on two cores that have nothing else to do."""
STOP_SECONDS_MAX = 60.0


@attrs.define
class Demo:
    """A running demo and what it has said."""

    process: "subprocess.Popen[str]"
    router: int
    admin: int
    said: str = ""

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def found(self, pattern: str) -> "re.Match[str]":
        match = re.search(pattern, self.said, re.MULTILINE)
        assert match is not None, f"nothing like {pattern!r} in:\n{self.said}"
        return match

    def pids(self) -> list[int]:
        """Of everything that it has named: the daemons and the engine."""
        return [int(pid) for pid in re.findall(r"\bpid (\d+)", self.said)]

    def finish(self) -> int:
        return self.process.wait(timeout=ANSWER_SECONDS_MAX + STOP_SECONDS_MAX)


RunDemo = Callable[..., Demo]


@pytest.fixture
def run_demo() -> Iterator[RunDemo]:
    """Starts a demo on ports of its own; whatever is left of it at the end is a failure, and is ended."""
    demos: list[tuple[Demo, threading.Thread]] = []

    def run(*argv: str, **environ: str) -> Demo:
        control, admin, router = free_port(), free_port(), free_port()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
        ports = {
            "LLMGW_CONTROL__LISTEN": f"127.0.0.1:{control}",
            "LLMGW_CONTROL": f"127.0.0.1:{control}",
            "LLMGW_ADMIN__LISTEN": f"127.0.0.1:{admin}",
            "LLMGW_ROUTER__LISTEN": f"127.0.0.1:{router}",
        }
        process = subprocess.Popen(
            argv,
            env=inherited | ports | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        demo = Demo(process, router, admin)
        reader = threading.Thread(target=demo.read)
        reader.start()
        demos.append((demo, reader))
        return demo

    yield run
    for demo, reader in demos:
        if demo.process.poll() is None:
            demo.process.terminate()
        demo.finish()
        reader.join()
        assert demo.process.stdout is not None
        demo.process.stdout.close()
        assert not [pid for pid in demo.pids() if alive(pid)], demo.said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the real configuration, so that no state is shared with a demo that somebody runs."""
    (tmp_path / "conf").mkdir()
    for name in ("cluster.toml", "node.toml"):
        (tmp_path / "conf" / name).write_text((ROOT / "conf" / name).read_text())
    return tmp_path


def command(folder: Path, *arguments: str) -> tuple[str, ...]:
    """What scripts/demo executes, for another folder."""
    return (sys.executable, "-P", "-m", "llmgw.demo.main", "--root", str(folder), *arguments)


def answer_of(demo: Demo, model: str = "tiny") -> str:
    return demo.found(rf"(?s)^  {model}: (.*?)\n\n").group(1)


def ask(port: int, body: dict[str, Any]) -> Any:
    """The answer to one chat that is not streamed."""
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(plain).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
        return json.load(answer)


def test_once_shows_everything_and_ends_everything(run_demo: RunDemo) -> None:
    """scripts/demo --once, where the project is: exit code 0, the answer and its facts, the status, no process left."""
    demo = run_demo(str(ROOT / "scripts/demo"), "--once")
    assert demo.finish() == 0, demo.said
    assert answer_of(demo).strip()
    assert "gibberish is right" in demo.said
    fact = demo.found(r"replica tiny/0 on node local, engine pid (\d+), x-request-id (\S+), 48 tokens in ")
    assert fact.group(2) != "none"
    demo.found(r"^Control  serving")
    demo.found(rf"^ *tiny/0 +ready .* local .* {fact.group(1)}\b")
    assert demo.said.rstrip().endswith("everything has ended")
    assert len(demo.pids()) >= 4


def test_it_stays_up_until_ctrl_c(run_demo: RunDemo, folder: Path) -> None:
    """What was streamed is what the engine itself says, the line to paste works, and Ctrl-C leaves no process."""
    demo = run_demo(*command(folder))
    wait_until("the last words", ANSWER_SECONDS_MAX, lambda: "Ctrl-C stops everything" in demo.said)

    status = get_json(f"http://127.0.0.1:{demo.admin}/api/v1/status")
    (shard,) = status["models"][0]["replicas"][0]["shards"]
    assert demo.found(r"engine pid (\d+), x-request-id").group(1) == str(shard["pid"])
    own_words = ask(shard["port"], question("tiny"))["choices"][0]["message"]["content"]
    assert answer_of(demo) == own_words

    pasted = demo.found(r"curl -N (http://\S+) -H '.*?' -d '(.*)'$")
    assert pasted.group(1) == f"http://127.0.0.1:{demo.router}/v1/chat/completions"
    assert ask(demo.router, json.loads(pasted.group(2)))["usage"]["completion_tokens"] == 40

    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.finish() == 0, demo.said
    assert "everything has ended" in demo.said
    assert not alive(shard["pid"])


def test_a_model_of_one_s_own(run_demo: RunDemo, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("elsewhere") / "my own model.gguf"
    write_tiny_model(path, Shape(seed=5))
    demo = run_demo(*command(folder, str(path), "--once"))
    assert demo.finish() == 0, demo.said
    assert str(path) in demo.said
    assert "gibberish" not in demo.said
    assert answer_of(demo).strip()
    assert not (folder / "var/models").exists()
    assert (folder / "var/control").is_dir()


def test_interrupted_while_it_starts_it_leaves_nothing(run_demo: RunDemo, folder: Path) -> None:
    demo = run_demo(*command(folder))
    wait_until("the agent", ANSWER_SECONDS_MAX, lambda: "started llmgw-agent" in demo.said)
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.finish() == 130, demo.said
    assert "everything has ended" in demo.said


def test_without_a_reader_it_still_ends_everything(run_demo: RunDemo, folder: Path) -> None:
    """As in `scripts/demo --once | head -3`."""
    demo = run_demo("bash", "-o", "pipefail", "-c", '"$@" | head -n 3', "bash", *command(folder, "--once"))
    assert demo.finish() == 0, demo.said
    assert len(demo.pids()) == 2
    assert "Traceback" not in demo.said


def test_a_second_run_is_told_who_holds_the_address(run_demo: RunDemo, folder: Path) -> None:
    first = run_demo(*command(folder))
    wait_until("the last words", ANSWER_SECONDS_MAX, lambda: "Ctrl-C stops everything" in first.said)
    second = run_demo(*command(folder, "--once"), LLMGW_ROUTER__LISTEN=f"127.0.0.1:{first.router}")
    assert second.finish() == 1
    second.found(rf"127\.0\.0\.1:{first.router} is taken by .*pid \d+")
    assert "started" not in second.said
    first.process.send_signal(signal.SIGTERM)
    assert first.finish() == 0, first.said
