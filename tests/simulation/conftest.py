"""What every simulated history runs under."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Every fault that was asked for is logged as critical, thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def _copies_of_queues_are_up_to_date() -> None:
    """The simulation compares them by itself, and finds planted faults by that."""
