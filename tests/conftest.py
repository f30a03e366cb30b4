"""What every test runs under: hypothesis profiles, and an environment without settings.

Owns: session-wide test policy. Fixtures for one part of the product live beside its tests.
"""

import os
import sys
from pathlib import Path

import httpx
import pika.connection
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # what tests of several parts share

# Some machines forbid Python to keep what it compiled. Hundreds of tests start brokers and commands as
# processes, and each would compile the package again: half of the CPU time of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["time_limits", "reruns", "queue_copies_checked"]  # the second imports the first

# These clients give up after 5, 10 and 15 seconds unless told otherwise, and a busy machine may need longer.
for part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, 120.0)
pika.connection.Parameters.DEFAULT_SOCKET_TIMEOUT = 120.0
pika.connection.Parameters.DEFAULT_STACK_TIMEOUT = 120.0

# Timing on a busy machine says nothing about correctness, so there is no deadline. Random on purpose:
# every run looks somewhere new, and a failure prints how to repeat it. These health checks are off: whether
# they complain depends on the clock and on the first few examples.
BY_CHANCE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("default", max_examples=100, deadline=None, suppress_health_check=BY_CHANCE)
settings.register_profile(
    "model",
    max_examples=int(os.environ.get("HOLT_MODEL_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=BY_CHANCE,
)
# For state machines: ``Machine.TestCase.settings = settings.get_profile("model")``.
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own HOLT_ variables must not change what the tests see."""
    for name in list(os.environ):
        if name.startswith(("HOLT_", "JWT_")) and name != "HOLT_MODEL_EXAMPLES":
            monkeypatch.delenv(name)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hypothesis looks for a smaller example for up to five minutes: the limit must not cut that short."""
    if config.getoption("timeout") is not None:  # on the command line
        return
    for item in items:
        if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    if config.getvalue("dist") != "loadgroup":
        return None
    from scheduling import scheduler

    return scheduler(config, log)
