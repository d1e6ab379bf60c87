"""Engines without processes: a launcher, an adapter and an HTTP side that a test scripts, for a virtual clock."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio
from trio.testing import memory_stream_pair

from llmgw.agent.launch import (
    EngineEvent,
    Exited,
    Gone,
    JsonObject,
    LaunchRequest,
    Listener,
    Ours,
    RunningEngine,
    ShimKilled,
    Started,
)
from llmgw.core.catalog import Profile
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
)
from llmgw.errors import EngineError, InvariantBroken, Mistake


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """A whole HTTP response."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


LOADING = answer(b"Loading model", "503 Service Unavailable")
READY = answer(b'{"usage": {"completion_tokens": 1}}')


class Process:
    """One launch, as the outside world has it: it outlives the agents that look at it."""

    def __init__(self, request: LaunchRequest, pid: int) -> None:
        self.request = request
        self.pid = pid
        self.state: JsonObject = dict(request.state)
        self.events: list[EngineEvent] = []
        self.changed = trio.Event()
        self.stops: list[tuple[float, bool]] = []
        self.ignores_stop = False
        self.lingers = False
        """Its descendants live on after its exit, until `vanish`."""
        self.listens: Listener = Ours()
        self.reply: Callable[[], bytes | None] = lambda: READY
        """What it answers to a request at this moment; None: nothing, ever."""
        self.output = b""
        self.forgotten = False
        self.disk_full = False

    @property
    def ended(self) -> bool:
        return any(isinstance(event, Exited | ShimKilled) for event in self.events)

    def happens(self, *events: EngineEvent) -> None:
        self.events.extend(events)
        self.changed.set()
        self.changed = trio.Event()

    def exit(self, code: int | None = None, signal: int | None = None, **facts: Any) -> None:
        """Its own process ends; the rest too, unless it lingers."""
        assert not self.ended
        how = f"signal {signal}, sender unknown" if signal is not None else f"exit code {code}"
        usual = {"cause": "signalled" if signal is not None else "exited", "error": how}
        self.happens(Exited(code, signal, **{**usual, **facts}))
        if not self.lingers:
            self.vanish()

    def vanish(self) -> None:
        self.happens(Gone())

    def lose_shim(self) -> None:
        self.happens(ShimKilled("its shim was killed", self.output.decode()), Gone())


class FakeEngine:
    """A `RunningEngine` over a process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._told = 0

    @property
    def shard(self) -> str:
        return self.process.request.shard

    @property
    def epoch(self) -> int:
        return self.process.request.epoch

    @property
    def pid(self) -> int | None:
        return self.process.pid

    @property
    def port(self) -> int | None:
        return self.process.request.port

    @property
    def state(self) -> JsonObject:
        return self.process.state

    def save_state(self, state: JsonObject) -> None:
        if self.process.disk_full:
            raise EngineError("no space left on device")
        self.process.state = state

    async def wait_event(self) -> EngineEvent:
        await trio.lowlevel.checkpoint()
        while self._told >= len(self.process.events):
            await self.process.changed.wait()
        self._told += 1
        return self.process.events[self._told - 1]

    async def stop(self, grace_seconds: float, *, second_term: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        self.process.stops.append((grace_seconds, second_term))
        if not self.process.ignores_stop and not self.process.ended:
            self.process.exit(0, requested=True)

    async def output_tail(self, bytes_max: int, *, previous: bool = False) -> bytes:
        await trio.lowlevel.checkpoint()
        if previous:
            raise EngineError("there was none before")
        return self.process.output[-bytes_max:] if bytes_max else b""

    async def forget(self) -> None:
        await trio.lowlevel.checkpoint()
        if not any(isinstance(event, Gone) for event in self.process.events):
            raise InvariantBroken("forgotten before it was gone")
        self.process.forgotten = True

    def listener(self, port: int) -> Listener:
        assert port == self.port
        return None if self.process.ended else self.process.listens


class FakeLauncher:
    """A node's processes, and a `Launcher` over them. Each launch is given to `prepare_process` first."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.launches = 0
        self.fails: str = ""
        self.delay_seconds = 0.0
        self.prepare_process: Callable[[Process], None] = lambda _: None

    async def launch(self, request: LaunchRequest) -> RunningEngine:
        await trio.sleep(self.delay_seconds)
        if self.fails:
            raise EngineError(self.fails)
        self.launches += 1
        process = Process(request, 1000 + self.launches)
        self.prepare_process(process)
        self.processes.append(process)
        process.happens(Started(process.pid))
        return FakeEngine(process)

    async def attach(self) -> list[RunningEngine]:
        await trio.lowlevel.checkpoint()
        kept = [process for process in self.processes if not process.forgotten]
        kept.sort(key=lambda process: (process.request.shard, process.request.epoch))
        return [FakeEngine(process) for process in kept]

    def process(self, shard: str) -> Process:
        """The newest launch of that shard."""
        return [process for process in self.processes if process.request.shard == shard][-1]


@attrs.frozen
class FakeAdapter:
    """An adapter of an engine that takes anything."""

    second_term_seconds: float | None = None

    def check(self, profile: Profile) -> tuple[Mistake, ...]:
        return check_profile(profile)

    def served_name(self, profile: Profile, catalog_name: str) -> str:
        return catalog_name

    def launch(self, profile: Profile, assignment: Assignment, machine: Machine) -> Launch | Refusal:
        mistakes = self.check(profile)
        if mistakes:
            return Refusal(mistakes)
        argv = ("/usr/bin/engine", profile.model, str(assignment.port), *profile.args)
        return Launch(argv, engine_environment(assignment, machine, {}))

    def explain(self, end: Exit, output: str) -> Explanation:
        return ended(end, output)


def machine(models_dir: str = "/models", environ: Mapping[str, str] | None = None) -> Machine:
    """A node on which nothing is installed."""
    return Machine("/usr/bin/python3", models_dir, environ or {}, lambda _: None, lambda _: False, lambda _: False)


class EngineNetwork:
    """The seam `open_engine` over the processes of a launcher."""

    def __init__(self, launcher: FakeLauncher, nursery: trio.Nursery) -> None:
        self._launcher = launcher
        self._nursery = nursery

    async def open(self, host: str, port: int) -> trio.abc.Stream:
        """A connection to the process with that port."""
        await trio.lowlevel.checkpoint()
        there = [process for process in self._launcher.processes if process.request.port == port and not process.ended]
        if not there:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, there[-1], theirs)
        return ours

    async def _serve(self, process: Process, stream: trio.abc.Stream) -> None:
        async with stream:
            if not await stream.receive_some():
                return
            reply = process.reply()
            if reply is not None:
                try:
                    await stream.send_all(reply)
                except trio.BrokenResourceError:
                    return  # the agent did not wait for it
            else:
                await stream.receive_some()  # until it is given up
