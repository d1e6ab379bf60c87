import pytest

from llmgw.errors import (
    ConfigError,
    EngineError,
    InvariantBroken,
    LlmgwError,
    Mistake,
    PeerError,
    PeerReason,
)


@pytest.mark.parametrize("reason", list(PeerReason))
def test_peer_error_is_one_line_with_its_reason(reason: PeerReason) -> None:
    assert str(PeerError(reason)) == reason.value
    error = PeerError(reason, "gpus[0].uuid: expected a string, got int 3")
    assert str(error) == f"{reason.value}: gpus[0].uuid: expected a string, got int 3"
    assert (error.reason, error.detail) == (reason, "gpus[0].uuid: expected a string, got int 3")


def test_a_mistake_says_everything_that_mends_it() -> None:
    mistake = Mistake("cluster.toml:7", "router.workers", "expected an integer", '"two"', "write 2")
    assert str(mistake) == 'cluster.toml:7: router.workers: expected an integer, got "two" (write 2)'


def test_a_mistake_shows_only_what_it_knows() -> None:
    assert str(Mistake("cluster.toml", "", "cannot be read")) == "cluster.toml: cannot be read"
    assert str(Mistake("node.toml", "control", "required, and missing")) == "node.toml: control: required, and missing"


def test_a_config_error_carries_every_mistake() -> None:
    first, second = Mistake("a.toml:1", "x", "unknown key"), Mistake("a.toml:2", "y", "unknown key")
    error = ConfigError((first, second))
    assert error.mistakes == (first, second)
    assert str(error) == f"{first}\n{second}"


@pytest.mark.parametrize("kind", [PeerError, ConfigError, EngineError, InvariantBroken])
def test_every_error_of_ours_has_one_base(kind: type[Exception]) -> None:
    assert issubclass(kind, LlmgwError)
