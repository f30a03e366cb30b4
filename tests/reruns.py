"""Which tests get a second run when they fail, and what the second run starts from.

Owns: the list of tests that start processes or servers, and the state between the two runs. Must not touch:
what counts as a failure. A test that fails twice fails the run, and the summary names every second run.
"""

from __future__ import annotations

import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import pytest_rerunfailures

from time_limits import start_again

TESTS: Final = Path(__file__).parent
# Folders and modules whose tests depend on other processes: servers, browsers, Spark, killed brokers. The
# others run in one process, and a failure there is a fault at the first sight of it.
WITH_PROCESSES: Final = (
    "browser",
    "cli/test_backup.py",
    "cli/test_cli_root.py",
    "client",
    "crash",
    "damage/test_damage_campaign.py",
    "damage/test_node_life.py",
    "deploy",
    "e2e",
    "e2e_http",
    "http/management/test_rabbitmqadmin.py",
    "load/test_http_rounds.py",
    "load/test_load_report.py",
    "load/test_load_rounds.py",
    "migrate",
    "replica",
    "shovel",
    "spark",
    "test_listeners.py",
    "testing/test_testing_broker.py",
    "testing/test_testing_documentation.py",
    "tracing",
    "verify",
)


def starts_processes(path: Path, fixtures: tuple[str, ...]) -> bool:
    """Whether a test in this file with these fixtures depends on more than its own process."""
    return "postgres" in fixtures or _is_listed(path)


@cache
def _is_listed(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / part) for part in WITH_PROCESSES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.usepdb:  # the debugger stops at the first failure
        return
    for item in items:
        if starts_processes(item.path, tuple(getattr(item, "fixturenames", ()))):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The second run gets new fixtures of every scope, and the whole time limit.

    The failed run may have left a dead broker in a fixture of the module or the session. The plugin would
    keep these fixtures, and pytest-timeout counts both runs as one.
    """
    if getattr(item, "execution_count", 1) < 2:
        return
    start_again(item)
    state = item.session._setupstate
    state.stack.update(pytest_rerunfailures.suspended_finalizers)
    pytest_rerunfailures.suspended_finalizers.clear()
    try:
        state.teardown_exact(None)
    except Exception:  # what is dead may refuse to be stopped
        traceback.print_exc(file=sys.stderr)
