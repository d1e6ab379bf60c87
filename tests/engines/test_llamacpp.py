import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.catalog import Profile
from llmgw.core.hardware import Gpu
from llmgw.core.lifecycle import UNRECOVERABLE, Cause
from llmgw.engines import ENGINES
from llmgw.engines.base import Assignment, Engine, Exit, Launch, Machine, Refusal
from llmgw.engines.llamacpp import FAILURES, RESERVED

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden" / "llamacpp").glob("*.json"))
ENGINE: Engine = ENGINES["llamacpp"]
FILES = ("/srv/models/tiny.gguf", "/srv/models/sub folder/tiny.gguf", "/data/qwen/qwen2.5-7b.gguf")

MakeMachine = Callable[..., Machine]


def profile(*args: str, **settings: Any) -> Profile:
    return Profile(**({"engine": "llamacpp", "model": "tiny.gguf", "args": args} | settings))


def refused(launch: Launch | Refusal) -> str:
    assert isinstance(launch, Refusal)
    return launch.reason


# --- argv and environment -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path: Path, make_machine: MakeMachine) -> None:
    """What a profile becomes is pinned: a difference here reaches every running fleet at its next launch."""
    case = json.loads(path.read_text())
    settings = case["profile"] | {"args": tuple(case["profile"]["args"])}
    gpus = tuple(Gpu(uuid) for uuid in case["assignment"].pop("gpus", ()))
    assignment = Assignment(**case["assignment"], gpus=gpus)
    launch = ENGINE.launch(Profile(**settings), assignment, make_machine(programs=case["programs"], files=FILES))
    assert isinstance(launch, Launch)
    assert list(launch.argv) == case["argv"]
    assert launch.env == case["env"]


def test_c12_args_come_last_element_by_element(make_machine: MakeMachine) -> None:
    args = (
        "--speculative-config",
        '{"num_speculative_tokens": 3, "method": "mtp"}',
        "--served-model-name",
        "foo bar",
        "--cache-type-k=q4_0",
        "",
        "ü$HOME `id` ;rm",
    )
    launch = ENGINE.launch(profile(*args), Assignment(port=20000, served_name="m"), make_machine())
    assert isinstance(launch, Launch)
    assert launch.argv[-len(args) :] == args


def test_c12_an_option_behind_a_blank_is_refused_before_anything_else(make_machine: MakeMachine) -> None:
    reason = refused(ENGINE.launch(profile("-c", " --x=y"), Assignment(port=1, served_name="m"), make_machine()))
    assert reason.startswith("profile: args[1]: an option without leading blanks, got ' --x=y'")


def test_a_program_on_the_path_is_preferred(make_machine: MakeMachine) -> None:
    launch = ENGINE.launch(
        profile(), Assignment(port=1, served_name="m"), make_machine(programs={"llama-server": "/first/llama-server"})
    )
    assert isinstance(launch, Launch)
    assert launch.argv[0] == "/first/llama-server"


def test_without_program_and_library_the_refusal_says_how_to_get_either(make_machine: MakeMachine) -> None:
    reason = refused(ENGINE.launch(profile(), Assignment(port=1, served_name="m"), make_machine(modules=())))
    assert "llama-server on the agent's PATH" in reason
    assert "/opt/llmgw/bin/python -m pip install 'llmgw[llamacpp]'" in reason


def test_a_model_that_is_not_there_is_refused_with_the_path_looked_at(make_machine: MakeMachine) -> None:
    launch = ENGINE.launch(profile(model="gone.gguf"), Assignment(port=1, served_name="m"), make_machine())
    assert "model: a GGUF file on this node, got 'gone.gguf' (there is no file /srv/models/gone.gguf" in refused(launch)


def test_an_absolute_model_is_not_put_under_models_dir(make_machine: MakeMachine) -> None:
    launch = ENGINE.launch(profile(model="/x/gone.gguf"), Assignment(port=1, served_name="m"), make_machine())
    assert "there is no file /x/gone.gguf;" in refused(launch)


def test_a_key_is_in_the_environment_and_never_in_argv(make_machine: MakeMachine) -> None:
    launch = ENGINE.launch(profile(), Assignment(port=1, served_name="m", key="s3cret"), make_machine())
    assert isinstance(launch, Launch)
    assert launch.env["LLAMA_API_KEY"] == "s3cret"
    assert not any("s3cret" in word for word in launch.argv)


def test_all_mistakes_are_told_together(make_machine: MakeMachine) -> None:
    wrong = profile("--port", "1", nodes=2, probe="x", model="gone.gguf")
    reason = refused(ENGINE.launch(wrong, Assignment(port=1, served_name="m"), make_machine(modules=())))
    for path in ("args[0]", "nodes", "probe", "model", "engine"):
        assert f"profile: {path}: " in reason


# --- what control asks ----------------------------------------------------------------------------------------


def test_a_plain_profile_is_fine() -> None:
    assert ENGINE.check(profile("--embeddings", "--pooling", "mean", "-c", "4096")) == ()


@pytest.mark.parametrize("flag", [flag for reserved in RESERVED for flag in reserved.flags])
def test_a_reserved_flag_is_refused_in_every_spelling(flag: str) -> None:
    spellings = {flag, f"{flag}=1", flag[:3] + flag[3:].replace("-", "_")} if flag.startswith("--") else {flag}
    for spelling in sorted(spellings):
        (mistake,) = ENGINE.check(profile("-v", spelling))
        assert mistake.path == "args[1]"
        assert mistake.value == repr(spelling)
        assert mistake.hint


@pytest.mark.parametrize("variable", [variable for reserved in RESERVED for variable in reserved.variables])
def test_a_reserved_variable_is_refused_without_its_value(variable: str) -> None:
    (mistake,) = ENGINE.check(profile(env={variable: "s3cret"}))
    assert mistake.path == f"env.{variable}"
    assert "s3cret" not in str(mistake)


def test_one_node_and_a_model_are_needed() -> None:
    assert [mistake.path for mistake in ENGINE.check(profile(nodes=2, model=""))] == ["model", "nodes"]


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ((), "catalog/name"),
        (("--alias", "a"), "a"),
        (("-a", "b", "--alias", "c"), "c"),
        # llama-server keeps its aliases sorted and lists the first.
        (("--alias", "zeta, alpha"), "alpha"),
        (("--served-model-name", "foo bar"), "catalog/name"),
        (("--alias",), "catalog/name"),
    ],
)
def test_the_served_name_is_what_args_say_else_the_catalog_s(args: tuple[str, ...], name: str) -> None:
    assert ENGINE.served_name(profile(*args), "catalog/name") == name


def test_a_name_that_would_be_taken_for_two_is_refused(make_machine: MakeMachine) -> None:
    machine = make_machine()
    assert "comma" in refused(ENGINE.launch(profile(), Assignment(port=1, served_name="a,b"), machine))
    assert isinstance(ENGINE.launch(profile("-a", "c"), Assignment(port=1, served_name="a,b"), machine), Launch)


# --- why it ended ---------------------------------------------------------------------------------------------

RECORDED = [
    ("unknown-flag", Cause.BAD_PROFILE, "error: invalid argument: --speculative-config", "args"),
    (
        "bad-value",
        Cause.BAD_PROFILE,
        "error: error while handling argument \"--ctx-size\": expected a whole number, got 'many'",
        "args",
    ),
    ("unknown-variable", Cause.BAD_PROFILE, "error: invalid environment variable: LLAMA_ARG_FROB", "env"),
    (
        "missing-model",
        Cause.BAD_PROFILE,
        "gguf_init_from_file: failed to open GGUF file '/srv/models/absent.gguf' (No such file or directory)",
        "model",
    ),
    (
        "no-gguf",
        Cause.BAD_PROFILE,
        "gguf_init_from_reader: invalid magic characters: '<htm', expected 'GGUF'",
        "fetch it again",
    ),
    (
        "cut-file",
        Cause.BAD_PROFILE,
        (
            "llama_model_load: error loading model: tensor 'blk.0.attn_q.weight' data is not within the file bounds, "
            "model is corrupted or incomplete"
        ),
        "fetch it again",
    ),
    (
        "unknown-architecture",
        Cause.BAD_PROFILE,
        "llama_model_load: error loading model: unknown model architecture: 'lxama'",
        "newer",
    ),
    (
        "port-taken",
        Cause.PORT_TAKEN,
        "error: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 29150: address already in use",
        "port",
    ),
    (
        "port-taken-native",
        Cause.PORT_TAKEN,
        "srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 29150",
        "port",
    ),
    (
        "host-memory",
        Cause.EXITED,
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 36621.09 MB)",
        "memory",
    ),
]


@pytest.mark.parametrize(("recorded", "cause", "error", "hint"), RECORDED, ids=[case[0] for case in RECORDED])
def test_a_recorded_end_is_explained(recorded: str, cause: Cause, error: str, hint: str) -> None:
    output = (HERE / "recorded" / "llamacpp" / f"{recorded}.txt").read_text()
    explanation = ENGINE.explain(Exit(code=1), output)
    assert (explanation.cause, explanation.error) == (cause, error)
    assert hint in explanation.hint


@pytest.mark.parametrize(
    "line",
    [
        (
            "0.01.2 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 590.07 MiB on device 0: "
            "cudaMalloc failed: out of memory\n"
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"
        ),
        "CUDA error: out of memory\n  current device: 0",
        "alloc_tensor_range: failed to allocate ROCm0 buffer of size 1879048192",
        "llama_model_load: error loading model: unable to allocate CUDA1 buffer",
    ],
)
@pytest.mark.parametrize("end", [Exit(code=1), Exit(signal=6)])
def test_gpu_memory_is_told_from_host_memory(line: str, end: Exit) -> None:
    assert ENGINE.explain(end, line).cause is Cause.GPU_MEMORY


def test_every_rule_is_reached_by_a_recorded_or_written_end() -> None:
    """A rule that an earlier one hides would never be found out."""
    outputs = [path.read_text() for path in (HERE / "recorded" / "llamacpp").glob("*.txt")]
    outputs += ["cudaMalloc failed: out of memory", "error: xllamacpp cannot be imported: no"]
    hints = {ENGINE.explain(Exit(code=1), output).hint for output in outputs}
    assert hints == {rule.hint for rule in FAILURES}


@pytest.mark.parametrize("number", [9, 15])
def test_what_came_from_outside_is_not_explained_by_the_output(number: int) -> None:
    explanation = ENGINE.explain(Exit(signal=number), "error: invalid argument: --x")
    assert explanation.cause is Cause.SIGNALLED
    assert explanation.hint == ""


def test_an_unknown_end_shows_its_last_words_without_the_time() -> None:
    output = "0.00.010.481 I srv    load_model: loading\n0.00.012.999 E srv    something: new\n"
    assert ENGINE.explain(Exit(code=3), output).error == "exited with code 3: srv    something: new"
    assert ENGINE.explain(Exit(code=3), "").cause not in UNRECOVERABLE
