from typing import Any

import pytest

from llmgw.config.environment import OTHER_VARIABLES, read_environment, variable_name
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.settings import settings_of


def override(name: str, text: str, config: type = ClusterConfig) -> Any:
    """The value that the variable gives."""
    read = read_environment({name: text}, config)
    assert not read.findings, read.findings
    (found,) = read.overrides
    assert found.variable == name
    return found.value


def refused(name: str, text: str, config: type = ClusterConfig) -> str:
    """The one finding that the variable gives."""
    read = read_environment({name: text}, config)
    assert not read.overrides
    ((variable, finding),) = read.findings
    return str(finding.mistake(variable))


@pytest.mark.parametrize("text", ["true", "True", "YES", "on", "1"])
def test_bools_that_are_true(text: str) -> None:
    assert override("LLMGW_CONTROL__INSECURE", text) is True


@pytest.mark.parametrize("text", ["false", "False", "no", "off", "0"])
def test_bools_that_are_false(text: str) -> None:
    assert override("LLMGW_CONTROL__INSECURE", text) is False


@pytest.mark.parametrize("text", ["maybe", "a/long/path", " true", "2", "y"])
def test_any_other_bool_is_refused_with_the_list(text: str) -> None:
    message = refused("LLMGW_CONTROL__INSECURE", text)
    assert "true or yes or on or 1 or false or no or off or 0" in message
    assert text.strip() in message


def test_integers_are_digits() -> None:
    assert override("LLMGW_ROUTER__WORKERS", "4") == 4
    assert override("LLMGW_ROUTER__WORKERS", "-4") == -4  # its rule refuses it, with the limits


@pytest.mark.parametrize("text", [" 4", "4 ", "0x1F90", "8e3", "abc", "4.0", "\u0664", "9" * 50])
def test_any_other_integer_is_refused(text: str) -> None:
    assert "expected an integer in digits" in refused("LLMGW_ROUTER__WORKERS", text)


@pytest.mark.parametrize("text", ["", " ", "\t"])
@pytest.mark.parametrize("name", ["LLMGW_CONTROL__INSECURE", "LLMGW_ROUTER__WORKERS", "LLMGW_STATE_DIR"])
def test_an_empty_variable_is_a_mistake_whatever_its_type(name: str, text: str) -> None:
    assert "unset it" in refused(name, text)


def test_texts_stay_texts() -> None:
    """A path that has `on` or digits in it is no bool and no number."""
    assert override("LLMGW_STATE_DIR", "a/long/path") == "a/long/path"
    assert override("LLMGW_CONTROL__LOST_AFTER", "180s") == "180s"
    assert override("LLMGW_NODE_ID", "7", NodeConfig) == "7"


def test_lists_and_tables() -> None:
    assert override("LLMGW_GPU_FILTER__ONLY", "GPU-a,GPU-b", NodeConfig) == ["GPU-a", "GPU-b"]
    assert override("LLMGW_GPU_FILTER__ONLY", '["GPU-a", "GPU-b"]', NodeConfig) == ["GPU-a", "GPU-b"]
    assert override("LLMGW_LABELS", '{ zone = "a" }', NodeConfig) == {"zone": "a"}
    assert "expected a list, as a,b or" in refused("LLMGW_GPU_FILTER__ONLY", "[GPU-a", NodeConfig)
    assert "a TOML inline table" in refused("LLMGW_LABELS", "zone=a", NodeConfig)


def test_every_variable_has_a_phrase_for_what_it_expects() -> None:
    """Property: an empty one is told with its name and type, whatever setting it is for."""
    for config in (ClusterConfig, NodeConfig):
        for setting in settings_of(config):
            if setting.table is None and not setting.in_array:
                message = refused(variable_name(setting), "", config)
                assert "expected " in message
                assert 'got "" (an empty variable is a mistake: unset it)' in message


@pytest.mark.parametrize("name", ["LLMGW_MODELS", "LLMGW_MODELS__0__NAME", "LLMGW_MODELS__NAME", "LLMGW_KEYS__NAME"])
def test_arrays_of_tables_cannot_be_set(name: str) -> None:
    assert "cannot be set by a variable (write it in the file)" in refused(name, "x")


def test_a_table_is_no_setting() -> None:
    assert "known here: LLMGW_ROUTER__LISTEN" in refused("LLMGW_ROUTER", "x")


def test_what_nobody_knows_is_an_error_with_the_nearest_name() -> None:
    assert refused("LLMGW_CONTROL_LISTEN", "x") == (
        "LLMGW_CONTROL_LISTEN: unknown variable (did you mean LLMGW_CONTROL__LISTEN?)"
    )
    assert "no setting has this name" in refused("LLMGW_ZZ", "x")


@pytest.mark.parametrize("name", ["LLMGW_NODE_ID", "LLMGW_MODELS_DIR", "LLMGW_CONTROL", *OTHER_VARIABLES])
def test_what_another_command_knows_is_ignored_with_a_note(name: str) -> None:
    read = read_environment({name: "x"}, ClusterConfig)
    assert (read.overrides, read.findings) == ((), ())
    assert read.notes[0].startswith(f"{name}: ignored: ")


def test_what_kubernetes_injects_is_ignored_with_a_note() -> None:
    """For services named llmgw and llmgw-control, agent port named `agent`."""
    injected = {
        "LLMGW_SERVICE_HOST": "10.0.0.1",
        "LLMGW_SERVICE_PORT": "7070",
        "LLMGW_PORT": "tcp://10.0.0.1:7070",
        "LLMGW_CONTROL_SERVICE_HOST": "10.0.0.1",
        "LLMGW_CONTROL_SERVICE_PORT_AGENT": "7070",
        "LLMGW_CONTROL_PORT": "udp://10.0.0.1:7070",
        "LLMGW_CONTROL_PORT_7070_TCP": "tcp://10.0.0.1:7070",
        "LLMGW_CONTROL_PORT_7070_TCP_ADDR": "10.0.0.1",
        "LLMGW_CONTROL_PORT_7070_TCP_PORT": "7070",
        "LLMGW_CONTROL_PORT_7070_TCP_PROTO": "tcp",
    }
    for config in (ClusterConfig, NodeConfig):
        read = read_environment(injected, config)
        assert (read.overrides, read.findings) == ((), ())
        assert len(read.notes) == len(injected)


def test_a_port_that_kubernetes_did_not_inject_is_an_error() -> None:
    assert "unknown variable" in refused("LLMGW_CONTROL_PORT", "7070")


def test_other_programs_are_none_of_our_business() -> None:
    assert read_environment({"PATH": "/bin", "XLLMGW_A": "x", "llmgw_a": "x"}, ClusterConfig).notes == ()


@pytest.mark.parametrize("config", [ClusterConfig, NodeConfig])
def test_no_two_settings_share_a_variable(config: type) -> None:
    names = [variable_name(setting) for setting in settings_of(config)]
    assert len(names) == len(set(names))
