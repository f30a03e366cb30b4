"""A channel with very many queues: what it leaves behind goes in steps, in a time that grows with them."""

import time

import pytest
from amqp_support import Client, finish, new_broker, publish

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicQos,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    QueueDeclare,
)
from holtmq.broker.topology import long_changes
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.turn_limits import TurnLimits

COUNT = 500


def consuming() -> Client:
    """A client with a consumer of each of very many auto-delete queues."""
    client = Client(new_broker())
    for number in range(COUNT):
        name = f"q-{number}"
        client.call(QueueDeclare(name, auto_delete=True), BasicConsume(name, f"tag-{number}"))
    return client


def test_auto_delete_queues_of_a_closed_channel_are_deleted_in_steps_before_its_close_ok() -> None:
    client = consuming()
    queues = client.connection.vhost.queues

    answers = client.call(ChannelClose(200, "done"))

    assert 0 < len(queues) < COUNT
    assert answers == []
    assert finish(client) == [ChannelCloseOk()]
    assert not queues


def test_auto_delete_queues_of_a_lost_connection_are_deleted_in_steps() -> None:
    client = consuming()
    queues = client.connection.vhost.queues

    client.connection.end("lost")

    assert 0 < len(queues) < COUNT
    client.broker.long_changes.complete()
    assert not queues
    assert not client.broker.long_changes


def test_gets_from_very_many_queues_are_forgotten_in_steps_when_the_channel_closes() -> None:
    client = Client(new_broker())
    for number in range(3_000):
        client.call(QueueDeclare(f"q-{number}"))
        client.feed(publish(b"x", f"q-{number}"))
        client.call(BasicGet(f"q-{number}"))
    assert len(client.broker.other_holders) == 3_000

    client.call(ChannelClose(200, "done"))

    left = len(client.broker.other_holders)
    client.broker.long_changes.complete()
    assert 0 < left < 3_000
    assert len(client.broker.other_holders) == 0


def test_cancelled_consumers_that_have_settled_are_forgotten_in_a_time_that_grows_with_them() -> None:
    def seconds(count: int) -> float:
        client = Client(new_broker())
        client.call(QueueDeclare("q", arguments={"x-cancel-requeue": False}), BasicQos(prefetch_count=1))
        for number in range(count + 1):
            client.call(BasicConsume("q", f"tag-{number}"))
            client.feed(publish(b"x"))
            if number < count:
                client.call(BasicCancel(f"tag-{number}"))
        assert len(client.broker.other_holders) == count
        for number in range(1, count + 1, 2):  # a list of the others is searched for each of them
            client.call(BasicAck(number))
        began = time.process_time()
        client.call(BasicCancel(f"tag-{count}"))
        client.broker.long_changes.complete()
        assert len(client.broker.other_holders) == count // 2 + 1
        return time.process_time() - began

    short = min(seconds(200) for _ in range(3))

    assert seconds(3_200) < 80 * short  # with the square of them: 256


@pytest.mark.parametrize("channels", [1, 2])
def test_a_lost_connection_returns_messages_of_very_many_queues_and_leaves_nothing(channels: int) -> None:
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(returned=100)
    for number in range(COUNT):
        on = 1 + number % channels
        if number == 1 and channels > 1:
            client.call(ChannelOpen(), channel=2)
        client.call(QueueDeclare(f"q-{number}"), BasicConsume(f"q-{number}", f"tag-{number}"), channel=on)
        client.feed(publish(b"x", f"q-{number}"))
    closed = list(client.connection.channels.values())
    assert sum(len(channel.ledger) for channel in closed) == COUNT

    client.connection.end("lost")
    client.broker.long_changes.complete()

    queues = client.connection.vhost.queues
    assert {(len(queue), queue.unacked, len(queue.consumers)) for queue in queues.values()} == {(1, 0, 0)}
    assert len(client.broker.sessions) == 0
    assert not client.broker.long_changes
    for channel in closed:
        assert channel.transaction is None
        assert not hasattr(channel, "consuming")  # it refers to nothing that refers back


@pytest.mark.parametrize("how", ["close", "lost"])
def test_consumers_of_very_many_queues_leave_in_steps_and_get_nothing_meanwhile(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(new_broker())
    names = [f"q-{number}" for number in range(COUNT)]
    for name in names:
        client.call(QueueDeclare(name, auto_delete=True), BasicConsume(name, f"of-{name}"))
    other = Client(client.broker)
    other.call(BasicConsume(names[0], "stays"))
    client.told()
    monkeypatch.setattr(long_changes, "STEP", 50)
    monkeypatch.setattr(LongChanges.add, "__defaults__", (50,))
    queues = client.connection.vhost.queues

    if how == "close":
        assert client.call(ChannelClose(200, "done")) == []
    else:
        client.connection.end("lost")

    assert sum(len(queue.consumers) for queue in queues.values()) > COUNT // 2
    told = [method for name in names for method in other.feed(publish(b"late", name))]
    told += finish(other)
    assert [type(one) for one in told] == [BasicDeliver]
    assert client.told() == ([ChannelCloseOk()] if how == "close" else [])
    assert list(queues) == [names[0]]
    assert [consumer.priority for consumer in queues[names[0]].consumers] == [0]
    assert not client.broker.long_changes
