"""Very many settlements of a transaction: added in steps, rolled back in steps."""

from collections.abc import Callable

import pytest
from amqp_support import Client, finish, new_broker, numbers, publish, step

from holtmq.amqp import transaction
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    ChannelClose,
    Method,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
)
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.turn_limits import TurnLimits
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

AT_ONCE = 4
COUNT = 11  # three steps
BODIES = numbers(COUNT)
LETTERS: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
SETTLEMENTS: dict[str, Method] = {
    "ack": BasicAck(0, multiple=True),
    "reject": BasicNack(0, multiple=True, requeue=False),
    "return": BasicNack(0, multiple=True, requeue=True),
}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Its consumer has been delivered all of a queue, on a transactional channel."""
    monkeypatch.setattr(transaction, "_RESTORED", AT_ONCE)
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(returned=AT_ONCE)
    client.call(QueueDeclare("q", durable=True, arguments=LETTERS), QueueDeclare("dead"))
    client.broker.journal.flush()
    client.told()
    client.feed(b"".join(publish(body, properties=Properties(delivery_mode=2)) for body in BODIES))
    told = client.call(BasicConsume("q", "me"), TxSelect())
    assert len(told) == 2 + COUNT
    return client


def leased(client: Client) -> int:
    return len(client.connection.channels[1].ledger.by_number)


def kept(client: Client) -> int:
    """Messages that a checkpoint keeps."""
    _, live = snapshot(client.broker)
    return sum(map(len, live))


@pytest.mark.parametrize("settlement", SETTLEMENTS)
def test_they_are_added_in_steps_and_what_follows_waits_for_the_last(client: Client, settlement: str) -> None:
    seen = []

    assert client.call(SETTLEMENTS[settlement], TxCommit()) == []
    while leased(client):
        seen.append(leased(client))
        assert client.queue().unacked == COUNT
        step(client)
    answers = finish(client)

    assert seen == [7, 3]
    assert TxCommitOk() in answers
    assert client.bodies("dead") == (BODIES if settlement == "reject" else [])
    assert client.queue().unacked == (COUNT if settlement == "return" else 0)  # delivered again
    assert len(answers) == 1 + (COUNT if settlement == "return" else 0)


@pytest.mark.parametrize("settlement", SETTLEMENTS)
def test_a_rollback_in_steps_gives_all_back(client: Client, settlement: str) -> None:
    client.call(SETTLEMENTS[settlement])
    finish(client)
    client.feed(publish(b"forgotten"))
    seen = []

    assert client.call(TxRollback()) == []
    while leased(client) < COUNT:
        seen.append(leased(client))
        step(client)

    assert seen == [4, 8]
    assert finish(client) == [TxRollbackOk()]
    assert client.queue().unacked == COUNT
    assert client.bodies("dead") == client.bodies() == []
    client.call(BasicAck(COUNT - 1, multiple=True))
    finish(client)
    client.call(TxCommit())
    assert step(client) == [TxCommitOk()]
    assert client.queue().unacked == 1


def settle_all_and_begin_to_roll_back(client: Client) -> None:
    client.call(SETTLEMENTS["reject"])
    finish(client)
    client.call(TxRollback())


BEGINNINGS: dict[str, Callable[[Client], object]] = {
    "settlements": lambda client: client.call(SETTLEMENTS["reject"]),
    "a rollback": settle_all_and_begin_to_roll_back,
}


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_connection_that_ends_in_the_middle_loses_nothing(client: Client, beginning: str) -> None:
    watcher = Client(client.broker)
    BEGINNINGS[beginning](client)
    assert 0 < leased(client) < COUNT

    client.connection.end("gone")
    finish(watcher)

    assert watcher.bodies() == BODIES
    assert watcher.queue().unacked == 0
    assert watcher.bodies("dead") == []


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_checkpoint_in_the_middle_has_every_message(client: Client, beginning: str) -> None:
    BEGINNINGS[beginning](client)

    assert kept(client) == COUNT
    step(client)
    assert kept(client) == COUNT


def test_settlements_that_are_refused_in_the_middle_close_the_channel_and_return(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = client.connection.channels[1].ledger.by_number
    size = sum(len(lease.message.header) + len(lease.message.body) for lease in held.values())
    monkeypatch.setattr(transaction, "_BYTES_MAX", size // 2)

    client.call(SETTLEMENTS["reject"])
    answers = finish(client)

    (closed,) = answers
    assert isinstance(closed, ChannelClose)
    assert closed.reply_code == ReplyCode.PRECONDITION_FAILED
    assert "transaction is larger" in closed.reply_text
    assert (closed.failing_class_id, closed.failing_method_id) == (60, 120)
    assert client.bodies() == BODIES
    assert client.queue().unacked == 0


def test_an_unknown_delivery_tag_is_refused_before_anything_is_settled(client: Client) -> None:
    client.call(BasicAck(99, multiple=True))
    (closed,) = finish(client)

    assert isinstance(closed, ChannelClose)
    assert "unknown delivery tag 99" in closed.reply_text
    assert client.bodies() == BODIES


def test_publishes_of_a_channel_that_closes_are_dropped(client: Client) -> None:
    client.feed(b"".join(publish(body) for body in numbers(COUNT)))
    client.call(ChannelClose(200, "done"))
    finish(client)

    assert client.bodies() == BODIES


def test_a_rollback_of_very_many_publishes(client: Client) -> None:
    client.feed(b"".join(publish(body) for body in numbers(COUNT)))

    assert client.call(TxRollback()) == []
    assert finish(client) == [TxRollbackOk()]
    client.call(TxCommit())
    assert client.bodies() == []
