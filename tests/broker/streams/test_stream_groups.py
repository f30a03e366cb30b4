"""Members of a consumer group on AMQP: what they hold may go away under them, the group goes on."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import ceil

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.message import Message, make_address
from holtmq.broker.partitioned.commands.admin import configure, delete_message, delete_queue, seek
from holtmq.broker.partitioned.events import Trimmed
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import AckRequest, Popped, PopRequest, PushItem, Waiter
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder, Lease
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_header, encode_properties

NOW_MS = 1_700_000_000_000


class Member(Holder):
    """A consumer of group "g", as an AMQP channel has it."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.arguments: dict[str, object] = {"x-consumer-group": "g", "x-stream-offset": "first"}
        self.priority = 0
        self.got: list[Message] = []
        self._room = room

    def room(self) -> int:
        return self._room - len(self.got)

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        self.got += messages

    def cancelled(self, queue: Queue) -> None: ...


class Stream:
    """A broker with one stream "s"."""

    def __init__(self) -> None:
        journal = MemoryJournal()
        self.broker = Broker(journal)
        self.service = PartitionedService(journal)
        streams = self.broker.attach(self.service)
        self.broker.flow.now_ms = NOW_MS
        streams.follow()
        self.broker.put_vhost("/")
        vhost = self.broker.vhost("/")
        self.broker.declare_queue(vhost, "s", durable=True, arguments={"x-queue-type": "stream"})
        found = vhost.queues["s"]
        assert isinstance(found, StreamQueue)
        self.queue = found

    @property
    def log(self) -> PartitionedQueue:
        log = self.queue.log
        assert log is not None
        return log

    def join(self, room: int = 100) -> Member:
        member = Member(room)
        self.queue.add_consumer(member)
        self.turn()
        return member

    def publish(self, *bodies: bytes) -> None:
        flow, vhost = self.broker.flow, self.broker.vhost("/")
        for body in bodies:
            header = encode_header(len(body), encode_properties(Properties(delivery_mode=2)))
            route = self.broker.resolve(vhost, "", "s", make_address("", "s"))
            flow.publishing.publish(route, flow.publish_properties.of(header), header, body)
        self.broker.journal.flush()
        self.turn()

    def turn(self) -> None:
        self.service.turn(NOW_MS / 1000)
        self.broker.flow.touch(self.queue)
        self.broker.flow.turn()

    def settle(self, member: Member, how: str, *, atomic: bool = False) -> None:
        """One verdict on all that a member has."""
        flow = self.broker.flow
        held, member.got = member.got, []
        leases = [Lease(number, self.queue, message, member) for number, message in enumerate(held, 1)]
        if atomic:
            flow.begin()
        {"ack": flow.ack, "reject": flow.reject, "requeue": flow.release}[how](leases)
        if atomic:
            flow.commit((self.queue,))
        self.turn()

    def let_go(self, before: int) -> None:
        """What retention does."""
        event = Trimmed(array("I", [0]), array("Q", [before]))
        self.service.store.commit([(self.log.number, event)])

    def delete(self, offset: int) -> None:
        log = self.log
        name = self.service.store.read_transaction_id(offset, log.log.position(offset))
        assert name is not None
        assert delete_message(self.service, log, 0, name)


def bodies(member: Member) -> list[bytes]:
    return [message.body for message in member.got]


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_what_retention_took_from_a_member_does_not_block_its_partition(how: str, atomic: bool) -> None:
    stream = Stream()
    stream.publish(b"1", b"2")
    member = stream.join()
    assert bodies(member) == [b"1", b"2"]
    stream.publish(b"3")
    stream.let_go(2)

    stream.settle(member, how, atomic=atomic)

    assert bodies(member) == [b"3"]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_deleted_message_that_a_member_gives_back_does_not_block_its_partition(atomic: bool) -> None:
    stream = Stream()
    stream.publish(b"1", b"2")
    member = stream.join()
    assert bodies(member) == [b"1", b"2"]
    stream.delete(0)

    stream.settle(member, "requeue", atomic=atomic)

    assert bodies(member) == [b"2"]


def test_a_member_that_leaves_takes_nothing_from_the_one_that_holds_its_partition_now() -> None:
    stream = Stream()
    stream.publish(b"1")
    first = stream.join(room=1)
    assert bodies(first) == [b"1"]
    seek(stream.service, "g", "s", 0, None)
    second = stream.join(room=1)
    assert bodies(second) == [b"1"]

    stream.queue.remove_consumer(first)
    third = stream.join()

    assert bodies(third) == []


class Quiet(Stream):
    """A stream that is served only on request, with a clock."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        flow, line = self.broker.flow, self.service.line
        line.at = lambda at, action: flow.at(ceil(at * 1000), action)
        configure(self.service, "s", None, None, options, NOW_MS / 1000)

    def turn(self) -> None:
        self.broker.flow.turn()

    def join(self, room: int = 100) -> Member:
        self.broker.flow.touch(self.queue)  # as the broker does
        return super().join(room)

    def worker_pops(self) -> Popped:
        """Another member of the group, over HTTP."""
        popped = self.service.pop(PopRequest("lease", "s", group="g", limit=9), self.queue.now())
        assert popped is not None
        return popped

    def passes(self, milliseconds: int) -> None:
        self.broker.flow.now_ms += milliseconds
        self.broker.flow.tick()
        self.turn()


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
def test_a_member_gets_what_was_held_back_when_its_time_has_come(option: str) -> None:
    stream = Quiet(**{option: 5})
    member = stream.join()
    stream.publish(b"1")
    stream.passes(4_000)
    assert bodies(member) == []

    stream.passes(1_001)

    assert bodies(member) == [b"1"]


def test_a_member_gets_what_another_worker_let_expire() -> None:
    stream = Quiet(lease_seconds=5)
    stream.publish(b"1")
    stream.worker_pops()
    member = stream.join()
    stream.passes(4_000)
    assert bodies(member) == []

    stream.passes(1_001)

    assert bodies(member) == [b"1"]


def test_a_member_gets_a_failed_message_after_its_delay() -> None:
    stream = Quiet(retry_delay_ms=3_000)
    stream.publish(b"1")
    popped = stream.worker_pops()
    name = popped.runs[0].bodies[0].transaction_id
    stream.service.ack([AckRequest(stream.log.number, 0, "g", name, AckStatus.FAILED)], stream.queue.now())
    member = stream.join()
    assert bodies(member) == []

    stream.passes(3_001)

    assert bodies(member) == [b"1"]


def test_a_member_gets_what_another_worker_gives_back() -> None:
    stream = Quiet()
    stream.publish(b"1")
    stream.worker_pops()
    member = stream.join()
    assert bodies(member) == []

    stream.service.give_back(stream.log, "g", 0, "lease")
    stream.turn()

    assert bodies(member) == [b"1"]


def test_a_member_goes_on_when_pops_are_paused_no_more() -> None:
    stream = Quiet()
    member = stream.join()
    stream.service.spool.switch(pops_paused=True)
    stream.publish(b"1")
    assert bodies(member) == []

    stream.service.spool.switch(pops_paused=False)
    stream.service.line.wake_all()
    stream.turn()

    assert bodies(member) == [b"1"]


@pytest.mark.parametrize("how", ["leaves", "queue goes"])
def test_nobody_is_told_who_is_no_member_any_more(how: str) -> None:
    stream = Quiet()
    member = stream.join()
    assert stream.service.line._members

    if how == "leaves":
        stream.queue.remove_consumer(member)
    else:
        delete_queue(stream.service, "s")

    assert not stream.service.line._members


def test_the_leases_of_members_leave_no_timers_behind() -> None:
    stream = Quiet(delayed_processing=1)
    planned: list[int] = []
    flow = stream.broker.flow

    def at(due: float, action: Callable[[], None]) -> None:
        planned.append(1)

        def passed() -> None:
            planned.pop()
            action()

        flow.at(ceil(due * 1000), passed)

    stream.service.line.at = at
    member = stream.join()

    for number in range(20):
        stream.publish(b"%d" % number)
        stream.passes(1_001)
        assert bodies(member) == [b"%d" % number]
        stream.settle(member, "ack")
    stream.passes(100)  # until deliveries that were not acked would have been written down

    assert planned == []


@pytest.mark.parametrize("wide", [False, True])
def test_a_near_deadline_leaves_no_far_one_behind(wide: bool) -> None:
    stream = Quiet(delayed_processing=1)
    stream.join()  # holds a partition as long as it lives
    stream.publish(b"held")
    stream.passes(1_001)
    calls: list[float] = []
    flow = stream.broker.flow

    def at(due: float, action: Callable[[], None]) -> None:
        calls.append(due)
        flow.at(ceil(due * 1000), action)

    stream.service.line.at = at
    line = stream.service.line
    for number in range(20):  # a member of the same group waits over HTTP, again and again
        stream.service.push([PushItem("s", f"p{number}", Body(f"i{number}", b"1"))], stream.queue.now())
        stream.broker.journal.flush()
        request = PopRequest(f"l{number}", group="g") if wide else PopRequest(f"l{number}", "s", group="g")
        waiter = Waiter(request, lambda popped: None)
        assert stream.service.pop(waiter.request, stream.queue.now()) is None
        line.add(waiter, stream.queue.now())
        stream.passes(1_001)
        stream.service.turn(stream.queue.now())
        line.remove(waiter)

    far = [due for due in calls if due > stream.queue.now() + 86_400]
    assert len(far) <= 1
