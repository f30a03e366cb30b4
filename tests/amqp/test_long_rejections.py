"""Large transactions with rejections and returns: in steps, with the result of a commit in one go."""

from typing import Any

import pytest
from amqp_support import Client, finish, new_broker, numbers, publish, step
from rejections_support import LASTING, hold, restarted, set_up, waiting

from holtmq.amqp import committing, transaction
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    ChannelClose,
    ConnectionClose,
    Method,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from holtmq.broker.broker import Broker
from holtmq.broker.dialect import Dialect
from holtmq.broker.message import Message
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.prepared_letters import PreparedLetters
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.work.dead_letter import last_death
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "STEP", 3)
    monkeypatch.setattr(committing, "STEP", 3)


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def client(journal: MemoryJournal) -> Client:
    """Has ten messages of a queue with dead letters, in a transaction."""
    client = set_up(journal)
    hold(client, "a")
    return client


def begin(client: Client, *methods: Method) -> None:
    """Settle, and ask for the commit; the first step is done."""
    assert client.call(*(methods or (BasicNack(0, multiple=True, requeue=False),)), TxCommit()) == []


def finished(client: Client) -> list[Method]:
    """All steps that are left; what the client is told when everything is durable."""
    told = finish(client)
    client.broker.journal.flush()
    return told + client.told()


def unsettled(client: Client, queue: str = "a") -> tuple[list[bytes], int]:
    return [m.body for m in waiting(client.broker, client.queue(queue))], client.queue(queue).unacked


def test_others_go_on_and_everything_leaves_at_one_moment(client: Client, journal: MemoryJournal) -> None:
    other = Client(client.broker)
    seen: set[tuple[int, int]] = set()
    answers: list[Method] = []

    begin(client)
    while not answers:
        seen.add((len(client.queue("dead")), client.queue("a").unacked))
        other.feed(publish(b"other", "a"))
        answers = step(client)
    finished(client)

    assert answers == [TxCommitOk()]
    assert seen == {(0, 10)}
    assert client.bodies("dead") == restarted(journal).bodies("dead") == numbers(10)
    assert set(client.bodies("a")) == {b"other"}


def test_a_crash_before_the_end_leaves_every_message_where_it_was(
    client: Client, journal: MemoryJournal
) -> None:
    begin(client)
    step(client)

    again = restarted(journal)

    assert (again.bodies("a"), again.bodies("dead")) == (numbers(10), [])


def test_a_client_that_leaves_meanwhile_has_done_nothing(client: Client) -> None:
    begin(client, BasicNack(4, multiple=True, requeue=False), BasicAck(8, multiple=True))
    step(client)
    client.connection.end("gone")
    finished(client)

    assert unsettled(client) == (numbers(10), 0)
    assert client.bodies("dead") == []
    assert not client.broker.flow.prepares


def test_a_queue_that_is_deleted_meanwhile_has_no_dead_letters(client: Client) -> None:
    hold(client, "both")
    begin(client)
    step(client)
    client.broker.delete_queue(client.broker.vhost("/"), "a")

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead") == client.bodies("dead-2") == numbers(10)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Messages for which letters were made in steps."""
    made: list[Message] = []
    make = PreparedLetters.add

    def add(letters: PreparedLetters, queue: WorkQueue, *letter: Any) -> None:
        made.append(letter[-1])
        make(letters, queue, *letter)

    monkeypatch.setattr(PreparedLetters, "add", add)
    return made


def almost_finish(client: Client, made: list[Message]) -> None:
    """Run steps until everything is prepared, and nothing is done."""
    while len(made) < 10:
        step(client)
    for _ in range(4):
        step(client)
    assert client.broker.long_changes
    assert client.queue("dead").bytes == 0


@pytest.mark.parametrize("queue", ["a", "plain"])
def test_a_policy_that_comes_meanwhile_counts_at_the_end(
    client: Client, made: list[Message], queue: str
) -> None:
    hold(client, "plain")
    begin(client)
    almost_finish(client, made)
    definition: FieldTable = {"dead-letter-exchange": "letters"}
    client.broker.policy_changes.put("/", "late", f"^{queue}$", definition)

    assert finished(client) == [TxCommitOk()]
    # The queue's own arguments come first, but an exchange of the policy has no effect on them.
    assert client.bodies("dead-2") == ([] if queue == "a" else numbers(10))
    assert len(client.bodies("dead")) == (10 if queue == "a" else 20)


def test_a_policy_that_goes_meanwhile_counts_at_the_end(journal: MemoryJournal, made: list[Message]) -> None:
    client = set_up(journal)
    definition: FieldTable = {"dead-letter-exchange": "letters"}
    client.broker.policy_changes.put("/", "early", "^plain$", definition)
    hold(client, "plain")
    begin(client)
    almost_finish(client, made)
    client.broker.policy_changes.delete("/", "early")

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead") == []
    assert unsettled(client, "plain") == ([], 0)


def test_a_dead_letter_exchange_that_comes_meanwhile_gets_the_letters(
    client: Client, made: list[Message]
) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    hold(client, "lost")
    begin(client)
    almost_finish(client, made)
    broker.exchanges.declare(vhost, "nowhere", "fanout", durable=True)
    broker.bind(vhost, "nowhere", "dead-2", "")

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead-2") == numbers(10)


@pytest.mark.parametrize("concerns_letters", [False, True])
def test_letters_are_made_again_only_if_their_route_has_changed(
    journal: MemoryJournal, made: list[Message], concerns_letters: bool
) -> None:
    client = set_up(journal)
    hold(client, "both")
    begin(client)
    vhost = client.broker.vhost("/")
    almost_finish(client, made)
    client.broker.declare_queue(vhost, "new", durable=True)
    if concerns_letters:
        client.broker.bind(vhost, "letters", "new", "")

    assert finished(client) == [TxCommitOk()]
    assert len(made) == (20 if concerns_letters else 10)
    assert client.bodies("new") == (numbers(10) if concerns_letters else [])
    assert client.bodies("dead") == numbers(10)


def test_letters_that_are_routed_by_their_headers_are_made_again(
    journal: MemoryJournal, made: list[Message]
) -> None:
    client = set_up(journal)
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(vhost, "nowhere", "headers", durable=True)
    broker.bind(vhost, "nowhere", "dead", "", {"x-first-death-queue": "lost"})
    hold(client, "lost")
    begin(client)
    almost_finish(client, made)
    broker.bind(vhost, "nowhere", "dead-2", "", {"x-first-death-queue": "lost"})

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead") == client.bodies("dead-2") == numbers(10)


@pytest.mark.parametrize("room", [10, 9])
def test_a_dead_letter_queue_that_refuses_is_asked_at_the_end(client: Client, room: int) -> None:
    broker = client.broker
    limit: FieldTable = {"max-length": room + 3, "overflow": "reject-publish"}
    broker.policy_changes.put("/", "limit", "^dead$", limit)
    other = Client(broker)
    client.feed(publish(b"own", "dead", LASTING))
    begin(client)
    step(client)
    other.feed(publish(b"first", "dead") + publish(b"second", "dead"))

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead") == [b"first", b"second", b"own", *numbers(room)]


def test_returned_messages_take_the_room_of_dead_letters(client: Client) -> None:
    broker = client.broker
    hold(client, "dead", 4)
    limit: FieldTable = {"max-length": 12, "overflow": "reject-publish"}
    broker.policy_changes.put("/", "limit", "^dead$", limit)
    begin(client, BasicNack(10, multiple=True, requeue=False), BasicNack(0, multiple=True, requeue=True))

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead") == numbers(4) + numbers(8)


def test_delayed_letters_wait_from_the_commit_on(
    client: Client, journal: MemoryJournal, made: list[Message]
) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    arguments: FieldTable = {"x-delayed-type": "fanout"}
    broker.exchanges.declare(vhost, "nowhere", "x-delayed-message", durable=True, arguments=arguments)
    broker.bind(vhost, "nowhere", "dead-2", "")
    kept = Properties(delivery_mode=2, headers={"x-delay": 5_000})
    Client(broker).feed(b"".join(publish(body, "lost", kept) for body in numbers(5)))
    for _ in range(5):
        client.call(BasicGet("lost"))
    begin(client)
    almost_finish(client, made)
    assert not broker.flow.delayed

    assert finished(client) == [TxCommitOk()]
    assert (len(made), broker.flow.dead_lettering.count) == (15, 15)
    for found in (client, restarted(journal)):
        assert len(found.broker.flow.delayed) == 5
        found.broker.flow.now_ms += 6_000
        found.broker.flow.tick()
        assert found.bodies("dead-2") == numbers(5)


def test_letters_are_kept_in_the_history_of_their_exchange(client: Client, made: list[Message]) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(vhost, "nowhere", "x-recent-history", durable=True)
    hold(client, "lost")
    begin(client)
    finished(client)

    broker.bind(vhost, "nowhere", "dead-2", "")

    assert len(made) == 20
    assert client.bodies("dead-2") == numbers(10)
    assert broker.flow.dead_lettering.count == 10


def test_letters_for_a_stream_are_prepared_too(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = PartitionedService(journal)
    client = Client(new_broker(journal, service))
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.declare_queue(vhost, "log", durable=True, arguments={"x-queue-type": "stream"})
    to_stream = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "log"}
    broker.declare_queue(vhost, "q", durable=True, arguments=to_stream)
    client.call(TxSelect())
    journal.flush()
    client.told()
    hold(client, "q")
    begin(client)
    monkeypatch.delattr(transaction.Transaction, "commit")  # in one go

    assert finished(client) == [TxCommitOk()]
    log = service.store.queues["log"]
    assert log.log.durable_end == 10
    following, found = journal.restart()
    again = PartitionedService(following)
    broker = Broker(following)
    broker.attach(again)
    recover(broker, found, again.store)
    assert again.store.queues["log"].log.durable_end == 10
    assert Client(broker).bodies("q") == []
    assert unsettled(client, "q") == ([], 0)


def test_letters_do_not_overtake_one_for_very_many_queues(journal: MemoryJournal) -> None:
    client = set_up(journal)
    broker, vhost = client.broker, client.broker.vhost("/")
    vhost.widest = 2
    broker.exchanges.declare(vhost, "nowhere", "headers", durable=True)
    for name in ("dead", "dead-2", "plain"):
        broker.bind(vhost, "nowhere", name, "", {"to": "all"})
    broker.bind(vhost, "nowhere", "plain", "", {"to": "one"})
    other = Client(broker)
    one = Properties(delivery_mode=2, headers={"to": "one"})
    other.feed(b"".join(publish(body, "lost", one) for body in numbers(5)))
    for _ in range(5):
        client.call(BasicGet("lost"))
    begin(client)
    step(client)
    other.feed(publish(b"wide", "lost", Properties(delivery_mode=2, headers={"to": "all"})))
    other.call(BasicGet("lost"), BasicNack(1, requeue=False))

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("plain") == [b"wide", *numbers(5)]


def test_a_journal_that_fails_meanwhile_returns_the_messages(client: Client, journal: MemoryJournal) -> None:
    begin(client, BasicNack(5, multiple=True, requeue=False), BasicAck(0, multiple=True))
    journal.fail("no space left")

    answers = finished(client)
    client.connection.end("closed")
    finished(client)

    assert any(isinstance(answer, ConnectionClose) for answer in answers)
    assert unsettled(client) == (numbers(10), 0)
    assert client.bodies("dead") == []


@pytest.mark.parametrize("limit", ["_BYTES_MAX", "_RECORD_MAX"])
def test_a_transaction_that_is_too_large_changes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    begin_late = client.call(BasicNack(0, multiple=True, requeue=False))
    monkeypatch.setattr(transaction, limit, 100)
    begin_late += client.call(TxCommit())

    (closed,) = begin_late + finished(client)

    assert isinstance(closed, ChannelClose)
    assert closed.reply_code == 406
    assert unsettled(client) == (numbers(10), 0)
    assert client.bodies("dead") == []


def test_acks_of_revoked_leases_count_if_the_messages_are_still_there(
    client: Client, journal: MemoryJournal
) -> None:
    hold(client, "both", 5)
    Client(client.broker).feed(b"".join(publish(body, "plain", LASTING) for body in numbers(5)))
    client.call(BasicConsume("plain", consumer_tag="c"))
    client.call(BasicCancel("c"))
    before = client.connection.channels[1].messages.acked
    begin(client, BasicNack(15, multiple=True, requeue=False), BasicAck(18, multiple=True))

    assert finished(client) == [TxCommitOk()]
    assert client.connection.channels[1].messages.acked - before == 3
    for found in (client, restarted(journal)):
        assert found.bodies("plain") == numbers(2, first=3)
        assert found.bodies("dead") == numbers(10) + numbers(5)


def taken_back(client: Client, queue: str, count: int = 10) -> None:
    """Messages of a queue are delivered to a consumer, and return when it is cancelled."""
    Client(client.broker).feed(b"".join(publish(body, queue, LASTING) for body in numbers(count)))
    client.call(BasicConsume(queue, consumer_tag="c"))
    client.call(BasicCancel("c"))
    assert unsettled(client, queue) == (numbers(count), 0)


@pytest.fixture
def only_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("this transaction can be committed in steps")

    monkeypatch.setattr(transaction.Transaction, "commit", refuse)


@pytest.mark.usefixtures("only_in_steps")
def test_rejections_of_revoked_leases_are_committed_in_steps(journal: MemoryJournal) -> None:
    client = set_up(journal)
    taken_back(client, "both")
    begin(client, BasicNack(0, multiple=True, requeue=False))
    seen: set[tuple[int, int]] = set()
    answers: list[Method] = []
    while not answers:
        ready, unacked = unsettled(client, "both")
        seen.add((len(ready) + unacked, len(client.queue("dead-2"))))
        answers = step(client)
    finished(client)

    assert (answers, seen) == ([TxCommitOk()], {(10, 0)})
    for found in (client, restarted(journal)):
        assert found.bodies("dead-2") == numbers(10)
        assert unsettled(found, "both") == ([], 0)


@pytest.mark.usefixtures("only_in_steps")
@pytest.mark.parametrize("requeue", [False, True])
def test_a_client_that_leaves_while_it_settles_late_has_done_nothing(requeue: bool) -> None:
    client = set_up(journal := MemoryJournal())
    taken_back(client, "quorum")
    counts = dict(client.queue("quorum").returned)
    begin(client, BasicNack(5, multiple=True, requeue=requeue), BasicAck(0, multiple=True))
    while not client.queue("quorum").unacked:
        step(client)
    assert journal.checkpoint(*snapshot(client.broker))  # it keeps those that are taken out again
    journal.flush()
    again = restarted(journal)
    client.connection.end("gone")
    finished(client)

    assert unsettled(client, "quorum") == (numbers(10), 0)
    assert client.queue("quorum").returned == counts  # they were delivered once
    assert again.bodies("quorum") == numbers(10)


@pytest.mark.usefixtures("only_in_steps")
def test_a_message_that_somebody_else_has_cannot_be_settled_late(client: Client) -> None:
    taken_back(client, "plain")
    other = Client(client.broker)
    for _ in range(4):
        other.call(BasicGet("plain"))
    begin(client, BasicAck(17, multiple=True), BasicNack(0, multiple=True, requeue=True))
    while client.queue("plain").unacked < 7:  # four of these are the other client's
        step(client)
    other.call(BasicGet("plain"))

    assert finished(client) == [TxCommitOk()]
    assert unsettled(client, "plain") == ([b"008", b"009"], 5)


def test_messages_that_return_beyond_a_limit_are_dead_lettered(journal: MemoryJournal) -> None:
    client = set_up(journal)
    hold(client, "narrow", 3)
    Client(client.broker).feed(b"".join(publish(body, "narrow", LASTING) for body in numbers(2, first=3)))
    for _ in range(10):  # a transaction of more than one step
        client.feed(publish(b"x", "plain"))
    begin(client, BasicNack(0, multiple=True, requeue=True))

    assert TxCommitOk() in finished(client)
    client.broker.flow.complete()
    assert (client.bodies("narrow"), client.bodies("dead")) == (numbers(3, first=2), numbers(2))


def test_messages_that_return_expire_in_time(client: Client) -> None:
    flow, brief = client.broker.flow, Properties(delivery_mode=2, expiration="5000")
    Client(client.broker).feed(publish(b"first", "both", brief) + publish(b"second", "both", brief))
    client.call(BasicGet("both"))
    flow.now_ms += 6_000
    flow.tick()
    flow.complete()
    assert not client.queue("both").expiring  # the second one has expired
    begin(client, BasicNack(0, multiple=True))
    finished(client)

    flow.complete()
    assert client.bodies("dead-2") == [b"second", b"first"]


def test_nothing_is_remembered_of_an_empty_queue(client: Client) -> None:
    client.queue("a").returned[1 << 30] = 1  # as a restart may leave it, of a message that is gone
    begin(client)
    finished(client)

    assert client.queue("a").returned == {}


def test_every_letter_says_where_it_died(client: Client) -> None:
    begin(client)
    finished(client)

    deaths = [last_death(message.header) for message in waiting(client.broker, client.queue("dead"))]
    assert {(death.queue, death.reason, death.count) for death in deaths if death} == {("a", "rejected", 1)}
    assert len(deaths) == client.broker.flow.dead_lettering.count == 10


def test_a_few_rejections_with_dead_letters_are_a_large_transaction(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STEP", 100)
    client.call(BasicNack(8, multiple=True, requeue=False))
    assert client.call(TxCommit()) == []  # 8 letters take as long as 96 messages
    client.broker.journal.flush()
    assert client.told() == [TxCommitOk()]

    hold(client, "a")
    begin(client)
    assert client.broker.long_changes


def test_the_channel_goes_on_with_the_next_transaction(client: Client, journal: MemoryJournal) -> None:
    begin(client)
    finished(client)
    hold(client, "a", 3)
    begin(client, BasicNack(11, requeue=True), BasicNack(12, requeue=False), BasicAck(13))

    assert finished(client) == [TxCommitOk()]
    assert restarted(journal).bodies("dead") == [*numbers(10), b"001"]
    assert unsettled(client) == ([b"000"], 0)


def test_a_letter_that_only_some_of_its_queues_keep_is_committed_in_one_go(journal: MemoryJournal) -> None:
    client = set_up(journal)
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.dialect = Dialect(transient_stays_transient=True)
    broker.declare_queue(vhost, "forgets", durable=True)
    for name in ("forgets", "quorum-2"):
        broker.bind(vhost, "letters", name, "")
    Client(broker).feed(b"".join(publish(body, "both") for body in numbers(5)))
    for _ in range(5):
        client.call(BasicGet("both"))
    begin(client)

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("forgets") == client.bodies("quorum-2") == numbers(5)
    again = restarted(journal)
    assert (again.bodies("forgets"), again.bodies("quorum-2")) == ([], numbers(5))
