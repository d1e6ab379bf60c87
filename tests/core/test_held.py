"""What is written to disk of a launch comes back, whatever version wrote it and whatever the clocks did."""

import json

import attrs
import pytest

from llmgw.core.held import RESUMED_START_SECONDS_MIN, Held, Spec, report, restored, saved
from llmgw.core.lifecycle import ShardState

S = ShardState

SPEC = Spec(
    "org/tiny/0/0",
    7,
    spec_hash="0123456789abcdef",
    engine="llamacpp",
    served_name="tiny",
    probe="embedding",
    listener_check=False,
    gpus=("GPU-a", "GPU-b"),
    host="::1",
    port=20001,
    rendezvous_port=20002,
    start_deadline=60.0,
    stop_grace=3.0,
    key="s3cret",
)


def through_disk(held: Held, *, now: float, unix_now: float, later: float, unix_later: float) -> Held:
    record = json.loads(json.dumps(saved(held, now, unix_now)))
    return restored("org/tiny/0/0", 7, record, later, unix_later)


def test_a_launch_survives_a_reboot_of_the_monotonic_clock() -> None:
    held = Held(SPEC, since=900.0, state=S.READY, launched=True, pid=4711, error="note")
    back = through_disk(held, now=1000.0, unix_now=1_700_000_000.0, later=5.0, unix_later=1_700_000_030.0)
    assert report(back, 5.0) == attrs.evolve(report(held, 1000.0), since_seconds=130.0)
    assert back.spec == SPEC


def test_the_end_of_a_launch_is_kept() -> None:
    held = Held(SPEC, 1.0, S.FAILED, True, True, error="signal 9", cause="signalled", signal=9, stop_grace=2.0)
    back = through_disk(held, now=1.0, unix_now=1e9, later=1.0, unix_later=1e9)
    assert attrs.evolve(back, story=()) == held


@pytest.mark.parametrize(
    ("unix_later", "left"),
    [
        (1e9 + 100.0, 1100.0),
        (1e9 + 1190.0, RESUMED_START_SECONDS_MIN),
        (1e9 + 1e7, RESUMED_START_SECONDS_MIN),
        (1e9 - 50.0, 1250.0),
    ],
)
def test_a_start_deadline_goes_on_and_is_never_over_at_once(unix_later: float, left: float) -> None:
    held = Held(SPEC, 0.0, S.LOADING, launched=True, deadline=1200.0)
    back = through_disk(held, now=0.0, unix_now=1e9, later=10.0, unix_later=unix_later)
    assert back.deadline == 10.0 + left


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"spec": None, "state": "warming", "gone": "no", "pid": "x", "since_unix": "then"},
        {"spec": {"gpus": [1], "port": "80", "key": None}, "state": 3, "exit_code": True},
    ],
)
def test_an_engine_is_never_given_up_for_its_record(record: dict[str, object]) -> None:
    back = restored("m/0/0", 3, record, 10.0, 1e9)
    assert back.state is S.LOADING
    assert (back.gone, back.pid, back.exit_code, back.since) == (False, None, None, 10.0)
    assert back.spec == Spec("m/0/0", 3)
    assert back.deadline == 10.0 + RESUMED_START_SECONDS_MIN


def test_the_key_is_in_no_text() -> None:
    assert "s3cret" not in repr(Held(SPEC, 0.0))
