"""The seam between the supervisor, which decides, and whatever really runs engines.

The agent runs each engine under a shim process (`llmgw.agent.shims`); the simulator and the tests put something
else here. What holds for every implementation:

1. A `RunningEngine` tells its whole life by `wait_event`, always from the beginning and each event once per
   object: `Started` (absent where nothing was launched), then `Exited` or `ShimKilled`, then `Gone`. So one
   that was found at the agent's start is followed by the same loop as one that was launched a moment ago.
2. `Gone` says that no process of this launch is left. It comes after `Exited`, often within milliseconds.
3. Whatever the supervisor must find again after its own restart it keeps with `save_state`. `attach` brings it
   back: the state is opaque here.
4. Nothing ends an engine but `stop`, the engine itself, and the death of its shim.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

JsonObject = dict[str, Any]
"""What `json.loads` gives for an object."""


@attrs.frozen
class LaunchRequest:
    """One launch of one shard."""

    shard: str
    """`<model>/<n>/<rank>`."""
    epoch: int
    argv: tuple[str, ...]
    """Element by element what the engine gets; argv[0] is a path, or a name looked up on env's PATH."""
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The engine's whole environment: nothing else is inherited. Never written to disk. Secret."""
    cwd: str = "/"
    port: int | None = None
    """Where the engine will listen; tested to be free just before exec."""
    other_ports: tuple[int, ...] = ()
    """Further ports that must be free just before exec, the rendezvous port for one."""
    grace_seconds: float = 20.0
    """For a stop that nobody gave a grace: SIGTERM to the shim itself."""
    second_term: bool = False
    """The same: whether a second SIGTERM comes at the end of the grace, before SIGKILL."""
    cgroup: str | None = None
    """A cgroup's folder that the engine is to run in; its `oom_kill` counter then says whether the kernel killed
    for memory. None: that question is answered "unknown"."""
    state: JsonObject = attrs.field(factory=dict)
    """What the supervisor wants to find again; see `RunningEngine.save_state`."""


@attrs.frozen
class Started:
    """The engine was executed."""

    pid: int
    port_free: bool = True
    """The ports were tested free just before exec. False: there was none to test."""


@attrs.frozen
class Exited:
    """The engine's own process ended, or could not be started. Its descendants may still live: see `Gone`."""

    code: int | None = None
    signal: int | None = None
    cause: str = ""
    """A value of `llmgw.core.lifecycle.Cause`: exited, signalled, host memory, port taken or launch."""
    error: str = ""
    """A line for a person: `exit code 42`, `signal 9, sender unknown`, `port 20001 is taken`."""
    output: str = ""
    """The end of what it printed."""
    requested: bool = False
    """It had been asked to stop before it ended."""
    dropped_bytes: int = 0
    """Of output that could not be kept."""
    age_seconds: float = 0.0
    """How long ago; more than a moment where the agent was away."""


@attrs.frozen
class ShimKilled:
    """The shim ended without an exit record: how the engine ended, or whether, is unknown.

    The next `wait_event` ends whatever is proven to be left of its session and then gives `Gone`.
    """

    error: str
    output: str = ""


@attrs.frozen
class Gone:
    """No process of this launch is left."""

    unproven: tuple[int, ...] = ()
    """Pids that may be ours and are not proven to be, so that they were left alone; for the log."""


EngineEvent = Started | Exited | ShimKilled | Gone


@attrs.frozen
class Ours:
    """The listener belongs to a process of this launch."""

    note: str = ""
    """How that is known, where it is less than certain; the status shows it."""


@attrs.frozen
class Stranger:
    """Somebody else listens on the port, alone or (SO_REUSEPORT) beside ours."""

    pid: int | None
    """None: not to be found out, most often another user's."""
    command: str
    shared: bool = False
    """Ours listens there too: the two would split the traffic."""


@attrs.frozen
class Unknown:
    """There is a listener and nothing says whose it is."""

    reason: str


Listener = Ours | Stranger | Unknown | None
"""None: nobody listens."""


class RunningEngine(Protocol):
    """One launch: running, or ended and not yet forgotten."""

    @property
    def shard(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def pid(self) -> int | None:
        """Of the engine; None before `Started`, or where it was never executed. Kept after its end."""

    @property
    def port(self) -> int | None: ...

    @property
    def state(self) -> JsonObject:
        """As last saved."""

    def save_state(self, state: JsonObject) -> None:
        """Replace the saved state, atomically. EngineError where it could not be written (disk full): the old
        one then holds.
        """

    async def wait_event(self) -> EngineEvent:
        """The next event. After `Gone` it waits for ever. Cancelling it loses nothing. One task at a time."""

    async def stop(self, grace_seconds: float, *, second_term: bool = False) -> None:
        """Ask it to end: SIGTERM to its process group, after the grace (with `second_term` a second SIGTERM and
        a moment, then) SIGKILL to every descendant. Returns once that is under way; the end is told by
        `wait_event`. Stopping what is stopping only ever brings the end nearer; what has ended is left alone.
        """

    async def output_tail(self, bytes_max: int, *, previous: bool = False) -> bytes:
        """The end of what it printed, standard output and error as one. `previous`: of the launch before this
        one on this node; empty where there was none. At most 1 MiB.
        """

    async def forget(self) -> None:
        """After `Gone`: its shim ends and it is found by `attach` no more. The output is kept until the next
        launch of the shard is forgotten. Before `Gone`: InvariantBroken.
        """

    def listener(self, port: int) -> Listener:
        """Whose listener is on the port at this moment."""


class Launcher(Protocol):
    """Starts engines and finds those that were started before."""

    async def launch(self, request: LaunchRequest) -> RunningEngine:
        """Record it, then start it. The record is on disk, with `request.state`, when this returns.

        What goes wrong with the engine itself (no such program, port taken) is an `Exited` of what is returned.
        EngineError: nothing was launched and nothing is left of the attempt, or this shard and epoch exist already.
        """

    async def attach(self) -> list[RunningEngine]:
        """Everything launched before by this agent and not forgotten, running or not, ordered by shard and
        epoch. Called once, at the agent's start.
        """
