"""A broker with one stream, and members of its group "g", without a network.

Owns: what tests of groups on AMQP share. Must not touch: sockets, clocks.
"""

from __future__ import annotations

from array import array

from holtmq.broker.broker import Broker
from holtmq.broker.message import Message, make_address
from holtmq.broker.partitioned.commands.admin import delete_message
from holtmq.broker.partitioned.events import Trimmed
from holtmq.broker.partitioned.queue import PartitionedQueue
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

    def allow(self, room: int) -> None:
        """A new prefetch limit."""
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
