"""What concerns work queues and partitioned queues at once is all there after a crash, or none of it.

Owns: the claim, byte by byte: the disk is cut at every byte that a step wrote, and what a broker finds there
is the state before the step or the one after it. No process, no socket, no clock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from holtmq.amqp.codec import encode_method
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, encode_frame
from holtmq.amqp.methods import BasicAck, BasicConsume, BasicNack, BasicPublish, BasicQos, TxCommit, TxSelect
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.rights import of_role
from holtmq.auth.roles import Role
from holtmq.auth.users import DEFAULT_VHOST, User, UserStore
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError, LimitReached
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart
from holtmq.broker.partitioned.groups.acknowledgment import AckRefused, AckStatus, AckVerdict
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.recovery import recover
from holtmq.broker.streams.cross_kind_transaction import CrossKindTransactions
from holtmq.broker.streams.envelopes import to_body
from holtmq.broker.work.timed_leases import TimedLeases, WorkAck, WorkMessage, WorkPush
from holtmq.config import Config
from holtmq.http.engine.context import Context
from holtmq.http.engine.request import HttpRequest
from holtmq.http.queues.push import PushApi
from holtmq.http.queues.work import WorkApi
from holtmq.journal import JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk
from holtmq.journal.interface import Journal
from holtmq.testing.views import raw_messages, work_queue
from holtmq.wire.properties import Properties, encode_header, encode_properties
from simulation.amqp_client import SimClient

NOW_MS = 1_700_000_000_000
HEADER = encode_properties(Properties(delivery_mode=2))
WORK = {"jobs": {}, "full": {"x-max-length": 1, "x-overflow": "reject-publish"}, "dead": {}}
DYING = {"x-dead-letter-exchange": "both"}


@dataclass(frozen=True)
class Held:
    """All that matters after a restart."""

    work: dict[str, list[bytes]]
    logs: dict[str, list[bytes]]
    cursors: dict[tuple[str, str, int], int | None]
    spooled: int


class Machine:
    """A broker on a disk, with both kinds of queue and an exchange that leads to both."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.journal, recovery = open_journal(
            "here", JournalOptions(segment_bytes=65_536), disk=disk, clock=lambda: NOW_MS / 1000
        )
        self.broker = Broker(self.journal)
        self.service = PartitionedService(self.journal)
        streams = self.broker.attach(self.service)
        self.broker.flow.now_ms = NOW_MS
        recover(self.broker, recovery, self.service.store)
        if not self.broker.vhosts:
            self._declare()
        streams.follow()
        self.door = TimedLeases(self.broker)
        self.cross_kind = CrossKindTransactions(self.broker, self.service, self.door)
        self.settle()

    def _declare(self) -> None:
        broker = self.broker
        broker.put_vhost("/")
        broker.access.put_user(User("guest", "", ()))
        broker.access.set_permissions("guest", "/", FULL_ACCESS)
        vhost = broker.vhost("/")
        for name, arguments in WORK.items():
            broker.declare_queue(vhost, name, durable=True, arguments=arguments)
        broker.declare_queue(vhost, "dying", durable=True, arguments=DYING)
        broker.declare_queue(vhost, "log", durable=True, arguments={"x-queue-type": "stream"})
        broker.exchanges.declare(vhost, "both", "fanout", durable=True)
        for name in ("jobs", "dead", "log"):
            broker.bind(vhost, "both", name, "")

    @property
    def now(self) -> float:
        return self.broker.flow.now_ms / 1000

    def settle(self) -> None:
        """Finish the turn and sync."""
        self.broker.flow.turn()
        self.service.turn(self.now)
        self.journal.flush()

    def publish(self, exchange: str, key: str, body: bytes) -> None:
        broker, header = self.broker, encode_header(len(body), HEADER)
        route = broker.resolve(broker.vhost("/"), exchange, key, make_address(exchange, key))
        broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, body)

    def client(self) -> SimClient:
        return SimClient(self.broker, Random(1), 1, lambda name: None, unordered="")

    def lease_work(self, queue: str = "jobs", limit: int = 1) -> list[WorkMessage]:
        return self.door.pop(work_queue(self.broker, queue), "loan", limit, 60, auto_ack=False)

    def lease_part(self, queue: str = "parts") -> AckRequest:
        """Lease the next message of a partitioned queue; the request that acknowledges it."""
        popped = self.service.pop(PopRequest("lease", queue), self.now)
        assert popped is not None
        (run,) = popped.runs
        group = popped.request.group
        return AckRequest(
            run.queue.number,
            run.delivery.partition,
            group,
            run.bodies[0].transaction_id,
            AckStatus.COMPLETED,
            "lease",
        )

    def work_push(self, queue: str, name: str) -> WorkPush:
        return WorkPush(work_queue(self.broker, queue), name, b'"%s"' % name.encode())

    def held(self) -> Held:
        store = self.service.store
        return Held(
            {
                queue.name: [message.body for message in raw_messages(self.broker, queue)]
                for queue in self.broker.work_queues()
            },
            {
                name: [
                    body.payload if body.metadata is None else to_body(body.payload)
                    for body in store.bodies(sorted(set(queue.live_positions())))
                ]
                for name, queue in store.queues.items()
            },
            {
                (name, group.name, index): group.cursor(index)
                for name, queue in store.queues.items()
                for group in queue.groups.values()
                for index in range(len(queue.partitions))
            },
            len(self.service.spool),
        )


def pushed(queue: str, name: str) -> PushItem:
    return PushItem(queue, "p", Body(name, b'"%s"' % name.encode()))


def acked(message: WorkMessage, status: AckStatus = AckStatus.COMPLETED) -> WorkAck:
    return WorkAck(message.queue, message.transaction_id, "loan", status)


def check_every_cut(machine: Machine, step: Callable[[], None]) -> tuple[Held, Held]:
    """Run the step; a disk cut at any byte of it holds the state before or after. Both, for more claims."""
    machine.settle()
    before = {name: machine.disk.content(name) for name in machine.disk.list()}
    was = Machine(machine.disk.copy()).held()

    step()
    machine.settle()

    after = {name: machine.disk.content(name) for name in machine.disk.list()}
    now = Machine(machine.disk.copy()).held()
    assert was != now, "the step left nothing"
    changed = [name for name, content in after.items() if content != before.get(name)]
    (name,) = [name for name in changed if name != "manifest"]  # that follows what is durable already
    old, new = before[name].ljust(len(after[name]), b"\0"), after[name]
    written = [at for at in range(len(new)) if old[at] != new[at]]
    came = False
    for cut in range(written[0], written[-1] + 2):
        torn = machine.disk.copy()
        torn.replace(name, new[:cut] + old[cut:])
        torn.replace("manifest", before["manifest"])
        found = Machine(torn).held()
        assert found == now or (found == was and not came), f"half of it after {cut - written[0]} bytes"
        came = found == now
    assert came
    return was, now


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A torn tail is a warning each time, thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def machine() -> Machine:
    machine = Machine(FakeDisk())
    for name in ("one", "two"):
        machine.publish("", "jobs", b'"%s"' % name.encode())
        machine.publish("", "dying", b'"%s"' % name.encode())
    machine.service.push([pushed("parts", "first"), pushed("parts", "second")], machine.now)
    machine.settle()
    return machine


def test_one_publish_to_both_kinds_of_queue_is_one_record(machine: Machine) -> None:
    was, now = check_every_cut(machine, lambda: machine.publish("both", "key", b'"all"'))

    assert now.work["jobs"] == [*was.work["jobs"], b'"all"']
    assert now.work["dead"] == [b'"all"']
    assert now.logs["log"] == [b'"all"']


def test_what_one_read_publishes_to_streams_is_one_record(machine: Machine) -> None:
    client = machine.client()
    header = encode_frame(FRAME_HEADER, 1, encode_header(3, HEADER))
    method = encode_frame(FRAME_METHOD, 1, encode_method(BasicPublish("", "log")))

    _was, now = check_every_cut(
        machine,
        lambda: client.connection.receive(
            b"".join(method + header + encode_frame(FRAME_BODY, 1, b'"%d"' % n) for n in range(5))
        ),
    )

    assert now.logs["log"] == [b'"%d"' % number for number in range(5)]


def test_a_transaction_that_publishes_to_both_kinds_and_acks_is_one_record(machine: Machine) -> None:
    client = machine.client()
    client.send(TxSelect())
    client.send(BasicQos(prefetch_count=1))
    client.send(BasicConsume("jobs", "worker"))
    machine.settle()

    def commit() -> None:
        client.send(BasicAck(1))
        client.publish("log", "x", b'"to the log"', persistent=True)
        client.publish("dead", "x", b'"to a work queue"', persistent=True)
        client.publish("", "x", b'"to both"', persistent=True, exchange="both")
        client.send(TxCommit())

    _was, now = check_every_cut(machine, commit)

    assert now.work["jobs"] == [b'"two"', b'"to both"']
    assert now.work["dead"] == [b'"to a work queue"', b'"to both"']
    assert now.logs["log"] == [b'"to the log"', b'"to both"']


@pytest.mark.parametrize("requeue", [None, False, True])
def test_a_transaction_settles_a_group_s_messages_with_what_it_publishes(
    machine: Machine, requeue: bool | None
) -> None:
    machine.publish("", "log", b'"read me"')
    client = machine.client()
    client.send(TxSelect())
    client.send(
        BasicConsume("log", "member", arguments={"x-consumer-group": "g", "x-stream-offset": "first"})
    )
    machine.settle()

    def commit() -> None:
        client.send(BasicAck(1) if requeue is None else BasicNack(1, requeue=requeue))
        client.publish("dead", "x", b'"done"', persistent=True)
        client.publish("log", "x", b'"next"', persistent=True)
        client.send(TxCommit())

    _was, now = check_every_cut(machine, commit)

    assert now.work["dead"] == [b'"done"']
    assert now.logs["log"] == [b'"read me"', b'"next"']
    assert now.cursors["log", "g", 0] == (0 if requeue else 1)


def test_a_message_that_dies_into_both_kinds_leaves_its_queue_in_the_same_record(machine: Machine) -> None:
    (message,) = machine.lease_work("dying")

    def reject() -> None:
        machine.door.settle(message.queue, message.transaction_id, "loan", AckStatus.DEAD_LETTER)

    _was, now = check_every_cut(machine, reject)

    assert now.work["dying"] == [b'"two"']
    assert (now.work["dead"], now.logs["log"]) == ([b'"one"'], [b'"one"'])


def test_a_work_queue_s_ack_and_a_push_to_a_partitioned_queue_are_one_record(machine: Machine) -> None:
    first, second = machine.lease_work(limit=2)
    part = PartitionedPart([pushed("parts", "third"), pushed("fresh", "fourth")], [], machine.now)

    was, now = check_every_cut(
        machine, lambda: machine.cross_kind.transact(part, [], [acked(first), acked(second, AckStatus.RETRY)])
    )

    assert now.work["jobs"] == [b'"two"']
    assert now.logs["parts"] == [*was.logs["parts"], b'"third"']
    assert now.logs["fresh"] == [b'"fourth"']
    assert part.results is not None
    assert [result.duplicate for result in part.results] == [False, False]


def test_a_partitioned_queue_s_ack_and_a_push_to_a_work_queue_are_one_record(machine: Machine) -> None:
    ack = machine.lease_part()
    part = PartitionedPart([], [ack], machine.now)

    _was, now = check_every_cut(
        machine, lambda: machine.cross_kind.transact(part, [machine.work_push("dead", "x")], [])
    )

    assert now.work["dead"] == [b'"x"']
    assert now.cursors["parts", ack.group, 0] == 1
    assert [answer.outcome.success for answer in part.answers] == [True]


def test_a_rejection_that_dies_into_the_queue_the_transaction_pushes_to_is_in_the_same_record(
    machine: Machine,
) -> None:
    (message,) = machine.lease_work("dying")
    part = PartitionedPart([pushed("log", "mine")], [], machine.now)

    _was, now = check_every_cut(
        machine, lambda: machine.cross_kind.transact(part, [], [acked(message, AckStatus.DEAD_LETTER)])
    )

    assert now.logs["log"] == [b'"mine"', b'"one"']
    assert now.work["dying"] == [b'"two"']
    assert now.work["dead"] == [b'"one"']


def test_while_pushes_are_spooled_the_transaction_s_go_there_with_its_acks(machine: Machine) -> None:
    ack = machine.lease_part()
    (message,) = machine.lease_work()
    machine.service.spool.switch(pushes_spooled=True)
    part = PartitionedPart([pushed("parts", "later")], [ack], machine.now)

    was, now = check_every_cut(
        machine, lambda: machine.cross_kind.transact(part, [machine.work_push("dead", "x")], [acked(message)])
    )

    assert (now.spooled, part.results) == (1, None)
    assert now.cursors["parts", ack.group, 0] == 1
    assert (now.work["jobs"], now.work["dead"]) == ([b'"two"'], [b'"x"'])
    assert now.logs["parts"] == was.logs["parts"]


class Asked:
    """A push as the HTTP side gets it, and the answer."""

    subject = None
    identity = of_role(UserStore(), Role.ADMIN, None, lambda name: (DEFAULT_VHOST, name), None)

    def __init__(self, *items: tuple[str, str]) -> None:
        rows = [{"queue": queue, "partition": "p", "payload": n, "transactionId": n} for queue, n in items]
        self.body = json.dumps({"items": rows}).encode()
        self.answers: list[tuple[str, str]] = []

    def answer_when_durable(self, _journal: Journal, _status: int, body: bytes) -> None:
        self.answers = [(row["queueName"], row["status"]) for row in json.loads(body)]


def push(machine: Machine, asked: Asked) -> None:
    """By the handler of the real route, on this machine."""
    context = SimpleNamespace(
        service=machine.service,
        broker=machine.broker,
        journal=machine.journal,
        clock=lambda: machine.now,
        config=Config(),
        check_alarm=lambda: None,
    )
    PushApi(cast(Context, context), WorkApi(cast(Context, context))).push(cast(HttpRequest, asked))


def test_a_push_to_both_kinds_of_queue_is_one_record(machine: Machine) -> None:
    asked = Asked(("jobs", "a"), ("parts", "b"), ("parts", "first"), ("dead", "c"), ("fresh", "d"))

    was, now = check_every_cut(machine, lambda: push(machine, asked))

    assert now.work["jobs"] == [*was.work["jobs"], b'"a"']
    assert now.work["dead"] == [b'"c"']
    assert now.logs["parts"] == [*was.logs["parts"], b'"b"']
    assert now.logs["fresh"] == [b'"d"']
    assert asked.answers == [
        ("jobs", "queued"),
        ("parts", "queued"),
        ("parts", "duplicate"),
        ("dead", "queued"),
        ("fresh", "queued"),
    ]


def test_while_pushes_are_spooled_those_beside_work_queues_go_there_in_the_same_record(
    machine: Machine,
) -> None:
    machine.service.spool.switch(pushes_spooled=True)
    asked = Asked(("parts", "b"), ("jobs", "a"))

    was, now = check_every_cut(machine, lambda: push(machine, asked))

    assert now.work["jobs"] == [*was.work["jobs"], b'"a"']
    assert (now.spooled, now.logs["parts"]) == (1, was.logs["parts"])
    assert asked.answers == [("parts", "buffered"), ("jobs", "queued")]


def test_what_a_full_work_queue_sheds_comes_after_what_the_same_push_gave_to_the_stream(
    machine: Machine,
) -> None:
    broker = machine.broker
    arguments = {"x-max-length": 1, "x-dead-letter-exchange": "both"}
    broker.declare_queue(broker.vhost("/"), "short", durable=True, arguments=arguments)
    asked = Asked(("short", "a"), ("log", "b"), ("short", "c"))

    push(machine, asked)
    machine.settle()

    held = Machine(machine.disk.copy()).held()
    assert held == machine.held()
    assert held.work["short"] == [b'"c"']
    assert (held.logs["log"], held.work["dead"]) == ([b'"b"', b'"a"'], [b'"a"'])


def refused(machine: Machine, part: PartitionedPart, pushes: list[WorkPush], acks: list[WorkAck]) -> object:
    """What the transaction raised; it must have changed nothing and written nothing."""
    machine.settle()
    before, end = machine.held(), machine.journal.end
    with pytest.raises(BrokerError) as raised:
        machine.cross_kind.transact(part, pushes, acks)
    machine.settle()
    assert (machine.held(), machine.journal.end) == (before, end)
    return raised.value.verdict if isinstance(raised.value, AckRefused) else raised.type


def test_a_refused_part_of_either_kind_refuses_the_whole(machine: Machine) -> None:
    first, second = machine.lease_work(limit=2)
    good_ack = machine.lease_part()
    configure(machine.service, "tiny", None, None, {"max_size": 1}, machine.now)
    machine.service.push([pushed("tiny", "only")], machine.now)
    machine.publish("", "full", b'"only"')
    good = PartitionedPart([pushed("parts", "x")], [good_ack], machine.now)
    push = machine.work_push("dead", "x")

    lost = PartitionedPart([pushed("parts", "x")], [good_ack._replace(lease_id="another")], machine.now)
    assert refused(machine, lost, [push], [acked(first)]) is AckVerdict.INVALID_LEASE
    no_room = PartitionedPart([pushed("tiny", "x")], [good_ack], machine.now)
    assert refused(machine, no_room, [push], [acked(first)]) is LimitReached
    assert refused(machine, good, [machine.work_push("full", "x")], [acked(first)]) is LimitReached
    assert (
        refused(machine, good, [push], [acked(first)._replace(lease_id="another")])
        is AckVerdict.INVALID_LEASE
    )
    assert (
        refused(machine, good, [push], [acked(first)._replace(transaction_id="?", lease_id="")])
        is AckVerdict.NOT_FOUND
    )
    assert refused(machine, good, [push], [acked(first)._replace(queue=None)]) is AckVerdict.NOT_FOUND
    assert refused(machine, good, [push], [acked(first)._replace(status=None)]) is AckVerdict.UNKNOWN_STATUS
    assert refused(machine, good, [push], [acked(first), acked(first)]) is AckVerdict.STALE

    machine.cross_kind.transact(good, [push], [acked(first), acked(second)])
    machine.settle()

    assert machine.held().work["jobs"] == []


def test_a_transaction_fills_a_queue_that_refuses_publishers_and_no_more(machine: Machine) -> None:
    nothing = PartitionedPart([], [], machine.now)
    push = machine.work_push("full", "x")

    assert refused(machine, nothing, [push, push], []) is LimitReached
    machine.cross_kind.transact(nothing, [push], [])

    assert machine.held().work["full"] == [b'"x"']
