"""What every test runs under: hypothesis profiles, and an environment without settings.

Owns: session-wide test policy. Fixtures for one part of the product live beside its tests.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# Timing on a busy machine says nothing about correctness, so there is no deadline. Random on purpose:
# every run looks somewhere new, and a failure prints how to repeat it.
settings.register_profile("default", max_examples=100, deadline=None)
settings.register_profile(
    "model",
    max_examples=int(os.environ.get("HOLT_MODEL_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# For state machines: ``Machine.TestCase.settings = settings.get_profile("model")``.
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own HOLT_ variables must not change what the tests see."""
    for name in list(os.environ):
        if name.startswith(("HOLT_", "JWT_")) and name != "HOLT_MODEL_EXAMPLES":
            monkeypatch.delenv(name)
