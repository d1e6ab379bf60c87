"""The reconciler actor: only writer of the replicas, and the source of every command.

It wakes when the fleet changed, a router has moved on, a command was answered, or the time has come that its last
plan named; it looks at the whole truth, decides (`llmgw.core.reconcile`, pure), writes what it decided, and only
then sends. If the write fails nothing is sent: a launch that the file does not know of would be a stranger after a
restart, and its GPUs free.
"""

import random
from collections.abc import Callable, Mapping
from typing import NoReturn

import attrs
import structlog
import trio

from llmgw.control.commands import RETRY_SECONDS, Commands, Links
from llmgw.control.store import Store, StoreError
from llmgw.control.wake import Wake, breathe
from llmgw.core.catalog import Catalog
from llmgw.core.explain import Explanation
from llmgw.core.nodes import FleetView
from llmgw.core.reconcile import Plan, RouterSeen, World, reconcile
from llmgw.core.replicas import Replicas, ReplicaView
from llmgw.latest import Latest

log = structlog.get_logger()

SAVE_AGAIN_SECONDS = 5.0
"""After a write that failed."""


@attrs.frozen
class Decided:
    """The newest decisions, for the route publisher and the status."""

    replicas: Replicas = Replicas()
    explanations: Mapping[str, Explanation] = attrs.field(factory=dict)
    views: Mapping[str, tuple[ReplicaView, ...]] = attrs.field(factory=dict)


@attrs.frozen
class Routers:
    """What the route publisher tells the reconciler at a look."""

    live: tuple[RouterSeen, ...] = ()
    withdrawn: Mapping[tuple[str, int], int] = attrs.field(factory=dict)


@attrs.define
class Reconciler:
    """The actor's state. `latest` is read by everybody, the rest only by itself."""

    catalog: Catalog
    served_names: Mapping[str, str]
    fleet: Callable[[], FleetView]
    routers: Callable[[], Routers]
    links: Links
    commands: Commands
    store: Store
    wall_clock: Callable[[], float]
    rng: random.Random
    latest: Latest[Decided]
    """Begins with the replicas of the store."""
    wake: Wake
    """Rung by whoever has news for it."""
    fired: dict[str, int] = attrs.field(factory=dict)
    """How often each rule has decided since the start."""
    trouble: str = ""
    """Why nothing is decided now; empty: it is."""
    _plan: Plan | None = None
    _save_after: float = 0.0

    async def run(self, fleet: Latest[FleetView]) -> NoReturn:
        """Look, decide, write, send, for ever; also whenever `fleet` changes."""
        with fleet.subscribe() as changes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.wake.follow, changes)
                while True:
                    now = trio.current_time()
                    wait = self.look(now)
                    await breathe(now)
                    await self.wake.wait(wait)
        raise AssertionError("unreachable: it ends by cancellation")

    def look(self, now: float) -> float:
        """One look at everything; after so many seconds the next is due if nothing happens before."""
        if now < self._save_after:
            return self._save_after - now
        world = self._world(now)
        plan = reconcile(world, self.rng, self._plan)
        if plan.replicas is not world.replicas and not self._save(world.replicas, plan.replicas, now):
            return SAVE_AGAIN_SECONDS
        self._plan = plan
        for line in plan.log:
            (log.warning if line.level == "warning" else log.info)(line.event, **line.facts)
        for rule, times in plan.fired.items():
            self.fired[rule] = self.fired.get(rule, 0) + times
        all_sent = self._send(plan, world.fleet, now)
        decided = Decided(plan.replicas, plan.explanations, plan.views)
        if plan.replicas is not world.replicas or decided != self.latest.value:
            self.latest.publish(decided)
        wait = float("inf") if plan.wake_after is None else plan.wake_after
        return wait if all_sent else min(wait, RETRY_SECONDS)

    def _world(self, now: float) -> World:
        fleet, routers = self.fleet(), self.routers()
        return World(
            catalog=self.catalog,
            fleet=fleet,
            replicas=self.latest.value.replicas,
            now=now,
            wall=self.wall_clock(),
            routers=routers.live,
            withdrawn=dict(routers.withdrawn),
            in_flight=self.commands.keys(fleet.nodes),
            refused=self.commands.take_refused(),
            served_names=self.served_names,
        )

    def _save(self, old: Replicas, new: Replicas, now: float) -> bool:
        try:
            self.store.save_replicas(old, new)
        except StoreError as error:
            self.trouble, self._save_after = str(error), now + SAVE_AGAIN_SECONDS
            log.error("nothing is started or stopped", reason=str(error), again_in_s=SAVE_AGAIN_SECONDS)  # noqa: TRY400
            return False
        self.trouble = ""
        return True

    def _send(self, plan: Plan, fleet: FleetView, now: float) -> bool:
        """Queue the commands; whether none was left over. What is left over is decided again."""
        all_sent = True
        for command in plan.commands:
            node = fleet.nodes.get(command.node)
            link = None if node is None or node.connection is None else self.links.get(node.connection)
            if link is None:
                continue  # its stream has just ended; the fleet is about to say so
            all_sent = self.commands.send(command, link, now) and all_sent
        return all_sent
