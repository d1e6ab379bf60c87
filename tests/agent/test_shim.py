"""The shim's protocol, recorded: the transcripts are of version 1 and hold for ever. And its entry, as a process.

A transcript: `launch` the request, `reply` the shim's one line on standard output, `>>` a line to the shim, `<<` the
line that must come back with at least these fields, `~>` the same asked until it does, `raw` a line that is no JSON,
`terminate` SIGTERM to the shim, `end` its exit status, `file` what a file of the folder holds afterwards. `<int>`,
`<float>` and `<str>` stand for any.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_shims import RawShim, talk, until

StartRaw = Callable[..., RawShim]

TRANSCRIPTS = sorted((Path(__file__).parent / "shim_transcripts").glob("*.txt"))
KINDS = {"<int>": int, "<float>": float, "<str>": str}


def holds(wanted: Any, seen: Any) -> bool:
    """Every recorded field is there with its value; more may have been added since."""
    if isinstance(wanted, dict):
        return isinstance(seen, dict) and all(key in seen and holds(value, seen[key]) for key, value in wanted.items())
    if isinstance(wanted, str) and wanted in KINDS:
        return type(seen) is KINDS[wanted]
    return type(wanted) is type(seen) and bool(wanted == seen)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(transcript: Path, start_raw: StartRaw) -> None:
    steps = [line.partition(" ")[::2] for line in transcript.read_text().splitlines() if line[:1] != "#"]
    assert steps[0][0] == "launch"
    request = json.loads(steps[0][1].replace("$PATH", os.environ["PATH"]))
    shim = start_raw(mark="test.mark", **request)
    assert holds(json.loads(steps[1][1]), shim.reply())
    asked = b""
    with talk(shim) as client:
        for verb, text in steps[2:]:
            match verb:
                case ">>" | "raw":
                    client.send(text.encode())
                    asked = b""
                case "~>":
                    asked = text.encode()
                case "<<" if asked:
                    wanted = json.loads(text)

                    def ask_again(line: bytes = asked) -> dict[str, Any]:
                        client.send(line)
                        return client.receive()

                    until(ask_again, lambda seen, wanted=wanted: holds(wanted, seen))  # type: ignore[misc]
                case "<<":
                    seen = client.receive()
                    assert holds(json.loads(text), seen), f"expected {text}, got {seen}"
                case "terminate":
                    shim.process.terminate()
                case "end":
                    assert shim.wait() == int(text)
                case "file":
                    name, _, content = text.partition(" ")
                    seen = json.loads((shim.folder / name).read_text())
                    assert holds(json.loads(content), seen), f"expected {content}, got {seen}"
                case _:
                    pytest.fail(f"{transcript.name}: unknown verb {verb!r}")


def test_every_command_is_in_a_transcript(start_raw: StartRaw) -> None:
    shim = start_raw(["sleep", "1000"])
    shim.reply()
    text = "".join(path.read_text() for path in TRANSCRIPTS)
    with talk(shim) as client:
        commands = client.ask("hello")["commands"]
    assert [name for name in commands if f'"command": "{name}"' not in text] == []
    assert len(commands) == 7


def test_nothing_is_imported_after_the_start_and_memory_is_small(start_raw: StartRaw) -> None:
    """The Python installation may be replaced under a shim; every command and the end of the engine is tried."""
    shim = start_raw(["sh", "-c", "echo up; exec sleep 1000"], "-X", "importtime")
    shim.reply()
    size = (shim.folder / "shim.log").stat().st_size
    assert size > 0
    with talk(shim) as client:
        client.until(phase="running")
        resident_kib = int(
            next(
                line for line in Path(f"/proc/{shim.process.pid}/status").read_text().splitlines() if "VmRSS" in line
            ).split()[1]
        )
        for line in (b"\xff", b"[" * 5000, b'{"v": 1, "command": "stop", "grace_seconds": NaN}'):
            client.send(line)
            assert "error" in client.receive()
        for command in ("hello", "attach", "state"):
            client.ask(command)
        client.ask("output", bytes_max=100)
        client.ask("signal", signal=int(signal.SIGCONT))
        client.ask("stop", grace_seconds=1.5, second_term=True)
        assert [client.receive()["event"] for _ in range(2)] == ["exited", "gone"]
        client.ask("forget")
    assert shim.wait() == 0
    assert (shim.folder / "shim.log").read_bytes()[size:] == b""
    assert resident_kib < 15 * 1024


def test_without_a_record_nothing_is_launched(start_raw: StartRaw, tmp_path: Path) -> None:
    shim = start_raw(["touch", str(tmp_path / "launched")], mark=None)
    assert shim.reply() == {"v": 1, "error": "the launch request lacks mark"}
    assert shim.wait() == 1
    assert sorted(path.name for path in shim.folder.iterdir()) == ["shim.log"]
    assert not (tmp_path / "launched").exists()
