"""What all connections of one router process share."""

import random
import socket
from typing import Protocol

import attrs

from llmgw.config.schema import Router
from llmgw.router.pool import Pool
from llmgw.router.pump import Pump
from llmgw.router.records import AccessLog, Counters, Record
from llmgw.router.table import Table
from llmgw.router.watch import Watch


class Client(Protocol):
    """A client's connection, as the gateway sees it."""

    socket: socket.socket
    deadline: float
    """When `expire` is called; infinity: never."""

    def left(self) -> None:
        """The client has gone, while its answer was awaited."""

    def expire(self) -> None:
        """The deadline has passed."""

    def drain(self) -> None:
        """Finish what is in flight, take nothing new, and end."""


@attrs.define(eq=False)
class Gateway:
    """One router process. Everything in it belongs to one thread."""

    settings: Router
    table: Table
    access: AccessLog
    rng: random.Random
    pool: Pool
    pump: Pump = attrs.field(factory=Pump)
    watch: Watch = attrs.field(factory=Watch)
    counters: Counters = attrs.field(factory=Counters)
    clients: dict[int, Client] = attrs.field(factory=dict)
    """Every open connection of a client, by its number."""
    draining: bool = False
    """Nothing new is accepted; answers say `Connection: close`."""
    _numbers: int = 0

    def add(self, client: Client) -> int:
        """A client has connected; the number to `remove` it by."""
        self._numbers += 1
        self.clients[self._numbers] = client
        self.watch.something_to_sweep()
        return self._numbers

    def remove(self, number: int) -> None:
        """Its connection is over."""
        del self.clients[number]

    def new_request_id(self) -> str:
        """For a request that brought none."""
        return f"{self.rng.getrandbits(128):032x}"

    def finish(self, record: Record, now: float) -> None:
        """A request has ended."""
        assert record.ending is not None
        self.counters.count(record)
        self.access.write(record, now)

    def sweep(self, now: float) -> bool:
        """Act on every deadline that has passed; whether anything is left that may have one."""
        for client in [client for client in self.clients.values() if client.deadline <= now]:
            client.expire()
        self.pump.sweep(now, self.settings.idle_timeout)
        self.pool.sweep(now)
        return bool(self.clients or self.pool.idle)

    def drain(self) -> None:
        """Let every connection end as soon as it is idle."""
        self.draining = True
        for client in list(self.clients.values()):
            client.drain()
