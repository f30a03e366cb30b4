"""The pytest plugin: fixtures ``holt_broker`` and ``holt_broker_factory``.

Owns: the fixtures' life cycle. pytest finds it through the package's entry point, so the broker is imported
only when a fixture is used.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:
    from holtmq.testing.broker import TestBroker

    BrokerFactory: TypeAlias = Callable[..., TestBroker]


@pytest.fixture
def holt_broker() -> "Iterator[TestBroker]":
    """A running broker for this test, in memory, with a virtual clock."""
    from holtmq.testing.broker import TestBroker

    with TestBroker() as broker:
        yield broker


@pytest.fixture
def holt_broker_factory() -> "Iterator[BrokerFactory]":
    """Creates running brokers with ``TestBroker``'s arguments; all are stopped when the test ends."""
    from holtmq.testing.broker import TestBroker

    with ExitStack() as brokers:

        def start(*args: object, **options: object) -> TestBroker:
            return brokers.enter_context(TestBroker(*args, **options))  # type: ignore[arg-type]

        yield start
