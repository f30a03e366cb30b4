"""A transaction goes in steps also if it has few messages, with very many headers that must be decoded."""

from __future__ import annotations

import pytest
from amqp_support import Client, finish, new_broker, publish

from holtmq.amqp.methods import (
    BasicConsume,
    BasicNack,
    ExchangeDeclare,
    Method,
    QueueBind,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

FEW = 5
_LONG: FieldTable = {f"h{number}": number for number in range(5_000)}
_SHORT: FieldTable = {"h1": 1}


def committed(client: Client, *methods: Method) -> tuple[bool, bool]:
    """Whether the commit took steps, and whether it succeeded."""
    told = client.call(*methods, TxCommit())
    in_steps = bool(client.broker.long_changes)
    told += finish(client)
    client.broker.journal.flush()
    return in_steps, TxCommitOk() in told + client.told()


@pytest.mark.parametrize(("headers", "in_steps"), [(_LONG, True), (_SHORT, False)], ids=["long", "short"])
def test_dead_letters_with_long_headers(headers: FieldTable, in_steps: bool) -> None:
    client = Client(new_broker())
    letters: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.call(QueueDeclare("dead"), QueueDeclare("q", arguments=letters))
    client.feed(publish(b"m", properties=Properties(headers=headers)) * FEW)
    client.call(TxSelect(), BasicConsume("q", "me"))

    done = committed(client, BasicNack(0, multiple=True, requeue=False))

    assert done == (in_steps, True)
    assert len(client.queue("dead")) == FEW


@pytest.mark.parametrize(("headers", "in_steps"), [(_LONG, True), (_SHORT, False)], ids=["long", "short"])
def test_messages_that_are_routed_by_long_headers(headers: FieldTable, in_steps: bool) -> None:
    client = Client(new_broker())
    client.call(QueueDeclare("q"), ExchangeDeclare("heads", "headers"))
    client.call(QueueBind("q", "heads", arguments={"h1": 1}), TxSelect())
    client.feed(publish(b"m", exchange="heads", properties=Properties(headers=headers)) * FEW)

    done = committed(client)

    assert done == (in_steps, True)
    assert len(client.queue("q")) == FEW


def test_messages_whose_headers_nobody_reads_go_at_once() -> None:
    client = Client(new_broker())
    client.call(QueueDeclare("q"), TxSelect())
    client.feed(publish(b"m", properties=Properties(headers=_LONG)) * FEW)

    assert committed(client) == (False, True)
