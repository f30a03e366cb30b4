"""Large transactions with delayed messages, histories and many patterns go in steps, too."""

import pytest
from amqp_support import NOW_MS, Client, finish, new_broker, numbers, publish, step

from holtmq.amqp import committing, transaction
from holtmq.amqp.methods import Method, QueueDeclare, TxCommit, TxCommitOk, TxSelect
from holtmq.broker.broker import Broker
from holtmq.broker.records.recovery import recover
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldValue

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
    """On its default vhost ``late`` delays messages for ``q``."""
    client = Client(new_broker(journal))
    client.call(QueueDeclare("q", durable=True), TxSelect())
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(
        vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    broker.bind(vhost, "late", "q", "")
    journal.flush()
    client.told()
    return client


def delayed(body: bytes, delay_ms: int, mode: int = 2) -> bytes:
    properties = Properties(delivery_mode=mode, headers={"x-delay": delay_ms})
    return publish(body, "", properties, exchange="late", mandatory=True)


def restarted(journal: MemoryJournal) -> Client:
    following, found = journal.restart()
    broker = Broker(following)
    broker.flow.now_ms = NOW_MS
    recover(broker, found)
    return Client(broker)


def stepped(client: Client) -> tuple[list[tuple[int, int]], list[Method]]:
    """Finish a commit; what was in the queue and delayed before each step to its answer, and the answers."""
    flow = client.broker.flow
    answers = client.call(TxCommit())
    seen: list[tuple[int, int]] = []
    while not answers:
        seen.append((len(client.queue()), len(flow.delayed)))
        answers += step(client)
    return seen, answers + finish(client)


def wait(client: Client, ms: int) -> None:
    flow = client.broker.flow
    flow.now_ms += ms
    while (due := flow.timers.next_due()) is not None and due * 1000 <= flow.now_ms:
        step(client)


def test_delayed_messages_come_with_the_others_at_one_moment(client: Client, journal: MemoryJournal) -> None:
    client.feed(b"".join(publish(body, "q", LASTING) for body in numbers(5)))
    client.feed(b"".join(delayed(body, 5_000) for body in numbers(5, first=5)))

    seen, answers = stepped(client)

    assert len(seen) > 5
    assert set(seen) == {(0, 0)}
    assert answers == [TxCommitOk()]
    for found in (client, restarted(journal)):
        assert (len(found.queue()), len(found.broker.flow.delayed)) == (5, 5)
        wait(found, 4_999)
        assert len(found.queue()) == 5
        wait(found, 1)
        assert (found.bodies(), len(found.broker.flow.delayed)) == (numbers(10), 0)


def test_a_crash_before_the_end_leaves_no_delayed_message(client: Client, journal: MemoryJournal) -> None:
    client.feed(b"".join(delayed(body, 5_000) for body in numbers(10)))
    client.call(TxCommit())
    step(client)

    found = restarted(journal)

    assert (found.bodies(), len(found.broker.flow.delayed)) == ([], 0)


def test_delays_that_differ_end_in_the_order_of_their_times(client: Client) -> None:
    Client(client.broker).feed(delayed(b"before", 300))
    client.feed(b"".join(delayed(b"%d" % delay_ms, delay_ms) for delay_ms in (400, 100, 300, 200, 300)))
    stepped(client)
    Client(client.broker).feed(delayed(b"after", 300))

    wait(client, 1_000)

    assert client.bodies() == [b"100", b"200", b"before", b"300", b"300", b"after", b"400"]


def test_delayed_messages_of_a_transaction_are_delivered_and_dropped_one_by_one(
    client: Client, journal: MemoryJournal
) -> None:
    client.feed(b"".join(delayed(body, 5_000) for body in numbers(6)))
    stepped(client)
    delays = client.broker.flow.delays
    positions = sorted(delays.waiting)

    delays.cancel(positions[1])
    assert delays.deliver(positions[4])
    assert len(client.broker.flow.timers) == 4
    client.broker.flow.turn()
    journal.flush()

    for found in (client, restarted(journal)):
        assert len(found.queue()) == 1
        wait(found, 5_000)
        assert found.bodies() == [b"004", b"000", b"002", b"003", b"005"]
        assert not found.broker.flow.delayed


def test_a_message_that_waits_for_room_is_not_tried_again_when_it_would_have_been_due(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.delete_queue(vhost, "q")
    broker.declare_queue(
        vhost, "q", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    broker.bind(vhost, "late", "q", "")
    client.feed(b"".join(delayed(body, 5_000) for body in numbers(4)))
    stepped(client)
    delays = broker.flow.delays
    first, second, *_ = sorted(delays.waiting)
    assert delays.deliver(first)
    assert not delays.deliver(second)

    wait(client, 10_000)
    left: list[bytes] = []
    for _ in range(6):
        first_one = client.queue().store.peek(broker.flow.pager)
        left += [first_one.body] if first_one is not None else []
        broker.purge_queue(vhost, "q")
        wait(client, 2_000)

    assert left == numbers(4)
    assert not broker.flow.delayed


def test_transient_delayed_messages_do_not_outlive_a_restart(client: Client, journal: MemoryJournal) -> None:
    for number, body in enumerate(numbers(10)):
        client.feed(delayed(body, 5_000, mode=1 + number % 2))

    assert stepped(client)[1] == [TxCommitOk()]

    assert len(client.broker.flow.delayed) == 10
    found = restarted(journal)
    for one, expected in ((client, numbers(10)), (found, numbers(10)[1::2])):
        wait(one, 5_000)
        assert one.bodies() == expected


def test_bcc_is_routed_when_the_delay_ends_and_not_shown(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(
        vhost, "by-key", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    broker.declare_queue(vhost, "copy", durable=True)
    broker.bind(vhost, "by-key", "q", "a")
    broker.bind(vhost, "by-key", "copy", "b")
    properties = Properties(delivery_mode=2, headers={"x-delay": 100, "BCC": ["b"]})
    client.feed(b"".join(publish(body, "a", properties, exchange="by-key") for body in numbers(10)))
    stepped(client)

    wait(client, 100)

    assert client.bodies("copy") == client.bodies() == numbers(10)
    exchange = vhost.exchanges["by-key"]
    assert (exchange.published, exchange.more_copies) == (10, -10)
    headers = {m.header for run in client.queue("copy").store.drain(broker.flow.pager) for m in run}
    assert not any(b"BCC" in header for header in headers)


def test_an_exchange_that_is_bound_meanwhile_delays_all_of_them(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    properties = Properties(delivery_mode=2, headers={"x-delay": 100})
    several = [publish(body, "", properties, exchange="amq.fanout", mandatory=True) for body in numbers(10)]
    client.feed(b"".join(several))
    client.call(TxCommit())
    step(client)
    broker.bind(vhost, "amq.fanout", "late", "", to_exchange=True)

    assert finish(client) == [TxCommitOk()]
    assert len(broker.flow.delayed) == 10


def test_an_exchange_with_a_history_keeps_the_last_messages(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(
        vhost, "past", "x-recent-history", durable=True, arguments={"x-recent-history-length": 3}
    )
    broker.bind(vhost, "past", "q", "")
    Client(broker).feed(b"".join(publish(body, "", LASTING, exchange="past") for body in (b"old", b"older")))
    for number, body in enumerate(numbers(8)):
        kept = Properties(delivery_mode=2, headers={"x-recent-history-no-store": number > 1})
        client.feed(publish(body, "", kept, exchange="past"))

    seen, answers = stepped(client)
    broker.declare_queue(vhost, "new", durable=True)
    broker.bind(vhost, "past", "new", "")

    assert (len(seen) > 5, answers) == (True, [TxCommitOk()])
    assert client.bodies() == [b"old", b"older", *numbers(8)]
    assert client.bodies("new") == [b"older", b"000", b"001"]


def test_a_message_that_is_compared_with_many_patterns_takes_several_steps(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    for number in range(600):
        broker.bind(vhost, "amq.headers", "q", "", {"x-match": "any", "absent": None, "n": number})
    headers = Properties(delivery_mode=2, headers={"n": 599, "other": 1})
    client.feed(publish(b"m", "", headers, exchange="amq.headers"))

    seen, answers = stepped(client)

    assert len(seen) > 600 // 3 // 3  # three patterns count as one message, and a step has three
    assert (client.bodies(), answers) == ([b"m"], [TxCommitOk()])


def test_levels_above_the_highest_share_its_order(client: Client, journal: MemoryJournal) -> None:
    client.broker.declare_queue(
        client.broker.vhost("/"), "urgent", durable=True, arguments={"x-max-priority": 4}
    )
    priorities = [0, 9, 2, 200, 4, 9, 0, 2]
    for body, priority in zip(numbers(8), priorities, strict=True):
        client.feed(publish(body, "urgent", Properties(delivery_mode=2, priority=priority)))

    assert stepped(client)[1] == [TxCommitOk()]

    for found in (client, restarted(journal)):
        taken = found.queue("urgent").store.take(8, found.broker.flow.pager)
        assert [message.body for message in taken] == [numbers(8)[at] for at in (1, 3, 4, 5, 2, 7, 0, 6)]


def test_a_queue_with_a_length_keeps_the_last_messages(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    letters: dict[str, FieldValue] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    broker.declare_queue(vhost, "short", durable=True, arguments={"x-max-length": 3, **letters})
    client.feed(b"".join(publish(body, "short", LASTING) for body in numbers(10)))

    assert stepped(client)[1] == [TxCommitOk()]
    broker.flow.complete()

    assert client.bodies("short") == numbers(3, first=7)
    assert client.bodies() == numbers(7)


def test_messages_for_several_queues_keep_their_order_in_each(client: Client) -> None:
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.declare_queue(vhost, "r", durable=True)
    for name in ("q", "r"):
        broker.bind(vhost, "amq.fanout", name, "")
    for number, body in enumerate(numbers(12)):
        exchange, key = (("", "q"), ("amq.fanout", ""), ("", "r"))[number % 3]
        client.feed(publish(body, key, LASTING, exchange=exchange))

    assert stepped(client)[1] == [TxCommitOk()]

    assert client.bodies() == [body for place, body in enumerate(numbers(12)) if place % 3 != 2]
    assert client.bodies("r") == [body for place, body in enumerate(numbers(12)) if place % 3 != 0]


def test_the_messages_of_a_commit_are_freed_in_steps(client: Client) -> None:
    client.feed(b"".join(publish(body, "q", LASTING) for body in numbers(100)))
    client.call(TxCommit())
    while not step(client):
        pass

    left = len(client.broker.long_changes)
    client.feed(b"".join(publish(body, "q", LASTING) for body in numbers(10, first=100)))

    assert (left, stepped(client)[1]) == (1, [TxCommitOk()])
    assert client.bodies() == numbers(110)
