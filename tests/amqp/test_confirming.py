"""Publisher confirms without a socket: which tags, in which order, and only when durable."""

import pytest
from amqp_support import Client, new_broker, publish
from hypothesis import given
from hypothesis import strategies as st

from holtmq.amqp.codec import decode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.confirms import Confirms
from holtmq.amqp.frames import FRAME_METHOD, FrameReader
from holtmq.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    QueueDeclare,
    TxSelect,
)
from holtmq.wire.properties import Properties

DURABLE = Properties(delivery_mode=2)


@pytest.fixture
def client() -> Client:
    client = Client(new_broker())
    client.call(QueueDeclare("q"), ConfirmSelect())
    return client


def confirmed(said: list[Method]) -> list[int]:
    """All tags that these frames confirm or refuse, in order; a tag of two frames would be there twice."""
    tags: list[int] = []
    for method in said:
        if isinstance(method, BasicAck | BasicNack):
            first = (max(tags) if tags else 0) + 1 if method.multiple else method.delivery_tag
            tags += range(first, method.delivery_tag + 1)
    return tags


def test_tags_count_from_one_and_a_read_is_confirmed_at_once(client: Client) -> None:
    said = client.feed(publish(b"a") * 3)

    assert said == [BasicAck(3, True)]
    assert client.feed(publish(b"b")) == [BasicAck(4, False)]


def test_a_select_may_be_repeated_and_keeps_the_count(client: Client) -> None:
    client.feed(publish(b"a"))

    assert client.call(ConfirmSelect()) == [ConfirmSelectOk()]
    assert client.feed(publish(b"b")) == [BasicAck(2, False)]


def test_channels_count_alone(client: Client) -> None:
    client.call(ChannelOpen(), ConfirmSelect(), channel=2)

    said = client.feed(publish(b"a") + publish(b"a", channel=2) + publish(b"a"))

    assert sorted(method.delivery_tag for method in said if isinstance(method, BasicAck)) == [1, 2]


def test_a_durable_message_is_confirmed_when_the_journal_says_so(client: Client) -> None:
    client.call(QueueDeclare("safe", durable=True))
    client.broker.journal.flush()
    client.told()

    early = client.feed(publish(b"a", "safe", DURABLE))
    client.broker.journal.flush()

    assert early == []
    assert client.told() == [BasicAck(1, False)]


def test_a_transient_message_does_not_overtake_a_durable_one(client: Client) -> None:
    client.call(QueueDeclare("safe", durable=True))
    client.broker.journal.flush()
    client.told()

    early = client.feed(publish(b"a", "safe", DURABLE))
    early += client.feed(publish(b"b"))
    client.broker.journal.flush()

    assert early == []
    assert confirmed(client.told()) == [1, 2]


def test_an_unrouted_message_is_returned_before_it_is_confirmed(client: Client) -> None:
    said = client.feed(publish(b"a", "nowhere", mandatory=True))

    assert [type(method) for method in said] == [BasicReturn, BasicAck]


def test_a_full_queue_that_rejects_is_a_nack_for_that_tag_alone(client: Client) -> None:
    client.call(QueueDeclare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))

    said = client.feed(publish(b"a", "small") + publish(b"b", "small") + publish(b"c"))

    assert said == [BasicAck(1, False), BasicNack(2, False, False), BasicAck(3, False)]


def test_after_a_channel_error_what_was_published_before_is_confirmed_first(client: Client) -> None:
    said = client.feed(publish(b"a") + publish(b"b", exchange="nowhere"))

    assert [type(method) for method in said] == [BasicAck, ChannelClose]
    assert said[0] == BasicAck(1, False)


@pytest.mark.parametrize(("first", "second"), [(ConfirmSelect(), TxSelect()), (TxSelect(), ConfirmSelect())])
def test_a_channel_confirms_or_has_transactions_not_both(first: Method, second: Method) -> None:
    client = Client(new_broker())

    client.call(first, second)

    assert client.failure is not None
    assert client.failure.code is ReplyCode.PRECONDITION_FAILED


@given(
    st.lists(st.lists(st.sampled_from(["done", "journalled", "refused"]), min_size=1, max_size=6), max_size=8)
)
def test_every_tag_is_answered_once_and_as_it_went(reads: list[list[str]]) -> None:
    confirms, reader = Confirms(1), FrameReader(0)
    expected: dict[int, bool] = {}
    found: dict[int, bool] = {}
    for read in reads:
        for outcome in read:
            confirms.last += 1
            expected[confirms.last] = outcome != "refused"
            if outcome != "done":
                confirms.note(outcome == "journalled", outcome == "refused")
        for _, _, data in reader.feed(confirms.end_batch().frames(failed=False)):
            method = decode_method(data)
            assert isinstance(method, BasicAck | BasicNack)
            first = len(found) + 1 if method.multiple else method.delivery_tag
            for tag in range(first, method.delivery_tag + 1):
                assert tag not in found
                found[tag] = isinstance(method, BasicAck)

    assert found == expected


def test_a_failed_journal_refuses_the_whole_batch() -> None:
    confirms = Confirms(1)
    confirms.last = 3
    confirms.note(journalled=True, refused=False)

    ((kind, _, data),) = FrameReader(0).feed(confirms.end_batch().frames(failed=True))

    assert kind == FRAME_METHOD
    assert decode_method(data) == BasicNack(3, True, False)
