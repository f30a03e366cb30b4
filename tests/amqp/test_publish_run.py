"""The short way into the queues and the general one: publishers and consumers cannot tell them apart."""

from collections.abc import Iterator

import pytest
from amqp_support import Client, Peer, frame, new_broker, numbers, publish

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault
from holtmq.amqp.methods import (
    BasicAck,
    BasicPublish,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    TxSelect,
)
from holtmq.amqp.phase import Phase
from holtmq.auth.permissions import Permissions
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.wire import property_walker
from holtmq.wire.properties import Properties


@pytest.fixture(autouse=True)
def _walkers_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(property_walker, "_SEEN_BEFORE", 1)
        yield


def test_a_stream_of_publishes_cut_at_every_byte_arrives_whole() -> None:
    stream = b"".join(
        publish(b"%03d" % n, "q", Properties(message_id=f"id-{n}", headers={"n": n})) for n in range(3)
    )
    for cut in range(len(stream) + 1):
        client = Client(new_broker())
        client.call(QueueDeclare("q"))
        client.feed(publish(b"warm", "q", Properties(message_id="id-w", headers={"n": 0})))
        client.feed(stream[:cut])
        client.feed(stream[cut:])
        assert client.bodies() == [b"warm", *numbers(3)]


def test_large_reads_are_worked_off_wherever_a_frame_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.amqp.connection._COPIED", 10)
    stream = b"".join(publish(b"%03d" % n, "q", Properties(message_id=f"id-{n}")) for n in range(12))
    expected = numbers(12)

    for cut in range(1, len(stream) // 2):
        client = Client(new_broker())
        client.call(QueueDeclare("q"), ConfirmSelect())
        client.connection.receive(stream[:cut])
        client.connection.receive(stream[cut : 3 * cut])
        client.connection.receive(stream[3 * cut :])
        client.broker.flow.turn()
        confirmed = [method.delivery_tag for method in client.told() if isinstance(method, BasicAck)]
        assert client.bodies() == expected
        assert confirmed[-1] == 12


def test_a_fault_in_the_frame_that_was_cut_ends_the_connection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.amqp.connection._COPIED", 10)
    good = publish(b"001", "q")
    bad = frame(BasicPublish("", "q", False, True))  # immediate
    for cut in range(1, len(bad)):
        client = Client(new_broker())
        client.call(QueueDeclare("q"))
        client.connection.receive(good + bad[:cut])

        client.connection.receive(bad[cut:] + good * 3)

        closes = [method for method in client.told() if isinstance(method, ConnectionClose)]
        assert [close.reply_code for close in closes] == [540]
        assert client.bodies() == [b"001"]


def test_a_body_frame_in_pieces_with_a_wrong_end_is_a_frame_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.amqp.frame_loop._PIECE", 1)
    client = Client(new_broker())
    client.call(QueueDeclare("q"))

    client.feed(publish(b"0123456789", "q")[:-1] + b"\x00", 4)

    assert client.failure is not None
    assert "invalid_frame_end_marker" in client.failure.reply_text
    assert client.bodies() == []


def test_the_rest_of_a_body_frame_is_skipped_when_its_channel_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holtmq.amqp.frame_loop._PIECE", 1)
    client = Client(new_broker())
    client.call(QueueDeclare("q"))
    client.call(ChannelOpen(), channel=2)
    stream = publish(b"0123456789", "q")
    client.feed(stream[:-6])
    client.connection.fail_channel(
        client.connection.channels[1], ChannelFault(ReplyCode.PRECONDITION_FAILED, "timed out"), 0
    )

    client.feed(stream[-6:] + publish(b"next", "q", channel=2), 3)

    assert client.bodies() == [b"next"]


def test_what_follows_a_fault_in_the_same_read_is_processed() -> None:
    bad = frame(BasicPublish("", "q", False, True))  # immediate

    for cut in range(1, len(bad)):
        client = Client(new_broker())
        client.connection.receive(bad[:cut])
        client.connection.receive(bad[cut:] + frame(ConnectionCloseOk(), 0)[:5])
        client.connection.receive(frame(ConnectionCloseOk(), 0)[5:])

        assert client.connection.phase is Phase.CLOSED


@pytest.mark.parametrize("body", [b"", b"b"])
def test_a_publish_on_another_channel_is_not_counted_for_this_one(body: bytes) -> None:
    broker = new_broker()
    client = Client(broker)
    client.call(QueueDeclare("q"))
    client.call(ChannelOpen(), channel=2)
    client.call(TxSelect(), channel=2)
    for _ in range(100):  # both prefixes repeat often enough to be known
        client.feed(publish(b"a", "q") * 10)
    before = len(client.queue())

    client.feed(publish(b"a", "q") * 5 + publish(body, "q", channel=2) * 5 + publish(b"c", "q") * 5)

    assert len(client.queue()) == before + 10


def test_what_one_connection_may_another_may_not() -> None:
    broker = new_broker()
    first = Client(broker)
    first.call(QueueDeclare("q"), ExchangeDeclare("t", "topic"), QueueBind("q", "t", "#"))
    for _ in range(100):
        first.feed(publish(b"a", "k", exchange="t") * 10)
    broker.access.set_permissions("guest", "/", Permissions(".*", "^$", ".*"))
    second = Client(broker)

    first.feed(publish(b"a", "k", exchange="t"))
    second.feed(publish(b"a", "k", exchange="t"))

    assert len(first.queue()) == 1000
    assert first.failure is not None
    assert "access to 't'" in first.failure.reply_text
    assert second.failure is not None
    assert "access to 't'" in second.failure.reply_text


def test_a_connection_whose_publish_was_refused_does_not_count_as_a_publisher() -> None:
    broker = new_broker()
    broker.access.set_permissions("guest", "/", Permissions(".*", r"^amq\.default$", ".*"))
    client = Client(broker)

    client.feed(publish(b"a", "k", exchange="amq.topic"))

    assert client.failure is not None
    assert broker.counts.publishers == 0


def test_a_known_publish_does_not_outlive_its_queue() -> None:
    client = Client(new_broker())
    client.call(QueueDeclare("q"))
    for _ in range(100):
        client.feed(publish(b"a", "q") * 10)

    client.feed(frame(QueueDelete("q")) + publish(b"a", "q") + frame(QueueDeclare("q")) + publish(b"b", "q"))

    assert client.bodies() == [b"b"]


@pytest.mark.parametrize("known", ["", "x0", "x1"])
def test_a_publish_finds_no_exchange_that_is_unused_and_about_to_be_deleted(
    monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    monkeypatch.setattr(LongChanges.add, "__defaults__", (10,))
    client = Client(new_broker())
    client.call(QueueDeclare("q"))
    for number in range(50):
        client.call(ExchangeDeclare(f"x{number}", auto_delete=True), QueueBind("q", f"x{number}", "k"))
    if known:
        client.feed(publish(b"before", "k", exchange=known) * 3)
    client.call(ConfirmSelect(), QueueDelete("q"))
    assert "x0" in client.broker.vhost("/").exchanges

    client.feed(publish(b"after", "k", exchange="x0"))

    assert isinstance(client.failure, ChannelFault)
    assert client.failure.code is ReplyCode.NOT_FOUND


def test_connections_share_what_is_known_and_keep_little_themselves() -> None:
    broker = new_broker()
    first = Client(broker)
    first.call(QueueDeclare("q"))
    for _ in range(100):
        first.feed(publish(b"a", "q") * 10)
    peers = [Client(broker) for _ in range(5)]

    for peer in peers:
        peer.feed(publish(b"a", "q") * 100)

    assert {id(peer.connection._frame_loop._caches) for peer in [first, *peers]} == {
        id(first.connection._frame_loop._caches)
    }
    assert isinstance(peers[0], Peer)
    assert len(first.queue()) == 1500
