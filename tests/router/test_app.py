"""The process: who is queued is served, the socket is let go of, and the end waits for what is in flight."""

import socket

import pytest
import trio
from rig import Asked, Rig, answers_ok
from trio.testing import MockClock


async def test_who_has_connected_before_the_stop_is_served(rig: Rig, autojump_clock: MockClock) -> None:
    await rig.serve()
    wire = await rig.connect()
    rig.stop.set()
    await wire.send(rig.request())
    assert (await rig.read(wire)).status == 200
    wire.close()
    await rig.ended.wait()
    with socket.socket() as late, pytest.raises(ConnectionRefusedError):
        late.connect(("127.0.0.1", rig.port))


async def test_a_stream_in_flight_is_finished_after_the_stop(rig: Rig, autojump_clock: MockClock) -> None:
    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        for number in range(5):
            await asked.event(str(number))
            await trio.sleep(20)
        await asked.end_stream()

    await rig.serve(stream)
    async with await rig.connect() as wire:
        await wire.send(rig.request({"model": "tiny", "stream": True}))
        await wire.until(b"data: 0\n\n")
        rig.stop.set()
        assert (await wire.rest()).count(b"data: ") == 4
    await rig.ended.wait()


async def test_cancelled_in_mid_stream_it_ends_and_leaves_nothing(rig: Rig, autojump_clock: MockClock) -> None:
    """The end of a process by cancellation closes its epoll object only after the tasks that wait on it."""

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        other = Rig(nursery, rig.gateway.settings, 2)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(other.run)
                await other.serve(stream)
                wire = await other.connect()
                await wire.send(other.request({"model": "tiny", "stream": True}))
                await wire.until(b"data: 1\n\n")
                scope.cancel()
        assert other.table.in_flight() == 0
        assert not other.gateway.clients
        wire.close()
        nursery.cancel_scope.cancel()
    await rig.serve(answers_ok)
