"""F09: seconds taken for milliseconds, KB of two meanings, values that contradict each other.

`heartbeat_interval` is `heartbeat` here, `load deadline` is `start_deadline`, and `gpu_memory_utilization` is an
option of an engine, which `args` carry.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import Setting, settings_of
from llmgw.config.show import duration_text
from llmgw.core.units import Duration, Size
from llmgw.errors import Mistake

LoadCluster: TypeAlias = Callable[..., Loaded[ClusterConfig]]
Mistakes: TypeAlias = Callable[..., list[Mistake]]

CONTROL = '[control]\nlisten = "127.0.0.1:7070"\n'


def profile(settings: str, model: str = "") -> str:
    return f'{CONTROL}[[models]]\nname = "a"\n{model}\n[models.profile]\nengine = "vllm"\nmodel = "m"\n{settings}\n'


def timers() -> list[Setting]:
    """Every duration and size of both files that can be written at the top of a table."""
    kinds = (Duration, Duration | None, Size, Size | None)
    return [one for config in (ClusterConfig, NodeConfig) for one in settings_of(config) if one.kind in kinds]


@pytest.mark.parametrize(("value", "seconds"), [('"5s"', 5.0), ('"500ms"', 0.5)])
def test_f09_a_unit_is_understood(value: str, seconds: float, load_cluster_text: LoadCluster) -> None:
    assert load_cluster_text(f"[control]\nheartbeat = {value}\n").config.control.heartbeat == seconds


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("5000", 'write "5000s" or "5000ms"'),
        ('"5 sec"', 'write "5s"'),
        ("0", 'write "0s" or "0ms"'),
        ("-1", ""),
        ("true", ""),
        ("nan", ""),
        ("inf", ""),
        ("5.0", 'write "5.0s" or "5.0ms"'),
        ('"5S"', 'write "5s"'),
        ('""', ""),
    ],
)
def test_f09_what_is_not_understood_is_an_error_and_never_a_guess(
    value: str, hint: str, cluster_mistakes: Mistakes
) -> None:
    """The unit is a suffix that cannot be left out; booleans are not numbers, and nan is none."""
    (mistake,) = cluster_mistakes(f"[control]\nheartbeat = {value}\n")
    assert (mistake.origin, mistake.path) == ("cluster.toml:2", "control.heartbeat")
    assert "a duration with its unit" in mistake.expected
    assert mistake.hint == hint


def test_f09_every_timer_and_every_size_needs_its_unit() -> None:
    """Property: the type says so, and no setting of time or space is a bare number."""
    assert len(timers()) >= 12
    for config in (ClusterConfig, NodeConfig):
        for setting in settings_of(config):
            suspicious = any(
                word in setting.key for word in ("_after", "timeout", "deadline", "_for", "heartbeat", "memory", "_max")
            )
            if suspicious and setting.key != "unreachable_after_missed":
                assert setting in timers(), setting.path


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("80", 'write "80GiB"'),
        ('"80GB"', 'GB has two meanings: write "80GiB", or "74.51GiB" for powers of 1000'),
        ('"80g"', 'g has two meanings: write "80GiB", or "74.51GiB" for powers of 1000'),
        ("true", ""),
        ("nan", ""),
    ],
)
def test_f09_gb_is_refused(value: str, hint: str, cluster_mistakes: Mistakes) -> None:
    """Since it means 10^9 to some and 2^30 to others."""
    (mistake,) = cluster_mistakes(profile(f"memory = {value}"))
    assert mistake.path == "models[0].profile.memory"
    assert "a size with its unit" in mistake.expected
    assert mistake.hint == hint


def test_f09_gib_is_understood(load_cluster_text: LoadCluster) -> None:
    found = load_cluster_text(profile('memory = "80GiB"')).config.models[0].profile
    assert found is not None
    assert found.memory == 80 * 1024**3


@pytest.mark.parametrize(("value", "meant"), [("90", "0.9"), ("0", "0.9"), ("1.5", "0.9"), ("85", "0.85")])
def test_f09_a_fraction_outside_0_to_1_is_refused(value: str, meant: str, cluster_mistakes: Mistakes) -> None:
    """As an argument of the engine, where it belongs, and as a setting, where somebody looked for it."""
    (mistake,) = cluster_mistakes(profile(f'args = ["--gpu-memory-utilization", "{value}"]'))
    assert mistake.expected == "expected a fraction above 0 and at most 1"
    assert (mistake.path, mistake.value) == ("models[0].profile.args[1]", f'"{value}"')
    assert mistake.hint == f"did you mean {meant}?"
    (mistake,) = cluster_mistakes(profile(f"gpu_memory_utilization = {value}"))
    assert mistake.expected == "unknown key"
    assert f'did you mean ["--gpu-memory-utilization", "{meant}"]?' in mistake.hint


@pytest.mark.parametrize("value", ["0.9", "1", "0.05", "1.0"])
def test_f09_a_fraction_is_left_to_the_engine(value: str, cluster_mistakes: Mistakes) -> None:
    assert cluster_mistakes(profile(f'args = ["--gpu-memory-utilization", "{value}"]')) == []


@pytest.mark.parametrize("setting", [one for one in timers() if not one.in_array], ids=lambda one: ".".join(one.path))
def test_f09_zero_is_refused_where_it_is_senseless(setting: Setting, cluster_mistakes: Mistakes) -> None:
    """`recover_for = "0s"` means: do not wait, which somebody may want."""
    *table, key = setting.path
    zero = '"0B"' if setting.kind is Size else '"0s"'
    told = cluster_mistakes(f"[{'.'.join(table)}]\n{key} = {zero}\n")
    assert bool(told) is (key != "recover_for")


CONTRADICTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "unreachable after lost": (
        CONTROL + 'heartbeat = "10s"\nunreachable_after_missed = 5\nlost_after = "50s"',
        {"heartbeat": "10s", "unreachable_after_missed": "5", "lost_after": "50s"},
    ),
    "stop grace over drain deadline": (
        profile('stop_grace = "61s"', 'drain_deadline = "60s"'),
        {"stop_grace": "61s", "drain_deadline": "60s"},
    ),
    "replaced before it is lost": (
        profile("", 'replace_after = "100s"'),
        {"replace_after": "100s", "lost_after": "180s"},
    ),
    "connecting longer than the first byte may take": (
        '[router]\nconnect_timeout = "20s"\nfirst_byte_timeout = "10s"',
        {"connect_timeout": "20s", "first_byte_timeout": "10s"},
    ),
    "memory of GPUs and no GPU": (profile('gpu_memory = "40GiB"'), {"gpu_memory": "", "gpus": "0"}),
}


@pytest.mark.parametrize(("text", "named"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_f09_contradictions_are_refused_with_both_keys_and_values(
    text: str, named: dict[str, str], cluster_mistakes: Mistakes
) -> None:
    (mistake,) = cluster_mistakes(text)
    for key, value in named.items():
        assert key in str(mistake)
        assert value in str(mistake)


def test_f09_a_start_deadline_below_the_time_between_probes_is_refused(cluster_mistakes: Mistakes) -> None:
    (mistake,) = cluster_mistakes(profile('start_deadline = "50ms"'))
    assert (mistake.path, mistake.value) == ("models[0].profile.start_deadline", '"0.05s"')
    assert mistake.expected == "expected at least 1s, more than between two probes"


def test_f09_a_heartbeat_of_5000_seconds_is_refused(cluster_mistakes: Mistakes) -> None:
    """Also where every other timer was stretched to fit it."""
    (mistake,) = cluster_mistakes('[control]\nheartbeat = "5000s"\nlost_after = "10h"\n')
    assert (mistake.path, mistake.value) == ("control.heartbeat", '"5000s"')
    assert mistake.expected == "expected at most 60s"


@pytest.mark.parametrize("seconds", [0.5, 5.0, 90.0, 1200.0, math.pi])
def test_f09_what_is_printed_has_its_unit_again(seconds: float, load_cluster_text: LoadCluster) -> None:
    text = f'[router]\nidle_timeout = "{duration_text(seconds)}"\n'
    found: Any = load_cluster_text(text).config.router.idle_timeout
    assert math.isclose(found, seconds, rel_tol=1e-12)
