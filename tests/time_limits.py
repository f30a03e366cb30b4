"""Every test ends: its setup and call within the limit of pytest-timeout, its teardown within another one.

Owns: when the timer starts again. Must not touch: how long a limit is. pytest-timeout stops a test once, when
the limit is over. If what was hanging then keeps the teardown from ending, too, nothing would stop that.
"""

from __future__ import annotations

import pytest
import pytest_timeout


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    start_again(item)


def start_again(item: pytest.Item) -> None:
    """Give the test its whole limit from now on."""
    hook = item.config.pluginmanager.hook
    hook.pytest_timeout_cancel_timer(item=item)
    limit = pytest_timeout._get_item_settings(item)
    if limit.timeout and not limit.func_only:
        hook.pytest_timeout_set_timer(item=item, settings=limit)
