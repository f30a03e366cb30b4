"""A message for very many queues in a transaction: part of the commit's record, and placed in steps."""

import pytest
from amqp_support import Client, finish, new_broker, publish, step

from holtmq.amqp import committing, transaction
from holtmq.amqp.methods import (
    BasicAck,
    BasicGet,
    BasicNack,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ExchangeDeclare,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from holtmq.broker.broker import Broker
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

AT_ONCE = 2
NAMES = ["a", "b", "c", "d", "e"]  # three steps
TO_ALL = Properties(delivery_mode=2, headers={"to": "all"})
TO_LAST = Properties(delivery_mode=2, headers={"to": "last"})


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture(params=["small", "large"], autouse=True)
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test twice: a large transaction is prepared in steps, too."""
    if request.param == "large":
        monkeypatch.setattr(transaction, "STEP", 0)
        monkeypatch.setattr(committing, "STEP", 1)
    return str(request.param)


@pytest.fixture
def client(journal: MemoryJournal) -> Client:
    """A transactional client; an exchange leads to all queues or to the last, another to all."""
    client = Client(new_broker(journal))
    in_steps(client.broker)
    ask(client, ExchangeDeclare("wide", "headers", durable=True))
    ask(client, ExchangeDeclare("all", "fanout", durable=True))
    for name in NAMES:
        ask(client, QueueDeclare(name, durable=True))
        ask(client, QueueBind(name, "wide", "", arguments={"to": "all"}), QueueBind(name, "all", ""))
    ask(client, QueueBind("e", "wide", "", arguments={"to": "last"}))
    ask(client, QueueDeclare("q", durable=True), TxSelect())
    return client


def in_steps(broker: Broker) -> None:
    broker.flow.per_turn = TurnLimits(copies=AT_ONCE)
    broker.vhost("/").widest = AT_ONCE


def ask(client: Client, *methods: Method) -> None:
    for method in methods:
        client.call(method)
        client.broker.journal.flush()
        client.told()


def send(client: Client, body: bytes, properties: Properties = TO_ALL, *, mandatory: bool = False) -> None:
    client.feed(publish(body, "k", properties, exchange="wide", mandatory=mandatory))


def commit(client: Client) -> None:
    """Ask for the commit, and wait until its record is written; nothing of that is durable."""
    client.call(TxCommit())
    while not client.broker.flow.delayed:
        client.broker.flow.tick()
        client.broker.flow.turn()


def contents(broker: Broker) -> list[list[bytes]]:
    return [bodies(broker, name) for name in NAMES]


def bodies(broker: Broker, name: str) -> list[bytes]:
    queue = broker.vhost("/").queues[name]
    assert isinstance(queue, WorkQueue)
    return [message.body for run in queue.store.drain(broker.flow.pager) for message in run]


def recovered(journal: MemoryJournal) -> Broker:
    """A broker after a crash."""
    kept, found = journal.restart()
    broker = Broker(kept)
    recover(broker, found)
    in_steps(broker)
    broker.flow.now_ms = 1_700_000_100_000
    return broker


def restarted(journal: MemoryJournal) -> Broker:
    """The same, when it has gone on with what was left."""
    broker = recovered(journal)
    broker.flow.delays.finish_transactions()
    while broker.long_changes:
        broker.flow.tick()
        broker.flow.turn()
    return broker


def test_it_is_placed_in_steps_and_the_commit_is_answered_after_the_last(client: Client) -> None:
    seen = []
    send(client, b"m")

    assert client.call(TxCommit()) == []
    while client.broker.long_changes:
        seen.append(sum(len(client.queue(name)) for name in NAMES))
        told = step(client)
        if client.broker.long_changes:
            assert told == []
            assert client.connection.is_stalled

    assert seen[-4:] == [0, 0, 2, 4]
    assert told == [TxCommitOk()]
    assert contents(client.broker) == [[b"m"]] * 5
    assert not client.broker.flow.delayed


def test_messages_keep_their_order_in_each_queue(client: Client) -> None:
    send(client, b"1", TO_LAST)
    send(client, b"2")
    send(client, b"3", TO_LAST)
    send(client, b"4")
    client.feed(publish(b"5", "k", TO_LAST, exchange="wide"))
    client.call(TxCommit())
    client.feed(publish(b"6", "k", TO_LAST, exchange="wide"))
    client.call(TxCommit())

    told = finish(client) + step(client)

    assert told == [TxCommitOk(), TxCommitOk()]
    assert contents(client.broker) == [[b"2", b"4"]] * 4 + [[b"1", b"2", b"3", b"4", b"5", b"6"]]


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_after_a_crash_there_is_nothing_of_it_or_all(
    client: Client, journal: MemoryJournal, steps: int, is_durable: bool, checkpoint: bool
) -> None:
    client.feed(publish(b"ordinary", "q", TO_ALL))
    send(client, b"1")
    send(client, b"2", TO_LAST)
    send(client, b"3")
    commit(client)
    for _ in range(steps):
        client.broker.flow.tick()
        client.broker.flow.turn()
        if is_durable:
            journal.flush()
    if checkpoint:
        journal.checkpoint(*snapshot(client.broker))
        journal.flush()

    again = restarted(journal)

    is_there = bool(bodies(again, "q"))
    assert is_there or not checkpoint
    if is_there:
        assert contents(again) == [[b"1", b"3"]] * 4 + [[b"1", b"2", b"3"]]
    else:
        assert contents(again) == [[]] * 5
    assert not again.flow.delayed


@pytest.mark.parametrize("steps", range(6))
def test_the_first_client_after_a_crash_does_not_overtake_it(
    client: Client, journal: MemoryJournal, steps: int
) -> None:
    send(client, b"1")
    send(client, b"2")
    commit(client)
    for _ in range(steps):
        client.broker.flow.tick()
        client.broker.flow.turn()
    journal.flush()
    again = Client(recovered(journal))
    again.broker.flow.delays.finish_transactions()
    again.call(TxSelect())

    send(again, b"3")
    again.call(TxCommit())
    finish(again)

    assert contents(again.broker) == [[b"1", b"2", b"3"]] * 5


def test_an_ack_and_a_message_for_very_many_queues_are_one(client: Client, journal: MemoryJournal) -> None:
    other = Client(client.broker)
    other.feed(publish(b"in", "q", TO_ALL))
    journal.flush()
    client.call(BasicGet("q"))
    client.call(BasicAck(1))
    send(client, b"out")
    commit(client)
    journal.flush()

    again = restarted(journal)

    assert bodies(again, "q") == []
    assert contents(again) == [[b"out"]] * 5


def test_a_queue_that_refuses_it_makes_the_commit_partial(client: Client) -> None:
    full: FieldTable = {"x-max-length": 0, "x-overflow": "reject-publish"}
    ask(client, QueueDeclare("full", arguments=full), QueueBind("full", "wide", "", arguments={"to": "all"}))
    send(client, b"m")

    client.call(TxCommit())
    told = finish(client)

    assert [type(method) for method in told] == [ChannelClose]
    assert contents(client.broker) == [[b"m"]] * 5
    assert not client.broker.flow.delayed


def test_a_mandatory_message_whose_queues_are_all_deleted_meanwhile_returns(client: Client) -> None:
    other = Client(client.broker)
    send(client, b"m", mandatory=True)
    client.call(TxCommit())

    ask(other, *map(QueueDelete, NAMES))
    told = finish(client)

    assert [type(method) for method in told] == [BasicReturn, TxCommitOk]


def test_a_connection_that_is_lost_meanwhile_does_not_stop_it(client: Client) -> None:
    send(client, b"m")
    commit(client)
    step(client)

    client.connection.end("gone")
    finish(client)

    assert contents(client.broker) == [[b"m"]] * 5
    assert client.told() == []


def test_a_journal_that_fails_meanwhile_ends_the_connection(client: Client, journal: MemoryJournal) -> None:
    send(client, b"m")
    client.call(TxCommit())
    step(client)

    journal.fail("no disk")
    told = finish(client)

    assert TxCommitOk() not in told
    assert not client.connection.is_running


def test_transient_messages_with_hidden_keys_are_placed_alike(client: Client) -> None:
    headers: FieldTable = {"to": "all", "BCC": ["hidden"]}
    client.feed(publish(b"m", "k", Properties(delivery_mode=1, headers=headers), exchange="wide"))

    client.call(TxCommit())
    assert finish(client) == [TxCommitOk()]

    (found,) = next(iter(client.queue("e").store.drain(client.broker.flow.pager)))
    assert (found.body, found.persistent, b"BCC" in found.header) == (b"m", False, False)


def test_a_large_transaction_with_such_messages_and_letters_is_prepared_in_steps(
    client: Client, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    if size == "large":
        monkeypatch.setattr(transaction.Transaction, "commit", None)
    ask(client, QueueDeclare("dying", durable=True, arguments={"x-dead-letter-exchange": "wide"}))
    other = Client(client.broker)
    for body, properties in ((b"7", TO_ALL), (b"8", TO_LAST), (b"9", TO_ALL)):
        other.feed(publish(body, "dying", properties))
        journal.flush()
        client.call(BasicGet("dying"))
    for number in range(4):
        client.feed(publish(b"%d" % number, "q", TO_ALL))
    client.feed(publish(b"4", "k", TO_LAST, exchange="all"))
    send(client, b"5")
    send(client, b"6", TO_LAST)
    client.call(BasicNack(3, multiple=True, requeue=False))

    client.call(TxCommit())
    told = finish(client)

    assert told == [TxCommitOk()]
    assert client.bodies("q") == [b"0", b"1", b"2", b"3"]
    found = contents(client.broker)
    assert [sorted(one) for one in found] == [[b"4", b"5", b"7", b"9"]] * 4 + [
        [b"4", b"5", b"6", b"7", b"8", b"9"]
    ]
    letters = [[body for body in one if body > b"6"] for one in found]
    assert letters == [[b"7", b"9"]] * 4 + [[b"7", b"8", b"9"]]
    assert client.broker.flow.dead_lettering.count == 3
    assert restarted(journal).flow.delayed == {}


@pytest.mark.parametrize("crash", [False, True])
def test_a_rejection_whose_letter_is_for_very_many_queues(
    client: Client, journal: MemoryJournal, crash: bool
) -> None:
    letters: FieldTable = {"x-dead-letter-exchange": "all"}
    ask(client, QueueDeclare("dying", durable=True, arguments=letters))
    other = Client(client.broker)
    other.feed(publish(b"in", "dying", TO_ALL))
    journal.flush()
    client.call(BasicGet("dying"))
    client.call(BasicReject(1, requeue=False))

    client.call(TxCommit())
    told: list[Method] = []
    while not told:
        told = step(client)

    assert told == [TxCommitOk()]  # the letter is safe, and enters its queues soon
    assert bodies(client.broker, "e") == []
    if crash:
        again = restarted(journal)
    else:
        finish(client)
        again = client.broker
    assert bodies(again, "dying") == []
    assert contents(again) == [[b"in"]] * 5
