"""From a command to a command line: models, GPUs, fabrics and secrets of this node, or what is wrong, by name."""

from pathlib import Path

import attrs
import pytest
from fake_engines import FakeAdapter, machine

from llmgw.agent.preparing import UnpreparedError, environment, model_on_node, prepare, spec_of, stop_grace
from llmgw.core.catalog import Profile, Secret
from llmgw.core.hardware import Fabric, Gpu, Hca, NodeHardware
from llmgw.core.lifecycle import Cause
from llmgw.engines.base import Assignment, Launch, Machine
from llmgw.logs import redactor
from llmgw.wire.messages import StartShard


@attrs.frozen
class Recorder(FakeAdapter):
    """An adapter that keeps what it was given."""

    given: list[tuple[Profile, Assignment]] = attrs.field(factory=list)

    def launch(self, profile: Profile, assignment: Assignment, machine: Machine) -> Launch:
        self.given.append((profile, assignment))
        return Launch(("/bin/engine",), {"A": "1"})


COMMAND = StartShard(
    1,
    "m/0/1",
    7,
    "abc",
    Profile("fake", "m.gguf"),
    "served",
    ("GPU-b", "GPU-a"),
    "ib0",
    ("n1:20001", "n2"),
    1,
    "k3y-of-it",
)
HARDWARE = NodeHardware(gpus=(Gpu("GPU-a"), Gpu("GPU-b")), fabrics=(Fabric("ib0", (Hca("mlx5_0"),)),))


def test_everything_of_the_command_reaches_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    adapter = Recorder()
    spec = spec_of(COMMAND, host="10.0.0.5", port=20000, rendezvous_port=20001)
    request = prepare(COMMAND, spec, HARDWARE, machine(str(tmp_path)), {"fake": adapter})
    ((profile, assignment),) = adapter.given
    assert profile.model == str(tmp_path / "m.gguf")
    assert [gpu.uuid for gpu in assignment.gpus] == ["GPU-b", "GPU-a"]  # in the order that control gave
    assert assignment.fabric == HARDWARE.fabrics[0]
    assert (assignment.host, assignment.port, assignment.rendezvous_port) == ("10.0.0.5", 20000, 20001)
    assert (assignment.rank, assignment.peers, assignment.key) == (1, ("n1:20001", "n2"), "k3y-of-it")
    assert (request.shard, request.epoch, request.port, request.other_ports) == ("m/0/1", 7, 20000, (20001,))
    assert (request.argv, request.env) == (("/bin/engine",), {"A": "1"})


@pytest.mark.parametrize(
    ("hardware", "error"),
    [
        (attrs.evolve(HARDWARE, gpus=()), "GPU-b is not on this node now"),
        (attrs.evolve(HARDWARE, fabrics=()), "this node is not on the fabric 'ib0'"),
    ],
)
def test_what_is_not_on_the_node_is_named_and_may_come_back(hardware: NodeHardware, error: str) -> None:
    spec = spec_of(COMMAND, host="", port=1, rendezvous_port=None)
    with pytest.raises(UnpreparedError, match=error) as caught:
        prepare(COMMAND, spec, hardware, machine(), {"fake": Recorder()})
    assert caught.value.cause is Cause.LAUNCH


def test_a_model_is_looked_for_in_models_dir(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert model_on_node("there", str(tmp_path)) == f"{tmp_path}/there"
    assert model_on_node("org/hub-id", str(tmp_path)) == "org/hub-id"
    assert model_on_node("/abs/olute", str(tmp_path)) == "/abs/olute"
    assert model_on_node("", str(tmp_path)) == ""


def test_secrets_are_read_on_the_node_and_never_logged(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hf_abcdefgh\r\n")
    env = environment(Profile("x", env={"HF_TOKEN": Secret(str(path)), "PLAIN": "word", "OTHER_KEY": "literal-key"}))
    assert env == {"HF_TOKEN": "hf_abcdefgh", "PLAIN": "word", "OTHER_KEY": "literal-key"}
    assert redactor.text("word hf_abcdefgh literal-key") == "word *** ***"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a\0b", "has a NUL in it"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"x" * 70_000, "is longer than 65536 bytes"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_by_its_file_and_never_shown(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnpreparedError) as caught:
        environment(Profile("x", env={"T": Secret(str(path))}))
    assert str(caught.value) == f"profile.env.T: the file {path} {reason}"
    assert caught.value.cause is Cause.BAD_PROFILE


def test_a_secret_has_an_absolute_path() -> None:
    with pytest.raises(UnpreparedError, match="the file token is not named by an absolute path"):
        environment(Profile("x", env={"T": Secret("token")}))


def test_an_engine_known_to_hang_gets_no_longer_grace_than_it_takes_to_know() -> None:
    assert stop_grace(None, 20.0) == 20.0
    assert stop_grace(FakeAdapter(), 20.0) == 20.0
    assert stop_grace(FakeAdapter(2.0), 20.0) == 2.0
    assert stop_grace(FakeAdapter(2.0), 0.5) == 0.5
