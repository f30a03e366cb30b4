"""Closing without a socket: by the client, by an error, of a channel, of the connection."""

import pytest
from amqp_support import Client, frame, new_broker, numbers, publish

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Phase
from holtmq.amqp.errors import ConnectionFault
from holtmq.amqp.methods import (
    BasicConsume,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    QueueDeclare,
)
from holtmq.broker.work.work_queue import WorkQueue

CLOSE = ConnectionClose(200, "bye", 0, 0)
CLOSE_CHANNEL = ChannelClose(200, "bye", 0, 0)


@pytest.fixture
def client() -> Client:
    client = Client(new_broker())
    client.call(QueueDeclare("q"))
    client.feed(b"".join(publish(body) for body in numbers(3)))
    return client


def phase(client: Client) -> Phase:
    return client.connection.phase


def kinds(said: list[Method]) -> list[type[Method]]:
    return [type(method) for method in said]


def test_a_closed_channel_returns_what_it_held(client: Client) -> None:
    client.call(BasicConsume("q"))

    assert kinds(client.call(CLOSE_CHANNEL)) == [ChannelCloseOk]
    assert client.bodies() == numbers(3)
    assert client.queue().consumers == []


def test_its_number_can_be_opened_again(client: Client) -> None:
    client.call(CLOSE_CHANNEL)

    assert kinds(client.call(ChannelOpen())) == [ChannelOpenOk]


def test_a_channel_error_leaves_the_other_channels_alone(client: Client) -> None:
    client.call(ChannelOpen(), channel=2)

    said = client.call(QueueDeclare("none", passive=True))

    assert kinds(said) == [ChannelClose]
    assert client.connection.is_running
    assert kinds(client.call(QueueDeclare("q", passive=True), channel=2)) != [ChannelClose]


def test_what_the_client_sent_before_it_knew_is_ignored(client: Client) -> None:
    said = client.feed(
        frame(QueueDeclare("none", passive=True)) + publish(b"late") + frame(QueueDeclare("late"))
    )

    assert kinds(said) == [ChannelClose]
    assert client.bodies() == numbers(3)
    assert "late" not in client.broker.vhosts["/"].queues


def test_closes_that_cross_are_both_answered(client: Client) -> None:
    client.call(QueueDeclare("none", passive=True))

    assert kinds(client.call(CLOSE_CHANNEL)) == [ChannelCloseOk]
    assert client.call(ChannelCloseOk()) == []
    assert kinds(client.call(ChannelOpen())) == [ChannelOpenOk]


def test_a_second_open_of_a_channel_ends_the_connection(client: Client) -> None:
    said = client.call(ChannelOpen())

    assert kinds(said) == [ConnectionClose]
    assert client.failure is not None
    assert client.failure.code is ReplyCode.CHANNEL_ERROR


def test_a_client_that_closes_gets_close_ok_and_its_messages_go_back(client: Client) -> None:
    client.call(BasicConsume("q"))

    assert kinds(client.call(CLOSE, channel=0)) == [ConnectionCloseOk]
    assert phase(client) is Phase.CLOSED
    assert client.bodies() == numbers(3)


def test_nothing_is_processed_behind_a_close(client: Client) -> None:
    said = client.feed(frame(CLOSE, 0) + publish(b"late"))

    assert kinds(said) == [ConnectionCloseOk]
    assert client.bodies() == numbers(3)


def test_exclusive_queues_go_with_their_connection(client: Client) -> None:
    client.call(QueueDeclare("mine", exclusive=True))

    client.call(CLOSE, channel=0)

    assert "mine" not in client.broker.vhosts["/"].queues


def test_our_close_waits_for_close_ok_and_ignores_the_rest(client: Client) -> None:
    client.connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "maintenance"))

    assert kinds(client.told()) == [ConnectionClose]
    assert client.feed(publish(b"late") + frame(QueueDeclare("late"))) == []
    assert phase(client) is Phase.CLOSING
    client.feed(publish(b"later") * 3 + frame(ConnectionCloseOk(), 0))
    assert phase(client) is Phase.CLOSED
    assert client.bodies() == numbers(3)


def test_connection_closes_that_cross_are_answered(client: Client) -> None:
    client.connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "maintenance"))
    client.told()

    assert kinds(client.call(CLOSE, channel=0)) == [ConnectionCloseOk]


def test_a_second_failure_says_nothing_more(client: Client) -> None:
    client.connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "one"))
    client.connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "two"))

    assert kinds(client.told()) == [ConnectionClose]
    assert "one" in client.connection.closed_because


@pytest.mark.parametrize("data", [b"\x01\x00\x01\x00\x00\x00\x04abcdX", b"\x09\x00\x00\x00\x00\x00\x00\xce"])
def test_a_broken_frame_ends_the_connection_and_nothing_behind_it_is_read(
    client: Client, data: bytes
) -> None:
    said = client.feed(data + publish(b"late"))

    assert kinds(said) == [ConnectionClose]
    assert client.feed(publish(b"later")) == []
    assert client.bodies() == numbers(3)


def test_a_half_published_message_is_dropped_with_its_channel(client: Client) -> None:
    whole = publish(b"half a message")
    cut = whole.index(b"half")

    client.feed(whole[: cut - 7])  # method and header; the body frame is missing
    client.call(CLOSE_CHANNEL, ChannelOpen())

    assert client.bodies() == numbers(3)


def test_consumers_of_all_channels_of_a_lost_connection_leave_each_queue_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.call(QueueDeclare("other"), QueueDeclare("leaving", auto_delete=True))
    for number in range(2, 6):
        client.call(ChannelOpen(), channel=number)
        for queue in ("q", "q", "other", "leaving"):
            client.call(BasicConsume(queue), channel=number)
    staying = Client(client.broker)
    staying.call(BasicConsume("q", "staying"))
    removals: list[tuple[str, int]] = []
    remove = WorkQueue.remove_consumers

    def noted(queue: WorkQueue, gone: list[object]) -> None:
        removals.append((queue.name, len(gone)))
        remove(queue, gone)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkQueue, "remove_consumers", noted)

    client.connection.end("gone")

    assert removals == [("q", 8), ("other", 4), ("leaving", 4)]
    assert (len(client.queue("q").consumers), client.queue("other").consumers) == (1, [])
    assert "leaving" not in client.broker.vhost("/").queues
    assert client.broker.counts.consumers == 1
