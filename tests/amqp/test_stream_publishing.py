"""Publishes to streams through a connection: the publishes of one read are one push, with the same results.

Owns: order, confirms, refusals and what is kept of an envelope, without a socket. No clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from amqp_support import NOW_MS, Peer, frame, new_broker, numbers
from amqp_support import publish as frames_of

from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicQos,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
)
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.changes import Kind
from holtmq.broker.streams.envelopes import to_body
from holtmq.journal import MemoryJournal
from holtmq.journal.interface import DurableCallback
from holtmq.wire.properties import Properties, encode_header, encode_properties

STREAM = {"x-queue-type": "stream"}


class NotedJournal(MemoryJournal):
    """Remembers what was asked of it: the kinds of each batch, and how many there were at each waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, ...]] = []
        self.waits: list[int] = []

    def append(self, kind: int, payload: bytes) -> int:
        self.asked.append((kind,))
        return super().append(kind, payload)

    def append_batch(self, records: Sequence[tuple[int, bytes]]) -> list[int]:
        self.asked.append(tuple(kind for kind, _ in records))
        return [MemoryJournal.append(self, kind, payload) for kind, payload in records]

    def on_durable(self, callback: DurableCallback) -> None:
        self.waits.append(len(self.asked))
        super().on_durable(callback)


class Client(Peer):
    """Has channel 1 open, and streams to publish to."""

    def __init__(self, default_config: QueueConfig | None = None) -> None:
        self.journal = NotedJournal()
        self.service = PartitionedService(self.journal)
        self.service.store.default_config = default_config or QueueConfig()
        super().__init__(new_broker(self.journal, self.service))
        vhost = self.broker.vhost("/")
        self.broker.declare_queue(vhost, "work", durable=True)
        for name in ("s", "t"):
            self.broker.declare_queue(vhost, name, durable=True, arguments=STREAM)
        for exchange, queues in (("streams", ("s", "t")), ("both", ("s", "work"))):
            self.broker.exchanges.declare(vhost, exchange, "fanout", durable=True)
            for queue in queues:
                self.broker.bind(vhost, exchange, queue, "")
        self.read(frame(ChannelOpen()))
        self.answers()

    def read(self, *parts: bytes) -> None:
        """One read of the socket; the turn is not over yet."""
        self.journal.asked.clear()
        self.journal.waits.clear()
        self.connection.receive(b"".join(parts))

    def answers(self) -> list[Method]:
        """End the turn, sync, and see what the client is told."""
        out: list[Method] = []
        for _ in range(2):
            self.broker.flow.turn()
            self.journal.flush()
            out += self.told()
        return out

    def stored(self, name: str = "s") -> list[Body]:
        queue = self.service.store.queues.get(name)
        if queue is None:
            return []
        return self.service.store.bodies([queue.log.position(at) for at in range(queue.log.next_offset)])

    def bodies(self, name: str = "s") -> list[bytes]:
        return [to_body(body.payload) for body in self.stored(name)]

    def partitions(self, name: str = "s") -> list[str]:
        queue = self.service.store.queues[name]
        return [queue.partitions[queue.log.partition(at)].name for at in range(queue.log.next_offset)]


@pytest.fixture
def client() -> Client:
    return Client()


def confirming(client: Client) -> Client:
    client.read(frame(ConfirmSelect()))
    client.answers()
    return client


def publish(body: bytes, key: str = "s", exchange: str = "", properties: Properties | None = None) -> bytes:
    return frames_of(body, key, properties or Properties(delivery_mode=2), exchange=exchange)


def verdicts(answers: Sequence[Method]) -> tuple[set[int], set[int]]:
    """Which tags were confirmed and which refused."""
    told: tuple[set[int], set[int]] = (set(), set())
    for method in answers:
        if isinstance(method, BasicAck | BasicNack):
            first = 1 if method.multiple else method.delivery_tag
            tags = set(range(first, method.delivery_tag + 1)) - told[0] - told[1]
            told[isinstance(method, BasicNack)].update(tags)
    return told


def test_what_one_read_publishes_to_a_stream_is_one_batch_of_the_journal(client: Client) -> None:
    client.read(*[publish(body) for body in numbers(50)])

    batches = [kinds for kinds in client.journal.asked if Kind.PARTITIONED in kinds]
    assert len(batches) == 1
    assert batches[0].count(Kind.PARTITIONED_BODY) == 50
    assert client.bodies() == numbers(50)


def test_confirms_wait_for_a_record_that_is_written_before_they_begin_to_wait(client: Client) -> None:
    confirming(client)

    client.read(*[publish(body) for body in numbers(5)])

    assert client.journal.waits == [1, 1]  # the messages, to come to sight, and their confirms
    assert len(client.journal.asked) == 1
    assert len(client.bodies()) == 5
    assert client.connection.outbox.take() == b""
    assert verdicts(client.answers()) == ({1, 2, 3, 4, 5}, set())


def test_messages_keep_their_order_however_the_reads_cut_them(client: Client) -> None:
    data = b"".join(publish(body) for body in numbers(30))

    for at in range(0, len(data), 97):
        client.read(data[at : at + 97])

    assert client.bodies() == numbers(30)


def test_every_publish_counts_as_a_request_of_its_own(client: Client) -> None:
    client.read(*[publish(body) for body in numbers(7)])

    counters = client.service.counters.of("s")
    assert (counters.push_requests, counters.push_messages, counters.partitions_created) == (7, 7, 1)


def test_a_read_with_too_many_bytes_is_written_in_parts(client: Client) -> None:
    bodies = [bytes([65 + number]) * 100_000 for number in range(25)]

    client.read(*[publish(body) for body in bodies])

    assert client.bodies() == bodies
    batches = [kinds for kinds in client.journal.asked if Kind.PARTITIONED in kinds]
    assert 1 < len(batches) < 5


def test_while_pushes_are_spooled_a_read_goes_to_the_spool(client: Client) -> None:
    client.read(publish(b"1"))
    client.service.spool.switch(pushes_spooled=True)

    client.read(publish(b"2"), publish(b"3"))

    assert client.bodies() == [b"1"]
    assert len(client.service.spool) == 2


def test_a_persistent_message_for_a_work_queue_is_written_behind_the_stream_s(client: Client) -> None:
    client.read(publish(b"1"), publish(b"2", "work"), publish(b"3"), publish(b"4", "work"))

    order = [Kind.PARTITIONED in kinds for kinds in client.journal.asked]
    assert order == [True, False, True, False]


def test_so_it_is_between_publishes_that_repeat(client: Client) -> None:
    client.broker.declare_queue(client.broker.vhost("/"), "w", durable=True)

    client.read(*[publish(body, key) for body in numbers(6) for key in "sw"])

    order = [Kind.PARTITIONED in kinds for kinds in client.journal.asked]
    assert order == [True, False] * 6


def test_what_else_begins_a_record_or_ends_the_turn_finds_nothing_gathered(client: Client) -> None:
    broker, flow = client.broker, client.broker.flow
    header = encode_header(1, encode_properties(Properties()))
    route, properties = (
        broker.resolve(broker.vhost("/"), "", "s", make_address("", "s")),
        flow.publish_properties.of(header),
    )

    flow.publishing.publish_in_read(route, properties, header, b"1")
    flow.begin()
    assert client.bodies() == [b"1"]
    flow.publishing.publish(route, properties, header, b"2")
    flow.commit()
    flow.publishing.publish_in_read(route, properties, header, b"3")
    flow.turn()

    assert client.bodies() == [b"1", b"2", b"3"]


def test_an_ack_is_written_behind_what_was_published_before_it(client: Client) -> None:
    client.read(publish(b"1"))
    client.read(
        frame(BasicConsume("s", "c", arguments={"x-consumer-group": "g", "x-stream-offset": "first"}))
    )
    client.answers()

    client.read(publish(b"2", "t"), frame(BasicAck(1)))

    assert [kinds.count(Kind.PARTITIONED_BODY) for kinds in client.journal.asked] == [1, 0]
    group = client.service.store.queues["s"].groups["g"]
    assert group.cursor(0) == 1


def test_a_publish_to_both_kinds_comes_behind_the_read_s_others_and_is_one_batch(client: Client) -> None:
    client.read(publish(b"1"), publish(b"2"), publish(b"3", "", "both"), publish(b"4"))

    assert client.bodies() == [b"1", b"2", b"3", b"4"]
    assert [kinds.count(Kind.PARTITIONED_BODY) for kinds in client.journal.asked] == [2, 1, 1]
    assert Kind.MESSAGE in client.journal.asked[1]


def test_a_fanout_to_streams_alone_is_gathered_for_all_of_them(client: Client) -> None:
    client.read(*[publish(body, "", "streams") for body in numbers(4)])

    assert client.bodies("s") == client.bodies("t") == numbers(4)
    assert len({body.transaction_id for name in "st" for body in client.stored(name)}) == 8
    assert len([kinds for kinds in client.journal.asked if Kind.PARTITIONED in kinds]) == 1


def test_a_method_in_the_same_read_sees_what_was_published_before_it(client: Client) -> None:
    client.read(publish(b"1"), publish(b"2"), frame(QueueDeclare("s", passive=True)))

    (answer,) = client.answers()
    assert isinstance(answer, QueueDeclareOk)
    assert answer.message_count == 2


def test_a_consumer_that_starts_at_the_end_starts_behind_what_its_read_published(client: Client) -> None:
    consume = frame(BasicConsume("s", "c", no_ack=True, arguments={"x-stream-offset": "next"}))

    client.read(publish(b"1"), publish(b"2"), consume, publish(b"3"))

    assert [type(answer) for answer in client.answers()] == [BasicConsumeOk, BasicDeliver]


def test_a_route_that_outlived_its_stream_does_not_make_the_log_anew(client: Client) -> None:
    broker, flow = client.broker, client.broker.flow
    header = encode_header(1, encode_properties(Properties()))
    route = broker.resolve(broker.vhost("/"), "", "s", make_address("", "s"))
    client.read(publish(b"1"), frame(QueueDelete("s")))

    assert (
        flow.publishing.publish_in_read(route, flow.publish_properties.of(header), header, b"2")
        is PublishOutcome.UNROUTED
    )
    flow.turn()

    assert "s" not in client.service.store.queues


def test_a_stream_that_is_deleted_between_two_publishes_of_a_read_stays_deleted(client: Client) -> None:
    client.read(publish(b"1"), frame(QueueDelete("s")), publish(b"2"))
    client.answers()

    client.read(publish(b"3"))

    assert "s" not in client.service.store.queues
    assert client.failure is None


@pytest.mark.parametrize(
    "properties",
    [
        Properties(),
        Properties(delivery_mode=2, priority=7, message_id="m", expiration="5"),
        Properties(headers={"x-partition": "mine", "n": 1}),
        Properties(headers={"x-partition": ""}),
        Properties(headers={"x-partition": 5}),
        Properties(headers={"other": "x-partition"}),
        Properties(headers={"BCC": []}),
    ],
)
@pytest.mark.parametrize("key", ["", "k"])
def test_a_gathered_message_is_stored_like_one_that_came_alone(
    client: Client, properties: Properties, key: str
) -> None:
    broker = client.broker
    for body in (b'{"a":1}', b"text", b"\xff"):
        header = encode_header(len(body), encode_properties(properties))
        route = broker.resolve(broker.vhost("/"), "streams", key, make_address("streams", key))
        broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, body)

        client.read(*[publish(body, key, "streams", properties)] * 3)

    stored = [(body.payload, body.metadata, body.trace_id, body.producer) for body in client.stored()]
    assert len(stored) == 12
    for at in range(0, 12, 4):
        assert stored[at : at + 4] == [stored[at]] * 4
    assert len(set(client.partitions())) == 1


def test_messages_of_one_read_go_to_the_partitions_they_name(client: Client) -> None:
    named = [Properties(headers={"x-partition": name}) for name in "abcabc"]

    client.read(*[publish(b"1", properties=properties) for properties in named], publish(b"2"))

    assert client.partitions() == [*"abcabc", "s"]


@pytest.mark.parametrize("exchange", ["streams", "both"])
def test_a_key_that_is_not_utf_8_is_kept_among_others(client: Client, exchange: str) -> None:
    wild = publish(b"2", "zz", exchange).replace(b"\x02zz", b"\x02\xff\xfe")

    client.read(publish(b"1"), wild, publish(b"3", "ключ", exchange))
    client.service.store.cache = type(client.service.store.cache)(0)

    assert client.bodies() == [b"1", b"2", b"3"]
    assert client.partitions() == ["s", "\\xff\\xfe", "ключ"]
    assert [body.metadata and body.metadata.routing_key for body in client.stored()] == [
        "s",
        "\udcff\udcfe",
        "ключ",
    ]


def test_json_that_is_nested_too_deeply_is_kept_as_text(client: Client) -> None:
    bodies = [b"1", b"[" * 5_000, b"[" * 5_000 + b"]" * 5_000, b"2"]

    client.read(*map(publish, bodies))

    assert client.bodies() == bodies


def test_a_message_with_further_keys_reaches_its_streams_in_order(client: Client) -> None:
    copied = Properties(headers={"CC": ["t"], "BCC": ["work"]})

    alone = Properties(headers={"CC": ["t"]})

    client.read(publish(b"1"), publish(b"2", properties=copied), publish(b"3"), publish(b"4", "t"))
    client.read(publish(b"5"), publish(b"6", properties=alone), publish(b"7", "t"))

    assert client.bodies("s") == [b"1", b"2", b"3", b"5", b"6"]
    assert client.bodies("t") == [b"2", b"4", b"6", b"7"]
    assert len(client.broker.vhost("/").queues["work"]) == 1


def test_what_was_gathered_is_read_back_from_the_journal_as_it_was(client: Client) -> None:
    properties = Properties(delivery_mode=2, priority=3, headers={"x-partition": "p"})
    client.read(*[publish(body, "", "streams", properties) for body in numbers(3)])
    written = [(body.transaction_id, body.payload, body.metadata) for body in client.stored()]

    client.service.store.cache = type(client.service.store.cache)(0)

    assert [(body.transaction_id, body.payload, body.metadata) for body in client.stored()] == written


def test_a_full_stream_refuses_exactly_what_does_not_fit(client: Client) -> None:
    configure(client.service, "s", None, None, {"max_size": 3}, NOW_MS / 1000)
    confirming(client)

    client.read(*[publish(body) for body in numbers(5)], publish(b"other", "t"), publish(b"more"))

    assert verdicts(client.answers()) == ({1, 2, 3, 6}, {4, 5, 7})
    assert client.bodies() == numbers(3)
    assert client.bodies("t") == [b"other"]


def test_a_limit_from_the_defaults_holds_in_the_read_that_makes_the_log() -> None:
    client = confirming(Client(QueueConfig(max_size=2)))

    client.read(*[publish(body) for body in numbers(4)])

    assert verdicts(client.answers()) == ({1, 2}, {3, 4})
    assert client.bodies() == numbers(2)


def test_room_that_was_made_between_two_reads_is_used(client: Client) -> None:
    configure(client.service, "s", None, None, {"max_size": 2}, NOW_MS / 1000)
    confirming(client)
    client.read(*[publish(body) for body in numbers(3)])
    assert verdicts(client.answers()) == ({1, 2}, {3})

    configure(client.service, "s", None, None, {"max_size": 4}, NOW_MS / 1000)
    client.read(*[publish(body) for body in numbers(3)])

    assert len(client.bodies()) == 4
    assert verdicts(client.answers())[1] == {6}


def test_room_that_others_took_between_two_reads_is_not_given_twice(client: Client) -> None:
    configure(client.service, "s", None, None, {"max_size": 3}, NOW_MS / 1000)
    confirming(client)
    client.read(publish(b"1"))
    client.service.push([PushItem("s", "p", Body(name, b"0")) for name in "xy"], NOW_MS / 1000)

    client.read(publish(b"2"))

    assert verdicts(client.answers()) == ({1}, {2})


def test_a_failed_journal_nacks_whoever_confirms(client: Client) -> None:
    confirming(client)
    client.journal.fail("disk")

    client.read(publish(b"1"), frame(BasicQos()), publish(b"2"))

    assert verdicts(client.answers()) == (set(), {1, 2})
    assert client.failure is None


def test_a_failed_journal_ends_the_connection_of_whoever_does_not(client: Client) -> None:
    client.journal.fail("disk")

    client.read(publish(b"1"), publish(b"2"))

    assert isinstance(client.answers()[-1], ConnectionClose)


@pytest.mark.parametrize("confirms", [True, False])
def test_a_journal_that_fails_under_the_push_is_told_in_the_same_way(client: Client, confirms: bool) -> None:
    if confirms:
        confirming(client)
    fail, push = client.journal.fail, client.service.push_with

    def failing(*arguments: object) -> list[int]:
        fail("disk")
        return push(*arguments)  # type: ignore[arg-type]

    client.service.push_with = failing  # type: ignore[assignment, method-assign]
    client.read(publish(b"1"), publish(b"2"))

    answers = client.answers()
    assert verdicts(answers) == (set(), {1, 2} if confirms else set())
    assert isinstance(answers[-1], ConnectionClose) is not confirms
    assert client.bodies() == []
