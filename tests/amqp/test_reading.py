"""Publishes that repeat and acks in a row take short ways through a read: nothing else may come of it."""

from collections.abc import Sequence

import pytest
from amqp_support import Client, frame, new_broker, numbers, publish
from hypothesis import given
from hypothesis import strategies as st

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FrameReader
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicPublish,
    BasicQos,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    TxCommit,
    TxSelect,
)
from holtmq.auth.permissions import Permissions
from holtmq.broker.broker import Broker
from holtmq.wire.properties import Properties


@pytest.fixture
def broker() -> Broker:
    return new_broker()


@pytest.fixture
def client(broker: Broker) -> Client:
    client = Client(broker)
    client.call(QueueDeclare("q"))
    return client


def publishes(count: int, first: int = 0, channel: int = 1) -> bytes:
    return b"".join(publish(b"%03d" % n, channel=channel) for n in range(first, first + count))


@pytest.mark.parametrize("size", [1, 2, 7, 50, 97, 1000, 1 << 20])
def test_equal_publishes_arrive_in_order_however_the_reads_are_cut(client: Client, size: int) -> None:
    client.feed(publishes(40), size)

    assert client.bodies() == numbers(40)


def test_a_known_publish_with_a_wrong_frame_end_is_a_frame_error(client: Client) -> None:
    client.feed(publishes(10))

    client.feed(publishes(1, 10)[:-1] + b"\x00")

    assert client.failure is not None
    assert client.failure.code is ReplyCode.FRAME_ERROR
    assert client.bodies() == numbers(10)


def test_a_known_publish_is_routed_anew_when_the_topology_has_changed(client: Client) -> None:
    client.feed(publishes(10))
    other = Client(client.broker)
    other.call(QueueDelete("q"), QueueDeclare("q"))

    client.feed(publishes(10, 10))

    assert client.bodies() == numbers(10, 10)


def test_a_known_publish_without_its_queue_is_returned_when_mandatory(client: Client) -> None:
    one = publish(b"x", mandatory=True)
    client.feed(one * 10)

    answers = client.feed(frame(QueueDelete("q")) + one * 3)

    assert sum(isinstance(answer, BasicReturn) for answer in answers) == 3


def test_a_known_publish_needs_permission_each_time(client: Client) -> None:
    client.feed(publishes(10))
    client.broker.access.set_permissions("guest", "/", Permissions(".*", "^$", ".*"))

    answers = client.feed(publishes(1, 10))

    assert [a.reply_code for a in answers if isinstance(a, ChannelClose)] == [ReplyCode.ACCESS_REFUSED]


def test_a_known_publish_on_a_reopened_channel_counts_its_confirms_from_one(client: Client) -> None:
    client.call(ConfirmSelect())
    client.feed(publishes(10))
    client.call(ChannelClose(200, "", 0, 0), ChannelOpen(), ConfirmSelect())

    answers = client.feed(publishes(3, 10))

    assert [(a.delivery_tag, a.multiple) for a in answers if isinstance(a, BasicAck)] == [(3, True)]


def test_known_publishes_behind_a_channel_error_are_passed_over(client: Client) -> None:
    client.feed(publishes(10))

    client.feed(frame(QueueDeclare("q", passive=True, durable=True)) + frame(BasicAck(99)) + publishes(5, 10))

    assert client.failure is not None
    assert client.bodies() == numbers(10)


def test_a_method_between_a_known_publish_and_its_content_is_refused(client: Client) -> None:
    client.feed(publishes(10))

    client.feed(frame(BasicPublish("", "q")) + publishes(1, 10))

    assert client.failure is not None
    assert client.failure.code is ReplyCode.UNEXPECTED_FRAME


def test_known_publishes_wait_for_the_commit_of_a_transaction(client: Client) -> None:
    client.feed(publishes(10))
    client.call(TxSelect())

    client.feed(publishes(10, 10))
    before = len(client.queue())
    client.call(TxCommit())

    assert before == 10
    assert client.bodies() == numbers(20)


def test_known_publishes_to_a_purged_priority_queue_are_there(client: Client) -> None:
    client.call(QueueDeclare("levels", arguments={"x-max-priority": 5}))
    both = publish(b"low", "levels", Properties(priority=1)) + publish(
        b"top", "levels", Properties(priority=9)
    )
    client.feed(both * 10)
    client.call(QueuePurge("levels"))

    client.feed(both * 2)

    assert client.bodies("levels") == [b"top", b"top", b"low", b"low"]


def test_known_publishes_with_a_time_to_live_expire(client: Client) -> None:
    client.feed(publish(b"x", properties=Properties(expiration="50")) * 10)

    client.broker.flow.now_ms += 51
    client.broker.flow.tick()
    client.broker.flow.turn()

    assert client.bodies() == []


_KINDS = st.tuples(
    st.sampled_from(["q", "levels", "nowhere"]),
    st.sampled_from([b"", b"a", b"bb", b"ccc"]),
    st.sampled_from([None, 0, 3, 9]),
    st.sampled_from([1, 2]),
    st.booleans(),
)


@given(st.lists(_KINDS, max_size=30), st.integers(1, 400))
def test_reads_cut_anywhere_have_the_same_effect(
    kinds: list[tuple[str, bytes, int | None, int, bool]], size: int
) -> None:
    data = b"".join(
        publish(body, key, Properties(priority=priority), channel=channel, mandatory=mandatory)
        for key, body, priority, channel, mandatory in kinds
        for _ in range(3)  # so that they are known
    )

    def effect(size: int) -> tuple[list[bytes], list[bytes], int]:
        client = Client(new_broker())
        client.call(QueueDeclare("q"), QueueDeclare("levels", arguments={"x-max-priority": 5}))
        client.call(ChannelOpen(), channel=2)
        answers = client.feed(data, size)
        assert client.failure is None
        returned = sum(isinstance(answer, BasicReturn) for answer in answers)
        return client.bodies(), client.bodies("levels"), returned

    assert effect(1 << 20) == effect(size)


def consume(client: Client, count: int, *, prefetch: int = 0, queue: str = "q", channel: int = 1) -> int:
    """Hand ``count`` messages to a consumer; how many it got."""
    client.call(BasicQos(0, prefetch), channel=channel)
    client.feed(b"".join(publish(b"%03d" % n, queue) for n in range(count)))
    answers = client.call(BasicConsume(queue, f"c-{queue}-{channel}"), channel=channel)
    return sum(isinstance(answer, BasicDeliver) for answer in answers)


def acks(tags: Sequence[int], channel: int = 1) -> bytes:
    return b"".join(frame(BasicAck(tag), channel) for tag in tags)


@pytest.mark.parametrize("size", [1, 20, 21, 22, 100, 1 << 20])
def test_acks_in_a_row_settle_each_however_the_reads_are_cut(client: Client, size: int) -> None:
    consume(client, 30)

    client.feed(acks([3, 1, 2, *range(10, 31)]), size)

    assert client.queue().unacked == 6
    assert sorted(client.connection.channels[1].ledger.by_number) == [4, 5, 6, 7, 8, 9]


def test_acks_in_a_row_make_room_for_more(client: Client) -> None:
    assert consume(client, 30, prefetch=10) == 10

    answers = client.feed(acks(range(1, 8)))

    assert [a.delivery_tag for a in answers if isinstance(a, BasicDeliver)] == list(range(11, 18))


def test_an_unknown_tag_in_a_row_fails_the_channel_after_those_before_it(client: Client) -> None:
    consume(client, 10)

    answers = client.feed(acks([1, 2, 99, 3, 4]) + frame(ChannelCloseOk()))

    assert [a.reply_text for a in answers if isinstance(a, ChannelClose)] == [
        "PRECONDITION_FAILED - unknown delivery tag 99"
    ]
    assert client.bodies() == numbers(8, 2)


def test_acks_for_one_and_for_many_in_a_row(client: Client) -> None:
    consume(client, 20)
    many = frame(BasicAck(10, multiple=True))

    client.feed(acks([1, 2]) + many + acks([12]) + frame(BasicAck(15, multiple=True)) + acks([17, 18]))

    assert sorted(client.connection.channels[1].ledger.by_number) == [16, 19, 20]
    assert client.queue().unacked == 3


def test_acks_with_bits_that_mean_nothing_are_acks(client: Client) -> None:
    consume(client, 10)
    odd = acks([2])[:-2] + b"\x02\xce"

    client.feed(odd + acks([1, 3]) + odd.replace(b"\x02\x02", b"\x04\x02") + acks([5, 6]))

    assert sorted(client.connection.channels[1].ledger.by_number) == [7, 8, 9, 10]


def test_acks_in_a_row_of_two_queues_and_two_channels(client: Client) -> None:
    client.call(QueueDeclare("other"))
    client.call(ChannelOpen(), channel=2)
    consume(client, 5)
    consume(client, 5, queue="other")
    client.call(QueueDeclare("third"))
    consume(client, 5, queue="third", channel=2)

    client.feed(acks([1, 6, 2, 7, 8]) + acks([1, 2], channel=2) + acks([3]))

    assert [client.queue(name).unacked for name in ("q", "other", "third")] == [2, 2, 3]


def test_late_acks_in_a_row_take_the_messages_out_again(client: Client) -> None:
    client.call(QueueDeclare("other"))
    consume(client, 5)
    consume(client, 5, queue="other")
    client.call(BasicCancel("c-q-1"))

    client.feed(acks([2, 6, 4, 5, 7]))

    assert client.bodies() == [b"000", b"002"]
    assert client.queue("other").unacked == 3
    assert len(client.connection.channels[1].ledger) == 3


def test_acks_in_a_row_count_with_their_transaction(client: Client) -> None:
    client.call(TxSelect())
    client.call(QueueDeclare("filled"))
    client.feed(publishes(5))
    client.call(TxCommit())
    client.call(BasicConsume("q", "c"))

    client.feed(acks([1, 2, 3]))
    before = client.queue().unacked
    client.call(TxCommit())

    assert (before, client.queue().unacked) == (5, 2)


def test_a_message_from_before_a_restart_is_marked_also_behind_a_newer_one_of_higher_priority(
    client: Client,
) -> None:
    client.call(QueueDeclare("levels", arguments={"x-max-priority": 5}))
    client.feed(publish(b"old", "levels", Properties(priority=1)))
    client.queue("levels").redelivered_upto = client.broker.flow.seq  # as recovery leaves it
    client.feed(publish(b"new", "levels", Properties(priority=5)))

    answers = client.call(BasicConsume("levels", "c"))

    assert [a.redelivered for a in answers if isinstance(a, BasicDeliver)] == [False, True]


def test_deliveries_of_mixed_keys_headers_and_sizes_are_written_whole(client: Client) -> None:
    client.call(QueueDeclare("other"))
    sent = [bytes([65 + n % 26]) * (n % 4 * 7) for n in range(40)]
    client.feed(b"".join(publish(b, properties=Properties(priority=n % 3)) for n, b in enumerate(sent)))
    client.connection.receive(frame(BasicConsume("q", "c")))
    client.broker.flow.turn()

    frames = FrameReader(0).feed(client.connection.outbox.take())

    sizes = [int.from_bytes(payload[4:12], "big") for kind, _, payload in frames if kind == FRAME_HEADER]
    assert sizes == [len(body) for body in sent]
    assert [p for kind, _, p in frames if kind == FRAME_BODY] == [body for body in sent if body]


@pytest.mark.parametrize("acks", [1, 8])
def test_a_queue_that_goes_with_a_failed_channel_gets_nothing_from_the_rest_of_the_read(
    broker: Broker, acks: int
) -> None:
    client = Client(broker)
    client.call(ChannelOpen(), channel=2)
    client.call(QueueDeclare("brief", auto_delete=True), BasicConsume("brief", "tag"))
    again = publish(b"x", "brief", channel=2, mandatory=True)
    client.feed(3 * again)

    answers = client.feed(again + acks * frame(BasicAck(77)) + 2 * again)

    assert "brief" not in broker.vhosts["/"].queues
    assert sum(isinstance(answer, BasicReturn) for answer in answers) == 2
