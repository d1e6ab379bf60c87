"""The route publisher: from the fleet and the decisions to numbered tables, and from reports to what routers hold.

Every router, a worker of this control on its socketpair or one of its own over TCP, is a *follower*
(`llmgw.control.followers`). The publisher numbers tables, keeps the last few steps between them, and knows of each
follower what it reported last. While control is recovering a table is not complete: its holders add and change,
and take nothing away. So the step to a complete table is never a change but the whole table: what a router kept from
the time before is in nobody's list of what to remove.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import attrs
import trio

from llmgw.control.metrics import RouterCounters
from llmgw.control.reconciler import Decided, Routers
from llmgw.control.wake import Wake, breathe
from llmgw.core.catalog import Catalog
from llmgw.core.nodes import FleetView
from llmgw.core.reconcile import ROUTER_LIVE_SECONDS, RouterSeen
from llmgw.core.routes import Change, Table, change, table, withdrawn
from llmgw.core.routing import ClientKey, Endpoint, RoutedModel
from llmgw.latest import Latest
from llmgw.wire import messages as wire

STEPS_MAX = 64
"""Steps that are kept: a follower that is further behind gets the whole table."""

PART_BYTES_MAX = 2 * 1024**2
"""Of one part of a table, by an estimate that is high: half of what a frame may hold."""

ENTRY_BYTES = 200
"""What names of fields and figures take of one entry."""

UTF8_BYTES_MAX = 4
"""Of one character."""

LOOK_AT_ROUTERS_SECONDS = 1.0
"""How often it is checked whether a router has fallen silent, for which no report can wake anybody."""


Entry = RoutedModel | Endpoint | ClientKey


@attrs.frozen
class Published:
    """One revision."""

    revision: int = 0
    """0: there is none yet."""
    table: Table = Table()
    withdrawn: Mapping[tuple[str, int], int] = attrs.field(factory=dict)


@attrs.define
class Follower:
    """One router, for as long as its stream is open."""

    id: str
    version: str
    peer: str
    heard_at: float
    report: wire.RouterReport | None = None
    reported_at: float = 0.0

    def revision(self, incarnation: str) -> int:
        """Of this control's table that it uses; 0: none yet."""
        return self.report.revision if self.report is not None and self.report.incarnation == incarnation else 0

    def live(self, now: float) -> bool:
        """Whether it is waited for."""
        return self.report is not None and now - self.reported_at < ROUTER_LIVE_SECONDS


@attrs.define
class Publisher:
    """The actor's state. `latest` and `followers` are read by the status, the rest only by itself."""

    incarnation: str
    catalog: Catalog
    keys: tuple[ClientKey, ...]
    static_keys: Mapping[tuple[str, str], str]
    created: Mapping[str, int]
    fleet: Latest[FleetView]
    decided: Latest[Decided]
    counters: RouterCounters
    moved: Callable[[], None]
    """Wakes the reconciler: what routers hold or what is published has changed for a launch that ends."""
    latest: Latest[Published] = attrs.field(factory=lambda: Latest(Published()))
    followers: dict[int, Follower] = attrs.field(factory=dict)
    """By connection."""
    _steps: dict[int, Change] = attrs.field(factory=dict)
    """By the revision they lead to: the last ones without a gap."""
    _parts: tuple[wire.RouteTable, ...] = ()
    """Of the newest revision; made when somebody needs them."""

    async def run(self) -> NoReturn:
        """Publish whenever the fleet or the decisions change, for ever."""
        wake = Wake()
        with self.fleet.subscribe() as fleet_changes, self.decided.subscribe() as decided_changes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wake.follow, fleet_changes)
                nursery.start_soon(wake.follow, decided_changes)
                nursery.start_soon(self._watch_for_silence)
                while True:
                    now = trio.current_time()
                    self.publish()
                    await breathe(now)
                    await wake.wait()
        raise AssertionError("unreachable: it ends by cancellation")

    def publish(self) -> None:
        """Compute the table, and number it if it is another one."""
        decided, old = self.decided.value, self.latest.value
        new = table(
            self.catalog,
            self.fleet.value,
            decided.replicas,
            decided.explanations,
            static_keys=self.static_keys,
            created=self.created,
        )
        revision = old.revision
        step = change(old.table, new)
        if step is not None or revision == 0:
            revision += 1
            self._parts = ()
            if step is None or new.complete != old.table.complete:
                self._steps = {}
            else:
                self._steps[revision] = step
                self._steps.pop(revision - STEPS_MAX, None)
        gone = withdrawn(old.withdrawn, decided.replicas, new, revision)
        if revision != old.revision or gone != old.withdrawn:
            self.latest.publish(Published(revision, new, gone))
        if gone != old.withdrawn:
            self.moved()

    def messages_since(self, revision: int) -> tuple[wire.RouteTable | wire.RouteChange, ...]:
        """What a holder of `revision` of this incarnation (0: of none) needs to have the newest."""
        newest = self.latest.value
        if revision == newest.revision:
            return ()
        steps = [self._steps.get(number) for number in range(revision + 1, newest.revision + 1)]
        if 0 < revision < newest.revision and all(step and _size_of(step) <= PART_BYTES_MAX for step in steps):
            return tuple(
                _to_wire(step, self.incarnation, revision + 1 + index, complete=newest.table.complete)
                for index, step in enumerate(steps)
                if step is not None
            )
        if not self._parts:
            self._parts = tuple(parts(newest, self.keys, self.incarnation))
        return self._parts

    def reported(self, connection: int, report: wire.RouterReport, now: float) -> None:
        """A follower said what it holds and sees."""
        follower = self.followers[connection]
        before = self._matters(follower)
        follower.report, follower.reported_at = report, now
        self.counters.observe(follower.id, report.counters)
        if self._matters(follower) != before:
            self.moved()

    def routers(self) -> Routers:
        """What the reconciler looks at."""
        now = trio.current_time()
        live = [follower for follower in self.followers.values() if follower.live(now)]
        return Routers(tuple(self._seen(follower) for follower in live), self.latest.value.withdrawn)

    def _seen(self, follower: Follower) -> RouterSeen:
        assert follower.report is not None
        in_flight = {(entry.id, entry.epoch): entry.in_flight for entry in follower.report.endpoints if entry.in_flight}
        return RouterSeen(follower.id, follower.revision(self.incarnation), in_flight)

    def _matters(self, follower: Follower) -> object:
        """What of its report a drain waits for; None before the first."""
        if follower.report is None:
            return None
        gone = self.latest.value.withdrawn
        busy = {(entry.id, entry.epoch): entry.in_flight for entry in follower.report.endpoints}
        return follower.revision(self.incarnation), {key: busy.get(key, 0) for key in gone}

    async def _watch_for_silence(self) -> NoReturn:
        """A router that hangs is waited for no longer, and that is news too."""
        live: list[int] = []
        while True:
            now = trio.current_time()
            before, live = live, [number for number, follower in self.followers.items() if follower.live(now)]
            if live != before:
                self.moved()
            await trio.sleep(LOOK_AT_ROUTERS_SECONDS)


def parts(published: Published, keys: tuple[ClientKey, ...], incarnation: str) -> Iterator[wire.RouteTable]:
    """The whole table in parts that fit into frames; at least one."""
    entries: list[Entry] = [*keys, *published.table.models, *published.table.endpoints]
    groups = list(_grouped(entries)) or [[]]
    for number, group in enumerate(groups):
        yield wire.RouteTable(
            incarnation,
            published.revision,
            number,
            len(groups),
            published.table.complete,
            models=tuple(entry for entry in group if isinstance(entry, RoutedModel)),
            endpoints=tuple(entry for entry in group if isinstance(entry, Endpoint)),
            keys=tuple(entry for entry in group if isinstance(entry, ClientKey)),
        )


def _grouped(entries: list[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    room = PART_BYTES_MAX
    for entry in entries:
        size = _size_of(entry)
        if size > room and group:
            yield group
            group, room = [], PART_BYTES_MAX
        group.append(entry)
        room -= size
    if group:
        yield group


def _size_of(entry: Any) -> int:
    """Bytes of an entry in a frame, or more."""
    if isinstance(entry, str):
        return len(entry) * UTF8_BYTES_MAX
    if isinstance(entry, tuple):
        return sum(map(_size_of, entry))
    if attrs.has(type(entry)):
        return ENTRY_BYTES + sum(_size_of(getattr(entry, field.name)) for field in attrs.fields(type(entry)))
    return 0


def _to_wire(step: Change, incarnation: str, revision: int, *, complete: bool) -> wire.RouteChange:
    return wire.RouteChange(
        incarnation,
        revision,
        complete,
        wire.RouteSet(step.models, step.endpoints),
        wire.RouteRemoved(step.models_removed, step.endpoints_removed),
    )
