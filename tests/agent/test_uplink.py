"""The channel between supervisor and link is bounded, and either end can hang up."""

import pytest
import trio

from llmgw.agent.uplink import UPLINK_MAX, ShardList, open_uplink


async def test_it_is_bounded() -> None:
    send, _ = open_uplink()
    for _ in range(UPLINK_MAX):
        send.send_nowait(ShardList(()))
    with pytest.raises(trio.WouldBlock):
        send.send_nowait(ShardList(()))


async def test_either_end_can_hang_up() -> None:
    send, receive = open_uplink()
    receive.close()
    with pytest.raises(trio.BrokenResourceError):
        send.send_nowait(ShardList(()))
    send, receive = open_uplink()
    send.close()
    with pytest.raises(trio.EndOfChannel):
        await receive.receive()
