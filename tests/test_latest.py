import pytest
import trio
import trio.testing

from llmgw.latest import Latest


async def test_a_reader_starts_with_the_present_value() -> None:
    latest = Latest(7)
    with latest.subscribe() as changes:
        await changes.receive()
        assert latest.value == 7


async def test_a_slow_reader_sees_the_newest_value_once_and_holds_nobody_up() -> None:
    """100 values are published without a checkpoint; the reader wakes once, to the last."""
    latest = Latest(0)
    with latest.subscribe() as changes:
        await changes.receive()
        for value in range(1, 101):
            latest.publish(value)
        await changes.receive()
        assert latest.value == 100
        with pytest.raises(trio.WouldBlock):
            changes.receive_nowait()


async def test_a_waiting_reader_is_woken(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    latest = Latest("old")
    seen: list[tuple[float, str]] = []

    async def read() -> None:
        with latest.subscribe() as changes:
            while True:
                await changes.receive()
                seen.append((trio.current_time(), latest.value))

    start = trio.current_time()
    nursery.start_soon(read)
    await trio.sleep(5)
    latest.publish("new")
    await trio.testing.wait_all_tasks_blocked()
    nursery.cancel_scope.cancel()
    assert seen == [(start, "old"), (start + 5, "new")]


async def test_every_reader_is_told() -> None:
    latest = Latest(0)
    with latest.subscribe() as first, latest.subscribe() as second:
        await first.receive()
        await second.receive()
        latest.publish(1)
        first.receive_nowait()
        second.receive_nowait()


async def test_a_reader_that_left_is_forgotten() -> None:
    """Publishing after it never fails, and its channel ends."""
    latest = Latest(0)
    with latest.subscribe() as changes:
        pass
    latest.publish(1)
    with pytest.raises(trio.ClosedResourceError):
        await changes.receive()
    assert latest.value == 1
