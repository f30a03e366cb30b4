"""A message for very many queues is placed in steps: others have their turn, the outcome is the same."""

from itertools import pairwise

import pytest
from amqp_support import Client, finish, new_broker, publish, step

from holtmq.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
)
from holtmq.broker.broker import Broker
from holtmq.broker.publish import wide_publishes
from holtmq.broker.publish.wide_publishes import QueuesInParts
from holtmq.broker.records.recovery import recover
from holtmq.broker.topology import routing
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.turn_limits import TurnLimits
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

AT_ONCE = 2
NAMES = ["a", "b", "c", "d", "e"]  # three steps
LASTING = Properties(delivery_mode=2, headers={"kind": "k"})
BINDINGS: dict[str, tuple[str, FieldTable]] = {
    "fanout": ("", {}),
    "direct": ("key", {}),
    "topic": ("#", {}),
    "headers": ("", {"kind": "k"}),
}


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


def wide(journal: MemoryJournal, kind: str = "fanout") -> Client:
    """A client in confirm mode, and an exchange that leads to all queues."""
    client = Client(new_broker(journal))
    client.broker.flow.per_turn = TurnLimits(copies=AT_ONCE)
    client.broker.vhost("/").widest = AT_ONCE
    ask(client, ExchangeDeclare("wide", kind, durable=True), ConfirmSelect())
    key, wanted = BINDINGS[kind]
    for name in NAMES:
        ask(client, QueueDeclare(name, durable=True), QueueBind(name, "wide", key, arguments=wanted))
    return client


def ask(client: Client, *methods: Method) -> None:
    """Durable changes are answered one after the other."""
    for method in methods:
        client.call(method)
        client.broker.journal.flush()
        client.told()


def send(body: bytes = b"m", *, key: str = "key", exchange: str = "wide", mandatory: bool = False) -> bytes:
    return publish(body, key, LASTING, exchange=exchange, mandatory=mandatory)


def restarted(journal: MemoryJournal) -> Broker:
    kept, found = journal.restart()
    broker = Broker(kept)
    recover(broker, found)
    return broker


def waiting(client: Client) -> list[int]:
    return [len(client.queue(name)) for name in NAMES]


@pytest.mark.parametrize("kind", BINDINGS)
def test_a_message_is_placed_in_steps_and_confirmed_after_the_last(kind: str, journal: MemoryJournal) -> None:
    client = wide(journal, kind)
    seen = []

    assert client.feed(send()) == []
    while client.broker.long_changes:
        seen.append(sum(waiting(client)))
        told = step(client)
        if client.broker.long_changes:
            assert told == []

    assert seen == [0, 2, 4, 5]
    assert told == [BasicAck(1)]
    assert waiting(client) == [1] * 5
    assert not client.connection.is_stalled


def test_the_confirm_waits_for_the_record_of_the_last_step(journal: MemoryJournal) -> None:
    client = wide(journal)
    client.feed(send())

    while client.broker.long_changes:
        client.broker.flow.tick()
        client.broker.flow.turn()

    assert client.told() == []
    journal.flush()
    assert client.told() == [BasicAck(1)]


def test_after_a_restart_a_confirmed_message_is_in_all_queues(journal: MemoryJournal) -> None:
    client = wide(journal)
    client.feed(send(b"x" * 100))
    assert finish(client) == [BasicAck(1)]

    again = restarted(journal)

    assert [len(again.vhost("/").queues[name]) for name in NAMES] == [1] * 5


def test_messages_behind_it_keep_their_order(journal: MemoryJournal) -> None:
    client = wide(journal)

    client.feed(send(b"1") + send(b"2") + publish(b"3", "e", LASTING))
    assert client.bodies("e") == []
    told = finish(client)

    assert [client.bodies(name) for name in NAMES] == [[b"1", b"2"]] * 4 + [[b"1", b"2", b"3"]]
    assert [method.delivery_tag for method in told if isinstance(method, BasicAck)] == [1, 2, 3]


def test_a_publish_leaves_the_search_for_its_queues_to_the_first_step(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = wide(journal)
    others = [Client(client.broker) for _ in range(3)]
    searches = []
    find = QueuesInParts.find

    def counted(queues: QueuesInParts, enough: int) -> list[Queue]:
        searches.append(enough)
        return find(queues, enough)

    monkeypatch.setattr(QueuesInParts, "find", counted)
    for other in others:
        other.feed(send())

    assert searches == []
    finish(client)
    assert waiting(client) == [3] * 5


@pytest.mark.parametrize("size", [1, 7, 30])
def test_frames_torn_apart_give_the_same(size: int, journal: MemoryJournal) -> None:
    client = wide(journal)

    client.feed(send(b"1" * 20_000) + send(b"2") + publish(b"3", "a", LASTING), size=size * 1_000)
    finish(client)

    assert client.bodies("a") == [b"1" * 20_000, b"2", b"3"]
    assert client.bodies("e") == [b"1" * 20_000, b"2"]


def test_others_publish_meanwhile_and_queues_stay_in_the_order_of_numbers(journal: MemoryJournal) -> None:
    client = wide(journal)
    other = Client(client.broker)
    client.feed(send())

    other.feed(publish(b"other", "e", LASTING))
    finish(client)

    runs = list(client.queue("e").store.drain(client.broker.flow.pager))
    messages = [message for run in runs for message in run]
    assert [message.body for message in messages] == [b"other", b"m"]
    assert messages[0].seq < messages[1].seq
    assert messages[0].position < messages[1].position


def test_the_copies_share_their_body(journal: MemoryJournal) -> None:
    client = wide(journal)
    client.feed(send(b"x" * 1_000))
    finish(client)

    bodies = {
        id(message.body)
        for name in NAMES
        for run in client.queue(name).store.drain(client.broker.flow.pager)
        for message in run
    }

    assert len(bodies) == 1


def test_a_queue_deleted_meanwhile_is_left_out(journal: MemoryJournal) -> None:
    client = wide(journal)
    other = Client(client.broker)
    client.feed(send())
    step(client)

    ask(other, QueueDelete("a"), QueueDelete("e"))
    told = finish(client)

    assert told == [BasicAck(1)]
    assert [len(client.queue(name)) for name in ("b", "c", "d")] == [1] * 3


def test_a_mandatory_message_whose_queues_are_all_deleted_meanwhile_returns(journal: MemoryJournal) -> None:
    client = wide(journal)
    other = Client(client.broker)
    client.feed(send(mandatory=True))

    ask(other, *map(QueueDelete, NAMES))
    told = finish(client)

    assert [type(method) for method in told] == [BasicReturn, BasicAck]


def test_a_mandatory_message_that_arrives_is_not_returned(journal: MemoryJournal) -> None:
    client = wide(journal)
    client.feed(send(mandatory=True))

    assert finish(client) == [BasicAck(1)]


def test_queues_that_refuse_it_give_one_nack_and_the_others_keep_it(journal: MemoryJournal) -> None:
    client = wide(journal)
    full: FieldTable = {"x-max-length": 0, "x-overflow": "reject-publish"}
    for name in ("full-1", "full-2", "full-3"):
        ask(client, QueueDeclare(name, durable=True, arguments=full), QueueBind(name, "wide", ""))

    client.feed(send())
    told = finish(client)

    assert told == [BasicNack(1, requeue=False)]
    assert waiting(client) == [1] * 5


def test_what_a_limit_drops_meanwhile_becomes_a_dead_letter(journal: MemoryJournal) -> None:
    client = wide(journal)
    letters: FieldTable = {
        "x-max-length": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    ask(client, QueueDeclare("dead", durable=True))
    ask(client, QueueDeclare("short", durable=True, arguments=letters), QueueBind("short", "wide", ""))

    client.feed(send(b"1") + send(b"2"))
    finish(client)

    assert (client.bodies("short"), client.bodies("dead")) == ([b"2"], [b"1"])


def test_a_connection_that_is_lost_meanwhile_does_not_stop_it(journal: MemoryJournal) -> None:
    client = wide(journal)
    client.feed(send(b"1") + send(b"2"))
    step(client)

    client.connection.end("gone")
    finish(client)

    assert [client.bodies(name) for name in NAMES] == [[b"1"]] * 5
    assert client.told() == []


def test_a_close_of_the_channel_behind_it_comes_after_it(journal: MemoryJournal) -> None:
    client = wide(journal)

    client.feed(send())
    client.call(ChannelClose(200, "done"))
    told = finish(client)

    assert waiting(client) == [1] * 5
    assert isinstance(told[-1], ChannelCloseOk)


def test_a_journal_that_fails_meanwhile_gives_a_nack(journal: MemoryJournal) -> None:
    client = wide(journal)
    client.feed(send())
    step(client)

    journal.fail("no disk")
    told = finish(client)

    assert told == [BasicNack(1, requeue=False)]
    assert not client.connection.is_stalled


def test_each_queue_gets_one_copy_when_several_ways_lead_to_it(journal: MemoryJournal) -> None:
    client = wide(journal)
    ask(client, ExchangeDeclare("next", "headers"), ExchangeBind("next", "wide", ""))
    for name in NAMES:
        ask(client, QueueBind(name, "next", "", arguments={"kind": "k"}))
    ask(client, QueueDeclare("far", durable=True), QueueBind("far", "next", ""))
    headers: FieldTable = {"kind": "k", "CC": ["a", "b"], "BCC": ["c"]}

    client.feed(publish(b"m", "key", Properties(delivery_mode=2, headers=headers), exchange="wide"))
    finish(client)

    assert waiting(client) == [1] * 5
    assert client.bodies("far") == [b"m"]


def test_transient_messages_and_queues_that_keep_all_are_placed_alike(journal: MemoryJournal) -> None:
    client = wide(journal)
    quorum: FieldTable = {"x-queue-type": "quorum"}
    ask(client, QueueDeclare("kept", durable=True, arguments=quorum), QueueBind("kept", "wide", ""))
    ask(client, QueueDeclare("fleeting"), QueueBind("fleeting", "wide", ""))

    client.feed(publish(b"m", "key", Properties(delivery_mode=1), exchange="wide"))
    told = finish(client)
    again = restarted(journal)

    assert told == [BasicAck(1)]
    assert (client.bodies("kept"), client.bodies("fleeting")) == ([b"m"], [b"m"])
    assert [len(again.vhost("/").queues[name]) for name in ("kept", "a")] == [1, 0]


@pytest.mark.parametrize("leads_to", ["a", None])
def test_a_long_way_through_exchanges_is_gone_in_steps(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, leads_to: str | None
) -> None:
    monkeypatch.setattr(routing, "_FAR", 3)
    monkeypatch.setattr(wide_publishes, "_PARTS_MAX", 2)
    client = wide(journal)
    names = [f"far-{number}" for number in range(8)]
    for name in names:
        ask(client, ExchangeDeclare(name, "fanout", durable=True))
    for source, destination in pairwise([*names, names[0]]):
        ask(client, ExchangeBind(destination, source))
    if leads_to is not None:
        ask(client, QueueBind(leads_to, names[-1]))

    for _ in range(2):  # also if the route is known
        assert client.feed(send(exchange=names[0], mandatory=True)) == []
        told: list[Method] = []
        steps = 0
        while client.broker.long_changes:
            told += step(client)
            steps += 1

        assert steps >= 4
        assert isinstance(told[-1], BasicAck)
        assert any(isinstance(method, BasicReturn) for method in told) == (leads_to is None)
    assert waiting(client) == [2 if leads_to else 0, 0, 0, 0, 0]
