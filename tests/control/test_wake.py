"""A bell with a memory of one ring."""

import pytest
import trio
from trio.testing import MockClock

from llmgw.control.wake import SPACING_SECONDS, Wake, breathe
from llmgw.latest import Latest


async def test_rings_while_nobody_waits_are_one_look(autojump_clock: MockClock) -> None:
    wake = Wake()
    wake.ring()
    wake.ring()
    await wake.wait(1000)
    assert trio.current_time() == 0
    await wake.wait(5)
    assert trio.current_time() == pytest.approx(5)


async def test_a_change_of_a_latest_rings(autojump_clock: MockClock) -> None:
    wake, latest = Wake(), Latest(0)
    with latest.subscribe() as changes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wake.follow, changes)
            await wake.wait(1000)
            assert trio.current_time() == 0
            latest.publish(1)
            await wake.wait(1000)
            assert trio.current_time() == 0
            await wake.wait(5)
            assert trio.current_time() == pytest.approx(5)
            nursery.cancel_scope.cancel()


async def test_who_looked_long_pauses_long(autojump_clock: MockClock) -> None:
    await trio.sleep(10)
    began = trio.current_time()
    await breathe(began - 3)
    assert trio.current_time() - began == pytest.approx(3)
    began = trio.current_time()
    await breathe(began)
    assert trio.current_time() - began == pytest.approx(SPACING_SECONDS)
