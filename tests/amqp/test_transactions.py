"""Transactions of a channel: all of it or nothing, and not more than one record can hold."""

import pytest
from amqp_support import Client, frame, new_broker, numbers, publish

from holtmq.amqp import transaction
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    BasicQos,
    BasicReject,
    ChannelClose,
    ChannelOpen,
    Method,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxSelect,
)
from holtmq.broker.turn_limits import TurnLimits
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable


@pytest.fixture
def client() -> Client:
    client = Client(new_broker())
    client.call(QueueDeclare("q"), TxSelect())
    return client


@pytest.fixture
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_BYTES_MAX", 1_000)


def fill(client: Client, count: int) -> None:
    """Messages of 300 bytes, committed."""
    for _ in range(count):
        client.feed(publish(b"x" * 300))
        client.call(TxCommit())


def is_refused(answers: list[Method]) -> bool:
    return any(isinstance(said, ChannelClose) and "larger than" in said.reply_text for said in answers)


@pytest.mark.usefixtures("small_transactions")
def test_publishes_beyond_what_a_record_can_hold_are_refused_and_nothing_is_published(client: Client) -> None:
    answers = client.feed(publish(b"x" * 300) * 4)

    assert is_refused(answers)
    assert client.failure is not None
    assert client.failure.code is ReplyCode.PRECONDITION_FAILED
    assert client.bodies() == []


@pytest.mark.usefixtures("small_transactions")
@pytest.mark.parametrize("verdict", [BasicNack(0, True, False), BasicNack(0, True, True)])
def test_what_may_be_dead_lettered_counts_and_a_refusal_gives_it_back(
    client: Client, verdict: Method
) -> None:
    fill(client, 4)
    client.call(BasicConsume("q", consumer_tag="c"))
    assert client.queue().unacked == 4

    answers = client.call(verdict)

    assert is_refused(answers)
    assert (len(client.bodies()), client.queue().unacked) == (4, 0)


@pytest.mark.usefixtures("small_transactions")
def test_a_commit_that_grows_too_large_by_its_many_queues_is_refused_and_gives_all_back(
    client: Client,
) -> None:
    fill(client, 1)
    vhost = client.broker.vhost("/")
    for number in range(200):
        client.broker.declare_queue(vhost, f"q{number}", durable=True)
        client.broker.bind(vhost, "amq.fanout", f"q{number}", "")
    client.call(BasicConsume("q", consumer_tag="c"))
    client.call(BasicAck(1))
    client.feed(publish(b"x" * 300, "", Properties(delivery_mode=2), exchange="amq.fanout"))

    answers = client.call(TxCommit())

    assert is_refused(answers)
    assert (client.bodies("q7"), len(client.bodies()), client.queue().unacked) == ([], 1, 0)
    assert not client.broker.flow.in_batch


@pytest.mark.usefixtures("small_transactions")
def test_acks_are_free_and_every_commit_and_rollback_starts_anew(client: Client) -> None:
    fill(client, 8)
    client.call(BasicConsume("q", consumer_tag="c"))

    client.feed(publish(b"x" * 600))
    client.call(BasicReject(1, requeue=False), TxRollback())
    client.feed(publish(b"y" * 600))
    answers = client.call(BasicAck(0, True), TxCommit())
    client.feed(publish(b"z" * 600))
    answers += client.call(TxCommit())

    assert answers.count(TxCommitOk()) == 2
    assert client.failure is None
    assert client.queue().unacked == 2  # of the two commits


def test_a_commit_leaves_what_is_being_dead_lettered_to_later_turns() -> None:
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(dead_letters=2)
    letters: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.call(QueueDeclare("dead"), QueueDeclare("q", arguments=letters), BasicQos(prefetch_count=10))
    bodies = numbers(12)
    client.feed(b"".join(map(publish, bodies)))
    client.call(BasicConsume("q"))
    client.call(ChannelOpen(), TxSelect(), BasicConsume("q"), channel=2)
    client.connection.receive(frame(BasicNack(0, True, False)))  # ten messages, without a transaction
    client.broker.flow.turn()

    client.connection.receive(frame(BasicNack(0, True, False), 2) + frame(TxCommit(), 2))

    assert TxCommitOk() in client.told()
    dead = client.queue("dead").fifo
    assert dead is not None
    two_turns_and_the_commit = [*bodies[:4], *bodies[10:]]
    assert [message.body for message in dead.ready] == two_turns_and_the_commit
    client.broker.flow.complete()
    assert sorted(client.bodies("dead")) == bodies
