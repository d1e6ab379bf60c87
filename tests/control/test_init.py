"""What `llmgw-control init` writes: always a file that loads, with what was found."""

import contextlib
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.commandline import read_control
from llmgw.config.schema import ClusterConfig
from llmgw.control.init import MORE_MODELS_MAX, Found, init, look, text_of, told
from llmgw.core.address import Address
from llmgw.errors import RefusedError
from llmgw.net.machine import InterfaceAddress, ModelFile

USUAL = Found((), Address("127.0.0.1", 7070), Address("127.0.0.1", 7071), Address("127.0.0.1", 8080))
GIB = 1024**3


def loaded(found: Found, folder: Path, *, state_known: bool = True) -> ClusterConfig:
    file = folder / "cluster.toml"
    file.write_text(text_of(found, state_known=state_known))
    return read_control(str(file), {"HOME": "/home/u"}, {}).config


def test_of_nothing(tmp_path: Path) -> None:
    config = loaded(USUAL, tmp_path)
    assert config.control.listen == config.router.control == USUAL.agents
    assert (config.admin.listen, config.router.listen, config.models) == (USUAL.admin, USUAL.router, ())
    assert "  no model in GGUF format was found: name one in the file, or use --models FOLDER" in told(
        USUAL, tmp_path / "cluster.toml"
    )


def test_the_smallest_model_is_served_and_the_others_are_listed(tmp_path: Path) -> None:
    models = [ModelFile(Path(f"/models/m{number}.gguf"), number * GIB) for number in range(1, MORE_MODELS_MAX + 9)]
    found = Found(USUAL.addresses, USUAL.agents, USUAL.admin, USUAL.router, tuple(models))
    (model,) = loaded(found, tmp_path).models
    assert model.profile is not None
    assert (model.name, model.profile.model, model.profile.gpus) == ("m1", "/models/m1.gguf", 0)
    text = text_of(found, state_known=True)
    assert text.count("#[[models]]") == MORE_MODELS_MAX + 1  # and the example of an engine that others run
    lines = told(found, tmp_path / "cluster.toml")
    assert '  serves "m1" (1 GiB, /models/m1.gguf) on the CPU' in lines
    assert f"  {MORE_MODELS_MAX + 7} more found, as comments in the file" in lines


def test_with_a_gpu_it_is_used(tmp_path: Path) -> None:
    found = Found((), USUAL.agents, USUAL.admin, USUAL.router, (ModelFile(Path("/m.gguf"), 1),), gpus=2)
    profile = loaded(found, tmp_path).models[0].profile
    assert profile is not None
    assert profile.gpus == 1
    assert '  serves "m" (1 B, /m.gguf) on one GPU' in told(found, tmp_path)


def test_ports_that_are_taken_are_not_written(tmp_path: Path) -> None:
    found = Found((), Address("127.0.0.1", 7072), Address("127.0.0.1", 7073), Address("127.0.0.1", 8081))
    config = loaded(found, tmp_path)
    assert config.control.listen == config.router.control == Address("127.0.0.1", 7072)
    assert (config.admin.listen.port, config.router.listen.port) == (7073, 8081)


def test_addresses_for_others_are_remarks(tmp_path: Path) -> None:
    """Nothing is opened to the network before somebody says so."""
    found = Found((InterfaceAddress("2001:db8::5", "eth0"),), USUAL.agents, USUAL.admin, USUAL.router)
    text = text_of(found, state_known=True)
    assert "# This machine's addresses: 2001:db8::5 (eth0).\n" in text
    assert '# For nodes elsewhere: listen = "[2001:db8::5]:7070", with insecure = true' in text
    assert '# For clients elsewhere: listen = "[2001:db8::5]:8080".\n' in text
    assert loaded(found, tmp_path) == loaded(USUAL, tmp_path)


def test_without_a_place_for_state_it_is_beside_the_file(tmp_path: Path) -> None:
    assert loaded(USUAL, tmp_path, state_known=False).state_dir == tmp_path / "state"


def test_two_files_of_one_name_are_two_models(tmp_path: Path) -> None:
    models = tuple(ModelFile(Path(folder) / "m,1.gguf", 1) for folder in ("/a", "/b", "/c"))
    text = text_of(Found((), USUAL.agents, USUAL.admin, USUAL.router, models), state_known=True)
    assert 'name = "m-1"\n' in text
    assert '#name = "m-1-2"\n' in text
    assert '#name = "m-1-3"\n' in text


letters = st.characters(codec="utf-8", exclude_characters="/\0")
names = st.text(letters, min_size=1, max_size=120).filter(str.isprintable)


@settings(max_examples=settings().max_examples // 20)
@given(st.lists(names, max_size=3), st.booleans())
def test_whatever_models_are_called_the_file_is_right(
    tmp_path_factory: pytest.TempPathFactory, stems: list[str], state_known: bool
) -> None:
    """Property: it loads, and serves at most one model."""
    models = tuple(ModelFile(Path(f"/m/{stem}.gguf"), 1) for stem in stems)
    found = Found((), USUAL.agents, USUAL.admin, USUAL.router, models)
    config = loaded(found, tmp_path_factory.getbasetemp(), state_known=state_known)
    assert len(config.models) == min(1, len(models))


async def test_looking_at_a_machine(tmp_path: Path) -> None:
    """Models in the given folder and nowhere else; ports that are free, each another one."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a.gguf").write_bytes(b"GGUF")
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 7071)):
        found = await look(tmp_path, tmp_path / "m", {})
        assert [model.name for model in found.models] == ["a"]
        assert found.admin.port != 7071
        assert len({found.agents.port, found.admin.port, found.router.port}) == 3


def test_the_usual_folders(tmp_path: Path) -> None:
    for folder in ("models", "home/models"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{folder.replace('/', '-')}.gguf").write_bytes(b"GGUF")
    lines = init(tmp_path, None, {"HOME": str(tmp_path / "home")}, state_base=None)
    assert lines[0] == f"wrote {tmp_path}/cluster.toml"
    text = (tmp_path / "cluster.toml").read_text()
    assert 'name = "models"' in text
    assert 'name = "home-models"' in text


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text("mine")
    with pytest.raises(RefusedError, match="exists already"):
        init(tmp_path, tmp_path, {}, state_base=None)
    assert (tmp_path / "cluster.toml").read_text() == "mine"
