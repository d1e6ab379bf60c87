"""What hangs is given up in time, and does not take the threads of others with it."""

import threading

import pytest
import trio

from llmgw.agent.blocking import StuckError, Threads


async def test_a_call_returns_or_raises_what_it_does() -> None:
    run = Threads()
    assert await run(lambda: 7, seconds=60, what="counting") == 7

    def fails() -> None:
        raise FileNotFoundError("nothing there")

    with pytest.raises(FileNotFoundError, match="nothing there"):
        await run(fails, seconds=60, what="looking")


async def test_hanging_calls_are_given_up_and_leave_name_lookup_its_threads() -> None:
    hang = threading.Event()
    run = Threads(threads_max=2)
    try:
        for _ in range(3):
            with pytest.raises(StuckError, match="reading /mnt did not return within 0s"):
                await run(hang.wait, seconds=0.01, what="reading /mnt")
        assert await trio.to_thread.run_sync(lambda: 7) == 7
    finally:
        hang.set()
