"""All of control's actors, wired on one page.

    arrivals (sockets, socketpairs, or memory in tests)
        |
    Listener, a task per connection
        |- agent:  serve_node     --may block-->  Inventory: the only writer of the fleet
        |- router: serve_follower <-> Publisher
    prober (engines without an agent) --may block--> Inventory

    Inventory  --Latest[FleetView]-->  Reconciler, Publisher, prober, status
               --nowait-->  Links (answers of the connections of agents)
               --ring-->  Reconciler (a command was answered)
    Reconciler: the only writer of the replicas
               --nowait-->  Links (commands)
               --Latest[Decided]-->  Publisher, status
    Publisher  --Latest[Published]-->  followers, status
               --ring-->  Reconciler (routers have moved on)

Arrows into the inventory may wait; none out of it can. Time is Trio's; everything else that comes from outside is an
argument of `run_control`, so that the same code runs over memory streams and on a clock that jumps.
"""

import random
from collections.abc import Callable, Mapping
from typing import NoReturn

import attrs
import structlog
import trio

from llmgw.config.schema import ClusterConfig
from llmgw.control.commands import Commands, Links
from llmgw.control.inventory import CHANNEL_MAX, Input, Inventory
from llmgw.control.listener import Arrivals, Listener
from llmgw.control.metrics import ControlMetrics, HeartbeatLag
from llmgw.control.prober import Connect, probe_kept_nodes
from llmgw.control.reconciler import Decided, Reconciler
from llmgw.control.routes import Publisher
from llmgw.control.status import Scene, control_status, gauges, status
from llmgw.control.store import Store, StoreError
from llmgw.control.wake import Wake
from llmgw.core import statusdoc as doc
from llmgw.core.fleet import Fleet, FleetSettings
from llmgw.engines import ENGINES
from llmgw.latest import Latest

log = structlog.get_logger()


@attrs.define(eq=False)
class Control:
    """A running control, as its admin server and its tests see it."""

    config: ClusterConfig
    incarnation: str
    started: float
    store: Store
    commands: Commands
    inventory: Inventory
    reconciler: Reconciler
    publisher: Publisher
    collector: ControlMetrics

    def status(self) -> doc.Status:
        """The document of `GET /api/v1/status`."""
        return status(self.scene())

    def readiness(self) -> tuple[bool, str]:
        """Ready as soon as there is a table for routers: a control that is recovering does its work, and says so."""
        if self.publisher.latest.value.revision == 0:
            return False, "starting"
        said = control_status(self.scene())
        return True, f"{said.state}: {said.reason}" if said.reason else said.state

    def metrics(self) -> bytes:
        """In the text format of Prometheus."""
        return self.collector.text(gauges(self.scene()))

    def scene(self) -> Scene:
        """Everything that is shown, now."""
        return Scene(
            now=trio.current_time(),
            started=self.started,
            incarnation=self.incarnation,
            catalog=self.config.catalog,
            fleet=self.inventory.view(),
            decided=self.reconciler.latest.value,
            published=self.publisher.latest.value,
            followers=tuple(self.publisher.followers.values()),
            busy_since=self.commands.busy_since,
            troubles=tuple(filter(None, (self.store.stored.problem, self.reconciler.trouble))),
        )


async def run_control(
    config: ClusterConfig,
    *,
    listen: Arrivals,
    connect: Connect,
    store: Store,
    wall_clock: Callable[[], float],
    rng: random.Random,
    static_keys: Mapping[tuple[str, str], str],
    task_status: trio.TaskStatus[Control] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Be the control of a cluster until cancelled. The seams:

    listen: connections of agents and routers, whatever they run over. connect: to the port of an engine. store: what
    outlives this run. wall_clock: unix seconds. static_keys: (model, url) of a static endpoint -> its key.
    """
    control, listener, inputs = wire_up(config, store=store, wall_clock=wall_clock, rng=rng, static_keys=static_keys)
    inventory, reconciler, publisher = control.inventory, control.reconciler, control.publisher
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inventory.run, inputs)
        nursery.start_soon(reconciler.run, inventory.latest)
        nursery.start_soon(publisher.run)
        nursery.start_soon(probe_kept_nodes, inventory.latest, connect, listener.inputs)
        nursery.start_soon(listener.run, listen)
        task_status.started(control)
    raise AssertionError("unreachable: it ends by cancellation")


def wire_up(
    config: ClusterConfig,
    *,
    store: Store,
    wall_clock: Callable[[], float],
    rng: random.Random,
    static_keys: Mapping[tuple[str, str], str],
) -> tuple[Control, Listener, trio.MemoryReceiveChannel[Input]]:
    """Every actor of one control, not running yet."""
    now, stored = trio.current_time(), store.stored
    incarnation = f"{rng.getrandbits(64):016x}"
    links: Links = {}
    send_inputs, inputs = trio.open_memory_channel[Input](CHANNEL_MAX)
    settings = FleetSettings(
        heartbeat=config.control.heartbeat,
        unreachable_after_missed=config.control.unreachable_after_missed,
        lost_after=config.control.lost_after,
        recover_for=config.control.recover_for,
    )
    fleet = Fleet(settings, now, stored.memory, stored.nodes)
    collector = ControlMetrics()
    wake = Wake()
    commands = Commands(collector.count_command)
    decided = Latest(Decided(stored.replicas))
    inventory = Inventory(
        fleet=fleet,
        links=links,
        commands=commands,
        store=store,
        lag=HeartbeatLag(collector.observe_heartbeat, fleet.heartbeat_interval_seconds),
        answered=wake.ring,
    )
    publisher = Publisher(
        incarnation=incarnation,
        catalog=config.catalog,
        keys=config.keys,
        static_keys=static_keys,
        created=remember_created(config, store, wall_clock()),
        fleet=inventory.latest,
        decided=decided,
        counters=collector.routers,
        moved=wake.ring,
    )
    reconciler = Reconciler(
        catalog=config.catalog,
        served_names=served_names(config),
        fleet=inventory.view,
        routers=publisher.routers,
        links=links,
        commands=commands,
        store=store,
        wall_clock=wall_clock,
        rng=rng,
        latest=decided,
        wake=wake,
    )
    listener = Listener(inventory, send_inputs, links, publisher, incarnation)
    control = Control(config, incarnation, now, store, commands, inventory, reconciler, publisher, collector)
    return control, listener, inputs


def served_names(config: ClusterConfig) -> dict[str, str]:
    """Model -> the name that its engine answers to."""
    return {
        model.name: ENGINES[model.profile.engine].served_name(model.profile, model.name)
        for model in config.models
        if model.profile is not None
    }


def remember_created(config: ClusterConfig, store: Store, wall: float) -> dict[str, int]:
    """Model -> when it was first in a catalog of this control, for clients that ask what there is."""
    created = dict(store.stored.created)
    new = {model.name: int(wall) for model in config.models if model.name not in created}
    if new:
        try:
            store.save_created(new)
        except StoreError as error:
            log.warning("the ages of models are not remembered", reason=str(error))
    return created | new
