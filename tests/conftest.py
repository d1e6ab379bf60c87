"""What every test shares: how many examples a property test draws."""

from hypothesis import HealthCheck, settings

EXAMPLES = 1_000

# A busy machine makes drawing slow, and that is no failure; print_blob gives the line that draws a failure again.
COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("ci", COMMON, max_examples=EXAMPLES, derandomize=True)
settings.register_profile("deep", COMMON, max_examples=100 * EXAMPLES)
settings.load_profile("ci")
