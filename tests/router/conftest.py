"""The router of a test; see `rig`."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from rig import Rig

from llmgw.config.schema import Router
from llmgw.core.units import Duration, Size


@pytest.fixture
def make_rig() -> Any:
    """`async with make_rig(...) as rig`: settings of [router] as keywords."""

    @contextlib.asynccontextmanager
    async def making(seed: int = 1, **settings: Any) -> AsyncIterator[Rig]:
        router = Router(
            connect_timeout=Duration(settings.pop("connect_timeout", 3.0)),
            first_byte_timeout=Duration(settings.pop("first_byte_timeout", 900.0)),
            idle_timeout=Duration(settings.pop("idle_timeout", 300.0)),
            body_max=Size(settings.pop("body_max", 64 * 1024**2)),
        )
        assert not settings
        async with trio.open_nursery() as nursery:
            rig = Rig(nursery, router, seed)
            nursery.start_soon(rig.run)
            yield rig
            with trio.fail_after(120):
                await rig.settled()
            rig.check()
            rig.stop.set()
            await rig.ended.wait()
            nursery.cancel_scope.cancel()

    return making


@pytest.fixture
async def rig(make_rig: Any, autojump_clock: Any) -> AsyncIterator[Rig]:
    async with make_rig() as made:
        yield made
