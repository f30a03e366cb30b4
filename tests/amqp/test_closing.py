"""Closing without a socket: by the client, by an error, of a channel, of the connection."""

import pytest
from amqp_support import Client, finish, frame, new_broker, numbers, publish

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault, ConnectionFault
from holtmq.amqp.frames import FRAME_HEARTBEAT, FRAME_METHOD, encode_frame
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    QueueDeclare,
    QueueDelete,
)
from holtmq.amqp.phase import Phase
from holtmq.broker.errors import Conflict
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.properties import Properties

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


def test_what_fails_late_does_not_close_a_channel_again(client: Client) -> None:
    """An overdue ack can close a channel while what it asked for goes in steps, and then fails."""
    connection = client.connection
    channel = connection.channels[1]
    fault = ChannelFault(ReplyCode.PRECONDITION_FAILED, "overdue")

    def fail() -> None:
        raise Conflict("in use")

    connection.fail_channel(channel, fault, 0)
    connection.stall()
    with answering_late(channel, QueueDelete):
        fail()

    assert kinds(client.told()) == [ChannelClose]
    assert client.broker.counts.channels_closed == 1
    assert not connection.is_stalled


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


CONNECTION_ERRORS = {
    "a method instead of a header": frame(BasicPublish("", "q")) + frame(QueueDeclare("q")),
    "immediate": frame(BasicPublish("", "q", immediate=True)),
    "an unknown method": encode_frame(FRAME_METHOD, 1, b"\x00\x63\x00\x63"),
    "a heartbeat on a channel": encode_frame(FRAME_HEARTBEAT, 1, b""),
    "a channel that is not open": frame(QueueDeclare("q"), 7),
}


@pytest.mark.parametrize("error", CONNECTION_ERRORS)
@pytest.mark.parametrize("before", [b"", publish(b"fine") * 3])
def test_what_is_read_together_with_an_error_is_processed_like_what_is_read_later(
    client: Client, error: str, before: bytes
) -> None:
    """A client that has closed waits for close-ok, and sends nothing more."""
    said = client.feed(before + CONNECTION_ERRORS[error] + publish(b"late") + frame(CLOSE, 0))

    assert kinds(said) == [ConnectionClose, ConnectionCloseOk]
    assert client.connection.waiting_bytes == 0
    client.call(ConnectionCloseOk(), channel=0)
    assert phase(client) is Phase.CLOSED


def test_very_many_errors_in_one_read_are_one_error(client: Client) -> None:
    error = CONNECTION_ERRORS["a heartbeat on a channel"]

    assert kinds(client.feed(error * 5_000 + frame(CLOSE, 0))) == [ConnectionClose, ConnectionCloseOk]


def test_what_is_read_with_an_error_waits_until_the_messages_are_back(client: Client) -> None:
    client.broker.flow.per_turn = TurnLimits(returned=1)
    client.call(BasicConsume("q"))

    said = client.feed(CONNECTION_ERRORS["immediate"] + frame(CLOSE, 0))

    assert kinds(said) == [ConnectionClose]
    assert kinds(finish(client)) == [ConnectionCloseOk]
    assert client.bodies() == numbers(3)


def test_a_close_behind_what_waits_for_the_disk_is_answered_though_the_broker_has_closed(
    client: Client,
) -> None:
    client.feed(frame(QueueDeclare("durable", durable=True)) + frame(CLOSE, 0))
    client.connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "maintenance"))

    client.broker.journal.flush()

    assert kinds(client.told()) == [ConnectionClose, ConnectionCloseOk]


@pytest.mark.parametrize(("close", "channel"), [(CLOSE, 0), (CLOSE_CHANNEL, 1)])
def test_what_need_not_wait_for_the_disk_is_confirmed_before_close_ok(
    client: Client, close: Method, channel: int
) -> None:
    client.call(ConfirmSelect())

    said = client.feed(publish(b"a") + publish(b"b") + frame(close, channel))

    assert kinds(said)[:-1] == [BasicAck]
    assert said[0] == BasicAck(2, multiple=True)


def test_what_must_wait_for_the_disk_is_not_confirmed_before_it_is_there(client: Client) -> None:
    client.call(QueueDeclare("durable", durable=True), ConfirmSelect())
    client.broker.journal.flush()
    client.told()

    said = client.feed(publish(b"a", "durable", Properties(delivery_mode=2)) + frame(CLOSE, 0))

    assert kinds(said) == [ConnectionCloseOk]
