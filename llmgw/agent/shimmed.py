"""One launch behind a shim, dead or alive: `ShimmedEngine` is the agent's `RunningEngine`.

Theory of operation
    At any moment, whoever died, the launch's folder says what is to be done with it:

        a live shim         attach: its answer holds everything that was missed, then it tells the rest
        an exit record      the engine ended; what is left of its session, if anything, is ended
        neither             `ShimKilled`, and the same

    A shim is known by pid, start time and boot id, and by the kernel's word for who listens on its socket. A stream
    that ends says only "look again": the shim may have died, or dropped a slow client.
"""

import contextlib
import time
from collections import deque
from pathlib import Path

import structlog
import trio

from llmgw.agent.exits import read_exit
from llmgw.agent.launch import EngineEvent, Gone, JsonObject, Listener, ShimKilled, Started, Unknown
from llmgw.agent.listeners import find_listener
from llmgw.agent.processes import (
    Identity,
    Leader,
    end_all,
    find_leader,
    find_marked,
    read_identity,
    shim_stat,
    wait_ended,
)
from llmgw.agent.shard_folders import LAUNCH, forget_folder, open_folder, previous_folder, read_file
from llmgw.agent.shim_client import Conversation, ask, connect
from llmgw.agent.shim_files import EXIT, RECORD, read_tail, write_json
from llmgw.errors import EngineError, InvariantBroken

EVENT_OUTPUT_BYTES = 8 << 10
"""Of the output that an end carries: the last hundred lines."""
RECONNECT_SECONDS = 1.0
"""Between tries at a live shim that does not answer (it is stopped, or the machine is): one costs a millisecond."""
FORGET_SECONDS = 2.0
"""For a shim to end once nothing is left to it; then it is killed, and nothing is lost."""
KILL_SECONDS = 10.0
"""For one effort to end what is left. What does not end by then hangs in the kernel; the next effort follows."""

log = structlog.get_logger()


class ShimmedEngine:
    """A `RunningEngine` (see there): `launch` is what `shard_folders.read_launch` gives, `mark` that of the launch."""

    def __init__(self, folder: Path, launch: JsonObject, mark: str) -> None:
        self._folder = folder
        self._launch = launch
        self._mark = mark
        self._log = log.bind(shard=launch["shard"], epoch=launch["epoch"])
        self._conversation: Conversation | None = None
        self._events: deque[EngineEvent] = deque()
        self._started = self._ended = self._gone = False
        self._executed = True
        self._unanswered = False
        self._record: JsonObject = {}
        self._identity: Identity | None = None
        self._read_record()

    @property
    def shard(self) -> str:
        return str(self._launch["shard"])

    @property
    def epoch(self) -> int:
        return int(self._launch["epoch"])

    @property
    def pid(self) -> int | None:
        pid = self._record.get("engine_pid")
        return pid if isinstance(pid, int) and self._executed else None

    @property
    def port(self) -> int | None:
        port = self._launch.get("port")
        return port if isinstance(port, int) else None

    @property
    def state(self) -> JsonObject:
        state = self._launch.get("state")
        return dict(state) if isinstance(state, dict) else {}

    def save_state(self, state: JsonObject) -> None:
        changed = {**self._launch, "state": state}
        try:
            with open_folder(self._folder) as fd:
                write_json(fd, LAUNCH, changed)
        except OSError as error:
            raise EngineError(f"the state of {self.shard} cannot be written to {self._folder}: {error}") from error
        self._launch = changed

    async def wait_event(self) -> EngineEvent:
        while not self._events:
            if self._gone:
                await trio.sleep_forever()
            await self._progress()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._events.popleft()

    async def stop(self, grace_seconds: float, *, second_term: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        identity = self._identity
        if self._ended or identity is None or shim_stat(identity) is None:
            return  # what is left of it is ended by `wait_event`
        try:
            await ask(self._folder, identity.shim_pid, "stop", grace_seconds=grace_seconds, second_term=second_term)
        except EngineError as error:
            if shim_stat(identity) is not None:
                self._log.warning("shim does not answer, its session is ended", error=str(error))
                await end_all(identity, KILL_SECONDS)

    async def output_tail(self, bytes_max: int, *, previous: bool = False) -> bytes:
        await trio.lowlevel.checkpoint()
        folder = previous_folder(self._folder) if previous else self._folder
        return b"" if folder is None else self._read_tail(folder, bytes_max)

    async def forget(self) -> None:
        if not self._gone:
            raise InvariantBroken(f"{self.shard} epoch {self.epoch} is forgotten and not gone")
        if self._identity is not None:
            await self._end_shim(self._identity)
        try:
            forget_folder(self._folder)
        except OSError as error:
            raise EngineError(f"{self._folder} cannot be put away: {error}") from error

    def listener(self, port: int) -> Listener:
        if self._identity is None:
            return Unknown("the record of its shim cannot be read")
        return find_listener(port, self._identity, port_was_free=self._record.get("ports_free") is True)

    def close(self) -> None:
        """Let go of the shim, which goes on; it is attached anew when that is needed."""
        if self._conversation is not None:
            self._conversation.close()
            self._conversation = None

    # --- following ---------------------------------------------------------------------------------------------

    async def _progress(self) -> None:
        """One step towards the next event. Cancelling it loses nothing."""
        if self._conversation is not None:
            await self._listen(self._conversation)
            return
        identity = self._identity
        if identity is None or find_leader(identity) is not Leader.SHIM:
            await self._settle()
            return
        try:
            await self._attach(identity)
        except EngineError as error:
            if shim_stat(identity) is not None:
                await self._do_without(error)

    async def _do_without(self, error: EngineError) -> None:
        """The shim lives and is not to be talked to (stopped, or its socket was removed): its files still tell."""
        self._read_record()
        exit_record = read_file(self._folder, EXIT)
        if exit_record is not None:
            self._tell_exited(exit_record)
            if exit_record.get("gone") is True:
                self._tell_gone()
        if self._events:
            return
        if not await self._wait_shim_ended() and not self._unanswered:
            self._unanswered = True
            self._log.warning("shim does not answer", error=str(error))

    async def _attach(self, identity: Identity) -> None:
        conversation = await connect(self._folder, identity.shim_pid)
        try:
            state = await conversation.ask("attach")
        except BaseException:
            conversation.close()
            raise
        self._conversation = conversation
        self._unanswered = False
        self._learn(state)
        if state.get("phase") == "running":
            self._tell_started()
        exit_record = state.get("exit")
        if isinstance(exit_record, dict):
            self._tell_exited(exit_record)
        if state.get("phase") == "gone":
            self._tell_gone()

    async def _listen(self, conversation: Conversation) -> None:
        try:
            message = await conversation.receive()
        except EngineError as error:
            self._log.warning("shim misunderstood", error=str(error))
            message = None
        match message:
            case None:
                self.close()
                await self._wait_shim_ended()
            case {"event": "started"}:
                self._learn(message)
                self._tell_started()
            case {"event": "exited", "exit": dict(exit_record)}:
                self._tell_exited(exit_record)
            case {"event": "gone"}:
                self._tell_gone()

    async def _wait_shim_ended(self) -> bool:
        """For a while: its descriptors are closed a moment before it ends, and it may as well live on without us."""
        shim = None if self._identity is None else shim_stat(self._identity)
        if shim is None:
            return True
        with trio.move_on_after(RECONNECT_SECONDS) as scope:
            await wait_ended(shim)
        return not scope.cancelled_caught

    async def _end_shim(self, identity: Identity) -> None:
        shim = shim_stat(identity)
        if shim is None:
            return
        with contextlib.suppress(EngineError):  # told of the end, it is most often ending by itself
            await ask(self._folder, identity.shim_pid, "forget")
        with trio.move_on_after(FORGET_SECONDS) as scope:
            await wait_ended(shim)
        if scope.cancelled_caught:
            self._log.warning("shim does not end, it is killed")
            await end_all(identity, KILL_SECONDS)

    # --- without a shim ----------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """The shim is dead: tell what its files say, then end what is left."""
        self._read_record()
        if not self._ended:
            exit_record = read_file(self._folder, EXIT)
            if exit_record is not None:
                self._tell_exited(exit_record)
            else:
                self._ended = True
                self._events.append(ShimKilled(self._why_dead(), self._output()))
            await trio.lowlevel.checkpoint()
            return  # told first: ending the rest may take its time
        if self._identity is None:
            self._tell_gone(tuple(stat.pid for stat in find_marked(self._mark)))
            return
        left = await end_all(self._identity, KILL_SECONDS)
        if left.ours:
            self._log.warning("processes do not end", pids=[stat.pid for stat in left.ours])
        else:
            self._tell_gone(tuple(stat.pid for stat in left.unproven))

    def _why_dead(self) -> str:
        if self._identity is None:
            return "the agent ended before its shim had started" if not self._record else "the shim's record is damaged"
        if find_leader(self._identity) is Leader.REBOOT:
            return "the machine was booted since"
        return f"its shim (pid {self._identity.shim_pid}) ended without a record of how the engine ended"

    # --- telling -----------------------------------------------------------------------------------------------

    def _tell_started(self) -> None:
        pid = self.pid
        if not self._started and not self._ended and pid is not None:
            self._started = True
            self._events.append(Started(pid, port_free=self._record.get("ports_free") is True))

    def _tell_exited(self, record: JsonObject) -> None:
        if self._ended:
            return
        self._executed = not record.get("launch_error")
        self._tell_started()
        self._ended = True
        self._events.append(read_exit(record, output=self._output(), age_seconds=self._age_seconds(record)))

    def _tell_gone(self, unproven: tuple[int, ...] = ()) -> None:
        if not self._gone:
            self._gone = True
            self._events.append(Gone(unproven))
            self.close()

    def _age_seconds(self, record: JsonObject) -> float:
        """By the clock that only stands still while the machine is off; by the wall's after a reboot."""
        same_boot = self._identity is not None and find_leader(self._identity) is not Leader.REBOOT
        ended = record.get("ended_boottime_seconds" if same_boot else "ended_unix")
        now = time.clock_gettime(time.CLOCK_BOOTTIME) if same_boot else time.time()
        return now - ended if isinstance(ended, int | float) else 0.0

    def _output(self) -> str:
        try:
            return self._read_tail(self._folder, EVENT_OUTPUT_BYTES).decode(errors="replace")
        except EngineError as error:
            return f"[llmgw: {error}]"

    def _read_tail(self, folder: Path, bytes_max: int) -> bytes:
        try:
            with open_folder(folder) as fd:
                return read_tail(fd, bytes_max)
        except OSError as error:
            raise EngineError(f"the output of {self.shard} in {folder} cannot be read: {error}") from error

    def _learn(self, message: JsonObject) -> None:
        """What the shim says counts: its record may have found the disk full."""
        self._record = {**self._record, **{field: message.get(field) for field in ("engine_pid", "ports_free")}}

    def _read_record(self) -> None:
        """What was read once stays: a record that is damaged later takes nothing away."""
        record = read_file(self._folder, RECORD)
        identity = read_identity(record)
        if record is not None and (self._identity is None or identity == self._identity):
            self._record, self._identity = record, identity
