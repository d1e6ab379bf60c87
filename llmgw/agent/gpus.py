"""The GPUs of this node, asked of a helper process that may hang, fail, vanish and come back.

`GpuReader.read` answers within a moment whatever the driver does: with the newest numbers, or with the last ones and
what is wrong. Rules:

1. At most one question is under way. `read` waits `ANSWER_PATIENCE_SECONDS` for its answer, else leaves it to the next.
2. No answer within `ANSWER_DEADLINE_SECONDS`: the helper is killed, or left behind where the kernel holds it in a call
   that cannot be killed. At most `LEFT_BEHIND_MAX` of those; then none is started until one has ended.
3. After an error the next question goes to a fresh helper, later each time.
4. What is wrong with NVML never takes a GPU away: the last known ones stay, each with the problem.
5. No NVML library is no problem: a node without GPUs. It is looked for again now and then.
"""

import json
import math
import sys
from typing import Any, Protocol

import attrs
import structlog
import trio

from llmgw.core.hardware import Gpu, Problem
from llmgw.core.units import format_seconds

log = structlog.get_logger()

ANSWER_PATIENCE_SECONDS = 0.3
"""A driver that is awake answers in milliseconds; one that is not must not hold up the registration."""

ANSWER_DEADLINE_SECONDS = 10.0
"""Initialising eight GPUs without persistence mode takes some seconds."""

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
"""Between helpers after an error, doubling: a driver that was reloaded is back within the minute."""

ABSENT_RETRY_SECONDS = 300.0
"""Between looks for an NVML that is not installed: each costs a process start."""

LEFT_BEHIND_MAX = 3
"""Processes stuck in the kernel, some 10 MB each."""

ANSWER_BYTES_MAX = 1024 * 1024
"""64 GPUs are 20 KB."""


@attrs.frozen
class GpuReading:
    """What is known of the GPUs."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    memory_used_bytes: dict[str, int | None] = attrs.field(factory=dict)
    """By UUID."""
    read_at: float | None = None
    """When the driver said so; None: never yet."""
    complete: bool = False
    """False: there may be GPUs that are not listed."""
    problems: tuple[Problem, ...] = ()


class Helper(Protocol):
    """A process that answers lines with lines."""

    async def send(self, line: bytes) -> None:
        """OSError or trio.BrokenResourceError where it is dead."""

    async def receive(self) -> bytes:
        """Some bytes of the answer; empty: it is dead. Cancelling loses none."""

    def kill(self) -> None:
        """End it, without waiting."""

    def ended(self) -> bool:
        """Whether it is really gone."""


class StartHelper(Protocol):
    """Starts a helper. OSError where that is impossible."""

    async def __call__(self) -> Helper: ...


class HelperProcess:
    """`python -m llmgw.agent.hardware_helper`."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    @classmethod
    async def start(cls) -> "HelperProcess":
        """Start one; OSError."""
        # Not part of our process group: a Ctrl-C is the agent's to handle.
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-m", "llmgw.agent.hardware_helper"], stdin=-1, stdout=-1, start_new_session=True
        )
        return cls(process)

    async def send(self, line: bytes) -> None:
        await self._stdin.send_all(line)

    async def receive(self) -> bytes:
        return bytes(await self._stdout.receive_some(65536))

    def kill(self) -> None:
        self._process.kill()

    def ended(self) -> bool:
        return self._process.poll() is not None


class GpuReader:
    """Asks the driver through helpers, one after the other. One task at a time calls `read`."""

    def __init__(self, start: StartHelper = HelperProcess.start) -> None:
        self._start = start
        self._helper: Helper | None = None
        self._left_behind: list[Helper] = []
        self._buffer = b""
        self._question = 0
        self._asked_at: float | None = None
        """When the question under way was asked; None: none is."""
        self._failures = 0
        self._retry_at = -math.inf
        self._reading = GpuReading()

    async def read(self) -> GpuReading:
        """What is known now. Returns within a moment."""
        self._left_behind = [helper for helper in self._left_behind if not helper.ended()]
        if trio.current_time() < self._retry_at or len(self._left_behind) >= LEFT_BEHIND_MAX:
            return self._reading
        try:
            await self._exchange()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ValueError) as error:
            self._failed(f"the helper process failed: {str(error) or type(error).__name__}")
        return self._reading

    def close(self) -> None:
        """End the helper."""
        self._leave()

    async def _exchange(self) -> None:
        with trio.move_on_after(ANSWER_PATIENCE_SECONDS):
            if self._helper is None:
                self._buffer = b""
                self._helper = await self._start()
            if self._asked_at is None:
                self._question += 1
                self._asked_at = trio.current_time()
                await self._helper.send(json.dumps({"id": self._question}).encode() + b"\n")
            while b"\n" not in self._buffer:
                data = await self._helper.receive()
                if not data:
                    raise ValueError("it ended without an answer")
                self._buffer += data
                if len(self._buffer) > ANSWER_BYTES_MAX:
                    raise ValueError("it does not stop talking")
            line, _, self._buffer = self._buffer.partition(b"\n")
            self._asked_at = None
            self._answered(json.loads(line))
            return
        if self._asked_at is not None and trio.current_time() >= self._asked_at + ANSWER_DEADLINE_SECONDS:
            self._failed(f"no answer within {format_seconds(ANSWER_DEADLINE_SECONDS)}")

    def _answered(self, answer: dict[str, Any]) -> None:
        if answer.get("absent") and not self._reading.gpus:
            self._leave()
            self._retry_at = trio.current_time() + ABSENT_RETRY_SECONDS
            self._reading = GpuReading(complete=True)
        elif "error" in answer:
            self._failed(str(answer["error"]))
        else:
            self._failures = 0
            self._reading = self._understood(answer)

    def _understood(self, answer: dict[str, Any]) -> GpuReading:
        lost = "; ".join(f"GPU {entry['index']}: {entry['error']}" for entry in answer["lost"])
        gpus = [_gpu(entry) for entry in answer["gpus"]]
        if lost:
            # One that vanished while another number does not answer is most likely that one.
            seen = {gpu.uuid for gpu in gpus}
            gpus += [attrs.evolve(gpu, problems=(lost,)) for gpu in self._reading.gpus if gpu.uuid not in seen]
        return GpuReading(
            gpus=tuple(gpus),
            driver=answer["driver"],
            memory_used_bytes={entry["uuid"]: entry["memory_used_bytes"] for entry in answer["gpus"]},
            read_at=trio.current_time(),
            complete=not lost,
            problems=(Problem("gpu_lost", lost),) if lost else (),
        )

    def _failed(self, reason: str) -> None:
        self._leave()
        delay = min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._retry_at = trio.current_time() + delay
        problem = f"NVML: {reason}"
        self._reading = attrs.evolve(
            self._reading,
            gpus=tuple(attrs.evolve(gpu, problems=(problem,)) for gpu in self._reading.gpus),
            complete=False,
            problems=(Problem("nvml", problem),),
        )

    def _leave(self) -> None:
        """Kill the helper and wait for nothing."""
        if self._helper is not None:
            self._helper.kill()
            self._left_behind.append(self._helper)
            if len(self._left_behind) == LEFT_BEHIND_MAX:
                log.warning("gpu helpers stuck in the kernel", count=LEFT_BEHIND_MAX)
        self._helper = None
        self._asked_at = None


def _gpu(entry: dict[str, Any]) -> Gpu:
    return Gpu(
        uuid=entry["uuid"],
        name=entry["name"],
        memory_total_bytes=entry["memory_total_bytes"] or 0,
        index=entry["index"],
        pci=entry["pci"],
        problems=() if entry["memory_total_bytes"] else ("NVML does not tell its memory",),
    )
