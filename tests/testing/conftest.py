"""Clients of the test broker that are closed when the test ends, whatever was done to them."""

import contextlib
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.exceptions import AMQPError

from holtmq.testing import TestBroker

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens a connection to a broker, optionally under a name."""
    opened: list[pika.BlockingConnection] = []

    def open_connection(broker: TestBroker, name: str = "") -> pika.BlockingConnection:
        parameters = pika.URLParameters(broker.amqp_url)
        if name:
            parameters.client_properties = {"connection_name": name}
        connection = pika.BlockingConnection(parameters)
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        with contextlib.suppress(AMQPError):
            connection.close()
