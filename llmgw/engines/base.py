"""What every engine adapter offers: from a profile and an assignment to a command line, from an end to its cause.

An adapter is one module with one class and one entry of `llmgw.engines.ENGINES`. It is pure: what is on the node is
asked through `Machine`, nothing is started, read or written here. Three sides use it:

- control: `check` (a profile that cannot work is refused while the configuration is read) and `served_name`;
- the agent: `launch`, then the probes of `llmgw.engines.probes`, `second_term_seconds` when it stops, `explain` when
  the engine has ended;
- preflight: `launch` with nothing taken yet; it launches nothing.

Rules of every adapter: no shell anywhere; `profile.args` come last in argv, element by element and unchanged; the
environment is built from `INHERITED` and never copied whole.
"""

import re
import signal
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from llmgw.core.catalog import Profile
from llmgw.core.hardware import Fabric, Gpu
from llmgw.core.lifecycle import Cause
from llmgw.engines.probes import check_probe
from llmgw.errors import Mistake

INHERITED = (
    # Where programs, libraries and the user's files are.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    # How text is written and shown.
    "LANG",
    "LANGUAGE",
    "TZ",
    # How the world outside is reached, and with which certificates.
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    # What a container's GPU runtime set for the whole node.
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_HOME",
    "CUDA_CACHE_PATH",
)
"""The variables an engine inherits from its agent. Everything else comes from the adapter and from `profile.env`, so
that what an engine does never depends on the shell in which somebody happened to start the agent."""

INHERITED_PREFIXES = ("LC_", "HF_")
"""Locale, and the model hub's cache, endpoint and token."""

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Written by us alone: a profile that set them could take a GPU that is booked for another."""

ERROR_CHARACTERS_MAX = 300
"""Of one line of an engine's output: it is shown in tables and carried in every heartbeat."""

_HIDDEN_OPTION = re.compile(r"\s+--?[A-Za-z][\w-]*(=.*)?", re.DOTALL)
_VARIABLE = re.compile(r"[^=\0]+")


@attrs.frozen
class Assignment:
    """What control and the agent decided for one shard: everything that is not in its profile."""

    port: int
    """To listen on."""
    served_name: str
    """As `Engine.served_name` gave it to control."""
    host: str = "127.0.0.1"
    """Address to bind, without brackets."""
    gpus: tuple[Gpu, ...] = ()
    """Of this shard, in the order control gave."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    """`profile.env` with every secret resolved."""
    key: str = ""
    """What the engine must ask of its clients; empty: nothing. Secret: it goes into the environment, not into argv."""
    rank: int = 0
    peers: tuple[str, ...] = ()
    """Of a replica over several nodes: `address:rendezvous_port` of rank 0 first, then the others' addresses."""
    rendezvous_port: int | None = None
    """Of rank 0, on its own node."""
    fabric: Fabric | None = None
    """With this node's adapters on it."""


@attrs.frozen
class Machine:
    """What an adapter may ask about the node. The callables look and change nothing."""

    python: str
    """The interpreter that runs our own launchers (`sys.executable`)."""
    models_dir: str
    """Absolute."""
    environ: Mapping[str, str]
    """The agent's environment, of which `INHERITED` is passed on."""
    on_path: Callable[[str], str | None]
    """Absolute path of a program on the PATH, or None (`shutil.which`)."""
    is_file: Callable[[str], bool]
    """(`os.path.isfile`)."""
    has_module: Callable[[str], bool]
    """Whether `python` could import it (`importlib.util.find_spec`)."""


@attrs.frozen
class Launch:
    """What to execute."""

    argv: tuple[str, ...]
    """argv[0] is an absolute path; ends in exactly `profile.args`."""
    env: dict[str, str]
    """The whole environment. The supervisor adds its mark and nothing else."""


@attrs.frozen
class Refusal:
    """Why this profile is not launched here. Trying again cannot help until the profile or the node changes."""

    mistakes: tuple[Mistake, ...]

    @property
    def reason(self) -> str:
        """All of them, in one line."""
        return "; ".join(str(mistake) for mistake in self.mistakes)


@attrs.frozen
class Exit:
    """How a process ended: one of the two is set."""

    code: int | None = None
    signal: int | None = None


@attrs.frozen
class Explanation:
    """What an engine's end means."""

    cause: Cause
    error: str
    """One line for a person: the engine's own words where they say it, else how it ended."""
    hint: str = ""
    """What to do about it; empty where nothing better than the output is known."""


class Engine(Protocol):
    """One kind of engine."""

    @property
    def second_term_seconds(self) -> float | None:
        """How long after SIGTERM a second one is sent to an engine known to ignore the first; None: never."""

    def check(self, profile: Profile) -> tuple[Mistake, ...]:
        """What is wrong with `profile` on any node. `origin` is empty, `path` relative to the profile (`args[2]`)."""

    def served_name(self, profile: Profile, catalog_name: str) -> str:
        """The name the engine answers to: what `args` say, else the catalog name."""

    def launch(self, profile: Profile, assignment: Assignment, machine: Machine) -> Launch | Refusal:
        """The command line and environment for this node, or why there is none. Runs `check` first."""

    def explain(self, end: Exit, output: str) -> Explanation:
        """Why it ended by itself, from how it ended and what it printed last."""


def check_profile(profile: Profile) -> tuple[Mistake, ...]:
    """What no engine can do with `profile`; the first part of every adapter's `check`."""
    return (*_check_args(profile.args), *_check_env(tuple(profile.env)), *check_probe(profile.probe))


def engine_environment(assignment: Assignment, machine: Machine, extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of an engine: inherited, then `extra` (the adapter's), then the profile's, then the GPUs'.

    GPUs are named by UUID: CUDA's numbers depend on what else is visible. Without GPUs none is visible.
    """
    inherited = {
        name: value
        for name, value in machine.environ.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    gpus = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in assignment.gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return inherited | dict(extra) | dict(assignment.env) | gpus


def refusal(*mistakes: Mistake) -> Refusal:
    """A refusal that says `profile` where a mistake names no origin of its own."""
    return Refusal(tuple(attrs.evolve(mistake, origin=mistake.origin or "profile") for mistake in mistakes))


def ended(end: Exit, output: str = "") -> Explanation:
    """The explanation where no rule knows the output: how it ended, and its last line where it ended by itself."""
    if end.signal is not None:
        return Explanation(Cause.SIGNALLED, f"ended by signal {end.signal} ({_signal_name(end.signal)})")
    last = last_line(output)
    return Explanation(Cause.EXITED, f"exited with code {end.code}" + (f": {last}" if last else ""))


def last_line(output: str) -> str:
    """The last line of `output` that says something, cut to a length that fits a log line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:ERROR_CHARACTERS_MAX] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _check_args(args: tuple[str, ...]) -> list[Mistake]:
    mistakes = []
    for index, arg in enumerate(args):
        path = f"args[{index}]"
        if _HIDDEN_OPTION.fullmatch(arg):
            hint = f"the engine would take it for a value, not an option; write {arg.strip()!r}"
            mistakes.append(Mistake("", path, "an option without leading blanks", repr(arg), hint))
        elif "\0" in arg:
            mistakes.append(Mistake("", path, "text without NUL characters", repr(arg)))
    return mistakes


def _check_env(names: tuple[str, ...]) -> list[Mistake]:
    mistakes = []
    for name in names:
        if not _VARIABLE.fullmatch(name):
            mistakes.append(Mistake("", "env", "names without '=' and NUL, not empty", repr(name)))
        elif name in GPU_VARIABLES:
            hint = "take it out; `gpus` says how many, and which ones is decided when the shard is placed"
            mistakes.append(Mistake("", f"env.{name}", "a variable that llmgw does not write itself", "", hint))
    return mistakes
