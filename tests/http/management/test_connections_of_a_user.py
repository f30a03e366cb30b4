"""Closing all connections of a user looks for them once, not once for each."""

from __future__ import annotations

import httpx
import pika
import pytest

from holtmq.amqp.protocol import AmqpProtocol
from holtmq.client_listing import AmqpClients
from holtmq.testing import TestBroker

COUNT = 6


def test_the_connections_of_a_user_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    running = AmqpClients._running

    def counted(self: AmqpClients, vhost: str | None = None) -> list[AmqpProtocol]:
        searches.append(vhost)
        return running(self, vhost)

    monkeypatch.setattr(AmqpClients, "_running", counted)
    with TestBroker() as broker:
        opened = [pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) for _ in range(COUNT)]

        answer = httpx.delete(
            broker.http_url + "/api/connections/username/guest", auth=("guest", "guest"), timeout=60
        )

        assert answer.status_code == 204
        assert len(searches) == 1
        for connection in opened:
            with pytest.raises(pika.exceptions.AMQPError):
                connection.channel()
