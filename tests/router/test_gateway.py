"""What the connections of one process share."""

import random
from collections.abc import Iterator
from socket import socket
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from llmgw.config.schema import Router
from llmgw.router.gateway import Gateway
from llmgw.router.pool import IDLE_SECONDS, Pool
from llmgw.router.records import Ending, Record
from llmgw.router.table import Table
from llmgw.router.watch import SWEEP_SECONDS


@attrs.define(eq=False)
class Somebody:
    """A client that notes what is done to it."""

    deadline: float = float("inf")
    told: list[str] = attrs.field(factory=list)
    socket: socket = attrs.field(factory=socket)

    def left(self) -> None:
        self.told.append("left")

    def expire(self) -> None:
        self.told.append("expire")
        self.deadline = float("inf")

    def drain(self) -> None:
        self.told.append("drain")


class Kept(list[Record]):
    """An access log."""

    def write(self, record: Record, now: float) -> None:
        self.append(record)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(Router(), Table(), Kept(), random.Random(1), Pool(3.0))
    yield made
    made.pool.close()
    made.pump.close()


@pytest.fixture
def client() -> Iterator[Somebody]:
    made = Somebody()
    yield made
    made.socket.close()


def test_a_client_expires_once_its_deadline_has_passed(gateway: Gateway, client: Somebody) -> None:
    number = gateway.add(client)
    client.deadline = 5.0
    assert gateway.sweep(4.9)
    assert client.told == []
    assert gateway.sweep(5.0)
    assert gateway.sweep(6.0)
    assert client.told == ["expire"]
    gateway.remove(number)
    assert not gateway.sweep(7.0)


async def test_a_client_that_comes_after_a_pause_is_swept_too(
    gateway: Gateway, client: Somebody, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(gateway.watch.watch_deadlines, gateway)
    await trio.sleep(10)
    client.deadline = 12.0
    gateway.add(client)
    await trio.sleep(2 + SWEEP_SECONDS)
    assert client.told == ["expire"]


def test_idle_connections_to_engines_are_swept_too(gateway: Gateway) -> None:
    gateway.pool.give("http://a", socket(), 1.0)
    assert gateway.sweep(1.5)
    assert not gateway.sweep(1.0 + IDLE_SECONDS)


def test_draining_tells_everybody(gateway: Gateway, client: Somebody) -> None:
    gateway.add(client)
    gateway.drain()
    assert gateway.draining
    assert client.told == ["drain"]


def test_every_ended_request_is_counted_and_logged(gateway: Gateway) -> None:
    record = Record(0.0, model="tiny", status=200, ending=Ending.DONE)
    gateway.finish(record, 1.0)
    log: Any = gateway.access
    assert log == [record]
    assert gateway.counters.samples()['llmgw_router_requests_total{model="tiny",code="200"}'] == 1


def test_request_ids_are_of_one_length_and_differ(gateway: Gateway) -> None:
    made = {gateway.new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert {len(one) for one in made} == {32}
