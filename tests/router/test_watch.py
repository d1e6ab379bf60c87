"""Two clocks: clients of slow answers are watched soon, deadlines are looked at now and then, idling is free."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from llmgw.router.watch import LOOK_SECONDS, SWEEP_SECONDS, WATCHED_AFTER_SECONDS, Watch


@attrs.define(eq=False)
class Slow:
    """Knows when it was watched."""

    at: float | None = None

    def watch_client(self) -> None:
        assert self.at is None
        self.at = trio.current_time()


@attrs.define
class Swept:
    """Has deadlines for so many sweeps."""

    left: int
    at: list[float] = attrs.field(factory=list)

    def sweep(self, now: float) -> bool:
        self.at.append(now)
        self.left -= 1
        return self.left > 0


@pytest.fixture
async def watch(autojump_clock: Any, nursery: trio.Nursery) -> Watch:
    made = Watch()
    nursery.start_soon(made.watch_clients)
    return made


async def test_a_slow_answer_is_watched_within_75_ms_and_not_at_once(watch: Watch, autojump_clock: MockClock) -> None:
    waiting = [Slow() for _ in range(10)]
    began = []
    for one in waiting:
        began.append(trio.current_time())
        watch.began(one, trio.current_time())
        await trio.sleep(0.007)
    await trio.sleep(1)
    for one, start in zip(waiting, began, strict=True):
        assert one.at is not None
        assert WATCHED_AFTER_SECONDS <= one.at - start <= WATCHED_AFTER_SECONDS + LOOK_SECONDS


async def test_after_a_pause_the_next_one_is_watched_too(watch: Watch, autojump_clock: MockClock) -> None:
    for _ in range(2):
        one, start = Slow(), trio.current_time()
        watch.began(one, start)
        await trio.sleep(10)
        assert one.at is not None
        assert one.at - start <= WATCHED_AFTER_SECONDS + LOOK_SECONDS


async def test_deadlines_are_looked_at_while_there_are_any(autojump_clock: Any, nursery: trio.Nursery) -> None:
    watch, swept = Watch(), Swept(3)
    nursery.start_soon(watch.watch_deadlines, swept)
    await trio.sleep(10)
    assert swept.at == []
    watch.something_to_sweep()
    await trio.sleep(10)
    assert swept.at == pytest.approx([10, 10 + SWEEP_SECONDS, 10 + 2 * SWEEP_SECONDS])
    watch.something_to_sweep()
    await trio.sleep(10)
    assert len(swept.at) == 4
