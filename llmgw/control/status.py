"""What control shows of itself: the status document and the gauges, made from what the actors have published.

Pure functions of a `Scene`; nothing here changes anything, and nothing is remembered between two answers.
"""

from collections.abc import Iterator, Mapping

import attrs

import llmgw
from llmgw.control.metrics import Gauges
from llmgw.control.reconciler import Decided
from llmgw.control.routes import Follower, Published
from llmgw.core import statusdoc as doc
from llmgw.core.catalog import Catalog
from llmgw.core.lifecycle import ShardState, shard_id, split_shard
from llmgw.core.nodes import FleetView, Node, NodeState, Pulse
from llmgw.core.replicas import ReplicaState, ReplicaView, ShardView
from llmgw.core.units import format_seconds

NOT_KNOWN = frozenset({NodeState.LOST, NodeState.INCOMPATIBLE})
"""States of nodes that nobody waits for."""


@attrs.frozen
class Scene:
    """Everything that is shown, at one moment."""

    now: float
    """Monotonic seconds, the clock of all ages here."""
    started: float
    incarnation: str
    catalog: Catalog
    fleet: FleetView
    decided: Decided
    published: Published
    followers: tuple[Follower, ...] = ()
    """Oldest connection first."""
    busy_since: Mapping[str, float] = attrs.field(factory=dict)
    """Nodes that do not keep up with their commands."""
    troubles: tuple[str, ...] = ()
    """What keeps control from its work, each a sentence: a file that cannot be read, a full disk."""


def status(scene: Scene) -> doc.Status:
    """The document of `GET /api/v1/status`."""
    booked = _bookings(scene)
    return doc.Status(
        control_status(scene),
        tuple(_node(scene, node, booked.get(node.id, {})) for node in scene.fleet.nodes.values()),
        tuple(_routers(scene)),
        tuple(_models(scene, booked)),
    )


def control_status(scene: Scene) -> doc.ControlStatus:
    """Control itself."""
    known = [node for node in scene.fleet.nodes.values() if node.state not in NOT_KNOWN]
    return doc.ControlStatus(
        version=llmgw.__version__,
        state="serving" if scene.fleet.recovery is None else "recovering",
        uptime_s=scene.now - scene.started,
        known_nodes=len(known),
        synced_nodes=sum(node.state is not NodeState.SYNCING for node in known),
        reason="; ".join(_reasons(scene)),
        incarnation=scene.incarnation,
        routes_revision=scene.published.revision,
    )


def gauges(scene: Scene) -> Gauges:
    """The same facts, counted."""
    nodes = dict.fromkeys((state.value for state in NodeState), 0)
    for node in scene.fleet.nodes.values():
        nodes[node.state.value] += 1
    names = _names(scene)
    replicas = {(name, state.value): 0 for name in names for state in ReplicaState}
    for name, views in scene.decided.views.items():
        for view in views:
            replicas[name, view.state] = replicas.get((name, view.state), 0) + 1
    return Gauges(nodes, replicas, _in_flight(scene))


def _reasons(scene: Scene) -> Iterator[str]:
    yield from scene.troubles
    recovery = scene.fleet.recovery
    if recovery is not None:
        left = f"for at most another {format_seconds(recovery.until - scene.now)}" if scene.now < recovery.until else ""
        yield f"{recovery.reason}: nothing is stopped or given up {left}".rstrip()
    until = scene.fleet.spare_strangers_until
    if until is not None and scene.now < until and scene.fleet.nodes:
        yield f"first start: engines that it did not start itself are let be for {format_seconds(until - scene.now)}"


def _node(scene: Scene, node: Node, booked: Mapping[str, tuple[str, ...]]) -> doc.NodeStatus:
    pulse = scene.fleet.pulses.get(node.id, Pulse())
    heard = None if pulse.last_heard is None else scene.now - pulse.last_heard
    problems = [f"{problem.code}: {problem.detail}" for problem in node.problems if not problem.gpu]
    if node.id in scene.busy_since:
        busy = format_seconds(scene.now - scene.busy_since[node.id])
        problems.append(f"not keeping up: its queue of commands has been full for {busy}")
    return doc.NodeStatus(
        id=node.id,
        state=node.state.value,
        marks=(*(("cordoned",) if node.cordoned else ()), *(("draining",) if node.draining else ())),
        address=node.address,
        last_heard_s=heard,
        gpus=tuple(_gpus(node, pulse, booked)),
        fabrics=tuple(
            doc.FabricStatus(fabric.name, tuple(hca.name for hca in fabric.hcas)) for fabric in node.hardware.fabrics
        ),
        labels=node.labels,
        reason=node.reason,
        since_s=scene.now - node.since,
        agent_version=node.agent_version,
        cpus=node.hardware.cpus,
        memory_total_bytes=node.hardware.memory_total_bytes,
        gpu_memory_age_s=None if heard is None else heard + pulse.gpu_memory_stale_seconds,
        problems=tuple(problems),
    )


def _gpus(node: Node, pulse: Pulse, booked: Mapping[str, tuple[str, ...]]) -> Iterator[doc.GpuStatus]:
    holders: dict[str, dict[str, None]] = {}
    held = {report.shard: report.gpus for report in node.shards.values() if not report.gone}
    for shard, uuids in (*booked.items(), *held.items()):
        for uuid in uuids:
            holders.setdefault(uuid, {})[shard] = None
    for gpu in node.hardware.gpus:
        problems = [f"{problem.code}: {problem.detail}" for problem in node.problems if problem.gpu == gpu.uuid]
        yield doc.GpuStatus(
            gpu.uuid,
            gpu.name,
            gpu.memory_total_bytes,
            pulse.gpu_memory_used_bytes.get(gpu.uuid),
            (*gpu.problems, *problems),
            tuple(sorted(holders.get(gpu.uuid, ()))),
        )


def _bookings(scene: Scene) -> dict[str, dict[str, tuple[str, ...]]]:
    """Node -> shard -> GPUs of everything that is booked, from the decision on."""
    booked: dict[str, dict[str, tuple[str, ...]]] = {}
    for replica in scene.decided.replicas.by_id.values():
        for launch in replica.launches:
            for rank, member in enumerate(launch.members):
                booked.setdefault(member.node, {})[shard_id(replica.id, rank)] = member.gpus
    return booked


def _routers(scene: Scene) -> Iterator[doc.RouterStatus]:
    # A router that has dialled anew while its old stream hangs is one router.
    for follower in {follower.id: follower for follower in scene.followers}.values():
        revision = follower.revision(scene.incarnation)
        yield doc.RouterStatus(
            follower.id,
            revision,
            scene.now - follower.heard_at,
            revision == scene.published.revision,
            0 if follower.report is None else sum(entry.in_flight for entry in follower.report.endpoints),
            follower.version,
            follower.peer,
        )


def _models(scene: Scene, booked: Mapping[str, Mapping[str, tuple[str, ...]]]) -> Iterator[doc.ModelStatus]:
    ended = _ended(scene)
    names = _names(scene)
    endpoints: dict[str, list[doc.EndpointStatus]] = {}
    for endpoint in scene.published.table.endpoints:
        shown = doc.EndpointStatus(endpoint.id, endpoint.address, endpoint.state, endpoint.reason)
        endpoints.setdefault(endpoint.model, []).append(shown)
    for name in names:
        model = scene.catalog.models.get(name)
        views = scene.decided.views.get(name, ())
        yield doc.ModelStatus(
            name,
            aliases=() if model is None else model.aliases,
            desired=0 if model is None or model.profile is None else model.replicas,
            ready=sum(view.state == ReplicaState.READY for view in views),
            replicas=tuple(_replica(scene, view, booked, ended.get(view.id, ())) for view in views),
            explanation=scene.decided.explanations.get(name),
            endpoints=tuple(endpoints.get(name, ())),
        )


def _names(scene: Scene) -> list[str]:
    """Models of the catalog, then those that were removed and of which something is left."""
    removed = [name for name, views in scene.decided.views.items() if views and name not in scene.catalog.models]
    return [*scene.catalog.models, *removed]


def _replica(
    scene: Scene,
    view: ReplicaView,
    booked: Mapping[str, Mapping[str, tuple[str, ...]]],
    ended: tuple[ShardView, ...],
) -> doc.ReplicaStatus:
    # Where nothing runs, what ran last says why.
    shards = tuple(_shard(scene, shard, booked.get(shard.node, {}).get(shard.id, ())) for shard in view.shards or ended)
    return doc.ReplicaStatus(view.id, view.state, view.reason, view.outdated, shards)


def _ended(scene: Scene) -> dict[str, tuple[ShardView, ...]]:
    """Replica -> the shards of its last launch that has failed and is gone."""
    newest: dict[str, tuple[ShardView, ...]] = {}
    for node in scene.fleet.nodes.values():
        for report in (*node.shards.values(), *node.ended.values()):
            if not (report.gone and report.state == ShardState.FAILED):
                continue
            replica, _ = split_shard(report.shard)
            shown = ShardView(
                report.shard, node.id, report.state, report.gone, report.epoch, report.port, report.pid, report.error
            )
            before = newest.get(replica, ())
            if not before or before[0].epoch < report.epoch:
                newest[replica] = (shown,)
            elif before[0].epoch == report.epoch:
                newest[replica] = (*before, shown)
    return newest


def _shard(scene: Scene, shard: ShardView, booked: tuple[str, ...]) -> doc.ShardStatus:
    shown = doc.ShardStatus(
        shard.id, shard.node, shard.state, shard.gone, shard.epoch, shard.port, shard.pid, shard.error, booked
    )
    node = scene.fleet.nodes.get(shard.node)
    report = None if node is None else node.report(shard.id, shard.epoch)
    if node is None or report is None:
        return shown
    since = node.shard_since.get(shard.id)
    return attrs.evolve(
        shown,
        gpus=report.gpus,
        since_s=None if since is None else scene.now - since,
        cause=report.cause,
        exit_code=report.exit_code,
        signal=report.signal,
        output=node.outputs.get(shard.id, "") if report.state == ShardState.FAILED else "",
    )


def _in_flight(scene: Scene) -> dict[tuple[str, str], int]:
    models = {endpoint.id: endpoint.model for endpoint in scene.published.table.endpoints}
    total = {(model, endpoint): 0 for endpoint, model in models.items()}
    for follower in scene.followers:
        for entry in () if follower.report is None or not follower.live(scene.now) else follower.report.endpoints:
            # An endpoint that is in no table any more still has its streams to finish.
            model = models.get(entry.id) or entry.id.rpartition("/")[0]
            total[model, entry.id] = total.get((model, entry.id), 0) + entry.in_flight
    return total
