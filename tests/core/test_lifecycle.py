import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.lifecycle import (
    COMING_UP,
    SERVING,
    TERMINAL,
    TRANSITIONS,
    Cause,
    ShardReport,
    ShardState,
    check_transition,
    parse_state,
    replica_id,
    shard_id,
    split_replica,
    split_shard,
)
from llmgw.errors import InvariantBroken

S = ShardState
model_names = st.text(min_size=1, max_size=12)


def reachable(start: ShardState) -> set[ShardState]:
    """Every state that some row sequence leads to."""
    found, left = {start}, [start]
    while left:
        for state in TRANSITIONS[left.pop()] - found:
            found.add(state)
            left.append(state)
    return found


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(S)


def test_failed_can_be_entered_from_every_state_but_the_last_two() -> None:
    assert {state for state in S if S.FAILED in TRANSITIONS[state]} == set(S) - TERMINAL


def test_nothing_leaves_the_last_two() -> None:
    assert all(not TRANSITIONS[state] for state in TERMINAL)


def test_every_state_can_be_reached_and_can_end() -> None:
    assert reachable(S.ACCEPTED) == set(S)
    assert all(reachable(state) & TERMINAL for state in S)


def test_no_state_is_ever_entered_again() -> None:
    """A life goes one way: a new try is a new epoch."""
    assert all(state not in reachable(after) for state in S for after in TRANSITIONS[state])


def test_stopped_means_that_we_stopped_it() -> None:
    """Only what we sent a signal, or never launched, can be `stopped`."""
    assert {state for state in S if S.STOPPED in TRANSITIONS[state]} == {S.STOPPING, S.ACCEPTED}


def test_only_a_real_answer_makes_ready() -> None:
    assert {state for state in S if S.READY in TRANSITIONS[state]} == {S.STARTING, S.LOADING}


def test_the_groups_divide_the_states() -> None:
    assert sorted([*TERMINAL, *COMING_UP, *SERVING, S.STOPPING]) == sorted(S)


@pytest.mark.parametrize("old", list(S))
@pytest.mark.parametrize("new", list(S))
def test_check_transition_knows_the_table(old: ShardState, new: ShardState) -> None:
    if new in TRANSITIONS[old]:
        check_transition("m/0/0", old, new)
        return
    with pytest.raises(InvariantBroken) as caught:
        check_transition("m/0/0", old, new, "seen at 12:00")
    message = str(caught.value)
    assert "m/0/0" in message
    assert f"{old} -> {new}" in message
    assert "seen at 12:00" in message


def test_a_state_of_a_newer_agent_is_kept_raw() -> None:
    report = ShardReport("m/0/0", 1, state="warming")
    assert parse_state("warming") is None
    assert report.known_state is None
    assert report.state == "warming"
    assert ShardReport("m/0/0", 1, state="ready").known_state is S.READY


@settings(max_examples=settings().max_examples // 10)
@given(model_names, st.integers(0, 10**6), st.integers(0, 1000))
def test_ids_split_into_what_they_were_made_of(model: str, number: int, rank: int) -> None:
    """Property: whatever is in a model's name, slashes included."""
    replica = replica_id(model, number)
    shard = shard_id(replica, rank)
    assert split_shard(shard) == (replica, rank)
    assert split_replica(replica) == (model, number)


@pytest.mark.parametrize("text", ["", "m", "/0", "m/x"])
def test_what_is_no_replica_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        split_replica(text)


@pytest.mark.parametrize("text", ["", "m/0", "m/0/x", "m/x/0"])
def test_what_is_no_shard_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        split_shard(text)


def test_the_empty_cause_is_none() -> None:
    """A report without a cause says so by the word's absence."""
    assert ShardReport("m/0/0", 1).cause == Cause.NONE
