"""Large transactions are committed in steps: others go on meanwhile, and it is still all or nothing."""

import pytest
from amqp_support import Client, finish, new_broker, numbers, publish, step

from holtmq.amqp import committing, transaction
from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicReturn,
    ChannelClose,
    ConnectionClose,
    Method,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from holtmq.broker.broker import Broker
from holtmq.broker.records.recovery import recover
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

LASTING = Properties(delivery_mode=2)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "STEP", 3)
    monkeypatch.setattr(committing, "STEP", 3)


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def client(journal: MemoryJournal) -> Client:
    client = Client(new_broker(journal))
    client.call(QueueDeclare("q", durable=True), TxSelect())
    journal.flush()
    client.told()
    return client


def another(client: Client) -> Client:
    return Client(client.broker)


def begin(client: Client, *bodies: bytes, properties: Properties = LASTING) -> list[Method]:
    """Publish and ask for the commit; the first step is done."""
    return client.feed(b"".join(publish(body, properties=properties) for body in bodies)) + client.call(
        TxCommit()
    )


def restarted(journal: MemoryJournal) -> Client:
    following, found = journal.restart()
    broker = Broker(following)
    recover(broker, found)
    return Client(broker)


def test_others_go_on_and_everything_comes_at_one_moment(client: Client) -> None:
    other = another(client)
    seen: list[int] = []

    assert begin(client, *numbers(10)) == []
    while client.broker.long_changes:
        seen.append(len(client.queue()))
        other.feed(publish(b"other"))
        answers = step(client)
    other.feed(publish(b"last"))

    assert answers == [TxCommitOk()]
    assert seen == [0, 1, 2, 3]
    assert client.bodies() == [b"other"] * 4 + numbers(10) + [b"last"]


def test_numbers_rise_in_the_order_of_the_queue(client: Client) -> None:
    other = another(client)
    begin(client, *numbers(10))
    other.feed(publish(b"before"))
    finish(client)
    other.feed(publish(b"after"))

    seqs = [m.seq for run in client.queue().store.drain(client.broker.flow.pager) for m in run]
    assert seqs == sorted(seqs)
    assert len(set(seqs)) == 12


def test_a_crash_before_the_end_leaves_nothing_and_after_the_reply_everything(
    client: Client, journal: MemoryJournal
) -> None:
    begin(client, *numbers(4))
    finish(client)
    client.call(BasicConsume("q", consumer_tag="c"))
    client.call(BasicAck(2, multiple=True))
    begin(client, *numbers(10, first=10))
    step(client)
    assert sorted(restarted(journal).bodies()) == numbers(4)

    assert TxCommitOk() in finish(client)

    assert restarted(journal).bodies() == numbers(2, first=2) + numbers(10, first=10)


def test_a_queue_that_is_deleted_or_bound_meanwhile_counts_at_the_end(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.declare_queue(vhost, "late", durable=True)
    bodies = [publish(body, "", LASTING, exchange="amq.fanout", mandatory=True) for body in numbers(8)]
    client.feed(b"".join(bodies))
    client.call(TxCommit())
    step(client)
    broker.bind(vhost, "amq.fanout", "late", "")

    answers = finish(client)

    assert answers == [TxCommitOk()]
    assert client.bodies("late") == numbers(8)


def test_a_topology_that_never_rests_does_not_keep_a_commit_from_its_end(client: Client) -> None:
    vhost = client.broker.vhost("/")
    begin(client, *numbers(10))
    answers: list[Method] = []
    for number in range(40):
        client.broker.declare_queue(vhost, f"other-{number}")
        answers += step(client)

    assert answers == [TxCommitOk()]
    assert client.bodies() == numbers(10)


def test_a_route_that_became_special_is_committed_in_one_go(client: Client) -> None:
    vhost = client.broker.vhost("/")
    begin(client, *numbers(10))
    client.broker.delete_queue(vhost, "q")
    client.broker.declare_queue(
        vhost, "q", durable=True, arguments={"x-max-length": 4, "x-overflow": "reject-publish"}
    )

    (closed,) = finish(client)
    assert isinstance(closed, ChannelClose)  # a commit-ok would say that the queue has all of them
    assert (closed.reply_code, closed.failing_class_id) == (406, TxCommit.class_id)
    assert client.bodies() == numbers(4)


def test_mandatory_messages_without_a_queue_come_back(client: Client) -> None:
    client.feed(b"".join(publish(body, "nowhere", LASTING, mandatory=True) for body in numbers(5)))
    client.call(TxCommit())

    answers = finish(client)

    assert sum(isinstance(answer, BasicReturn) for answer in answers) == 5
    assert answers[-1] == TxCommitOk()


def test_transient_messages_need_no_record(client: Client, journal: MemoryJournal) -> None:
    begin(client, *numbers(10), properties=Properties())
    end = journal.end

    assert finish(client) == [TxCommitOk()]
    assert (client.bodies(), journal.end) == (numbers(10), end)


def test_a_client_that_leaves_meanwhile_has_done_nothing(client: Client) -> None:
    begin(client, *numbers(4))
    finish(client)
    client.call(BasicConsume("q", consumer_tag="c"))
    client.call(BasicAck(2, multiple=True))
    begin(client, *numbers(10, first=10))
    step(client)
    client.connection.end("gone")
    finish(client)

    other = another(client)
    other.call(TxSelect())
    begin(other, *numbers(10, first=20))

    assert finish(other) == [TxCommitOk()]
    assert client.bodies() == numbers(4) + numbers(10, first=20)


def test_two_of_them_take_turns(client: Client) -> None:
    other = another(client)
    other.call(TxSelect())
    begin(client, *numbers(10))
    begin(other, *numbers(10, first=10))
    answers: list[Method] = []
    while client.broker.long_changes:
        answers += step(client) + other.told()

    assert answers == [TxCommitOk()] * 2
    assert client.bodies() == numbers(20)


def test_a_journal_that_fails_meanwhile_ends_the_connection(client: Client, journal: MemoryJournal) -> None:
    begin(client, *numbers(10))
    journal.fail("no space left")

    answers = finish(client)

    assert any(isinstance(answer, ConnectionClose) for answer in answers)
    assert client.bodies() == []
    assert not client.broker.flow.prepares


def stepped(client: Client) -> tuple[list[int], list[Method]]:
    """Finish a commit; how long the queue was before each step, and the answers."""
    client.call(TxCommit())
    seen: list[int] = []
    answers: list[Method] = []
    while client.broker.long_changes:
        seen.append(len(client.queue()))
        answers += step(client)
    return seen, answers


@pytest.mark.parametrize("is_quorum", [False, True])
def test_messages_are_routed_by_their_headers_in_steps(
    client: Client, journal: MemoryJournal, is_quorum: bool
) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    arguments = {"x-queue-type": "quorum"} if is_quorum else {}
    broker.declare_queue(vhost, "even", durable=True, arguments=arguments)
    broker.bind(vhost, "amq.headers", "q", "", {"all": True})
    broker.bind(vhost, "amq.headers", "even", "", {"even": True})
    for number, body in enumerate(numbers(10)):
        mode = None if is_quorum else 2
        kept = Properties(delivery_mode=mode, headers={"even": number % 2 == 0, "all": number < 8})
        client.feed(publish(body, "", kept, exchange="amq.headers"))

    seen, answers = stepped(client)

    assert len(seen) > 3
    assert set(seen) <= {0, 8}  # none, or all when only the end of the commit is left
    assert answers == [TxCommitOk()]
    for found in (client, restarted(journal)):
        assert found.bodies("even") == numbers(10)[::2]
        # A message without a mode outlives a restart where a quorum queue has it, too.
        expected = numbers(8) if found is client or not is_quorum else numbers(8)[::2]
        assert found.bodies("q") == expected
    assert vhost.exchanges["amq.headers"].published == 10


def test_copies_for_other_keys_are_made_in_steps_and_bcc_is_not_shown(client: Client) -> None:
    client.broker.declare_queue(client.broker.vhost("/"), "copy", durable=True)
    properties = Properties(delivery_mode=2, headers={"BCC": ["copy"], "a": 1})
    client.feed(b"".join(publish(body, "q", properties) for body in numbers(10)))

    seen, answers = stepped(client)

    assert len(seen) > 3
    assert set(seen) == {0}
    assert answers == [TxCommitOk()]
    assert client.bodies("copy") == client.bodies() == numbers(10)
    headers = {m.header for run in client.queue("copy").store.drain(client.broker.flow.pager) for m in run}
    assert not any(b"BCC" in header for header in headers)


@pytest.mark.parametrize("room", [10, 9])
def test_a_queue_that_refuses_is_asked_at_the_end_for_room_for_all(client: Client, room: int) -> None:
    vhost = client.broker.vhost("/")
    arguments = {"x-max-length": room + 2, "x-overflow": "reject-publish"}
    client.broker.declare_queue(vhost, "narrow", durable=True, arguments=arguments)
    other = another(client)
    client.feed(b"".join(publish(body, "narrow", LASTING) for body in numbers(10)))
    client.call(TxCommit())
    other.feed(publish(b"first", "narrow") + publish(b"second", "narrow"))

    (answer,) = finish(client)

    assert client.bodies("narrow") == [b"first", b"second", *numbers(room)]
    assert (answer == TxCommitOk()) == (room == 10)


def test_a_queue_that_is_full_refuses_the_rest_in_steps_and_keeps_the_room_of_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(transaction.Transaction, "commit")
    vhost = client.broker.vhost("/")
    letters: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    limit: FieldTable = {"x-max-length": 6, "x-overflow": "reject-publish-dlx", **letters}
    client.broker.declare_queue(vhost, "narrow", durable=True, arguments=limit)
    other = another(client)
    client.feed(b"".join(publish(body, "narrow", LASTING) for body in numbers(10)))
    client.call(TxCommit())
    while client.broker.flow.on_the_way(client.queue("narrow"))[0] < 6:
        step(client)
    other.feed(b"".join(publish(body, "narrow") for body in numbers(6, first=100)))
    before = client.bodies("narrow")

    (closed,) = finish(client)
    client.broker.flow.complete()

    assert isinstance(closed, ChannelClose)
    assert (closed.reply_code, closed.failing_class_id) == (406, TxCommit.class_id)
    assert (before, client.bodies("narrow")) == ([], numbers(6))
    assert sorted(client.bodies()) == sorted(numbers(4, first=6) + numbers(6, first=100))
    assert client.broker.flow.on_the_way(client.queue("narrow")) == (0, 0)


def test_messages_of_a_large_transaction_are_counted(client: Client) -> None:
    begin(client, *numbers(10))
    finish(client)

    default = client.broker.vhost("/").exchanges[""]
    assert (default.published, default.more_copies) == (10, 0)
