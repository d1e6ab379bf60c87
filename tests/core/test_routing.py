"""Endpoints, and which of them is chosen."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.routing import (
    SCANNED_MAX,
    ClientKey,
    Endpoint,
    EndpointState,
    Load,
    Refusal,
    RoutedModel,
    Target,
    choose,
)


def test_an_endpoint_is_ready_until_somebody_says_otherwise() -> None:
    """A static endpoint has no agent that could report: it counts as ready, of epoch 0."""
    endpoint = Endpoint("legacy@http://[::1]:9000", "legacy", "http://[::1]:9000")
    assert endpoint.state == EndpointState.READY
    assert endpoint.epoch == 0


def test_a_key_without_models_may_use_all() -> None:
    assert ClientKey("team-a", "0" * 64).models == ()


def test_a_model_is_available_until_control_says_why_not() -> None:
    assert RoutedModel("tiny").unavailable is None


# --- choosing -------------------------------------------------------------------------------------------------

NOW = 100.0


def target(
    name: str, in_flight: int = 0, state: str = "ready", suspect_until: float = 0.0, trouble: str = ""
) -> Target:
    endpoint = Endpoint(name, "m", "http://127.0.0.1:1", 1, state, reason="said so" if state == "out" else "")
    return Target(endpoint, Load(in_flight, suspect_until=suspect_until, trouble=trouble))


def chosen(targets: list[Target], tried: tuple[str, ...] = (), seed: int = 1) -> str:
    found = choose(targets, NOW, random.Random(seed), tried)
    assert isinstance(found, Target), found
    return found.endpoint.id


def test_the_least_in_flight_is_chosen() -> None:
    assert chosen([target("a", 3), target("b", 1), target("c", 2)]) == "b"


def test_ties_are_drawn_and_not_resolved_by_order() -> None:
    rng = random.Random(1)
    targets = [target("a"), target("b"), target("c")]
    counts: Counter[str] = Counter()
    for _ in range(300):
        found = choose(targets, NOW, rng)
        assert isinstance(found, Target)
        counts[found.endpoint.id] += 1
    assert all(60 <= counts[name] <= 141 for name in "abc")


@pytest.mark.parametrize("suspect", [target("s", 0, "suspect"), target("s", 0, "ready", NOW + 1)])
def test_a_suspect_is_chosen_only_where_nothing_better_is(suspect: Target) -> None:
    assert chosen([suspect, target("busy", 50)]) == "busy"
    assert chosen([suspect, target("out", 0, "out")]) == "s"


def test_suspicion_ends() -> None:
    assert chosen([target("s", 0, "ready", NOW), target("busy", 1)]) == "s"


def test_a_warming_endpoint_gets_one_request_at_a_time() -> None:
    assert chosen([target("w", 0, "warming"), target("r", 1)]) == "w"
    assert chosen([target("w", 1, "warming"), target("r", 9)]) == "r"
    assert chosen([target("w", 1, "warming"), target("s", 0, "suspect")]) == "w"


@pytest.mark.parametrize("state", ["draining", "out", "hibernating", ""])
def test_others_are_never_chosen(state: str) -> None:
    refused = choose([target("x", 0, state)], NOW, random.Random(1))
    assert refused == Refusal(f"x: {state}" + (" (said so)" if state == "out" else ""))


def test_what_was_tried_is_not_tried_again_and_named() -> None:
    targets = [target("a"), target("b", 7, trouble="connection refused")]
    assert chosen(targets, ("a",)) == "b"
    assert choose(targets, NOW, random.Random(1), ("a", "b")) == Refusal("a: unreachable; b: connection refused")


def test_nothing_to_choose_from() -> None:
    assert choose([], NOW, random.Random(1)) == Refusal("")


def test_a_refusal_names_five() -> None:
    refused = choose([target(f"x{number}", 0, "draining") for number in range(7)], NOW, random.Random(1))
    assert isinstance(refused, Refusal)
    assert refused.reason.endswith("x4: draining; and 2 more")


def test_among_very_many_the_one_that_can_be_chosen_is_found() -> None:
    targets = [target(f"x{number}", 0, "draining") for number in range(SCANNED_MAX * 20)]
    targets[700] = target("only", 5)
    assert chosen(targets) == "only"


states = st.sampled_from([*EndpointState, "unheard of"])


@given(
    st.lists(st.tuples(st.integers(0, 3), states, st.sampled_from([0.0, NOW + 1])), max_size=6),
    st.sets(st.integers(0, 5)),
    st.integers(0, 100),
)
def test_property_never_one_that_is_worse_than_another(
    drawn: list[tuple[int, str, float]], tried: set[int], seed: int
) -> None:
    """Safety: nothing draining, out, unknown or tried; nothing suspect beside a better one; never more in flight."""
    targets = [target(str(number), *facts) for number, facts in enumerate(drawn)]
    ids = tuple(str(number) for number in tried)
    usable = [
        one for one in targets if one.endpoint.state in {"ready", "warming", "suspect"} and one.endpoint.id not in ids
    ]
    found = choose(targets, NOW, random.Random(seed), ids)
    if not usable:
        assert isinstance(found, Refusal)
        return
    assert isinstance(found, Target)
    assert found in usable

    def suspect(one: Target) -> bool:
        return one.endpoint.state == "suspect" or one.load.suspect_until > NOW

    if suspect(found):
        assert all(suspect(one) for one in usable)
    for other in usable:
        if other.endpoint.state == found.endpoint.state and suspect(other) == suspect(found):
            assert found.load.in_flight <= other.load.in_flight
