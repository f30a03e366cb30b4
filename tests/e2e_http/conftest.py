"""Fixtures of the tests with Queen's own client, unmodified from PyPI."""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
import pytest_asyncio
from queen import Queen

from holtmq.testing import TestBroker


@pytest.fixture(scope="session")
def shared() -> Iterator[TestBroker]:
    """One node for all; tests use names of their own. On the real clock: the client has its own."""
    with TestBroker(clock="real") as one:
        yield one


@pytest_asyncio.fixture
async def queen(shared: TestBroker) -> AsyncIterator[Queen]:
    client = Queen(shared.http_url)
    yield client
    await client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A unique name."""
    return f"{request.node.originalname[5:45]}-{uuid4().hex[:8]}"
