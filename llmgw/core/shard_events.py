"""What can happen to an agent's shards, and what can be done about it: the words of `llmgw.core.supervision`."""

import attrs

from llmgw.core.held import Held, Spec
from llmgw.core.lifecycle import Cause, ShardReport

# --- events: commands, what tasks came back with, what processes did ----------------------------------------------


@attrs.frozen
class StartAsked:
    """A StartShard. `spec` has the ports that were chosen for it; `refusal` says why there are none."""

    connection: int
    command_id: int
    spec: Spec
    refusal: str = ""


@attrs.frozen
class StopAsked:
    """A StopShard."""

    connection: int
    command_id: int
    shard: str
    epoch: int
    grace_seconds: float
    reason: str = ""


@attrs.frozen
class DrainAsked:
    """A DrainShard."""

    connection: int
    command_id: int
    shard: str
    epoch: int


@attrs.frozen
class Prepared:
    """Command line and environment are there."""

    shard: str
    epoch: int


@attrs.frozen
class Unprepared:
    """It cannot be launched, and nothing of it is there."""

    shard: str
    epoch: int
    cause: Cause
    error: str


@attrs.frozen
class Launched:
    """Its record is on disk and its shim is under way."""

    shard: str
    epoch: int


@attrs.frozen
class EngineStarted:
    """The engine was executed."""

    shard: str
    epoch: int
    pid: int


@attrs.frozen
class EngineExited:
    """The engine's own process ended, or could not be executed."""

    shard: str
    epoch: int
    code: int | None = None
    signal: int | None = None
    cause: str = Cause.EXITED.value
    error: str = ""
    output: str = ""
    age_seconds: float = 0.0
    """How long ago."""


@attrs.frozen
class ShimEnded:
    """The shim died: how the engine ended is unknown."""

    shard: str
    epoch: int
    error: str
    output: str = ""


@attrs.frozen
class EngineGone:
    """No process of the launch is left."""

    shard: str
    epoch: int


@attrs.frozen
class ProbeSucceeded:
    """It gave a real answer on a listener of its own."""

    shard: str
    epoch: int
    note: str = ""
    """How the listener was recognised, where that is less than certain."""


@attrs.frozen
class ProbeFailed:
    """No real answer yet."""

    shard: str
    epoch: int
    reason: str


@attrs.frozen
class StatusSettled:
    """No status of this launch is unacknowledged."""

    shard: str
    epoch: int


@attrs.frozen
class StopAll:
    """The agent ends, and takes its engines with it."""

    reason: str


@attrs.frozen
class Tick:
    """Time has passed."""


Event = (
    StartAsked
    | StopAsked
    | DrainAsked
    | Prepared
    | Unprepared
    | Launched
    | EngineStarted
    | EngineExited
    | ShimEnded
    | EngineGone
    | ProbeSucceeded
    | ProbeFailed
    | StatusSettled
    | StopAll
    | Tick
)


# --- actions --------------------------------------------------------------------------------------------------


@attrs.frozen
class Answer:
    """Acknowledge a command on the connection it came from."""

    connection: int
    command_id: int
    accepted: bool
    reason: str = ""
    port: int | None = None
    rendezvous_port: int | None = None


@attrs.frozen
class Save:
    """Write the shard's state to disk."""

    held: Held


@attrs.frozen
class Tell:
    """Send a ShardStatus, until it is acknowledged."""

    report: ShardReport
    output: str = ""


@attrs.frozen
class Prepare:
    """Find command line and environment; then `Prepared` or `Unprepared`."""

    spec: Spec


@attrs.frozen
class Launch:
    """Start what was prepared; then `Launched` or `Unprepared`."""

    spec: Spec


@attrs.frozen
class Probe:
    """Ask it for a real answer until it gives one."""

    spec: Spec


@attrs.frozen
class EndProbe:
    """Ask no more."""

    shard: str
    epoch: int


@attrs.frozen
class Stop:
    """SIGTERM, the grace, then SIGKILL to every descendant."""

    shard: str
    epoch: int
    grace_seconds: float


@attrs.frozen
class Forget:
    """Remove what is on disk of it."""

    shard: str
    epoch: int


Action = Answer | Save | Tell | Prepare | Launch | Probe | EndProbe | Stop | Forget
