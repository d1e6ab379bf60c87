"""What `llmgw status` prints, at the widths that people have."""

import io
from collections.abc import Callable

import attrs
import pytest
from rich.console import Console

from llmgw.cli.status import print_status
from llmgw.core import statusdoc as doc
from llmgw.core.explain import Explanation, Reason


def rendered(status: doc.Status, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_status(console, status)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_a_status_with_one_of_everything(status: doc.Status, width: int, snapshot: Callable[[str, str], None]) -> None:
    text = rendered(status, width)
    assert all(len(line) <= width and not line.endswith(" ") for line in text.splitlines())
    snapshot(f"status-{width}", text)


@pytest.mark.parametrize("width", [80, 160])
def test_no_name_or_state_is_folded_or_cut(status: doc.Status, width: int) -> None:
    text = rendered(status, width)
    for word in (
        "llama-70b/1",
        "unreachable, cordoned",
        "deepseek/0/1",
        "legacy@http://[::1]:9000",
        "31.2 GiB of 80 GiB",
    ):
        assert word in text
    assert "…" not in text


def test_an_empty_control_says_what_to_do_next(snapshot: Callable[[str, str], None]) -> None:
    snapshot("status-empty", rendered(doc.Status(doc.ControlStatus("0.1.0", "serving", 0.2, 0, 0)), 80))


def test_a_router_alone_is_not_told_to_find_nodes(status: doc.Status) -> None:
    model = doc.ModelStatus("legacy", endpoints=(doc.EndpointStatus("legacy@http://x:1", "http://x:1", "ready"),))
    text = rendered(doc.Status(status.control, models=(model,)), 80)
    assert "none: every model has its endpoints elsewhere" in text
    assert "llmgw-agent" not in text


def test_what_a_peer_says_cannot_steer_the_terminal(status: doc.Status) -> None:
    evil = "\x1b]0;owned\x07[bold]x[/bold]\u202e\u009b31m"
    node = doc.NodeStatus(evil, evil, (evil,), evil, labels={evil: evil}, reason=evil, problems=(evil,))
    gpu = doc.GpuStatus(evil, evil, 0, None, (evil,), (evil,))
    shard = doc.ShardStatus(evil, evil, evil, error=evil, cause=evil, output=evil, gpus=(evil,))
    model = doc.ModelStatus(
        evil,
        (evil,),
        1,
        0,
        (doc.ReplicaStatus(evil, evil, evil, shards=(shard,)),),
        Explanation(evil, (Reason(evil, (evil,), evil),), evil),
        (doc.EndpointStatus("other" + evil, evil, evil, evil),),
    )
    router = doc.RouterStatus(evil, 1, None, version=evil, peer=evil)
    control = attrs.evolve(status.control, version=evil, state=evil, reason=evil)
    text = rendered(doc.Status(control, (attrs.evolve(node, gpus=(gpu,)),), (router,), (model,)), 4000)
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
    assert "[bold]x[/bold]" in text
    assert "\\x1b]0;owned\\x07" in text


def test_colours_are_for_terminals_only(status: doc.Status) -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False, force_terminal=True, color_system="standard")
    print_status(console, status)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[32mready\x1b[0m" in console.file.getvalue()
    assert "\x1b" not in rendered(status, 80)


def test_an_unknown_state_of_a_newer_agent_is_shown_as_it_is(status: doc.Status) -> None:
    shard = doc.ShardStatus("m/0/0", "n1", "hibernating")
    model = doc.ModelStatus("m", desired=1, replicas=(doc.ReplicaStatus("m/0", "hibernating", shards=(shard,)),))
    assert "hibernating" in rendered(doc.Status(status.control, models=(model,)), 80)


def test_only_the_end_of_a_long_output_is_shown(status: doc.Status) -> None:
    lines = "\n".join(f"line {number}" for number in range(100))
    shard = doc.ShardStatus("m/0/0", "n1", "failed", exit_code=1, output=lines)
    model = doc.ModelStatus("m", desired=1, replicas=(doc.ReplicaStatus("m/0", "failed", shards=(shard,)),))
    text = rendered(doc.Status(status.control, models=(model,)), 80)
    assert "line 99" in text
    assert "line 95" not in text
    assert "exit code 1" in text


@pytest.mark.parametrize(
    ("reason", "shard", "note"),
    [
        (
            "",
            doc.ShardStatus("m/0/0", "n1", "failed", error="it ended", cause="exited", exit_code=3),
            "it ended (exit code 3)",
        ),
        (
            "",
            doc.ShardStatus("m/0/0", "n1", "failed", error="out of memory", cause="gpu memory"),
            "out of memory (gpu memory)",
        ),
        ("", doc.ShardStatus("m/0/0", "n1", "failed", cause="signalled", signal=9), "m/0/0: signal 9"),
        ("signal 9, sender unknown", doc.ShardStatus("m/0/0", "n1", "failed", cause="signalled", signal=9), None),
        ("x", doc.ShardStatus("m/0/0", "n1", "failed", error="x", cause="exited", exit_code=1), "m/0/0: exit code 1"),
    ],
)
def test_how_an_engine_ended_is_said_once(
    status: doc.Status, reason: str, shard: doc.ShardStatus, note: str | None
) -> None:
    replica = doc.ReplicaStatus("m/0", "failed", reason, shards=(shard,))
    text = rendered(doc.Status(status.control, models=(doc.ModelStatus("m", desired=1, replicas=(replica,)),)), 80)
    if note is None:
        assert "m/0/0: " not in text
    else:
        assert note in text
