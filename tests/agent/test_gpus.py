"""B09 and its kin: NVML that hangs, fails, is not there and comes back, with a scripted helper on a virtual clock."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from llmgw.agent.gpus import ABSENT_RETRY_SECONDS, LEFT_BEHIND_MAX, GpuReader, GpuReading
from llmgw.core.hardware import Problem

GIB = 1024**3

Answer = Callable[[], dict[str, Any] | bytes | None]
"""What the driver says at this moment; None: nothing, ever."""


class Driver:
    """The driver under all helpers, and what became of them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.started = 0
        self.alive = 0
        self.unkillable = False
        self.start_fails = False

    async def start(self) -> "FakeHelper":
        await trio.lowlevel.checkpoint()
        if self.start_fails:
            raise OSError("no more processes")
        self.started += 1
        self.alive += 1
        return FakeHelper(self)


class FakeHelper:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.dead = False
        self.answers: list[bytes] = []

    async def send(self, line: bytes) -> None:
        await trio.lowlevel.checkpoint()
        question = json.loads(line)
        answer = self.driver.answer()
        if isinstance(answer, dict):
            self.answers.append(json.dumps({"id": question["id"], **answer}).encode() + b"\n")
        elif answer is not None:
            self.answers.append(answer)

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.answers:
            await trio.sleep_forever()
        return self.answers.pop(0)

    def kill(self) -> None:
        if not self.driver.unkillable:
            self.dead = True
            self.driver.alive -= 1

    def ended(self) -> bool:
        return self.dead


def node(*uuids: str, lost: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    gpus = [
        {
            "uuid": uuid,
            "name": "H100",
            "index": index,
            "pci": "",
            "memory_total_bytes": 80 * GIB,
            "memory_used_bytes": GIB,
        }
        for index, uuid in enumerate(uuids)
    ]
    return {"driver": "550", "gpus": gpus, "lost": list(lost)}


class Script:
    """What the driver says, changed by the test as time goes by."""

    def __init__(self, says: dict[str, Any] | bytes | None) -> None:
        self.says = says

    def __call__(self) -> dict[str, Any] | bytes | None:
        return self.says


async def read_for(reader: GpuReader, seconds: float) -> list[GpuReading]:
    """What was read every 2 s for so long."""
    readings = []
    end = trio.current_time() + seconds
    while trio.current_time() < end:
        readings.append(await reader.read())
        await trio.sleep(2.0)
    return readings


async def test_a_healthy_driver_is_asked_through_one_helper(autojump_clock: MockClock) -> None:
    driver = Driver(Script(node("GPU-a", "GPU-b")))
    reader = GpuReader(driver.start)
    readings = await read_for(reader, 60)
    assert driver.started == 1
    assert all(reading.complete and not reading.problems for reading in readings)
    assert [gpu.uuid for gpu in readings[0].gpus] == ["GPU-a", "GPU-b"]
    assert readings[0].memory_used_bytes == {"GPU-a": GIB, "GPU-b": GIB}
    assert readings[-1].read_at is not None
    assert trio.current_time() - readings[-1].read_at <= 2.0


async def test_b09_a_every_call_fails_for_five_minutes_then_works_again(autojump_clock: MockClock) -> None:
    """The agent never exits; one node problem; numbers age; the inventory stays; nothing new is placed (a problem on
    each GPU); a fresh helper is tried with backoff, and the problem clears. That running shards are left alone is the
    supervisor's: nothing of it looks at this.
    """
    script = Script(node("GPU-a"))
    driver = Driver(script)
    reader = GpuReader(driver.start)
    healthy = await read_for(reader, 60)
    script.says = {"error": "Unknown Error", "absent": False}
    broken = (await read_for(reader, 300))[1:]
    for reading in broken:
        assert [gpu.uuid for gpu in reading.gpus] == ["GPU-a"]
        assert reading.gpus[0].problems == ("NVML: Unknown Error",)
        assert not reading.complete
        assert reading.problems == (Problem("nvml", "NVML: Unknown Error"),)
        assert reading.read_at == healthy[-1].read_at  # they are the old numbers
    assert 5 <= driver.started <= 14
    assert driver.alive == 0

    script.says = node("GPU-a")
    recovered = (await read_for(reader, 70))[-1]
    assert recovered.complete
    assert not recovered.problems
    assert not recovered.gpus[0].problems


async def test_b09_b_a_mismatch_at_start_is_a_problem_and_ends_without_a_restart(autojump_clock: MockClock) -> None:
    mismatch = "RM has detected an NVML/RM version mismatch."
    script = Script({"error": mismatch, "absent": False})
    reader = GpuReader(Driver(script).start)
    first = await reader.read()
    assert first.problems == (Problem("nvml", f"NVML: {mismatch}"),)
    assert (first.gpus, first.complete) == ((), False)
    await read_for(reader, 300)
    script.says = node("GPU-a")
    assert (await read_for(reader, 64))[-1].complete


async def test_b09_c_no_library_is_a_node_without_gpus_and_is_looked_for_now_and_then(
    autojump_clock: MockClock,
) -> None:
    script = Script({"error": "NVML Shared Library Not Found", "absent": True})
    driver = Driver(script)
    reader = GpuReader(driver.start)
    readings = await read_for(reader, ABSENT_RETRY_SECONDS * 2.5)
    assert set(map(str, readings)) == {str(GpuReading(complete=True))}
    assert driver.started == 3
    script.says = node("GPU-a")
    assert [gpu.uuid for gpu in (await read_for(reader, ABSENT_RETRY_SECONDS))[-1].gpus] == ["GPU-a"]


async def test_a_library_that_vanishes_takes_no_gpu_away(autojump_clock: MockClock) -> None:
    script = Script(node("GPU-a"))
    reader = GpuReader(Driver(script).start)
    await reader.read()
    script.says = {"error": "NVML Shared Library Not Found", "absent": True}
    reading = await reader.read()
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-a"]
    assert reading.problems[0].code == "nvml"


async def test_a_hanging_call_holds_nothing_up_and_is_given_up(autojump_clock: MockClock) -> None:
    script = Script(None)
    driver = Driver(script)
    reader = GpuReader(driver.start)
    first = await reader.read()
    assert trio.current_time() < 0.5
    assert (first.complete, first.problems) == (False, ())
    reading = (await read_for(reader, 14))[-1]
    assert reading.problems == (Problem("nvml", "NVML: no answer within 10s"),)
    script.says = node("GPU-a")
    assert (await read_for(reader, 70))[-1].complete


async def test_helpers_that_cannot_be_killed_are_left_behind_and_few(autojump_clock: MockClock) -> None:
    driver = Driver(Script(None))
    driver.unkillable = True
    reader = GpuReader(driver.start)
    await read_for(reader, 3600)
    assert driver.started == driver.alive == LEFT_BEHIND_MAX


async def test_a_slow_answer_is_taken_by_a_later_read(autojump_clock: MockClock) -> None:
    class Slow(FakeHelper):
        async def receive(self) -> bytes:
            await trio.sleep_until(3.0)
            return await super().receive()

    driver = Driver(Script(node("GPU-a")))

    async def start() -> FakeHelper:
        return Slow(driver)

    reader = GpuReader(start)
    assert not (await reader.read()).complete
    assert (await read_for(reader, 6))[-1].complete


@pytest.mark.parametrize(
    ("says", "detail"),
    [
        (b"", "NVML: the helper process failed: it ended without an answer"),
        (b"no json\n", "NVML: the helper process failed: Expecting value: line 1 column 1 (char 0)"),
        (b"x" * (2 * 1024 * 1024), "NVML: the helper process failed: it does not stop talking"),
    ],
)
async def test_a_helper_that_fails_is_a_problem(autojump_clock: MockClock, says: bytes, detail: str) -> None:
    driver = Driver(Script(says))
    reading = await GpuReader(driver.start).read()
    assert reading.problems == (Problem("nvml", detail),)
    assert driver.alive == 0


async def test_a_helper_that_cannot_be_started_is_a_problem(autojump_clock: MockClock) -> None:
    driver = Driver(Script(None))
    driver.start_fails = True
    reading = await GpuReader(driver.start).read()
    assert reading.problems == (Problem("nvml", "NVML: the helper process failed: no more processes"),)


async def test_b01_one_lost_gpu_keeps_its_entry_with_the_problem_until_the_driver_drops_it(
    autojump_clock: MockClock,
) -> None:
    script = Script(node("GPU-0", "GPU-1", "GPU-2"))
    reader = GpuReader(Driver(script).start)
    await reader.read()
    script.says = node("GPU-0", "GPU-2", lost=({"index": 1, "error": "GPU is lost"},))
    reading = await reader.read()
    assert {gpu.uuid: gpu.problems for gpu in reading.gpus} == {
        "GPU-0": (),
        "GPU-2": (),
        "GPU-1": ("GPU 1: GPU is lost",),
    }
    assert reading.problems == (Problem("gpu_lost", "GPU 1: GPU is lost"),)
    assert not reading.complete
    script.says = node("GPU-0", "GPU-2")
    reading = await reader.read()
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-0", "GPU-2"]
    assert reading.complete


async def test_a_gpu_without_known_memory_takes_nothing(autojump_clock: MockClock) -> None:
    answer = node("GPU-a")
    answer["gpus"][0]["memory_total_bytes"] = None
    (gpu,) = (await GpuReader(Driver(Script(answer)).start).read()).gpus
    assert (gpu.memory_total_bytes, gpu.problems) == (0, ("NVML does not tell its memory",))


async def test_the_real_helper_process_answers() -> None:
    """With the real binding; most machines that run this have no GPU."""
    reader = GpuReader()
    with trio.fail_after(30):
        while not (reading := await reader.read()).complete:  # noqa: ASYNC110  that is how it is used
            await trio.sleep(0.01)
    assert reading.problems == ()
    reader.close()
    with trio.fail_after(30):
        while not all(helper.ended() for helper in reader._left_behind):  # noqa: ASYNC110
            await trio.sleep(0.01)
