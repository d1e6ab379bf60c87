"""A mistake in a configuration ends each daemon before it has opened or written anything."""

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

CLUSTER = """\
state_dir = "state"
heartbeat_intervall = 5
[control]
Listen = "127.0.0.1:7070"
body_max = "64MiB"
[routr]
workers = 2
[[models]]
name = "a"
gpu_memroy = 40
endpoints = [{ url = "http://127.0.0.1:9000" }]
"""

NODE = """\
state_dir = "state"
models_dir = "models"
contrl = "127.0.0.1:7070"
Ports = "20000-20999"
workers = 2
[gpu_filtr]
only = []
[[gpus]]
uuid = "GPU-a"
memroy = 40
"""

EXPECTED = {
    "cluster.toml": [
        "2: heartbeat_intervall: ",
        "4: control.Listen: ",
        "5: control.body_max: ",
        "6: routr: ",
        "10: models[0].gpu_memroy: ",
    ],
    "node.toml": [
        "3: contrl: ",
        "4: Ports: ",
        "5: workers: ",
        "6: gpu_filtr: ",
        "8: gpus[0].memory: ",
        "10: gpus[0].memroy: ",
    ],
}


@pytest.mark.e2e
@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["start", "check"])
@pytest.mark.parametrize(
    ("command", "file"),
    [("llmgw-control", "cluster.toml"), ("llmgw-router", "cluster.toml"), ("llmgw-agent", "node.toml")],
)
def test_f04_unknown_keys_end_the_daemon(command: str, file: str, arguments: list[str], tmp_path: Path) -> None:
    """Every one in one go, each with file, line, dotted path and the nearest known key; nothing is started."""
    path = tmp_path / file
    path.write_text(CLUSTER if file == "cluster.toml" else NODE)
    done = subprocess.run(
        [str(BIN / command), file, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith(file)]
    for line in EXPECTED[file]:
        told = [text for text in lines if text.startswith(f"{file}:{line}")]
        assert len(told) == 1, done.stderr
        assert any(help_ in told[0] for help_ in ("did you mean", "is known in", "required, and missing"))
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.e2e
@pytest.mark.parametrize(("command", "file"), [("llmgw-control", "cluster.toml"), ("llmgw-agent", "node.toml")])
def test_check_of_what_is_right(command: str, file: str) -> None:
    """The annotated files, as they are shipped: ok, and nothing is written."""
    root = Path(__file__).parents[2]
    before = sorted((root / "conf").iterdir())
    done = subprocess.run(
        [str(BIN / command), "--check", f"conf/{file}"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert sorted((root / "conf").iterdir()) == before
