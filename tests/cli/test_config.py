"""`llmgw config`: what is printed where, and the exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmgw.cli.main import main

CLUSTER = """\
state_dir = "state"
[control]
listen = "127.0.0.1:7070"
[[models]]
name = "llama.cpp"
[models.profile]
engine = "llamacpp"
model = "m.gguf"
env = { TOKEN = "hunter2hunter2" }
"""
NODE = 'node_id = "a"\ncontrol = "head"\nstate_dir = "state"\nmodels_dir = "models"\n'


def run(*arguments: str, **variables: str | None) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], env={"LLMGW_ADMIN_URL": None, **variables})


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    return str(file)


@pytest.fixture
def node(tmp_path: Path) -> str:
    file = tmp_path / "of-a-gpu.toml"
    file.write_text(NODE)
    return str(file)


def test_show_has_values_and_origins(cluster: str, tmp_path: Path) -> None:
    result = run("show", cluster, LLMGW_ROUTER__WORKERS="3", LLMGW_NODE_ID="x")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"# {cluster} as cluster.toml, with the LLMGW_ variables of this shell"
    assert lines[1] == "# LLMGW_NODE_ID: ignored: it is a setting of node.toml"
    assert f'listen = "127.0.0.1:7070"                     # {cluster}:3' in lines
    assert "workers = 3                                   # LLMGW_ROUTER__WORKERS" in lines
    assert 'body_max = "64MiB"                            # default' in lines
    assert f'TOKEN = "***"                                 # {cluster}:9' in lines
    assert f'state_dir = "{tmp_path}/state"' in result.stdout
    assert "hunter2" not in result.stdout


def test_show_tells_the_files_apart(node: str) -> None:
    assert run("show", node).stdout.startswith(f"# {node} as node.toml")
    assert run("show", node, "--node").exit_code == 0
    assert run("show", node, "--cluster").exit_code == 2


def test_a_file_that_says_nothing_is_told_by_its_name(tmp_path: Path) -> None:
    for name, kind in (("cluster.toml", "cluster.toml"), ("x.toml", "cluster.toml"), ("my-node.toml", "node.toml")):
        file = tmp_path / name
        file.write_text('state_dir = "s"\n')
        result = run("show", str(file), LLMGW_MODELS_DIR="/m", LLMGW_CONTROL="head")
        assert result.stdout.startswith(f"# {file} as {kind}"), result.stderr


def test_show_as_json(cluster: str) -> None:
    shown = json.loads(run("show", "--json", cluster).stdout)
    assert (shown["file"], shown["kind"], shown["notes"]) == (cluster, "cluster.toml", [])
    assert {"path": "control.listen", "value": "127.0.0.1:7070", "origin": f"{cluster}:3"} in shown["settings"]
    assert {"path": "models[0].profile.env.TOKEN", "value": "***", "origin": f"{cluster}:9"} in shown["settings"]


def test_show_of_what_is_wrong_lists_the_mistakes(cluster: str) -> None:
    result = run("show", cluster, LLMGW_ROUTER__WORKERS="many")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith('LLMGW_ROUTER__WORKERS: router.workers: expected an integer in digits, got "many"')


def test_check_lists_every_mistake_of_every_file(cluster: str, node: str, tmp_path: Path) -> None:
    """That of adapters and of key files too, as control's own check does."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        CLUSTER.replace('model = "m.gguf"', 'model = "m.gguf"\nargs = ["--port", "1"]')
        + '[[models]]\nname = "b"\nendpoints = [{ url = "http://a:1", key_file = "none" }]\n'
    )
    bad = tmp_path / "bad-node.toml"
    bad.write_text(NODE + "nonsense = 1\nports = 5\n")
    result = run("check", cluster, str(wrong), str(bad), node, str(tmp_path / "none.toml"))
    assert result.exit_code == 2
    assert result.stdout == f"{cluster}: ok (cluster.toml)\n{node}: ok (node.toml)\n"
    lines = result.stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines[:-1]] == [
        [f"{wrong}:9", "models[0].profile.args[0]"],
        [str(tmp_path / "none"), "models[1].endpoints[0].key_file"],
        [f"{bad}:5", "nonsense"],
        [f"{bad}:6", "ports"],
        [str(tmp_path / "none.toml"), "cannot be read"],
    ]
    assert lines[-1] == "5 mistakes in 3 of 5 files"


def test_check_of_what_is_right(cluster: str) -> None:
    result = run("check", cluster, LLMGW_NODE_ID="x")
    assert (result.exit_code, result.stdout) == (0, f"{cluster}: ok (cluster.toml)\n")
    assert result.stderr == "note: LLMGW_NODE_ID: ignored: it is a setting of node.toml\n"


def test_check_as_json(cluster: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[routr]\n")
    result = run("check", "--json", "--cluster", cluster, str(bad))
    assert result.exit_code == 2
    right, wrong = json.loads(result.stdout)["files"]
    assert right == {"file": cluster, "kind": "cluster.toml", "ok": True, "mistakes": [], "notes": []}
    (mistake,) = wrong["mistakes"]
    assert (mistake["origin"], mistake["path"], mistake["hint"]) == (f"{bad}:1", "routr", 'did you mean "router"?')


def test_diff(cluster: str, tmp_path: Path) -> None:
    """The new file may lie anywhere: its relative paths count as those of the old one."""
    (tmp_path / "elsewhere").mkdir()
    new = tmp_path / "elsewhere/new.toml"
    new.write_text(CLUSTER.replace("m.gguf", "n.gguf").replace("7070", "7072"))
    result = run("diff", cluster, str(new))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "restarts  llama.cpp: 1 replica, one after the other",
        '    profile.model: "m.gguf" -> "n.gguf"',
        "needs a restart of llmgw-control:",
        '    control.listen: "127.0.0.1:7070" -> "127.0.0.1:7072"',
    ]
    assert run("diff", cluster, cluster).stdout == "nothing changes\n"


def test_diff_as_json(cluster: str, tmp_path: Path) -> None:
    new = tmp_path / "new.toml"
    new.write_text(CLUSTER.replace('name = "llama.cpp"', 'name = "llama.cpp"\nreplicas = 3'))
    data = json.loads(run("diff", "--json", cluster, str(new)).stdout)
    assert (data["kind"], data["keys"], data["daemon"]) == ("cluster.toml", [], [])
    (model,) = data["models"]
    assert (model["model"], model["effect"], model["before"], model["after"]) == ("llama.cpp", "scales", 1, 3)
    assert model["settings"] == [{"path": "replicas", "before": 1, "after": 3, "remark": ""}]


def test_diff_of_nodes(node: str, tmp_path: Path) -> None:
    new = tmp_path / "new.toml"
    new.write_text(NODE + 'address = "10.0.0.5"\n')
    assert run("diff", node, str(new)).stdout.splitlines() == [
        "needs a restart of llmgw-agent:",
        '    address: "" -> "10.0.0.5" (endpoints move to the new address)',
    ]


def test_diff_of_what_cannot_be_compared(cluster: str, node: str, tmp_path: Path) -> None:
    result = run("diff", cluster, node)
    assert result.exit_code == 2
    assert "say which with --cluster or --node" in result.stderr
    bad = tmp_path / "bad.toml"
    bad.write_text("[routr]\n")
    result = run("diff", str(bad), str(tmp_path / "none"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{bad}:1: routr" in result.stderr
    assert f"{tmp_path}/none: cannot be read" in result.stderr


def test_nothing_of_a_file_steers_the_terminal(cluster: str, tmp_path: Path) -> None:
    evil = tmp_path / "evil.toml"
    evil.write_text(CLUSTER.replace("m.gguf", "\x9b31m\u202e.gguf") + '["\\u001b[31m"]\n')
    results = [run("check", str(evil)), run("show", str(evil)), run("diff", cluster, str(evil))]
    evil.write_text(CLUSTER.replace("m.gguf", "\x9b31m\u202e.gguf"))
    results += [run("show", str(evil)), run("diff", cluster, str(evil))]
    for result in results:
        assert all(line.isprintable() for line in result.output.splitlines()), result.output
