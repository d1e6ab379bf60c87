"""An engine's end in words: what the kernel and the shim know stands, else the engine's own words count."""

import attrs
import pytest
from fake_engines import FakeAdapter, FakeEngine, Process

from llmgw.agent.following import explained, see_off, translated
from llmgw.agent.launch import Exited, Gone, LaunchRequest, ShimKilled, Started
from llmgw.core import shard_events as words
from llmgw.core.lifecycle import Cause
from llmgw.engines.base import Exit, Explanation


@attrs.frozen
class Knowing(FakeAdapter):
    """An adapter that recognises one failure."""

    def explain(self, end: Exit, output: str) -> Explanation:
        if "CUDA out of memory" in output:
            return Explanation(Cause.GPU_MEMORY, "CUDA out of memory", "give it more GPUs")
        return super().explain(end, output)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            Exited(1, None, "exited", "exit code 1", "CUDA out of memory"),
            ("gpu memory", "exit code 1: CUDA out of memory (give it more GPUs)"),
        ),
        (Exited(137, None, "exited", "exit code 137", ""), ("exited", "exited with code 137")),
        (Exited(2, None, "exited", "exit code 2", "usage: x\nbad flag"), ("exited", "exited with code 2: bad flag")),
        (
            Exited(None, 9, "signalled", "signal 9, sender unknown", ""),
            ("signalled", "signal 9, sender unknown"),
        ),
        (
            Exited(None, 9, "host memory", "signal 9, killed by the kernel for host memory", "CUDA out of memory"),
            ("host memory", "signal 9, killed by the kernel for host memory"),
        ),
        (Exited(None, None, "port taken", "port 20001 is taken"), ("port taken", "port 20001 is taken")),
        (Exited(0, None, "exited", "exit code 0", "", requested=True), ("exited", "exit code 0")),
    ],
)
def test_c11_an_end_is_told_as_it_is_known(event: Exited, expected: tuple[str, str]) -> None:
    assert explained(event, Knowing()) == expected


def test_without_an_adapter_the_shims_words_stand() -> None:
    event = Exited(1, None, "exited", "exit code 1", "CUDA out of memory")
    assert explained(event, None) == ("exited", "exit code 1")


def test_every_event_has_its_word() -> None:
    assert translated("m/0/0", 3, Started(42), None) == words.EngineStarted("m/0/0", 3, 42)
    assert translated("m/0/0", 3, Gone(), None) == words.EngineGone("m/0/0", 3)
    assert translated("m/0/0", 3, ShimKilled("killed", "out"), None) == words.ShimEnded("m/0/0", 3, "killed", "out")
    exited = Exited(1, None, "exited", "exit code 1", "out", dropped_bytes=5, age_seconds=9.0)
    assert translated("m/0/0", 3, exited, None) == words.EngineExited(
        "m/0/0", 3, 1, None, "exited", "exit code 1", "out", 9.0
    )


async def test_what_is_left_of_an_older_launch_is_ended_and_forgotten() -> None:
    process = Process(LaunchRequest("m/0/0", 3, ("x",)), 42)
    process.happens(Started(42))
    await see_off(FakeEngine(process))
    assert process.stops == [(0.0, False)]
    assert process.forgotten
