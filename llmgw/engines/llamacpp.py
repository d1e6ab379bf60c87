"""llama.cpp: a `llama-server` on the PATH, else our launcher over the same server in the installed xllamacpp.

llama-server serves one model on one node. It answers to its alias, and to any other name too, so the alias is set to
the catalog name. Embeddings and reranking must be asked for in `args` (`--embeddings --pooling mean`).
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath
from signal import SIGKILL, SIGTERM

import attrs

from llmgw.core.catalog import Profile
from llmgw.core.lifecycle import Cause
from llmgw.engines.base import (
    Assignment,
    Exit,
    Explanation,
    Launch,
    Machine,
    Refusal,
    check_profile,
    ended,
    engine_environment,
    last_line,
    refusal,
)
from llmgw.errors import Mistake

PROGRAM = "llama-server"
LAUNCHER = "llmgw.launchers.llamacpp"
LIBRARY = "xllamacpp"

ALIAS_FLAGS = ("--alias", "-a")
KEY_VARIABLE = "LLAMA_API_KEY"


@attrs.frozen
class Reserved:
    """A setting of llama-server that a profile may not touch."""

    flags: tuple[str, ...]
    variables: tuple[str, ...]
    hint: str


RESERVED = (
    Reserved(("--model", "-m"), ("LLAMA_ARG_MODEL",), "the profile's `model` says it"),
    Reserved(
        (*("--model-url", "-mu", "--docker-repo", "-dr"), *("--hf-repo", "-hf", "-hfr", "--hf-file", "-hff")),
        ("LLAMA_ARG_MODEL_URL", "LLAMA_ARG_DOCKER_REPO", "LLAMA_ARG_HF_REPO", "LLAMA_ARG_HF_FILE"),
        "put the file under the node's models_dir and name it as the profile's `model`",
    ),
    Reserved(
        ("--models-dir", "--models-preset"),
        ("LLAMA_ARG_MODELS_DIR", "LLAMA_ARG_MODELS_PRESET"),
        "a replica serves one model; make each its own entry of the catalog",
    ),
    Reserved(("--host",), ("LLAMA_ARG_HOST",), "the node's `address` decides it"),
    Reserved(("--port",), ("LLAMA_ARG_PORT",), "the profile's `port` or the node's `ports` decide it"),
    Reserved(("--reuse-port",), ("LLAMA_ARG_REUSE_PORT",), "two servers on one port would share its requests"),
    Reserved((), ("LLAMA_ARG_ALIAS",), "put --alias into `args`, where the router can see it"),
    Reserved(
        ("--api-key", "--api-key-file"),
        (KEY_VARIABLE, "LLAMA_ARG_API_KEY_FILE"),
        "clients ask the router, which would not know the key; see [[keys]]",
    ),
    Reserved(("--api-prefix",), ("LLAMA_ARG_API_PREFIX",), "the router asks for paths that begin with /v1"),
    Reserved(
        ("--ssl-key-file", "--ssl-cert-file"),
        ("LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE"),
        "the router speaks plain HTTP to engines",
    ),
)

_RESERVED_FLAGS = {flag: reserved.hint for reserved in RESERVED for flag in reserved.flags}
_RESERVED_VARIABLES = {variable: reserved.hint for reserved in RESERVED for variable in reserved.variables}


@attrs.frozen
class LlamaCpp:
    """The adapter. It has no state."""

    second_term_seconds: float | None = 2.0
    """llama-server hangs in 12 of 14 cases when SIGTERM finds it in mid-request; a second one ends it. An idle one is
    gone in milliseconds, and requests were drained before, so two seconds are long."""

    def check(self, profile: Profile) -> tuple[Mistake, ...]:
        """As `Engine.check`."""
        return (*check_profile(profile), *_check_model(profile), *_check_reserved(profile))

    def served_name(self, profile: Profile, catalog_name: str) -> str:
        """As `Engine.served_name`. Of several aliases llama-server lists the one that sorts first."""
        aliases = [alias for given in _aliases(profile.args) for alias in given.split(",") if alias.strip()]
        return min((alias.strip() for alias in aliases), default=catalog_name)

    def launch(self, profile: Profile, assignment: Assignment, machine: Machine) -> Launch | Refusal:
        """As `Engine.launch`."""
        mistakes = list(self.check(profile))
        model = str(PurePosixPath(machine.models_dir) / profile.model)
        if profile.model and not machine.is_file(model):
            hint = f"there is no file {model}; models_dir is {machine.models_dir}"
            mistakes.append(Mistake("", "model", "a GGUF file on this node", repr(profile.model), hint))
        program = _program(machine)
        if not program:
            expected = f"{PROGRAM} on the agent's PATH, or {LIBRARY} in its Python"
            hint = f"install either, {LIBRARY} by: {machine.python} -m pip install 'llmgw[llamacpp]'"
            mistakes.append(Mistake("", "engine", expected, repr(profile.engine), hint))
        given_alias = any(_aliases(profile.args))
        if not given_alias and "," in assignment.served_name:
            hint = "llama-server would take it for two names; put --alias with another name into `args`"
            mistakes.append(Mistake("", "args", "a name without a comma", repr(assignment.served_name), hint))
        if mistakes:
            return refusal(*mistakes)
        alias = () if given_alias else ("--alias", assignment.served_name)
        address = ("--host", assignment.host, "--port", str(assignment.port))
        return Launch(
            (*program, "--model", model, *alias, *address, "--metrics", *profile.args),
            engine_environment(assignment, machine, {KEY_VARIABLE: assignment.key} if assignment.key else {}),
        )

    def explain(self, end: Exit, output: str) -> Explanation:
        """As `Engine.explain`: the first rule whose words are in the output."""
        if end.signal not in (SIGKILL, SIGTERM):  # those two are sent from outside; no output explains them
            for rule in FAILURES:
                line = rule.words.search(output)
                if line:
                    return Explanation(rule.cause, last_line(_without_times(line.group())), rule.hint)
        return ended(end, _without_times(output))


@attrs.frozen
class Failure:
    """What llama-server prints when it fails in one way."""

    words: re.Pattern[str]
    """Matches a whole line."""
    cause: Cause
    hint: str


def _line(words: str) -> re.Pattern[str]:
    return re.compile(rf"^.*(?:{words}).*$", re.MULTILINE)


FAILURES = (
    # The launcher knows fewer flags than the program: say what else there is.
    Failure(
        _line(r"error: invalid argument: "),
        Cause.BAD_PROFILE,
        f"mend `args`; where it is a flag of {PROGRAM} that {LIBRARY} lacks, put a {PROGRAM} on the PATH",
    ),
    Failure(
        _line(r"error while handling (?:argument|environment variable) |error: invalid environment variable: "),
        Cause.BAD_PROFILE,
        "mend `args` or `env`",
    ),
    # Also where the port was free when the agent looked and was taken while the engine started.
    Failure(
        _line(r"couldn't bind HTTP server socket|[Aa]ddress already in use"),
        Cause.PORT_TAKEN,
        "another process listens there; the next launch takes another port of the node's range, unless `port` fixes it",
    ),
    # Printed before "failed to load model", which is all that llama-server says in the end.
    Failure(
        _line(
            r"(?:cuda|hip|musa)Malloc failed: out of memory|CUDA error: out of memory|ErrorOutOfDeviceMemory"
            r"|(?:failed|unable) to allocate (?:CUDA|ROCm|MUSA|Vulkan|SYCL)\d+ buffer"
        ),
        Cause.GPU_MEMORY,
        "give it more GPUs or a smaller context (--ctx-size), or keep layers in host memory (--n-gpu-layers)",
    ),
    Failure(
        _line(r"failed to open GGUF file .*No such file"),
        Cause.BAD_PROFILE,
        "put the file there, or mend `model`",
    ),
    Failure(
        _line(r"unknown model architecture"),
        Cause.BAD_PROFILE,
        "this llama.cpp is older than the model; install a newer one",
    ),
    Failure(
        _line(r"invalid magic characters|data is not within the file bounds|failed to read magic"),
        Cause.BAD_PROFILE,
        "the file is no GGUF or not whole; fetch it again",
    ),
    Failure(
        _line(r"xllamacpp cannot be imported"),
        Cause.LAUNCH,
        "the installation is broken; reinstall it",
    ),
    Failure(
        _line(r"insufficient memory|std::bad_alloc|failed to allocate .*buffer"),
        Cause.EXITED,
        "host memory was short: give the profile its `memory`, so that it is placed where there is room",
    ),
)


def _program(machine: Machine) -> tuple[str, ...]:
    """The command without its flags; empty: there is none here."""
    program = machine.on_path(PROGRAM)
    if program is not None:
        return (program,)
    # -P: a folder that happens to be the working directory must not shadow a module.
    return (machine.python, "-P", "-m", LAUNCHER) if machine.has_module(LIBRARY) else ()


def _check_model(profile: Profile) -> Iterator[Mistake]:
    if not profile.model:
        yield Mistake("", "model", "the path of a GGUF file, absolute or under the node's models_dir")
    if profile.nodes != 1:
        hint = "llama.cpp serves from one node; vllm and sglang can span several"
        yield Mistake("", "nodes", "1", str(profile.nodes), hint)


def _check_reserved(profile: Profile) -> Iterator[Mistake]:
    for index, arg in enumerate(profile.args):
        hint = _RESERVED_FLAGS.get(_flag(arg))
        if hint is not None:
            yield Mistake("", f"args[{index}]", "a flag that llmgw does not set itself", repr(arg), hint)
    for name in profile.env:
        hint = _RESERVED_VARIABLES.get(name)
        if hint is not None:
            yield Mistake("", f"env.{name}", "a variable that llmgw does not set itself", "", hint)


def _flag(arg: str) -> str:
    """As llama-server reads it: `--api_key` is `--api-key`. A value after `=` is cut off."""
    return arg.partition("=")[0].replace("_", "-") if arg.startswith("--") else arg


def _aliases(args: tuple[str, ...]) -> list[str]:
    """The value of the last --alias, which is the one that counts; empty: none."""
    values = [value for flag, value in pairwise(args) if _flag(flag) in ALIAS_FLAGS]
    return values[-1:]


def _without_times(output: str) -> str:
    """Without llama.cpp's `0.00.010.351 E ` before each line."""
    return re.sub(r"^\d+\.\d+\.\d+\.\d+ [A-Z] +", "", output, flags=re.MULTILINE)
