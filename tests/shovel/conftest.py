"""Two brokers for the whole folder; a test that restarts one has its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from shovel_support import Operator

from holtmq.testing import TestBroker


@pytest.fixture(scope="module")
def old() -> Iterator[Operator]:
    with TestBroker(clock="real") as broker:
        operator = Operator(broker.http_url, broker.amqp_url)
        yield operator
        operator.close()


@pytest.fixture(scope="module")
def new() -> Iterator[Operator]:
    with TestBroker(clock="real") as broker:
        operator = Operator(broker.http_url, broker.amqp_url)
        yield operator
        operator.close()
