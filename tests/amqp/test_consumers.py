"""Consumers of a channel without a socket: tags, prefetch, cancel, and what returns to the queue."""

import pytest
from amqp_support import Client, new_broker, numbers, publish

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.consumer import Consumer
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicRecover,
    ChannelClose,
    ChannelFlow,
    Method,
    QueueDeclare,
    QueueDelete,
    QueueDeleteOk,
)
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.tables import FieldTable


@pytest.fixture
def client() -> Client:
    client = Client(new_broker())
    client.call(QueueDeclare("q"))
    return client


def fill(client: Client, count: int) -> None:
    client.feed(b"".join(publish(body) for body in numbers(count)))


def tags(said: list[Method]) -> list[int]:
    return [method.delivery_tag for method in said if isinstance(method, BasicDeliver)]


def test_a_tag_is_made_up_where_none_is_given(client: Client) -> None:
    (first,) = client.call(BasicConsume("q"))
    (second,) = client.call(BasicConsume("q"))

    assert isinstance(first, BasicConsumeOk)
    assert isinstance(second, BasicConsumeOk)
    assert first.consumer_tag.startswith("amq.ctag-")
    assert first.consumer_tag != second.consumer_tag


def test_a_tag_in_use_ends_the_connection(client: Client) -> None:
    client.call(BasicConsume("q", "me"), BasicConsume("q", "me"))

    assert client.failure is not None
    assert client.failure.code is ReplyCode.NOT_ALLOWED
    assert "'me'" in str(client.failure)


def test_consume_ok_comes_before_the_first_delivery(client: Client) -> None:
    fill(client, 2)

    said = client.call(BasicConsume("q"))

    assert [type(method) for method in said] == [BasicConsumeOk, BasicDeliver, BasicDeliver]


def test_no_wait_gets_deliveries_and_no_answer(client: Client) -> None:
    fill(client, 1)

    assert tags(client.call(BasicConsume("q", "me", no_wait=True))) == [1]
    assert client.call(BasicCancel("me", True)) == []


def test_prefetch_limits_each_consumer_and_an_ack_makes_room(client: Client) -> None:
    fill(client, 5)
    client.call(BasicQos(0, 2, False))

    first = tags(client.call(BasicConsume("q", "a")))
    second = tags(client.call(BasicConsume("q", "b")))

    assert (first, second) == ([1, 2], [3, 4])
    assert tags(client.call(BasicAck(3, False))) == [5]


def test_a_global_prefetch_is_shared(client: Client) -> None:
    fill(client, 5)
    client.call(BasicQos(0, 3, True))

    got = tags(client.call(BasicConsume("q", "a"), BasicConsume("q", "b")))

    assert got == [1, 2, 3]
    assert tags(client.call(BasicAck(2, True))) == [4, 5]


def test_a_later_prefetch_is_for_later_consumers(client: Client) -> None:
    fill(client, 5)
    client.call(BasicQos(0, 1, False), BasicConsume("q", "a"), BasicQos(0, 0, False))

    assert tags(client.call(BasicAck(1, False))) == [2]
    assert tags(client.call(BasicConsume("q", "b"))) == [3, 4, 5]


def test_a_cancelled_consumer_s_messages_return_in_their_old_places(client: Client) -> None:
    fill(client, 4)
    client.call(BasicConsume("q", "me"))
    client.call(BasicAck(2, False))

    said = client.call(BasicCancel("me"))

    assert said == [BasicCancelOk("me")]
    assert client.bodies() == [b"000", b"002", b"003"]
    assert client.queue().unacked == 0


def test_a_cancelled_consumer_of_a_full_queue_does_not_get_its_messages_again(client: Client) -> None:
    limits: FieldTable = {"x-max-length": 4, "x-overflow": "reject-publish", "x-delivery-limit": 1}
    client.call(QueueDeclare("full", arguments=limits))
    client.call(BasicQos(prefetch_count=3), BasicConsume("full", "me"))
    for first in (0, 3):  # when it returns them, the queue has more than it may take
        client.feed(b"".join(publish(body, key="full") for body in numbers(3, first)))

    said = client.call(BasicCancel("me"))

    assert [type(method) for method in said] == [BasicCancelOk]
    assert client.bodies("full") == numbers(6)
    assert list(client.queue("full").returned.values()) == [1, 1, 1]


def test_without_cancel_requeue_they_stay_until_the_channel_ends() -> None:
    client = Client(new_broker())
    client.call(QueueDeclare("q", arguments={"x-cancel-requeue": False}))
    fill(client, 2)
    client.call(BasicConsume("q", "me"))
    client.call(BasicCancel("me"))

    assert client.queue().unacked == 2
    client.call(BasicAck(1, False))
    assert client.queue().unacked == 1


def test_an_unknown_tag_is_cancelled_without_an_error(client: Client) -> None:
    assert client.call(BasicCancel("none")) == [BasicCancelOk("none")]


def test_a_late_ack_of_a_cancelled_consumer_counts_while_the_message_waits(client: Client) -> None:
    fill(client, 2)
    client.call(BasicConsume("q", "me"))
    client.call(BasicCancel("me"))

    client.call(BasicAck(1, False))

    assert client.failure is None
    assert client.bodies() == [b"001"]


def test_the_client_hears_of_its_deleted_queue_after_delete_ok(client: Client) -> None:
    client.connection.wants_cancel_notify = True
    client.call(BasicConsume("q", "me"))

    said = client.call(QueueDelete("q"))

    assert [type(method) for method in said] == [QueueDeleteOk, BasicCancel]


@pytest.mark.parametrize("verdict", [BasicNack(0, True, True), BasicRecover(True)])
def test_what_returns_is_marked_redelivered(client: Client, verdict: Method) -> None:
    fill(client, 2)
    client.call(BasicQos(0, 2, False), BasicConsume("q"))

    said = client.call(verdict)

    again = [method for method in said if isinstance(method, BasicDeliver)]
    assert [method.redelivered for method in again] == [True, True]
    assert [method.delivery_tag for method in again] == [3, 4]


@pytest.mark.parametrize("verdict", [BasicAck(7, False), BasicNack(7, False, True), BasicAck(7, True)])
def test_a_tag_never_given_ends_the_channel_and_returns_the_rest(client: Client, verdict: Method) -> None:
    fill(client, 2)
    client.call(BasicConsume("q"))

    client.call(verdict)

    assert client.failure is not None
    assert client.failure.code is ReplyCode.PRECONDITION_FAILED
    assert client.bodies() == numbers(2)


def test_acks_before_an_unknown_tag_in_the_same_read_count(client: Client) -> None:
    fill(client, 3)
    client.call(BasicConsume("q"))

    client.call(BasicAck(1, False), BasicAck(2, False), BasicAck(9, False))

    assert client.bodies() == [b"002"]


def test_flow_stops_deliveries_and_starts_them_again(client: Client) -> None:
    client.call(BasicConsume("q"), ChannelFlow(False))
    fill(client, 2)

    assert client.queue().unacked == 0
    assert tags(client.call(ChannelFlow(True))) == [1, 2]


def test_an_exclusive_consumer_stays_alone(client: Client) -> None:
    client.call(BasicConsume("q", "me", exclusive=True), BasicConsume("q", "you"))

    assert client.failure is not None
    assert client.failure.code is ReplyCode.ACCESS_REFUSED


def test_get_takes_one_and_says_how_many_are_left(client: Client) -> None:
    fill(client, 2)

    (first,) = client.call(BasicGet("q", False))
    (second,) = client.call(BasicGet("q", True))
    (third,) = client.call(BasicGet("q", True))

    assert isinstance(first, BasicGetOk)
    assert isinstance(second, BasicGetOk)
    assert (first.delivery_tag, first.message_count, second.delivery_tag) == (1, 1, 2)
    assert isinstance(third, BasicGetEmpty)
    assert client.queue().unacked == 1


def test_very_many_consumers_of_a_deleted_queue_are_told_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongChanges.add, "__defaults__", (2,))
    broker = new_broker()
    client = Client(broker)
    client.connection.wants_cancel_notify = True
    client.call(QueueDeclare("q"), QueueDeclare("other"))
    for tag in "abcd":
        client.call(BasicConsume("q", tag))

    said = client.call(QueueDelete("q"))
    client.call(BasicCancel("c"), BasicConsume("other", "c"))  # the tag is free again
    channel = client.connection.channels[1]
    first = sorted(channel.consumers)
    while len(broker.long_changes):
        broker.long_changes.step()

    assert said == [QueueDeleteOk(0), BasicCancel("a", True), BasicCancel("b", True)]
    assert first == ["c", "d"]
    assert list(channel.consumers) == ["c"]
    assert channel.consumers["c"].queue.name == "other"
    assert len(broker.vhost("/").queues["other"].consumers) == 1


@pytest.mark.parametrize("leaving", [1, 3, 200])
def test_consumers_that_leave_together_leave_the_others_in_their_order(leaving: int) -> None:
    broker = new_broker()
    staying, going = Client(broker), Client(broker)
    staying.call(QueueDeclare("q", arguments={"x-single-active-consumer": True}))
    for number in range(leaving):
        going.call(BasicConsume("q", f"g{number}"))
        staying.call(BasicConsume("q", f"s{number}"))
    staying.call(BasicConsume("q", "last"))

    going.call(ChannelClose(200, "", 0, 0))

    queue = broker.vhost("/").queues["q"]
    assert isinstance(queue, WorkQueue)
    tags = [one.tag for one in queue.consumers if isinstance(one, Consumer)]
    assert tags == [*(f"s{number}" for number in range(leaving)), "last"]
    assert queue.active is queue.consumers[0]


def test_a_consumer_that_was_cancelled_for_late_acks_counts_no_more_and_its_newer_deliveries_are_listed(
    client: Client,
) -> None:
    client.connection.wants_cancel_notify = True
    flow = client.broker.flow
    fill(client, 1)
    client.call(BasicConsume("q", "late", arguments={"x-consumer-timeout": 16_000}))
    later = flow.now_ms + 10_000
    while flow.now_ms < later:
        passes(client, 1_000)
    client.feed(publish(b"newer"))

    said: list[Method] = []
    while not said:
        passes(client, 1_000)
        said = client.told()

    assert said == [BasicCancel("late", True)]
    assert client.broker.counts.consumers == 0
    (holder,) = client.broker.other_holders.of(client.queue().id)
    assert list(holder.held) == [2]
    assert client.bodies() == [b"000"]
    client.call(ChannelClose(200, "", 0, 0))
    assert client.broker.counts.consumers == 0
    assert len(client.broker.other_holders) == 0


def passes(client: Client, milliseconds: int) -> None:
    flow = client.broker.flow
    flow.now_ms += milliseconds
    flow.tick()
    flow.turn()
