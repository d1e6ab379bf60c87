"""A bell with a memory of one ring."""

import pytest
import trio

from llmgw.control.wake import Wake
from llmgw.latest import Latest


async def test_rings_while_nobody_waits_are_one_look(autojump_clock: trio.testing.MockClock) -> None:
    wake = Wake()
    wake.ring()
    wake.ring()
    await wake.wait(1000)
    assert trio.current_time() == 0
    await wake.wait(5)
    assert trio.current_time() == pytest.approx(5)


async def test_a_change_of_a_latest_rings(autojump_clock: trio.testing.MockClock) -> None:
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
