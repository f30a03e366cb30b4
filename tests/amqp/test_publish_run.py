"""The short way into the queues and the general one: publishers and consumers cannot tell them apart."""

from collections.abc import Iterator

import pytest
from amqp_support import Client, Peer, frame, new_broker, numbers, publish
from hypothesis import given, settings
from hypothesis import strategies as st
from test_property_walker import property_sets

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Phase
from holtmq.amqp.errors import ChannelFault
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, encode_frame
from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
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
from holtmq.amqp.publish_run import PublishRun
from holtmq.auth.permissions import Permissions
from holtmq.broker.work.leases import Lease
from holtmq.journal import MemoryJournal
from holtmq.wire import property_walker
from holtmq.wire.properties import Properties, encode_header, encode_properties

QUEUES = ("plain", "durable", "priority", "quorum", "limited")
SETUP = (
    QueueDeclare("plain"),
    QueueDeclare("priority", arguments={"x-max-priority": 3}),
    QueueDeclare("limited", arguments={"x-max-length": 4, "x-overflow": "reject-publish"}),
    ExchangeDeclare("topic", "topic"),
    ExchangeDeclare("fan", "fanout"),
    ExchangeDeclare("behind", "direct", arguments={"alternate-exchange": "fan"}),
    QueueBind("plain", "topic", "a.*"),
    QueueBind("durable", "topic", "#"),
    QueueBind("priority", "topic", "a.#"),
    QueueBind("quorum", "topic", "a.b"),
    QueueBind("plain", "fan", ""),
    QueueBind("durable", "fan", ""),
    QueueBind("limited", "behind", "k"),
)


@pytest.fixture(autouse=True)
def _walkers_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(property_walker, "_SEEN_BEFORE", 1)
        yield


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    exchange = draw(st.sampled_from(["", "topic", "fan", "behind", "topic", "missing"]))
    key = draw(st.sampled_from([*QUEUES, "", "a.b", "a", "a.b.c", "k", "unknown"]))
    channel = draw(st.sampled_from([1, 1, 1, 2]))
    body = draw(st.sampled_from([b"", b"x", b"some text", b"y" * 300]))
    properties = encode_properties(draw(property_sets | st.just(Properties(delivery_mode=2, message_id="m"))))
    header = encode_header(len(body), properties)
    data = frame(BasicPublish(exchange, key, draw(st.booleans())), channel)
    data += encode_frame(FRAME_HEADER, channel, header)
    cut = draw(st.just(0) | st.integers(0, len(body)))
    for part in (body[:cut], body[cut:]):
        data += encode_frame(FRAME_BODY, channel, part) if part else b""
    return data


def play(
    stream: bytes,
    sizes: list[int],
    short: bool,
    *,
    confirms: bool = True,
    topic_denied: bool = False,
    fails_at: int = -1,
) -> list[object]:
    """Everything that can be seen from outside after these bytes."""
    with pytest.MonkeyPatch.context() as patch:
        # A body frame that a read has cut is kept in pieces, or completed first.
        patch.setattr("holtmq.amqp.reading._PIECE", 1 if short else 1 << 30)
        if not short:
            patch.setattr(PublishRun, "take", lambda self, channel, data, at, end: at)
        journal = MemoryJournal()
        broker = new_broker(journal)
        broker.declare_queue(broker.vhost("/"), "durable", durable=True)
        broker.declare_queue(broker.vhost("/"), "quorum", durable=True, arguments={"x-queue-type": "quorum"})
        Client(broker).call(*SETUP)
        consumers = []
        for name in QUEUES[:4]:
            consumer = Client(broker)
            consumer.call(BasicConsume(name, "tag"))
            consumers.append(consumer)
        if topic_denied:
            broker.set_permissions(
                "guest", "/", Permissions(".*", r"^(fan|behind|missing|amq\.default)$", ".*")
            )
        publisher = Client(broker)
        publisher.call(ChannelOpen(), channel=2)
        if confirms:
            publisher.call(ConfirmSelect())
        answers = b""
        at = turn = 0
        while at < len(stream):
            size = sizes[turn % len(sizes)]
            if turn == fails_at:
                journal.fail("the disk is gone")
            publisher.connection.receive(stream[at : at + size])
            broker.flow.turn()
            journal.flush()
            answers += publisher.connection.outbox.take()
            at, turn = at + size, turn + 1
        delivered = [consumer.connection.outbox.take() for consumer in consumers]
        vhost = broker.vhost("/")
        counts = [(len(vhost.queues[name]), vhost.queues[name].bytes) for name in QUEUES]
        written = [journal.read(lease.message.position) for lease in _leases(consumers[1]) if fails_at < 0]
        return [answers, delivered, counts, written, str(publisher.failure), publisher.connection.phase]


def _leases(consumer: Client) -> list[Lease]:
    """Of persistent messages."""
    leases = consumer.connection.channels[1].ledger.by_number.values()
    return [lease for lease in leases if lease.message.position]


@settings(max_examples=300)
@given(
    st.lists(publishes(), min_size=1, max_size=12),
    st.lists(st.integers(1, 400) | st.just(1 << 20), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(-3, 3),
)
def test_the_short_way_and_the_general_way_cannot_be_told_apart(
    messages: list[bytes], sizes: list[int], confirms: bool, topic_denied: bool, fails_at: int
) -> None:
    stream = b"".join(messages)

    short, general = (
        play(stream, sizes, way, confirms=confirms, topic_denied=topic_denied, fails_at=fails_at)
        for way in (True, False)
    )

    assert short == general


def test_a_publish_behind_a_run_goes_its_own_way_and_not_that_of_one_before_the_run() -> None:
    def one(exchange: str, properties: Properties) -> bytes:
        header = encode_header(0, encode_properties(properties))
        return frame(BasicPublish(exchange, "plain", False), 1) + encode_frame(FRAME_HEADER, 1, header)

    plain, named = Properties(), Properties(delivery_mode=2, message_id="m")
    stream = one("", named) + one("", plain) * 3 + one("", named) + one("behind", plain)

    for count in range(1, 6):
        short, general = (play(stream * count, [1 << 20], way) for way in (True, False))
        assert short == general


@settings(max_examples=100)
@given(st.lists(publishes(), min_size=1, max_size=4), st.data())
def test_broken_bytes_are_refused_alike(messages: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    whole = [1 << 20]

    assert play(bytes(stream), whole, True) == play(bytes(stream), whole, False)


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
    monkeypatch.setattr("holtmq.amqp.reading._PIECE", 1)
    client = Client(new_broker())
    client.call(QueueDeclare("q"))

    client.feed(publish(b"0123456789", "q")[:-1] + b"\x00", 4)

    assert client.failure is not None
    assert "invalid_frame_end_marker" in client.failure.reply_text
    assert client.bodies() == []


def test_the_rest_of_a_body_frame_is_skipped_when_its_channel_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holtmq.amqp.reading._PIECE", 1)
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
    broker.set_permissions("guest", "/", Permissions(".*", "^$", ".*"))
    second = Client(broker)

    first.feed(publish(b"a", "k", exchange="t"))
    second.feed(publish(b"a", "k", exchange="t"))

    assert len(first.queue()) == 1000
    assert first.failure is not None
    assert "access to 't'" in first.failure.reply_text
    assert second.failure is not None
    assert "access to 't'" in second.failure.reply_text


def test_a_known_publish_does_not_outlive_its_queue() -> None:
    client = Client(new_broker())
    client.call(QueueDeclare("q"))
    for _ in range(100):
        client.feed(publish(b"a", "q") * 10)

    client.feed(frame(QueueDelete("q")) + publish(b"a", "q") + frame(QueueDeclare("q")) + publish(b"b", "q"))

    assert client.bodies() == [b"b"]


def test_connections_share_what_is_known_and_keep_little_themselves() -> None:
    broker = new_broker()
    first = Client(broker)
    first.call(QueueDeclare("q"))
    for _ in range(100):
        first.feed(publish(b"a", "q") * 10)
    peers = [Client(broker) for _ in range(5)]

    for peer in peers:
        peer.feed(publish(b"a", "q") * 100)

    assert {id(peer.connection._reading._caches) for peer in [first, *peers]} == {
        id(first.connection._reading._caches)
    }
    assert isinstance(peers[0], Peer)
    assert len(first.queue()) == 1500
