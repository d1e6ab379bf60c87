"""What every test shares: how many examples a property test draws, and that virtual time is really virtual."""

import inspect

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = 1_000

# A busy machine makes drawing slow, and that is no failure; print_blob gives the line that draws a failure again.
COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("ci", COMMON, max_examples=EXAMPLES, derandomize=True)
settings.register_profile("deep", COMMON, max_examples=100 * EXAMPLES)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that only seems to run on the virtual clock.

    pytest-trio takes the clock from a test's own arguments: one that a fixture of the test asks for is made and never
    used, and the test sleeps for real.
    """
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            asked = "autojump_clock" in item.fixturenames
            if asked and "autojump_clock" not in inspect.signature(item.obj).parameters:
                raise pytest.UsageError(f"{item.nodeid}: autojump_clock must be among the test's own arguments")
