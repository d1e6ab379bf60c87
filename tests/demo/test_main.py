import tomllib
from pathlib import Path

import pytest

from llmgw.demo.main import checked_gguf, make_plan, with_model
from llmgw.demo.show import DemoError

CLUSTER = Path(__file__).parents[2] / "conf/cluster.toml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project folder with the real configuration."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/cluster.toml").write_text(CLUSTER.read_text())
    return tmp_path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "my 'own' \"model\" ü🎉.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def test_without_a_model_conf_is_run_as_it_is(root: Path) -> None:
    plan = make_plan(root, None, once=True)
    assert plan.cluster_toml == root / "conf/cluster.toml"
    assert plan.node_toml == root / "conf/node.toml"
    assert (plan.model, plan.gguf, plan.once) == ("tiny", None, True)
    assert "LLMGW_STATE_DIR" not in plan.environ
    assert not (root / "var").exists()


def test_a_model_of_one_s_own_changes_one_line(root: Path, gguf: Path) -> None:
    plan = make_plan(root, gguf, once=False)
    assert plan.cluster_toml == root / "var/demo/cluster.toml"
    before, after = CLUSTER.read_text().splitlines(), plan.cluster_toml.read_text().splitlines()
    assert len(before) == len(after)
    ((old, new),) = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert old == 'model = "tiny.gguf"'
    assert tomllib.loads(new) == {"model": str(gguf)}
    assert plan.config.models[0].profile is not None
    assert plan.config.models[0].profile.model == str(gguf)


def test_its_state_stays_where_conf_puts_it(root: Path, gguf: Path) -> None:
    plan = make_plan(root, gguf, once=False)
    assert plan.config.state_dir == make_plan(root, None, once=False).config.state_dir
    assert plan.environ["LLMGW_STATE_DIR"] == str(plan.config.state_dir)


def test_a_relative_path_is_made_absolute(root: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gguf.parent)
    plan = make_plan(root, Path(gguf.name), once=True)
    assert plan.gguf == gguf


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="No such file or directory; expected the path of a GGUF file"):
        checked_gguf(tmp_path / "absent.gguf")
    with pytest.raises(DemoError, match="Is a directory"):
        checked_gguf(tmp_path)
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    with pytest.raises(DemoError, match="is no GGUF file: it begins with b'<htm'"):
        checked_gguf(tmp_path / "page.gguf")


@pytest.mark.parametrize("text", ["", 'model = "a"\nmodel = "b"\n', '# model = "a"\n', "model = 'a'\n"])
def test_a_configuration_without_exactly_one_such_line_is_refused(text: str) -> None:
    with pytest.raises(DemoError, match=r'lines `model = "..."`'):
        with_model(text, Path("/m.gguf"))


def test_a_wrong_configuration_ends_with_every_mistake(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "conf/cluster.toml").write_text("[control]\nlissten = 1\n")
    with pytest.raises(SystemExit) as ended:
        make_plan(root, None, once=True)
    assert ended.value.code == 2
    assert "lissten" in capsys.readouterr().err


def test_a_catalog_without_a_profile_has_nothing_to_show(root: Path) -> None:
    (root / "conf/cluster.toml").write_text(
        'state_dir = "s"\n[[models]]\nname = "a"\nendpoints = [{ url = "http://127.0.0.1:9" }]\n'
    )
    with pytest.raises(DemoError, match="has no model with a profile"):
        make_plan(root, None, once=True)
