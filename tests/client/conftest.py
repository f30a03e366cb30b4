"""Fixtures of the client's tests: a real broker, and clients for it.

Owns: one broker on the real clock for all tests of a process; each test uses names of its own.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from holtmq.client import Backoff, Client, SyncClient
from holtmq.testing import TestBroker

QUICK = Backoff(tries=6, first=0.01, longest=0.05)


@pytest.fixture(scope="session")
def broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as shared:
        yield shared


@pytest.fixture
async def client(broker: TestBroker) -> AsyncIterator[Client]:
    async with Client(broker.http_url, backoff=QUICK, stop_timeout=60) as one:
        yield one


@pytest.fixture
def sync_client(broker: TestBroker) -> Iterator[SyncClient]:
    with SyncClient(broker.http_url, backoff=QUICK, stop_timeout=60) as one:
        yield one


@pytest.fixture
def name() -> str:
    """A queue of its own."""
    return f"q-{uuid4()}"
