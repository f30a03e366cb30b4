"""Fixtures of the HTTP tests: a real node whose time stands still until a test moves it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from http_support import Api

from holtmq.testing import TestBroker


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    """A node of one's own."""
    with TestBroker() as one:
        yield one


@pytest.fixture
def connect(broker: TestBroker) -> Iterator[Callable[..., Api]]:
    """Open API clients that are closed after the test."""
    opened: list[Api] = []

    def open_one(**options: object) -> Api:
        opened.append(Api(broker.http_url, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.http.close()


@pytest.fixture
def api(connect: Callable[..., Api]) -> Api:
    return connect()
