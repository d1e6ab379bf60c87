import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmgw
from llmgw.commandline import (
    EXIT_CONFIG,
    FILE_BYTES_MAX,
    cluster_parser,
    control_beside,
    init_parser,
    node_init_parser,
    node_parser,
    read_cluster,
    read_control,
    read_node,
    run_init,
    settle,
    state_base,
)
from llmgw.core.address import Address
from llmgw.errors import ConfigError, RefusedError

F04 = """\
heartbeat_intervall = 5
[control]
Listen = "127.0.0.1:7070"
body_max = "64MiB"
[routr]
[[models]]
name = "a"
gpu_memroy = 40
endpoints = [{ url = "http://127.0.0.1:9000" }]
"""

HOME = {"HOME": "/home/u"}


def ended(load: Callable[[], Any], *, check: bool) -> int:
    """The exit code that `settle` ends with."""
    with pytest.raises(SystemExit) as caught:
        settle(load, check=check)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_f04_start_and_check_give_the_same_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Start-up fails, with and without `--check`, and lists all five in one go: with the file, the line, the dotted
    path and the nearest known key. Nothing is started and nothing is written: the process ends right there.
    """
    file = tmp_path / "cluster.toml"
    file.write_text(F04)
    lists = []
    for check in (False, True):
        assert ended(lambda: read_cluster(str(file), HOME), check=check) == EXIT_CONFIG
        captured = capsys.readouterr()
        assert captured.out == ""
        lists.append(captured.err)
    assert lists[0] == lists[1]
    lines = lists[0].splitlines()
    assert lines[-1] == "5 mistakes, nothing was started"
    for line, (number, path, known) in zip(
        lines,
        [
            (1, "heartbeat_intervall", "heartbeat"),
            (3, "control.Listen", "listen"),
            (4, "control.body_max", "body_max"),
            (5, "routr", "router"),
            (8, "models[0].gpu_memroy", "gpu_memory"),
        ],
        strict=False,
    ):
        assert line.startswith(f"{file}:{number}: {path}: unknown ")
        assert f'"{known}"' in line
    assert list(tmp_path.iterdir()) == [file]


def test_a_right_file_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("")
    environ = {**HOME, "LLMGW_NODE_ID": "x"}
    assert ended(lambda: read_cluster(str(file), environ), check=True) == 0
    captured = capsys.readouterr()
    assert captured.out == "ok\n"
    assert captured.err == "note: LLMGW_NODE_ID: ignored: it is a setting of node.toml\n"
    assert settle(lambda: read_cluster(str(file), environ), check=False).config.router.workers == 1
    assert capsys.readouterr().out == ""


def test_nothing_of_the_file_reaches_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('"\\u001b[31mred\\nline" = 1\n')
    assert ended(lambda: read_cluster(str(file), HOME), check=True) == EXIT_CONFIG
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert len(err.splitlines()) == 2


def refusal(file: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_cluster(file, {})
    return str(caught.value)


def test_a_missing_file_is_told_with_the_path_tried() -> None:
    assert refusal("no/such.toml") == f"{Path.cwd()}/no/such.toml: cannot be read: No such file or directory"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"


def test_what_is_no_text_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_bytes(b"# one\n# \xff\n")
    assert refusal(str(file)) == f"{file}:2: not TOML: expected UTF-8 text"


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with file.open("wb") as opened:
        opened.truncate(FILE_BYTES_MAX + 1)
    assert f"at most {FILE_BYTES_MAX} bytes" in refusal(str(file))


def test_paths_are_relative_to_the_folder_of_a_link(tmp_path: Path) -> None:
    """Not to that of its target: the link is what the person named."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/cluster.toml").write_text('state_dir = "state"\n')
    link = tmp_path / "cluster.toml"
    link.symlink_to("real/cluster.toml")
    assert read_cluster(str(link), HOME).config.state_dir == tmp_path / "state"


def test_an_agent_with_no_file() -> None:
    environ = {"HOME": "/home/u", "XDG_STATE_HOME": "/state"}
    arguments = node_parser("llmgw-agent", "Runs engines.").parse_args(["--server", "[::1]:7070", "--node-id", "a"])
    loaded = read_node(arguments.file, environ, server=arguments.server, node_id=arguments.node_id)
    assert loaded.config.control == Address("::1", 7070)
    assert loaded.config.node_id == "a"
    assert loaded.config.state_dir == (Path("/var/lib/llmgw/a") if os.geteuid() == 0 else Path("/state/llmgw/a"))


def test_an_agent_is_named_after_its_host() -> None:
    assert read_node(None, HOME, server="head").config.node_id == os.uname().nodename


def test_where_state_is_kept() -> None:
    assert state_base(HOME, root=True) == Path("/var/lib/llmgw")
    assert state_base(HOME, root=False) == Path("/home/u/.local/state/llmgw")
    assert state_base({**HOME, "XDG_STATE_HOME": "/s"}, root=False) == Path("/s/llmgw")
    assert state_base({**HOME, "XDG_STATE_HOME": "s"}, root=False) == Path("/home/u/.local/state/llmgw")
    assert state_base({}, root=False) is None


def test_the_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    parser = cluster_parser("llmgw-control", "Runs the cluster.")
    arguments = parser.parse_args(["x.toml", "--check"])
    assert (arguments.file, arguments.check) == ("x.toml", True)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([])
    assert caught.value.code == EXIT_CONFIG
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"llmgw-control {llmgw.__version__}\n"


def init_ended(argv: list[str], init: Callable[[argparse.Namespace], list[str]]) -> int:
    with pytest.raises(SystemExit) as caught:
        run_init(argv, node_init_parser("llmgw-agent"), init)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_init_is_done_and_ends_the_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[argparse.Namespace] = []

    def init(given: argparse.Namespace) -> list[str]:
        seen.append(given)
        return ["wrote it", "with\x1b an escape"]

    argv = ["init", "conf", "--server", "::1", "--node-id", "a", "--models", str(tmp_path)]
    assert init_ended(argv, init) == 0
    (given,) = seen
    assert (given.folder, given.models) == (Path.cwd() / "conf", tmp_path)
    assert (given.server, given.node_id) == ("[::1]:7070", "a")
    assert capsys.readouterr().out == "wrote it\nwith\\x1b an escape\n"


def test_any_other_command_line_is_not_init(tmp_path: Path) -> None:
    """Also a file of that name, when it is named with its folder."""
    for argv in ([], ["./init"], ["cluster.toml", "init"]):
        run_init(argv, init_parser("llmgw-control", "cluster.toml"), lambda _: [])


def test_init_that_is_refused_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    def init(_: argparse.Namespace) -> list[str]:
        raise RefusedError("it exists")

    assert init_ended(["init", "x"], init) == 1
    assert capsys.readouterr() == ("", "llmgw-agent init: it exists\n")


@pytest.mark.parametrize(
    "argv", [["init"], ["init", "a", "b"], ["init", "a", "--server", "::1:70"], ["init", "a", "--models", "/no/such"]]
)
def test_a_wrong_init_is_exit_2(argv: list[str]) -> None:
    assert init_ended(argv, lambda _: []) == EXIT_CONFIG


def test_init_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for parser in (node_parser("llmgw-agent", "X."), cluster_parser("llmgw-control", "X.", writes="cluster.toml")):
        parser.print_help()
        assert "init DIR` writes an annotated" in capsys.readouterr().out
    cluster_parser("llmgw-router", "X.").print_help()
    assert "init" not in capsys.readouterr().out


def test_the_control_beside_a_node(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    assert control_beside(tmp_path, HOME) is None
    for text, address in (
        ("", None),
        ("nonsense", None),
        ('[control]\nlisten = "127.0.0.1:7072"\n', "127.0.0.1:7072"),
        ('[control]\nlisten = "0.0.0.0:7072"\ninsecure = true\n', "127.0.0.1:7072"),
        ('[control]\nlisten = "[::]:7072"\ninsecure = true\n', "[::1]:7072"),
    ):
        file.write_text(text)
        assert control_beside(tmp_path, HOME) == address


def test_the_mistakes_of_adapters_and_key_files_are_told_together(tmp_path: Path) -> None:
    """Each on its line; of an argument on its own."""
    file = tmp_path / "cluster.toml"
    file.write_text("""\
[control]
listen = "127.0.0.1:7070"
[[models]]
name = "a"
[models.profile]
engine = "llamacpp"
model = "m.gguf"
args = [
  "--embeddings",
  "--port", "1",
]
[[models]]
name = "b"
endpoints = [{ url = "http://a:1", key_file = "no.key" }]
""")
    with pytest.raises(ConfigError) as caught:
        read_control(str(file), HOME, {})
    port, key = caught.value.mistakes
    assert (port.origin, port.path) == (f"{file}:10", "models[0].profile.args[1]")
    assert (key.origin, key.path) == (str(tmp_path / "no.key"), "models[1].endpoints[0].key_file")
