"""The table that follows from the catalog, the fleet and the replicas."""

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.catalog import Catalog, Model, Profile, StaticEndpoint
from llmgw.core.explain import Explanation
from llmgw.core.lifecycle import ShardReport
from llmgw.core.nodes import FleetView, Node, NodeState, Recovery
from llmgw.core.replicas import Drain, Failure, Launch, Member, Replica, Replicas
from llmgw.core.routes import Change, Table, change, table, withdrawn
from llmgw.core.routing import Endpoint, RoutedModel, Unavailable

CATALOG = Catalog({"m": Model("m", aliases=("gpt",), exact_usage=True, profile=Profile(engine="x"))})
LAUNCH = Launch(5, "h", (Member("n1"),), 0.0, accepted=True, served_name="served")


def fleet(state: str = "ready", node: NodeState = NodeState.HEALTHY, **changes: Any) -> FleetView:
    report = ShardReport("m/0/0", 5, "h", state, port=20001)
    made = Node("n1", node, address="10.0.0.1", shards={"m/0/0": report})
    return FleetView(nodes={"n1": attrs.evolve(made, **changes)})


def replicas(*launches: Launch, **changes: Any) -> Replicas:
    return Replicas({"m/0": Replica("m/0", "m", launches or (LAUNCH,), **changes)})


def made(view: FleetView, known: Replicas | None = None, explanations: dict[str, Explanation] | None = None) -> Table:
    known = replicas() if known is None else known
    return table(CATALOG, view, known, explanations or {}, static_keys={}, created={"m": 99})


def state_of(view: FleetView, known: Replicas | None = None) -> tuple[str, str]:
    endpoint = made(view, known).endpoints[0]
    return endpoint.state, endpoint.reason


def test_a_ready_replica_is_an_endpoint() -> None:
    assert made(fleet()) == Table(
        complete=True,
        models=(RoutedModel("m", ("gpt",), 99, exact_usage=True),),
        endpoints=(Endpoint("m/0", "m", "http://10.0.0.1:20001", 5, upstream_model="served"),),
    )


def test_an_ipv6_address_is_in_brackets() -> None:
    assert made(fleet(address="fd00::1")).endpoints[0].address == "http://[fd00::1]:20001"


def test_the_state_of_an_endpoint_and_its_reason() -> None:
    assert state_of(fleet(node=NodeState.UNREACHABLE)) == ("suspect", "n1 is unreachable")
    assert state_of(fleet(node=NodeState.INCOMPATIBLE)) == ("suspect", "n1 is incompatible")
    assert state_of(fleet(node=NodeState.UNREACHABLE, engines_kept=True)) == ("ready", "")
    assert state_of(fleet("draining")) == ("draining", "")
    assert state_of(fleet(), replicas(attrs.evolve(LAUNCH, drain=Drain("scaled down", 9.0)))) == (
        "draining",
        "scaled down",
    )
    assert state_of(fleet(), replicas(attrs.evolve(LAUNCH, stop="drained"))) == ("draining", "drained")


def test_an_unknown_state_is_shown_and_not_routed_to() -> None:
    assert state_of(fleet("warming")) == ("out", "unknown state 'warming'")
    assert made(fleet("warming")).models[0].unavailable is not None


def test_what_cannot_serve_is_not_in_the_table() -> None:
    for view in (fleet("loading"), fleet("stopping"), fleet("failed"), fleet(node=NodeState.LOST), FleetView()):
        assert made(view).endpoints == ()


def test_a_model_without_an_endpoint_says_why() -> None:
    def why(view: FleetView, known: Replicas | None = None, summary: str = "") -> Unavailable | None:
        explanations = {"m": Explanation(summary)} if summary else {}
        return made(view, known, explanations).models[0].unavailable

    assert why(fleet("loading")) == Unavailable("loading: m/0 is loading on n1", 5.0)
    failures = (Failure(1.0, "n1", "older"), Failure(2.0, "n1", "exit code 1"))
    assert why(fleet("failed"), replicas(failures=failures)) == Unavailable("failed: exit code 1", 10.0)
    assert why(FleetView(), Replicas(), "0 of 1 ready: pinned") == Unavailable("pending: 0 of 1 ready: pinned", 30.0)
    assert why(FleetView(), Replicas()) == Unavailable("pending: it is not placed yet", 30.0)
    just_failed = why(fleet("failed"))
    assert just_failed is not None
    assert just_failed.reason.startswith("failed: ")  # the report is in, and the reconciler has not seen it yet
    assert why(fleet("draining")) is not None
    assert why(fleet(node=NodeState.UNREACHABLE)) is None


def test_a_removed_model_is_finished_and_offered_to_nobody() -> None:
    drained = Replicas({"x/0": Replica("x/0", "x", (attrs.evolve(LAUNCH, drain=Drain("removed", 9.0)),))})
    report = ShardReport("x/0/0", 5, "h", "ready", port=1)
    view = fleet(shards={"x/0/0": report})
    assert [one.state for one in made(view, drained).endpoints] == ["draining"]
    running = Replicas({"x/0": Replica("x/0", "x", (LAUNCH,))})
    assert made(view, running).endpoints == ()
    assert [model.name for model in made(view, running).models] == ["m"]


def test_while_recovering_the_table_is_not_complete() -> None:
    assert not made(attrs.evolve(fleet(), recovery=Recovery(1, 0, 9.0, ""))).complete


def test_static_endpoints_are_routed_to_with_their_name_and_key() -> None:
    static = Model("s", endpoints=(StaticEndpoint("http://[::1]:9000/", "upstream"), StaticEndpoint("http://b:1")))
    found = table(
        Catalog({"s": static}),
        FleetView(),
        Replicas(),
        {},
        static_keys={("s", "http://b:1"): "secret"},
        created={},
    )
    assert found.models == (RoutedModel("s"),)
    assert found.endpoints == (
        Endpoint("s@http://[::1]:9000/", "s", "http://[::1]:9000", upstream_model="upstream"),
        Endpoint("s@http://b:1", "s", "http://b:1", upstream_model="s", key="secret"),
    )


def test_a_change_is_what_differs() -> None:
    old = made(fleet())
    assert change(old, old) is None
    new = made(fleet(node=NodeState.LOST))
    assert change(old, new) == Change(models=new.models, endpoints_removed=("m/0",))
    assert change(new, old) == Change(models=old.models, endpoints=old.endpoints)
    assert change(old, Table()) == Change(models_removed=("m",), endpoints_removed=("m/0",))
    assert change(old, attrs.evolve(old, complete=False)) == Change()


def test_withdrawn_is_the_first_revision_that_does_not_offer_a_launch() -> None:
    known = replicas()
    assert withdrawn({}, known, made(fleet()), 3) == {}
    assert withdrawn({}, known, made(fleet(node=NodeState.UNREACHABLE)), 3) == {}
    draining = made(fleet("draining"))
    gone = withdrawn({}, known, draining, 4)
    assert gone == {("m/0", 5): 4}
    assert withdrawn(gone, known, draining, 9) == {("m/0", 5): 4}
    assert withdrawn(gone, Replicas(), draining, 9) == {}
    assert withdrawn(gone, known, made(fleet()), 9) == {}, "offered again"


def test_of_two_launches_the_other_is_withdrawn() -> None:
    newer = attrs.evolve(LAUNCH, epoch=6)
    view = fleet(shards={"m/0/0": ShardReport("m/0/0", 6, "h", "ready", port=1)})
    both = replicas(newer, attrs.evolve(LAUNCH, members=(Member("n2"),)))
    view = attrs.evolve(view, nodes={**view.nodes, "n2": attrs.evolve(fleet().nodes["n1"], id="n2")})
    found = made(view, both)
    assert [(one.id, one.epoch) for one in found.endpoints] == [("m/0", 6)]
    assert withdrawn({}, both, found, 2) == {("m/0", 5): 2}


STATES = st.sampled_from(["accepted", "loading", "ready", "draining", "stopping", "failed", "warming"])
NODES = st.sampled_from(list(NodeState))


@settings(max_examples=max(1, settings().max_examples // 4))
@given(data=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), STATES, NODES, st.booleans()), max_size=8))
def test_at_most_one_epoch_of_a_replica_in_any_table_and_changes_lead_there(data: Any) -> None:
    nodes: dict[str, Node] = {}
    launches: dict[str, dict[int, Launch]] = {}
    for number, (index, epoch, state, node, ending) in enumerate(data):
        name = f"n{number}"
        report = ShardReport(f"m/{index}/0", epoch, "h", state, port=20000 + number)
        nodes[name] = Node(name, node, address="h", shards={report.shard: report})
        made_launch = Launch(epoch, "h", (Member(name),), 0.0, accepted=True, stop="x" if ending else "")
        launches.setdefault(f"m/{index}", {})[epoch] = made_launch
    known = Replicas(
        {
            id_: Replica(id_, "m", tuple(of[epoch] for epoch in sorted(of, reverse=True)))
            for id_, of in sorted(launches.items())
        }
    )
    found = made(FleetView(nodes=nodes), known)
    ids = [one.id for one in found.endpoints]
    assert len(ids) == len(set(ids))
    usable = any(one.state in ("ready", "suspect") for one in found.endpoints)
    assert (found.models[0].unavailable is None) == usable
    step = change(Table(), found)
    assert step is not None
    assert (step.models, step.endpoints) == (found.models, found.endpoints)
