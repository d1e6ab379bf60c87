"""F01: an environment value is a string, and 'false' must not count as true.

For a bool, an int, a duration, an address, a path and a list, with and without the same key in the file. That nothing
is opened before a mistake ends the process is also shown with real processes, in tests/e2e/test_config_cases.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from llmgw.commandline import EXIT_CONFIG, read_cluster, settle
from llmgw.config.environment import BOOLS
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.show import rows
from llmgw.core.address import Address
from llmgw.errors import Mistake
from llmgw.strict import dotted

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
LoadNode: TypeAlias = Callable[..., Loaded[NodeConfig]]
Mistakes: TypeAlias = Callable[..., list[Mistake]]

FILE = """\
state_dir = "of-the-file"
[control]
insecure = false
lost_after = "200s"
[router]
workers = 7
listen = "127.0.0.1:81"
"""
NODE_FILE = 'control = "file"\nstop_engines_on_exit = true\n[gpu_filter]\nonly = ["GPU-f"]\n'


@pytest.mark.parametrize("text", [FILE, ""], ids=["beside the key in the file", "alone"])
@pytest.mark.parametrize(
    "case",
    [
        ("LLMGW_CONTROL__INSECURE", "true", "control.insecure", True),
        ("LLMGW_ROUTER__WORKERS", "4", "router.workers", 4),
        ("LLMGW_CONTROL__LOST_AFTER", "300s", "control.lost_after", 300.0),
        ("LLMGW_ROUTER__LISTEN", "127.0.0.1:8080", "router.listen", Address("127.0.0.1", 8080)),
        ("LLMGW_STATE_DIR", "a/long/path", "state_dir", Path("/etc/llmgw/a/long/path")),
    ],
)
def test_f01_an_override_beats_the_file(
    text: str, case: tuple[str, str, str, Any], load_cluster_text: LoadCluster
) -> None:
    variable, value, path, expected = case
    loaded = load_cluster_text(text, {variable: value})
    found: Any = loaded.config
    for name in path.split("."):
        found = getattr(found, name)
    assert found == expected
    assert loaded.origins[path] == variable


@pytest.mark.parametrize("text", [NODE_FILE, 'control = "file"\n'], ids=["beside the key in the file", "alone"])
@pytest.mark.parametrize("value", ["GPU-1,GPU-2", '["GPU-1", "GPU-2"]'])
def test_f01_a_list_beats_the_file_in_either_form(text: str, value: str, load_node_text: LoadNode) -> None:
    loaded = load_node_text(text, {"LLMGW_GPU_FILTER__ONLY": value})
    assert loaded.config.gpu_filter.only == ("GPU-1", "GPU-2")


@pytest.mark.parametrize("text", [NODE_FILE, 'control = "file"\n'])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("false", False), ("False", False), ("0", False), ("no", False), ("off", False), ("FALSE", False)),
        *(("true", True), ("1", True), ("yes", True), ("On", True)),
    ],
)
def test_f01_bools_follow_a_list(text: str, value: str, expected: bool, load_node_text: LoadNode) -> None:
    assert load_node_text(text, {"LLMGW_STOP_ENGINES_ON_EXIT": value}).config.stop_engines_on_exit is expected


def test_f01_the_list_is_documented() -> None:
    """In the annotated files and in the help of `llmgw config`."""
    root = Path(__file__).parents[2]
    words = ", ".join(BOOLS)
    for file in ("conf/cluster.toml", "conf/node.toml", "llmgw/cli/config.py"):
        text = " ".join((root / file).read_text().replace("#", " ").split())
        assert f"a bool is one of {words}" in text.lower(), file
        assert "an empty variable is a mistake" in text.lower()


EMPTY = ("", " ")
WRONG = {
    "LLMGW_CONTROL__INSECURE": ("true or yes or on or 1", ["maybe", "a/long/path", " true", "2", "tru", *EMPTY]),
    "LLMGW_ROUTER__WORKERS": ("an integer", [" 8080 ", "0x1F90", "8e3", "abc", "4.0", "n1,n2", *EMPTY]),
    "LLMGW_CONTROL__LOST_AFTER": ("a duration with its unit", ["8080", " 8080 ", "0", "abc", "false", *EMPTY]),
    "LLMGW_ROUTER__LISTEN": ('"host:port"', ["127.0.0.1:70000", "a/long/path", "127.0.0.1:0x1F90", *EMPTY]),
    "LLMGW_STATE_DIR": ("a path", ["~/x", "$HOME/x", *EMPTY]),
    "LLMGW_LABELS": ("a TOML inline table", ["n1,n2", '["n1", "n2"', "false", *EMPTY]),
    "LLMGW_GPU_FILTER__ONLY": ("a list", ["[n1, n2]", *EMPTY]),
}


@pytest.mark.parametrize("in_file", [True, False], ids=["beside the key in the file", "alone"])
@pytest.mark.parametrize(
    ("variable", "value"), [(name, value) for name, (_, values) in WRONG.items() for value in values]
)
def test_f01_anything_else_names_the_variable_the_value_and_the_type(
    in_file: bool, variable: str, value: str, cluster_mistakes: Mistakes, node_mistakes: Mistakes
) -> None:
    """An empty string has one meaning, whatever the type: it is a mistake, with what to do, never 0 or false."""
    if variable in {"LLMGW_LABELS", "LLMGW_GPU_FILTER__ONLY"}:
        told = node_mistakes(NODE_FILE.partition("\n")[2] if in_file else "", {variable: value})
    else:
        told = cluster_mistakes(FILE if in_file else "", {variable: value})
    (mistake,) = told
    assert mistake.origin == variable
    assert f"expected {WRONG[variable][0]}" in mistake.expected
    assert mistake.value == json.dumps(value)
    if value in EMPTY:
        assert mistake.hint == "an empty variable is a mistake: unset it"


def test_f01_an_int_is_held_to_its_limits_too(cluster_mistakes: Mistakes) -> None:
    (mistake,) = cluster_mistakes(FILE, {"LLMGW_ROUTER__WORKERS": "70000"})
    assert (mistake.origin, mistake.value) == ("LLMGW_ROUTER__WORKERS", "70000")
    assert mistake.expected == "expected 1 to 256"


@pytest.mark.parametrize("value", ["a/long/path", "on", "0", "no", "8e3", "n1,n2", "true", " x"])
def test_f01_paths_stay_strings(value: str, load_cluster_text: LoadCluster, load_node_text: LoadNode) -> None:
    assert load_cluster_text("", {"LLMGW_STATE_DIR": value}).config.state_dir == Path("/etc/llmgw") / value
    node = load_node_text('control = "a"', {"LLMGW_MODELS_DIR": value, "LLMGW_NODE_ID": "0"})
    assert (node.config.models_dir, node.config.node_id) == (Path("/etc/llmgw") / value, "0")


def test_f01_a_mistake_ends_the_process_with_a_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is opened: reading is all that was done so far."""
    file = tmp_path / "cluster.toml"
    file.write_text('state_dir = "state"\n')
    with pytest.raises(SystemExit) as ended:
        settle(lambda: read_cluster(str(file), {"LLMGW_CONTROL__INSECURE": "maybe"}), check=False)
    assert ended.value.code == EXIT_CONFIG != 0
    assert capsys.readouterr().err.startswith("LLMGW_CONTROL__INSECURE: control.insecure: expected true or yes")
    assert list(tmp_path.iterdir()) == [file]


def test_f01_effective_values_and_their_origin_can_be_printed(load_cluster_text: LoadCluster) -> None:
    """`llmgw config show` prints these rows."""
    loaded = load_cluster_text(FILE, {"LLMGW_CONTROL__INSECURE": "off", "LLMGW_ROUTER__WORKERS": "4"})
    shown = {dotted(row.path): (row.value, row.origin) for row in rows(loaded)}
    assert shown["control.insecure"] == (False, "LLMGW_CONTROL__INSECURE")
    assert shown["router.workers"] == (4, "LLMGW_ROUTER__WORKERS")
    assert shown["control.lost_after"] == ("200s", "cluster.toml:4")
    assert shown["router.body_max"] == ("64MiB", "default")
