"""How a client settles the deliveries of one channel: ack, nack, reject, recover.

Owns: which leases a delivery tag means, and deliveries that were taken back and are settled late.
Must not touch: what becomes of a settled message; the broker's flow does that.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.consumer import Consumer
from holtmq.amqp.errors import ChannelFault, ConnectionFault
from holtmq.amqp.long_settlements import (
    ack_in_steps,
    is_long,
    reject_in_steps,
    return_in_steps,
    settle_in_transaction,
)
from holtmq.amqp.methods import BasicAck, BasicNack, BasicRecoverOk, Method
from holtmq.amqp.transaction import Settle
from holtmq.broker.message import Message
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_arguments import queue_text
from holtmq.broker.work.leases import Holder, Lease

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel


class Settling:
    """The settlements of one channel."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._ledger = channel.ledger
        self._flow = channel.flow
        self._messages = channel.messages
        self.overdue: dict[int, Consumer] = {}  # deliveries taken back from consumers that wait for them
        self.has_joined_group = False  # of a stream: what a member holds takes longer to settle

    def ack(self, tag: int, multiple: bool) -> None:
        """basic.ack."""
        if multiple or self._channel.transaction is not None:
            if multiple and self._ack_many(tag):
                return
            leases = self._leases(tag, multiple)
            if self._channel.transaction is None:
                self._messages.acked += len(leases)
            self._settle(self._flow.ack, leases)
            return
        lease = self._ledger.by_number.pop(tag, None)
        if lease is None:
            raise self._unknown_tag(tag)
        self._messages.acked += 1
        holder = lease.holder
        if holder is None:
            self._ledger.forgot_revoked()
            self._flow.ack((lease,))
            self._settled_late(tag)
            return
        del holder.held[tag]
        queue = lease.queue
        queue.settle(lease.message)
        if not queue.dirty:
            self._flow.touch(queue)
        if self._channel.global_prefetch:
            self._channel.make_room()

    def ack_each(self, tags: list[int]) -> None:
        """Many basic.ack in a row, each for one delivery. This is the hot path."""
        if self._channel.transaction is not None:
            for tag in tags:
                self.ack(tag, False)
            return
        if self.has_joined_group:
            with self._flow.together:
                self._ack_each(tags)
        else:
            self._ack_each(tags)

    def _ack_each(self, tags: list[int]) -> None:
        take = self._ledger.by_number.pop
        before = len(self._ledger.by_number)
        holder: Holder | None = None
        queue: Queue | None = None
        done: list[Message] = []  # of this holder and queue
        try:
            for tag in tags:
                lease = take(tag, None)
                if lease is None:
                    raise self._unknown_tag(tag)
                if lease.holder is not holder or lease.queue is not queue:
                    if queue is not None:
                        self._flow.settle(queue, done)
                    done, holder, queue = [], lease.holder, lease.queue
                if holder is None:
                    self._ledger.forgot_revoked()
                    self._flow.ack((lease,))
                    self._settled_late(tag)
                    queue = None
                    continue
                del holder.held[tag]
                done.append(lease.message)
        finally:
            if queue is not None:
                self._flow.settle(queue, done)
            self._messages.acked += before - len(self._ledger.by_number)
            self._messages.used_ms = self._flow.now_ms
            self._channel.make_room()

    def _settle(self, how: Settle, leases: list[Lease]) -> None:
        if self._channel.transaction is not None:
            self._channel.transaction.settle(how, leases)
        else:
            how(leases)
            self._channel.make_room()

    def _settled_late(self, tag: int) -> None:
        """A delivery that was taken back is settled at last: its consumer may receive again."""
        consumer = self.overdue.pop(tag, None)
        if consumer is not None:
            consumer.overdue.discard(tag)
            if not consumer.overdue and not consumer.queue.deleted:
                self._flow.touch(consumer.queue)

    def _leases(self, tag: int, multiple: bool) -> list[Lease]:
        return self._ended(self._end_leases(tag, multiple))

    def _ended(self, ended: list[Lease]) -> list[Lease]:
        if self.overdue:
            for lease in ended:
                self._settled_late(lease.number)
        return ended

    def _end_leases(self, tag: int, multiple: bool) -> list[Lease]:
        if multiple:
            if tag and tag not in self._ledger.by_number:
                raise self._unknown_tag(tag)
            return self._ledger.end_upto(tag)
        lease = self._ledger.end(tag)
        if lease is None:
            raise self._unknown_tag(tag)
        return [lease]

    def _unknown_tag(self, tag: int) -> ChannelFault:
        return ChannelFault(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")

    def refuse(self, tag: int, multiple: bool, requeue: bool) -> None:
        """basic.nack and basic.reject."""
        if multiple and self._refuse_many(tag, requeue):
            return
        leases = self._leases(tag, multiple)
        for lease in leases:
            if isinstance(lease.holder, Consumer) and self._may_not_refuse(lease.holder):
                self._requeue(leases)  # the connection ends here, so they return to the queue
                queue = lease.queue
                raise ConnectionFault(
                    ReplyCode.NOT_IMPLEMENTED,
                    "basic.nack and basic.reject not supported by stream queues "
                    + queue_text(queue.name, queue.vhost),
                )
        self._settle(self._requeue if requeue else self._flow.reject, leases)

    def _requeue(self, leases: list[Lease]) -> None:
        self._flow.release(_not_revoked(leases))

    def _refuse_many(self, tag: int, requeue: bool) -> bool:
        """basic.nack in steps, if it settles so many; else it does nothing and returns False."""
        if not is_long(self._channel, len(self._ledger.by_number)) or any(
            map(self._may_not_refuse, self._channel.consumers.values())
        ):
            return False
        numbers = self._numbers(tag)
        if not is_long(self._channel, len(numbers)):
            return False
        if self._channel.transaction is not None:
            self._add_to_transaction(self._requeue if requeue else self._flow.reject, numbers, BasicNack)
        elif requeue:
            return_in_steps(
                self._channel, numbers, self.take_back, self._leased_queues(), self._channel.make_room
            )
        else:
            reject_in_steps(self._channel, numbers, self._end_some, self._channel.make_room)
        return True

    def _ack_many(self, tag: int) -> bool:
        """basic.ack in steps, if it settles so many that take long; else it does nothing and returns False.

        To acknowledge a message that is out takes little. It takes ten times as long if the message is in its
        queue again or the channel is transactional, and up to thirty times if it is a consumer group's.
        """
        in_transaction = self._channel.transaction is not None
        each_costs = in_transaction or self.has_joined_group
        if not is_long(self._channel, len(self._ledger.by_number) if each_costs else self._ledger.revoked):
            return False
        numbers = self._numbers(tag)
        if each_costs and not is_long(self._channel, len(numbers)):
            return False
        if in_transaction:
            self._add_to_transaction(self._flow.ack, numbers, BasicAck)
        else:
            ack_in_steps(self._channel, numbers, self._ack_some, self._channel.make_room)
        return True

    def _numbers(self, tag: int) -> list[int]:
        """What a settlement of several deliveries settles."""
        known = self._ledger.by_number
        if tag and tag not in known:
            raise self._unknown_tag(tag)
        return [number for number in known if number <= tag or not tag]

    def _add_to_transaction(self, how: Settle, numbers: list[int], method: type[Method]) -> None:
        transaction = self._channel.transaction
        assert transaction is not None
        settle_in_transaction(
            self._channel, numbers, lambda some: transaction.settle(how, self._end_some(some)), method
        )

    def _ack_some(self, numbers: list[int]) -> None:
        leases = self._end_some(numbers)
        self._messages.acked += len(leases)
        self._flow.ack(leases)

    def _end_some(self, numbers: list[int]) -> list[Lease]:
        return self._ended(self._ledger.end_some(numbers))

    def take_back(self, numbers: list[int]) -> list[Lease]:
        """End these leases; return those whose message is still out."""
        return _not_revoked(self._end_some(numbers))

    def recover(self, replies: bool) -> None:
        """basic.recover: return everything to its queue."""

        def returned() -> None:
            if replies:
                self._channel.send(BasicRecoverOk())

        self.return_all(self._leased_queues(), returned)

    def return_all(self, queues: Iterable[Queue], then: Callable[[], None], failed: bool = False) -> None:
        """Return all messages that the channel holds to these queues, then run ``then``."""
        if is_long(self._channel, len(self._ledger)):
            numbers = list(self._ledger.by_number)
            return_in_steps(self._channel, numbers, self.take_back, queues, then, failed)
        else:
            self._flow.release(self._ledger.end_all(), failed)
            then()

    def _may_not_refuse(self, consumer: Consumer) -> bool:
        return consumer.queue.is_stream and (
            not consumer.joins_group or self._channel.broker.dialect.refuse_group_nack
        )

    def _leased_queues(self) -> set[Queue]:
        return {
            one.queue for one in (*self._channel.consumers.values(), *self._channel.consuming.other_holders())
        }


def _not_revoked(leases: list[Lease]) -> list[Lease]:
    return [lease for lease in leases if lease.holder is not None]
