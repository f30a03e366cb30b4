"""basic.get when very many messages at the head of the queue have expired: it drops some at a time."""

import pytest
from amqp_support import Client, finish, new_broker, publish, step

from holtmq.amqp.methods import BasicGet, BasicGetEmpty, BasicGetOk, QueueDeclare
from holtmq.broker.errors import StillExpiring
from holtmq.broker.turn_limits import TurnLimits
from holtmq.wire.properties import Properties

COUNT = 60
AT_ONCE = 4


def hiding(behind: bool) -> Client:
    """A client of a queue whose first message hid expired ones; ``behind``: one that has not expired."""
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(expired=AT_ONCE)
    client.call(QueueDeclare("q"))
    client.feed(publish(b"first"))
    for _ in range(COUNT):
        client.feed(publish(b"old", properties=Properties(expiration="1000")))
    if behind:
        client.feed(publish(b"last"))
    client.broker.flow.now_ms += 5_000
    (first,) = client.call(BasicGet("q", True))
    assert isinstance(first, BasicGetOk)
    return client


@pytest.mark.parametrize("behind", [True, False])
def test_a_get_drops_some_expired_messages_at_a_time_and_then_answers(behind: bool) -> None:
    client = hiding(behind)

    assert client.call(BasicGet("q", True)) == []  # not empty: it is not known yet
    assert len(client.queue()) > AT_ONCE
    (told,) = finish(client)

    assert isinstance(told, BasicGetOk if behind else BasicGetEmpty)
    assert len(client.queue()) == 0


def test_a_connection_may_end_while_its_get_waits() -> None:
    client = hiding(behind=True)
    client.call(BasicGet("q", True))

    client.connection.end("gone")
    watcher = Client(client.broker)
    finish(watcher)
    client.broker.flow.complete()

    assert watcher.bodies() == [b"last"]


def test_frames_behind_the_get_wait_for_its_answer() -> None:
    client = hiding(behind=True)

    client.call(BasicGet("q", True), QueueDeclare("q", passive=True))
    step(client)
    told = finish(client)

    assert [type(method).__name__ for method in told] == ["BasicGetOk", "QueueDeclareOk"]


def test_a_get_by_another_way_is_told_to_ask_again() -> None:
    client = hiding(behind=True)
    broker = client.broker

    with pytest.raises(StillExpiring):
        broker.get(client.queue())

    while True:
        try:
            message = broker.get(client.queue())
        except StillExpiring:
            continue
        break
    assert message is not None
    assert message.body == b"last"
