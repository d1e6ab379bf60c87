"""The supervisor actor: owner of every engine of this node.

It alone steps `llmgw.core.supervision`, whose header says what may happen, and performs the actions that come of it.
Everything reaches it through one inbox, in order: the link's events and those of its own tasks. It never waits for
anything but that inbox, so nothing can hold it up; what takes time runs in tasks of its nursery, one that follows
each engine among them.

What goes to control goes into the link's channel without waiting. A link that does not keep up has the channel
closed, and registers anew: nothing is lost but time, since statuses are kept until they are acknowledged.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import attrs
import structlog
import trio

from llmgw.agent.blocking import RunBlocking, StuckError
from llmgw.agent.following import follow, see_off
from llmgw.agent.hardware import HardwareView
from llmgw.agent.launch import Launcher, LaunchRequest, RunningEngine
from llmgw.agent.ports import PortChoice, PortChooser, host_to_bind
from llmgw.agent.preparing import UnpreparedError, prepare, spec_of, stop_grace
from llmgw.agent.probe import OpenEngine, probe_until_answered
from llmgw.agent.uplink import (
    Accepted,
    Acked,
    Commanded,
    LinkEvent,
    ListAsked,
    Opened,
    Output,
    OutputAsked,
    ShardList,
    Uplink,
    Upward,
)
from llmgw.core import shard_events as words
from llmgw.core.held import (
    Spec,
    Supervision,
    next_deadline,
    not_gone,
    ports_avoided,
    ports_in_use,
    reports,
    restored,
    saved,
)
from llmgw.core.lifecycle import Cause, ShardState
from llmgw.core.outbox import Launch, Outbox, Status
from llmgw.core.supervision import restore, step
from llmgw.engines.base import Engine, Machine
from llmgw.errors import EngineError
from llmgw.latest import Latest
from llmgw.logs import redactor
from llmgw.wire.messages import Ack, DrainShard, LogRequest, ShardStatus, StartShard, StopShard

log = structlog.get_logger()

INBOX_MAX = 256
"""Events that wait for the supervisor. It takes microseconds for each; whoever finds it full waits."""

PREPARE_SECONDS = 30.0
"""For looking up a model and reading secrets: time for a file server that is slow, not for one that is away."""

OUTPUT_BYTES_MAX = 256 * 1024
"""Of an engine's output for one LogRequest."""

STOP_MARGIN_SECONDS = 15.0
"""Beyond the longest grace, for the kernel to take down what was killed."""

LOGGED_OUTPUT_CHARACTERS_MAX = 2000
"""Of an ended engine's last output in our own log: what a person looks for first. Control gets more of it."""

TELL_SECONDS = 2.0
"""At the end, for control to acknowledge how the engines ended."""

Inbox = trio.MemorySendChannel[LinkEvent | words.Event]


@attrs.frozen
class Supplies:
    """What the supervisor works with: the seams, and what it asks about the node."""

    launcher: Launcher
    engines: Mapping[str, Engine]
    machine: Machine
    ports: PortChooser
    hardware: Latest[HardwareView]
    open_engine: OpenEngine
    run_blocking: RunBlocking
    wall_clock: Callable[[], float]
    """Unix seconds."""


@attrs.define
class Running:
    """A launch that has a record on disk."""

    engine: RunningEngine
    told: trio.Event = attrs.field(factory=trio.Event)
    """Set when its last event was sent on."""


class Supervisor:
    """See the module."""

    def __init__(self, supplies: Supplies) -> None:
        self._with = supplies
        self.inbox: Inbox
        self.inbox, self._events = trio.open_memory_channel[LinkEvent | words.Event](INBOX_MAX)
        self._supervision = Supervision()
        self._outbox = Outbox()
        self._connection = 0
        self._uplink: Uplink | None = None
        self._accepted = False
        self._address = "127.0.0.1"
        self._starts: dict[Launch, StartShard] = {}
        """The command that is being handled, if it is a start."""
        self._requests: dict[Launch, LaunchRequest] = {}
        """Prepared and not launched. They hold secrets, and are kept no longer than that."""
        self._running: dict[Launch, Running] = {}
        self._probing: dict[Launch, trio.CancelScope] = {}
        self._all_gone: trio.Event | None = None
        self._acked = trio.Event()
        """Set, and replaced, at each acknowledgement."""

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Find the engines of the agent before, say that it has started, then supervise for ever."""
        async with trio.open_nursery() as self._nursery:
            await self._attach()
            task_status.started()
            while True:
                deadline = next_deadline(self._supervision)
                with trio.move_on_at(math.inf if deadline is None else deadline) as scope:
                    event = await self._events.receive()
                if scope.cancelled_caught:
                    self._step(words.Tick())
                else:
                    self._handle(event)

    async def stop_all(self, reason: str) -> tuple[str, ...]:
        """Stop every engine, start none any more, and let control know; the ids of those that were not gone in time."""
        self._all_gone = trio.Event()
        graces = [held.spec.stop_grace for held in self._supervision.held.values()]
        await self.inbox.send(words.StopAll(reason))
        with trio.move_on_after(max(graces, default=0.0) + STOP_MARGIN_SECONDS):
            await self._all_gone.wait()
        with trio.move_on_after(TELL_SECONDS):
            while self._accepted and len(self._outbox):
                await self._acked.wait()
        return not_gone(self._supervision)

    async def _attach(self) -> None:
        """Take over what was launched before. Of each shard the newest epoch counts; older ones are seen off."""
        now, unix_now = trio.current_time(), self._with.wall_clock()
        found = await self._with.launcher.attach()
        newest = {engine.shard: engine for engine in sorted(found, key=lambda engine: engine.epoch)}
        held = []
        for engine in found:
            if newest[engine.shard] is not engine:
                self._nursery.start_soon(see_off, engine)
                continue
            running = self._running[engine.shard, engine.epoch] = Running(engine)
            one = restored(engine.shard, engine.epoch, engine.state, now, unix_now)
            held.append(one)
            log.info("shard found", shard=engine.shard, epoch=engine.epoch, state=one.state.value, pid=engine.pid)
            redactor.register(one.spec.key)
            self._nursery.start_soon(self._follow, running, one.spec)
        self._supervision, actions = restore(tuple(held), now)
        self._perform(actions)

    # --- events -----------------------------------------------------------------------------------------------

    def _handle(self, event: LinkEvent | words.Event) -> None:
        match event:
            case Opened(connection, uplink, address):
                self._connection, self._uplink, self._address = connection, uplink, address
                self._accepted = False
                self._send_list()
            case Accepted(connection, status_acked):
                if connection == self._connection:
                    self._accepted = True
                    settled, again = self._outbox.registered(status_acked)
                    for status in again:
                        self._send_status(status)
                    self._settle(settled)
            case Acked(number):
                self._settle(self._outbox.acknowledged(number))
                self._acked.set()
                self._acked = trio.Event()
            case Commanded(connection, command):
                self._command(connection, command)
            case ListAsked():
                self._send_list()
            case OutputAsked(request):
                self._nursery.start_soon(self._output, request)
            case _:
                self._step(event)
                if isinstance(event, words.Prepared):
                    self._requests.pop((event.shard, event.epoch), None)

    def _command(self, connection: int, command: StartShard | StopShard | DrainShard) -> None:
        kind = type(command).__name__
        log.info("command received", kind=kind, shard=command.shard, epoch=command.epoch)
        match command:
            case StartShard():
                self._start(connection, command)
            case StopShard(command_id, shard, epoch, grace_seconds, reason):
                self._step(words.StopAsked(connection, command_id, shard, epoch, grace_seconds, reason))
            case DrainShard(command_id, shard, epoch):
                self._step(words.DrainAsked(connection, command_id, shard, epoch))

    def _start(self, connection: int, command: StartShard) -> None:
        redactor.register(command.key)
        held = self._supervision.held.get(command.shard)
        choice = PortChoice()
        if held is None or held.spec.epoch != command.epoch:
            choice = self._with.ports.choose(
                command.profile.port,
                rendezvous=command.profile.nodes > 1 and command.rank == 0,
                used=ports_in_use(self._supervision),
                avoided=ports_avoided(self._supervision, trio.current_time()),
            )
        host = host_to_bind(self._address)
        spec = spec_of(command, host=host, port=choice.port, rendezvous_port=choice.rendezvous_port)
        launch = (command.shard, command.epoch)
        self._starts[launch] = command
        self._step(words.StartAsked(connection, command.command_id, spec, choice.refusal))
        self._starts.pop(launch, None)

    def _settle(self, launches: tuple[Launch, ...]) -> None:
        for shard, epoch in launches:
            self._step(words.StatusSettled(shard, epoch))

    def _step(self, event: words.Event) -> None:
        self._supervision, actions = step(self._supervision, event, trio.current_time())
        self._perform(actions)
        if self._all_gone is not None and self._supervision.stopping and not not_gone(self._supervision):
            self._all_gone.set()

    # --- actions ----------------------------------------------------------------------------------------------

    def _perform(self, actions: tuple[words.Action, ...]) -> None:
        for action in actions:
            match action:
                case words.Save():
                    self._save(action)
                case words.Tell():
                    self._tell(action)
                case words.Answer():
                    self._answer(action)
                case words.Prepare(spec):
                    self._nursery.start_soon(self._prepare, spec, self._starts.pop((spec.shard, spec.epoch)))
                case words.Launch(spec):
                    self._nursery.start_soon(self._launch, spec, self._requests.pop((spec.shard, spec.epoch)))
                case words.Probe(spec):
                    scope = self._probing[spec.shard, spec.epoch] = trio.CancelScope()
                    self._nursery.start_soon(self._probe, spec, self._running[spec.shard, spec.epoch].engine, scope)
                case words.EndProbe(shard, epoch):
                    self._probing.pop((shard, epoch)).cancel()
                case words.Stop(shard, epoch, grace_seconds):
                    self._stop(self._supervision.held[shard].spec, self._running[shard, epoch].engine, grace_seconds)
                case words.Forget(shard, epoch):
                    self._nursery.start_soon(self._forget, self._running.pop((shard, epoch)))

    def _save(self, save: words.Save) -> None:
        spec = save.held.spec
        try:
            self._running[spec.shard, spec.epoch].engine.save_state(
                saved(save.held, trio.current_time(), self._with.wall_clock())
            )
        except EngineError as error:
            # The state before stands on disk: after a restart of the agent events bring it up to date.
            log.warning("shard state not saved", shard=spec.shard, epoch=spec.epoch, error=str(error))

    def _tell(self, tell: words.Tell) -> None:
        report = tell.report
        level = "warning" if report.state == ShardState.FAILED else "info"
        facts = {"pid": report.pid, "port": report.port, "error": report.error, "cause": report.cause}
        facts |= {"exit_code": report.exit_code, "signal": report.signal, "gone": report.gone or None}
        facts |= {"output": tell.output[-LOGGED_OUTPUT_CHARACTERS_MAX:]}
        shown = {name: value for name, value in facts.items() if value not in {None, ""}}
        getattr(log, level)("shard state", shard=report.shard, epoch=report.epoch, state=report.state, **shown)
        status = self._outbox.add(report, tell.output, trio.current_time())
        if status is not None and self._accepted:
            self._send_status(status)

    def _answer(self, answer: words.Answer) -> None:
        if not answer.accepted:
            log.warning("command refused", reason=answer.reason)
        if answer.connection == self._connection:
            self._send(Ack(answer.command_id, answer.accepted, answer.reason, answer.port, answer.rendezvous_port))

    def _send_list(self) -> None:
        self._send(ShardList(reports(self._supervision, trio.current_time())))

    def _send_status(self, status: Status) -> None:
        self._send(ShardStatus(status.number, status.aged(trio.current_time()), status.output))

    def _send(self, message: Upward) -> None:
        if self._uplink is None:
            return
        try:
            self._uplink.send_nowait(message)
        except trio.BrokenResourceError:
            self._uplink = None  # the link is done with that connection
        except trio.WouldBlock:
            log.warning("link does not keep up, hanging up")
            self._uplink.close()
            self._uplink = None

    # --- tasks ------------------------------------------------------------------------------------------------

    async def _prepare(self, spec: Spec, command: StartShard) -> None:
        hardware = self._with.hardware.value.reading.hardware
        call = partial(prepare, command, spec, hardware, self._with.machine, self._with.engines)
        try:
            request = await self._with.run_blocking(call, seconds=PREPARE_SECONDS, what=f"preparing {spec.shard}")
        except UnpreparedError as error:
            await self.inbox.send(words.Unprepared(spec.shard, spec.epoch, error.cause, str(error)))
        except StuckError as error:
            await self.inbox.send(words.Unprepared(spec.shard, spec.epoch, Cause.LAUNCH, str(error)))
        else:
            self._requests[spec.shard, spec.epoch] = request
            await self.inbox.send(words.Prepared(spec.shard, spec.epoch))

    async def _launch(self, spec: Spec, request: LaunchRequest) -> None:
        now = trio.current_time()
        starting = attrs.evolve(
            self._supervision.held[spec.shard],
            state=ShardState.STARTING,
            since=now,
            deadline=now + spec.start_deadline,
        )
        request = attrs.evolve(request, state=saved(starting, now, self._with.wall_clock()))
        try:
            engine = await self._with.launcher.launch(request)
        except EngineError as error:
            await self.inbox.send(words.Unprepared(spec.shard, spec.epoch, Cause.LAUNCH, str(error)))
            return
        running = self._running[spec.shard, spec.epoch] = Running(engine)
        await self.inbox.send(words.Launched(spec.shard, spec.epoch))
        await self._follow(running, spec)

    async def _probe(self, spec: Spec, engine: RunningEngine, scope: trio.CancelScope) -> None:
        async def failed(reason: str) -> None:
            log.debug("probe failed", shard=spec.shard, epoch=spec.epoch, reason=reason)
            await self.inbox.send(words.ProbeFailed(spec.shard, spec.epoch, reason))

        with scope:
            note = await probe_until_answered(spec, engine.listener, self._with.open_engine, failed)
            await self.inbox.send(words.ProbeSucceeded(spec.shard, spec.epoch, note))

    def _stop(self, spec: Spec, running: RunningEngine, grace_seconds: float) -> None:
        engine = self._with.engines.get(spec.engine)
        second_term = engine is not None and engine.second_term_seconds is not None
        call = partial(running.stop, stop_grace(engine, grace_seconds), second_term=second_term)
        self._nursery.start_soon(_attempt, "engine not stopped", spec.shard, call)

    async def _follow(self, running: Running, spec: Spec) -> None:
        await follow(running.engine, self._with.engines.get(spec.engine), self.inbox)
        running.told.set()

    async def _forget(self, running: Running) -> None:
        # Its record may have said "gone" already when it was found; only its own last event proves it.
        await running.told.wait()
        await _attempt("shard not forgotten", running.engine.shard, running.engine.forget)

    async def _output(self, request: LogRequest) -> None:
        held = self._supervision.held.get(request.shard)
        running = None if held is None else self._running.get((request.shard, held.spec.epoch))
        if running is None:
            self._send(Output(request.request_id, reason=f"nothing of {request.shard} is on this node"))
            return
        bytes_max = max(0, min(request.bytes_max, OUTPUT_BYTES_MAX))
        try:
            data = await running.engine.output_tail(bytes_max, previous=request.previous)
        except EngineError as error:
            self._send(Output(request.request_id, reason=str(error)))
            return
        reason = "this agent sends what there is and does not follow" if request.follow else ""
        self._send(Output(request.request_id, data, reason))


async def _attempt(complaint: str, shard: str, call: Callable[[], Awaitable[None]]) -> None:
    """What failed is in the log; the engine's events tell what really is."""
    try:
        await call()
    except EngineError as error:
        log.warning(complaint, shard=shard, error=str(error))
