from collections.abc import Callable

import pytest

from llmgw.core.catalog import Profile, Secret
from llmgw.core.hardware import Gpu
from llmgw.core.lifecycle import Cause
from llmgw.engines.base import (
    Assignment,
    Exit,
    Machine,
    check_profile,
    ended,
    engine_environment,
    last_line,
    refusal,
)
from llmgw.errors import Mistake


def test_a_plain_profile_has_no_mistakes() -> None:
    profile = Profile(
        "x", args=("--a", " a b", "- not an option", "", "-1", "\n{% if x %} - y"), env={"A": "", "b": Secret("f")}
    )
    assert check_profile(profile) == ()


@pytest.mark.parametrize("arg", [" --reasoning-parser=x", "\t-c", "\n--ctx-size", "\u00a0--flag"])
def test_an_option_behind_a_blank_is_refused_with_index_and_value(arg: str) -> None:
    (mistake,) = check_profile(Profile("x", args=("--fine", arg)))
    assert mistake.path == "args[1]"
    assert mistake.value == repr(arg)
    assert repr(arg.strip()) in mistake.hint


def test_every_mistake_is_found_at_once() -> None:
    profile = Profile(
        "x", args=("a\0b", " --c"), env={"": "1", "A=B": "1", "CUDA_VISIBLE_DEVICES": "0"}, probe="telepathy"
    )
    paths = [mistake.path for mistake in check_profile(profile)]
    assert paths == ["args[0]", "args[1]", "env", "env", "env.CUDA_VISIBLE_DEVICES", "probe"]


def test_a_variable_s_value_is_in_no_mistake() -> None:
    profile = Profile("x", env={"CUDA_DEVICE_ORDER": "s3cret", "A=B": "s3cret"})
    assert "s3cret" not in "".join(map(str, check_profile(profile)))


def test_only_named_variables_are_inherited(make_machine: Callable[..., Machine]) -> None:
    kept = {"PATH": "/bin", "LD_LIBRARY_PATH": "/l", "HF_HOME": "/hf", "LC_ALL": "C", "no_proxy": "*", "TMPDIR": "/t"}
    dropped = {"PYTHONPATH": "/p", "LLMGW_CONTROL__LISTEN": "x", "LLAMA_ARG_PORT": "1", "NOTIFY_SOCKET": "/run/n"}
    machine = make_machine(environ=kept | dropped | {"CUDA_VISIBLE_DEVICES": "7"})
    env = engine_environment(Assignment(port=1, served_name="m"), machine, {})
    assert env == kept | {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_the_profile_wins_over_what_is_inherited_and_what_the_adapter_says(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(environ={"HF_TOKEN": "agent", "PATH": "/bin"})
    assignment = Assignment(port=1, served_name="m", env={"HF_TOKEN": "profile", "B": "profile"})
    env = engine_environment(assignment, machine, {"B": "adapter", "C": "adapter"})
    assert (env["HF_TOKEN"], env["B"], env["C"], env["PATH"]) == ("profile", "profile", "adapter", "/bin")


def test_gpus_are_named_by_uuid_in_the_order_given_whatever_the_profile_says(
    make_machine: Callable[..., Machine],
) -> None:
    gpus = (Gpu("GPU-b", index=1), Gpu("GPU-a", index=0))
    assignment = Assignment(port=1, served_name="m", gpus=gpus, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert engine_environment(assignment, make_machine(), {})["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"


def test_a_refusal_is_one_line_that_names_the_profile() -> None:
    text = refusal(Mistake("", "args[0]", "x", "1"), Mistake("node.toml", "models_dir", "y")).reason
    assert text == "profile: args[0]: x, got 1; node.toml: models_dir: y"


def test_an_end_is_told_with_its_last_line() -> None:
    assert ended(Exit(code=3), "first\nbecause\n\n").error == "exited with code 3: because"
    assert ended(Exit(code=0)).error == "exited with code 0"
    assert ended(Exit(code=0)).cause is Cause.EXITED


def test_a_signal_is_named() -> None:
    explanation = ended(Exit(signal=9), "irrelevant")
    assert (explanation.cause, explanation.error) == (Cause.SIGNALLED, "ended by signal 9 (SIGKILL)")
    assert ended(Exit(signal=40)).error == "ended by signal 40 (a real-time signal)"


def test_the_last_line_fits_a_log_line() -> None:
    assert last_line("") == ""
    assert last_line("a\n   \n") == "a"
    assert len(last_line("x" * 5000)) == 300
