"""The seam's words: what they keep to themselves, and that what runs engines fits."""

from collections.abc import Callable

from llmgw.agent.launch import Exited, Gone, Launcher, LaunchRequest, RunningEngine
from llmgw.agent.shimmed import ShimmedEngine
from llmgw.agent.shims import ShimLauncher


def test_the_environment_is_not_shown() -> None:
    """A request may end in a log or a traceback; secrets of an engine are in its environment."""
    request = LaunchRequest("m/1/0", 7, ("engine",), {"HF_TOKEN": "hf_secret"})
    assert "secret" not in repr(request)
    assert "m/1/0" in repr(request)


def test_what_is_not_known_is_said_by_the_defaults() -> None:
    assert Exited() == Exited(code=None, signal=None, requested=False, dropped_bytes=0)
    assert Gone() == Gone(unproven=())


def test_shims_fit_the_seam() -> None:
    """The type checker holds the names and types; here they are only said."""
    launcher: Callable[..., Launcher] = ShimLauncher
    engine: Callable[..., RunningEngine] = ShimmedEngine
    assert callable(launcher)
    assert callable(engine)
