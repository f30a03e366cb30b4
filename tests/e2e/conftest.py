"""Fixtures of the end-to-end tests: real nodes listening on real sockets.

Owns: one shared in-memory broker per test process, and brokers of one's own for tests that need
other settings, a disk or a restart.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

sys.path.insert(0, str(Path(__file__).parent))

from e2e_support import OtherBroker, ProcessBroker, RawPeer

from holtmq.config import Amqp, Config, Limits
from holtmq.testing import TestBroker, VirtualClock

NO_ALARMS = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)


@pytest.fixture(scope="session")
def broker() -> Iterator[TestBroker | OtherBroker]:
    """A broker that all tests share; they use names of their own.

    E2E_AMQP_PORT runs them against another broker: how to find out whether a test asks for too much.
    """
    other = os.environ.get("E2E_AMQP_PORT")
    if other:
        yield OtherBroker(int(other))
        return
    with TestBroker(clock="real") as shared:
        yield shared


@pytest.fixture
def start_broker() -> Iterator[Callable[..., TestBroker]]:
    """Start a broker with other settings: ``start_broker(heartbeat=1)``. Its data survives a restart."""
    started: list[TestBroker] = []

    def start(
        *, clock: Literal["virtual", "real"] = "real", folder: Path | None = None, **amqp: object
    ) -> TestBroker:
        settings = Amqp(**{"tls_port": 0, **amqp})  # type: ignore[arg-type]
        one = TestBroker(folder, clock=clock, config=Config(amqp=settings, limits=NO_ALARMS))
        started.append(one)
        return one.start()

    yield start
    for one in started:
        one.stop()


@pytest.fixture(scope="module")
def timed_broker() -> Iterator[TestBroker]:
    """A broker for the tests of one file, with a clock that they move."""
    with TestBroker() as one:
        yield one


@pytest.fixture
def clock(timed_broker: TestBroker) -> VirtualClock:
    """The clock of ``timed_broker``."""
    assert isinstance(timed_broker.clock, VirtualClock)
    return timed_broker.clock


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[ProcessBroker]:
    """``holt serve`` as a process, with its data in a folder of the test."""
    process = ProcessBroker(tmp_path)
    yield process
    process.stop()


Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def connect(broker: TestBroker) -> Iterator[Connect]:
    """Open pika connections that are closed after the test."""
    opened: list[pika.BlockingConnection] = []

    def open_one(
        port: int | None = None, user: str = "guest", password: str = "guest", **parameters: object
    ) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                port or broker.amqp_port,
                credentials=pika.PlainCredentials(user, password),
                **parameters,
            )
        )
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        with suppress(pika.exceptions.AMQPError):  # its broker may have been killed
            if connection.is_open:
                connection.close()


@pytest.fixture
def connection(connect: Connect) -> pika.BlockingConnection:
    """One pika connection to the shared broker."""
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """One pika channel on the shared broker."""
    return connection.channel()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A unique name."""
    return f"{request.node.originalname[5:45]}-{uuid4().hex[:8]}"


@pytest.fixture
def raw(broker: TestBroker) -> Iterator[Callable[..., RawPeer]]:
    """Open raw peers: ``raw()`` is through the handshake with channel 1 open, ``raw(bare=True)`` is not."""
    peers: list[RawPeer] = []

    def open_one(*, bare: bool = False, port: int | None = None, **options: object) -> RawPeer:
        peer = RawPeer(port or broker.amqp_port)
        peers.append(peer)
        return peer if bare else peer.open(**options)  # type: ignore[arg-type]

    yield open_one
    for peer in peers:
        peer.socket.close()
