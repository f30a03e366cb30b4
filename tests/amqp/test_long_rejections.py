"""Large transactions with rejections and returns: in steps, with the result of a commit in one go."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from amqp_support import NOW_MS, Client, finish, new_broker, numbers, publish, step

from holtmq.amqp import channel, transaction
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
    TxRollback,
    TxSelect,
)
from holtmq.broker.broker import Broker
from holtmq.broker.message import Message
from holtmq.broker.prepared_letters import PreparedLetters
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.work.dead_letter import last_death
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

LASTING = Properties(delivery_mode=2)
LETTERS: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
QUORUM: FieldTable = {"x-queue-type": "quorum", "x-delivery-limit": 2}
SOURCES: dict[str, FieldTable] = {
    "plain": {},
    "a": LETTERS,
    "both": {"x-dead-letter-exchange": "letters"},
    "quorum": {**QUORUM, "x-dead-letter-exchange": "letters"},
    "retry": {**QUORUM, **LETTERS, "x-delayed-retry-type": "all", "x-delayed-retry-min": 1_000},
    "loop": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "loop"},
    "short": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "narrow"},
    "levels": {"x-max-priority": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "levels-2"},
    "lost": {"x-dead-letter-exchange": "nowhere"},
    "to-quorum": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "quorum-2"},
    "turning": {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "turning",
    },
}
# A full queue takes its own letters. It would refuse the messages of a transaction.
OWN: FieldTable = {
    "x-max-length": 4,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "own",
}
TARGETS: dict[str, FieldTable] = {
    "dead": {},
    "dead-2": {},
    "narrow": {"x-max-length": 3, **LETTERS},
    "levels-2": {"x-max-priority": 2},
    "quorum-2": {"x-queue-type": "quorum"},
    "own": OWN,
}


def set_steps(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(transaction, "STEP", size)
    monkeypatch.setattr(channel, "STEP", size)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    set_steps(monkeypatch, 3)


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def client(journal: MemoryJournal) -> Client:
    """Has ten messages of a queue with dead letters, in a transaction."""
    client = set_up(journal)
    hold(client, "a")
    return client


def set_up(journal: MemoryJournal) -> Client:
    client = Client(new_broker(journal))
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(vhost, "letters", "fanout", durable=True)
    for name, arguments in {**TARGETS, **SOURCES}.items():
        broker.declare_queue(vhost, name, durable=True, arguments=arguments)
    broker.declare_queue(vhost, "passing", arguments=LETTERS)
    for name in ("dead", "dead-2"):
        broker.bind(vhost, "letters", name, "")
    client.call(TxSelect())
    journal.flush()
    client.told()
    return client


def hold(client: Client, queue: str, count: int = 10) -> None:
    """Publish messages to a queue and have them delivered."""
    Client(client.broker).feed(b"".join(publish(body, queue, LASTING) for body in numbers(count)))
    for _ in range(count):
        client.call(BasicGet(queue))


@contextmanager
def no_commit_in_one_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(_: object) -> None:
        raise AssertionError("this transaction can be committed in steps")

    with monkeypatch.context() as patched:
        patched.setattr(transaction.Transaction, "commit", refuse)
        yield


def restarted(journal: MemoryJournal) -> Client:
    following, found = journal.restart()
    broker = Broker(following)
    broker.flow.now_ms = NOW_MS
    recover(broker, found)
    broker.flow.turn()
    return Client(broker)


def waiting(broker: Broker, queue: WorkQueue) -> list[Message]:
    store = queue.store
    fifos = [fifo for _, fifo in store.by_level(True)] if isinstance(store, Levels) else [store]
    return [message for fifo in fifos for message in fifo.browse(broker.flow.pager)]


def contents(broker: Broker, after_restart: bool = False) -> dict[str, object]:
    """What a client can see of the messages, and what a restart must bring back."""
    broker.flow.complete()
    found: dict[str, object] = {}
    for queue in broker.work_queues():
        messages = waiting(broker, queue)
        later = [m for part in queue.held_back.values() for m in part]
        is_counted = queue.options.deliveries_allowed is not None or not after_restart
        found[queue.name] = (
            [(m.body, m.header, m.address, m.priority, m.persistent) for m in messages],
            [queue.returned.get(m.seq) for m in messages + later if is_counted],
            sorted(m.body for m in later),
            queue.bytes,
        )
    return found


def figures(broker: Broker) -> dict[str, object]:
    vhost = broker.vhost("/")
    found: dict[str, object] = {"letters": broker.flow.dead_lettering.count}
    for name, exchange in vhost.exchanges.items():
        found[f"exchange {name}"] = (exchange.published, exchange.more_copies)
    for queue in broker.work_queues():
        counts = queue.figures
        letters = counts.dead_letters.within_a_day(NOW_MS) if counts.dead_letters else None
        found[queue.name] = (
            queue.unacked,
            counts.totals(queue),
            counts.dropped,
            counts.returned,
            letters,
            len(queue.returned),
            queue.expiring,
        )
    return found


class History:
    """Random transactions of one client; the same for the same seed, however they are committed."""

    def __init__(self, seed: int, journal: MemoryJournal) -> None:
        self.rng = random.Random(seed)
        self.journal = journal
        self.client = set_up(journal)
        self.other = Client(self.client.broker)
        self.number = 0
        self.tags: list[int] = []
        self.last_tag = 0

    def _message(self, *more_keys: str) -> bytes:
        rng = self.rng
        self.number += 1
        headers: FieldTable = {"n": self.number}
        if rng.random() < 0.2:
            headers["CC"] = [rng.choice(["dead-2", "a"])]
        properties = Properties(
            delivery_mode=rng.choice([1, 2, 2]),
            priority=rng.choice([None, 0, 1, 3, 9]),
            expiration=rng.choice([None, None, "100000"]),
            headers=headers,
        )
        key = rng.choice([*SOURCES, "passing", "nowhere", *more_keys])
        return publish(b"%d" % self.number, key, properties)

    def transaction(self, checkpoint: Callable[[str], None]) -> None:
        """Publish, take, settle, publish, commit."""
        rng, client = self.rng, self.client
        self.other.feed(b"".join(self._message("own") for _ in range(rng.randrange(50))))
        for _ in range(rng.randrange(60)):
            queue = rng.choice([*SOURCES, *TARGETS, "passing"])
            if len(client.queue(queue)):
                client.call(BasicGet(queue))
                self.last_tag += 1
                self.tags.append(self.last_tag)
        while self.tags and rng.random() < 0.9:
            self._settle()
        client.feed(b"".join(self._message() for _ in range(rng.randrange(6))))
        checkpoint("before")
        if rng.random() < 0.1:
            client.call(TxRollback())
            client.call(BasicNack(0, multiple=True, requeue=True))
            self.tags = []
        client.call(TxCommit())
        checkpoint("amid")
        self.journal.flush()
        finish(client)
        checkpoint("after")
        client.broker.flow.complete()
        self.journal.flush()

    def _settle(self) -> None:
        rng = self.rng
        tag = rng.choice(self.tags)
        multiple = rng.random() < 0.2
        ended = [one for one in self.tags if one == tag or (multiple and one < tag)]
        self.tags = [one for one in self.tags if one not in ended]
        if rng.random() < 0.3:
            self.client.call(BasicAck(tag, multiple))
        else:
            self.client.call(BasicNack(tag, multiple, requeue=rng.random() < 0.5))


@pytest.mark.parametrize("seed", range(30))
def test_a_commit_in_steps_does_what_one_in_one_go_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[list[object]] = []
    moments = random.Random(seed).choices(["", "before", "amid", "after"], k=6)
    for in_steps in (False, True):
        set_steps(monkeypatch, 2)
        monkeypatch.setattr(transaction, "STEP", -1 if in_steps else 1 << 40)
        journal = MemoryJournal()
        history = History(seed, journal)
        broker = history.client.broker
        seen: list[object] = []
        for moment in moments:

            def checkpoint(now: str, moment: str = moment) -> None:
                if now == moment:
                    assert journal.checkpoint(*snapshot(broker))  # noqa: B023
                    journal.flush()  # noqa: B023

            if in_steps:
                with no_commit_in_one_go(monkeypatch):
                    history.transaction(checkpoint)
            else:
                history.transaction(checkpoint)
            seen += [
                contents(broker),
                figures(broker),
                contents(restarted(journal).broker, after_restart=True),
            ]
        results.append(seen)

    for in_one_go, in_steps_ in zip(*results, strict=True):
        assert in_steps_ == in_one_go


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


def test_delayed_letters_are_committed_in_one_go(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    arguments: FieldTable = {"x-delayed-type": "fanout"}
    broker.exchanges.declare(vhost, "nowhere", "x-delayed-message", durable=True, arguments=arguments)
    broker.bind(vhost, "nowhere", "dead-2", "")
    kept = Properties(delivery_mode=2, headers={"x-delay": 5_000})
    Client(broker).feed(b"".join(publish(body, "lost", kept) for body in numbers(5)))
    for _ in range(5):
        client.call(BasicGet("lost"))
    begin(client)

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead") == numbers(10)
    assert len(broker.flow.delayed) == 5


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


def test_rejections_of_revoked_leases_are_committed_in_one_go(client: Client) -> None:
    Client(client.broker).feed(b"".join(publish(body, "both", LASTING) for body in numbers(5)))
    client.call(BasicConsume("both", consumer_tag="c"))
    client.call(BasicCancel("c"))
    begin(client)

    assert finished(client) == [TxCommitOk()]
    assert client.bodies("dead-2") == numbers(5)
    assert unsettled(client, "both") == ([], 0)


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
    brief = Properties(delivery_mode=2, expiration="5000")
    Client(client.broker).feed(publish(b"brief", "both", brief))
    client.call(BasicGet("both"))
    begin(client, BasicNack(10, multiple=True), BasicNack(11, requeue=True))
    finished(client)

    client.broker.flow.now_ms += 6_000
    client.broker.flow.tick()
    client.broker.flow.complete()

    assert client.bodies("dead-2") == [b"brief"]


def test_nothing_is_remembered_of_an_empty_queue(client: Client) -> None:
    client.queue("a").returned[1] = 1  # as a restart may leave it, of a message that is gone
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
