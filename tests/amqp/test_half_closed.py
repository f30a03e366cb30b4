"""A client that has closed its side, and does not read what was sent to it."""

import socket
import time

import pika
import pytest

from holtmq.amqp import protocol
from holtmq.testing import TestBroker


def test_a_client_that_closed_its_side_and_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_CLOSE_TIMEOUT", 0.1)
    with TestBroker() as broker:
        publisher = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = publisher.channel()
        channel.queue_declare("q")
        channel.confirm_delivery()
        for _ in range(30):
            channel.basic_publish("", "q", b"x" * 1_000_000)
        publisher.close()
        consumer = pika.BlockingConnection(pika.URLParameters(broker.amqp_url + "?heartbeat=0"))
        peer = consumer._impl._transport._sock
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        consumer.channel().basic_consume("q", lambda *_: None)  # it reads no further than consume-ok

        peer.shutdown(socket.SHUT_WR)

        deadline = time.monotonic() + 60
        while broker.call(lambda node: len(node.amqp.connections)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            consumer.close()
