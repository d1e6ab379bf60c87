"""What the shim does just before it becomes an engine. The exec itself is tried in test_shim."""

import socket
from pathlib import Path

import pytest

from llmgw.agent.shim_engine import (
    engine_environment,
    execute,
    lower_oom_score,
    port_taken,
    read_oom_kills,
    write_text,
)


def test_mark_and_what_keeps_it_readable_are_added() -> None:
    assert engine_environment({"A": "1", "SPT_NOENV": ""}, "m") == {"A": "1", "SPT_NOENV": "1", "LLMGW_MARK": "m"}


@pytest.mark.parametrize(
    ("family", "address", "listens", "reuse"),
    [
        (socket.AF_INET, "127.0.0.1", True, False),
        (socket.AF_INET, "127.0.0.2", True, False),
        (socket.AF_INET, "0.0.0.0", True, True),
        (socket.AF_INET, "127.0.0.1", False, False),
        (socket.AF_INET6, "::1", True, False),
        (socket.AF_INET6, "::", True, True),
    ],
)
def test_a_taken_port(family: socket.AddressFamily, address: str, listens: bool, reuse: bool) -> None:
    """At any address, whatever its options, and free at once when it is closed."""
    with socket.socket(family) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse))
        try:
            other.bind((address, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        if listens:
            other.listen()
        port = other.getsockname()[1]
        assert port_taken(port)
    assert not port_taken(port)


def test_a_connection_that_was_closed_does_not_take_the_port() -> None:
    """TIME_WAIT on our side, as a server that closes first leaves it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server, _ = listener.accept()
            server.close()
            assert client.recv(1) == b""
    assert not port_taken(port)


@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("memory.events", "low 0\n", None),
        ("memory.events", "oom_kill many\n", None),
        ("memory.events", "one two three\n", None),
        ("something else", "oom_kill 1\n", None),
    ],
)
def test_the_counter_of_both_kinds_of_cgroup(tmp_path: Path, name: str, text: str, kills: int | None) -> None:
    (tmp_path / name).write_text(text)
    assert read_oom_kills(str(tmp_path)) == kills


def test_lowered_and_the_engine_keeps_what_we_had(tmp_path: Path) -> None:
    file = tmp_path / "self/oom_score_adj"
    file.parent.mkdir()
    file.write_text("200\n")
    assert lower_oom_score(str(tmp_path)) == 200
    assert file.read_text() == "-900"


def test_an_unreadable_score_is_no_trouble(tmp_path: Path) -> None:
    assert lower_oom_score(str(tmp_path)) == 0


def test_write_text_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_text(str(tmp_path / "absent"), "1")


def test_refusals_to_execute(tmp_path: Path) -> None:
    """The one that explains most: a program that is there and cannot be run, over those that are not there."""
    with pytest.raises(OSError, match=r"no such program in the folders of PATH \(/a:/b\)"):
        execute(["none"], {"PATH": "/a:/b"})
    with pytest.raises(OSError, match="No such file"):
        execute([str(tmp_path / "none")], {})
    (tmp_path / "text").write_text("no program")
    with pytest.raises(PermissionError):
        execute(["text"], {"PATH": f"{tmp_path}:/b"})
    (tmp_path / "text").chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        execute(["text"], {"PATH": f"/a:{tmp_path}"})
    with pytest.raises(ValueError, match="null"):
        execute(["/bin/true", "a\0b"], {})
