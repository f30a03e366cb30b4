"""One run of a shovel: from a consumer at the source to publishes at the destination, until something fails.

Owns: which message is acknowledged when. A message is acknowledged at the source after the destination has
confirmed it, so that a failure of either side delivers it again: at least once. From a stream,
which removes nothing, messages are taken in order from the offset that was reached. Must not touch:
connecting, trying again, what is shown.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple, cast

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicQos,
    BasicQosOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.broker.topology.shovels import AckMode, ShovelDefinition
from holtmq.shovel.destination import Destination, Moved, ensure_queue
from holtmq.shovel.link import Content, Link, LinkLost
from holtmq.shovel.progress import MARK_SIZE
from holtmq.shovel.stream_source import StreamSource
from holtmq.wire.properties import with_headers
from holtmq.wire.tables import FieldTable

_MESSAGE_ID: Final = 1 << 7  # in the flags of the properties
_HEADERS: Final = 1 << 13
# A source that crashes forgets acknowledgements of its last moments, not only those of the prefetch.
_DOUBTS: Final = 10_000  # about 1.5 MB of a shovel
_REFUSED_SECONDS: Final = 1.0  # before a refused message is offered again
_VERDICT_SECONDS: Final = 10.0  # to wait for outstanding confirms after the source is lost


class Finished(Exception):
    """As many messages were moved as ``src-delete-after`` says."""


@dataclass(slots=True)
class Counts:
    """What a shovel has moved since it was started."""

    forwarded: int = 0  # accepted by the destination
    redelivered: int = 0  # of these: delivered before, so perhaps forwarded before
    skipped: int = 0  # known to be forwarded before, so acknowledged only
    refused: int = 0  # times that the destination did not accept one


class Doubts:
    """Messages that the destination has, while the source may have lost their acknowledgement.

    After a lost connection the source may deliver them again. A message with a message id that equals one of
    these (headers aside) is not published again; without an id, equal messages may be different ones.
    """

    def __init__(self, marks: Iterable[bytes] = ()) -> None:
        self._before: set[bytes] = set()
        self._now: dict[bytes, None] = dict.fromkeys(marks)

    def reconnected(self) -> None:
        """A new run begins: what earlier ones have moved is doubtful."""
        self._before = set(self._now)

    def was_moved(self, mark: bytes | None) -> bool:
        """Whether an earlier run has moved it; true once for each."""
        if mark is None or mark not in self._before:
            return False
        self._before.discard(mark)
        return True

    def moved(self, mark: bytes | None) -> None:
        """Remember a message that the destination has confirmed."""
        if mark is None:
            return
        self._now.pop(mark, None)
        self._now[mark] = None
        if len(self._now) > _DOUBTS:
            del self._now[next(iter(self._now))]


class _Pending(NamedTuple):
    tag: int
    redelivered: bool
    mark: bytes | None
    offset: int | None


def mark_of(message: Content) -> bytes | None:
    """A digest of a message that has a message id, without its headers: quorum queues add
    ``x-delivery-count`` when they deliver again."""
    properties, method = message.properties, message.method
    flags = int.from_bytes(properties[:2], "big")
    if not flags & _MESSAGE_ID:
        return None
    if flags & _HEADERS:
        properties = with_headers(properties, None, drop_expiration=False)
    digest = hashlib.blake2b(properties, digest_size=MARK_SIZE)
    for part in (method.exchange, method.routing_key):
        digest.update(b"\0" + part.encode("utf-8", "surrogateescape"))
    digest.update(b"\0" + message.body)
    return digest.digest()


@dataclass(slots=True)
class Transfer:
    """A source, a destination, and the messages in between."""

    definition: ShovelDefinition
    source: Link
    destination: Destination
    counts: Counts
    doubts: Doubts
    transform: Callable[[Content, int | None], Moved]
    on_refusal: Callable[[str], None]
    stream: StreamSource | None = None
    remaining: int | None = None  # to publish; None: no end
    remaining_unacked: int | None = None  # to be accepted
    pending: dict[int, _Pending] = field(default_factory=dict)  # published, by number
    _number: int = 0
    _source_lost: bool = False
    _left_alone: bool = False  # delivered beyond ``remaining``, neither published nor acknowledged
    _held: dict[int, asyncio.TimerHandle] = field(default_factory=dict)  # refused, by tag: returned soon

    async def prepare(self) -> None:
        """Start the consumer; raises Finished if there is nothing to move."""
        definition, source = self.definition, self.source
        waiting = 0
        if definition.src_queue is not None:
            queue = definition.src_queue
            waiting = await ensure_queue(source, queue, definition.src_queue_args, definition.src_predeclared)
        else:
            exchange = definition.src_exchange or ""
            queue = (await source.call(QueueDeclare("", exclusive=True), QueueDeclareOk)).queue
            if exchange:
                await source.call(QueueBind(queue, exchange, definition.src_exchange_key), QueueBindOk)
        if definition.delete_after is not None:
            left = definition.delete_after - self.counts.forwarded
            self.remaining = self.remaining_unacked = left if definition.delete_after else waiting
            if self.remaining <= 0:
                raise Finished
        no_ack = definition.ack_mode is AckMode.NO_ACK
        if not no_ack:
            await source.call(BasicQos(prefetch_count=definition.prefetch), BasicQosOk)
        arguments = cast(FieldTable, definition.src_consumer_args)  # every JSON value is a field value
        if self.stream is not None:
            arguments = self.stream.consumer_arguments(arguments)
        await source.call(BasicConsume(queue, no_ack=no_ack, arguments=arguments), BasicConsumeOk)
        self.doubts.reconnected()

    async def run(self) -> None:
        """Move messages until something fails; raises what failed, or Finished."""
        carrying = asyncio.create_task(self._carry(), name="shovel source")
        settling = asyncio.create_task(self._settle(), name="shovel destination")
        try:
            done, _ = await asyncio.wait((carrying, settling), return_when=asyncio.FIRST_COMPLETED)
            if settling not in done and self.pending:
                # The source is lost, and will deliver these again: learn which of them have arrived.
                self._source_lost = True
                await asyncio.wait((settling,), timeout=_VERDICT_SECONDS)
            for task in done:
                task.result()
        finally:
            for task in (carrying, settling):
                task.cancel()
            await asyncio.gather(carrying, settling, return_exceptions=True)
            for timer in self._held.values():
                timer.cancel()

    async def _carry(self) -> None:
        """Source to destination."""
        source, mode = self.source, self.definition.ack_mode
        while True:
            last = 0
            for event in await source.read():
                if isinstance(event, Content) and isinstance(event.method, BasicDeliver):
                    if self._forward(event, event.method):
                        last = event.method.delivery_tag
                elif isinstance(event, BasicCancel):
                    raise LinkLost("the source has cancelled the consumer: its queue is gone")
            await self.destination.flush()
            if last and mode is AckMode.ON_PUBLISH:
                source.send(BasicAck(last, multiple=True))
            if mode is not AckMode.ON_CONFIRM:
                self._end_if_done()

    def _forward(self, message: Content, method: BasicDeliver) -> bool:
        """Publish one message; False if it was not published."""
        if self.remaining == 0:
            self._left_alone = True
            return False  # it returns to its queue when the connection closes
        confirms = self.definition.ack_mode is AckMode.ON_CONFIRM
        offset, mark = None, None
        if self.stream is not None:
            offset, message = self.stream.take(message)
            if not self.stream.is_new(offset):
                return self._skip(method)
        elif confirms:
            mark = mark_of(message)
        if self.doubts.was_moved(mark):
            return self._skip(method)
        if self.remaining is not None:
            self.remaining -= 1
        self._number += 1
        self.destination.publish(self.transform(message, offset), method.redelivered, mark)
        if confirms:
            self.pending[self._number] = _Pending(method.delivery_tag, method.redelivered, mark, offset)
        else:
            self._count(method.redelivered)
            if self.stream is not None and offset is not None:
                self.stream.accepted(offset, None)
        return True

    def _skip(self, method: BasicDeliver) -> bool:
        self.counts.skipped += 1
        self.source.send(BasicAck(method.delivery_tag))
        return False

    async def _settle(self) -> None:
        """The destination's verdicts back to the source."""
        while True:
            for number, up_to, refusal in await self.destination.verdicts():
                settled = self._settled(number, up_to)
                if refusal:
                    self._refused(settled, refusal)
                elif settled:
                    self._accepted(settled)
            self._end_if_done()
            if self._source_lost and not self.pending:
                return

    def _settled(self, number: int, up_to: bool) -> list[_Pending]:
        pending = self.pending
        if up_to:
            return [pending.pop(one) for one in list(takewhile(lambda one: one <= number, pending))]
        found = pending.pop(number, None)
        return [] if found is None else [found]

    def _accepted(self, messages: list[_Pending]) -> None:
        for message in messages:
            self._count(message.redelivered)
            self.doubts.moved(message.mark)
        if self.stream is not None and (last := messages[-1].offset) is not None:
            first_pending = next(iter(self.pending.values()), None)
            self.stream.accepted(last, None if first_pending is None else first_pending.offset)
        try:
            if self._held or self._left_alone or len(messages) == 1:
                # An ack for several would include lower tags: of refused messages, or of unpublished ones.
                for message in messages:
                    self.source.send(BasicAck(message.tag))
            else:
                # These are all that were pending up to the last, so earlier tags are settled.
                self.source.send(BasicAck(messages[-1].tag, multiple=True))
        except LinkLost:
            self._source_lost = True  # the reading side reports it
        else:
            for message in messages:
                self.destination.acked(message.mark)

    def _refused(self, messages: list[_Pending], reason: str) -> None:
        """Return messages to their queue after a pause: at once, they would come back at once."""
        self.counts.refused += max(1, len(messages))
        self.on_refusal(reason)
        if self.stream is not None:
            raise LinkLost(reason)  # a stream takes nothing back; the next run begins with this message
        loop = asyncio.get_running_loop()
        for tag, _, _, _ in messages:
            if self.remaining is not None:
                self.remaining += 1
            self._held[tag] = loop.call_later(_REFUSED_SECONDS, self._return, tag)

    def _return(self, tag: int) -> None:
        del self._held[tag]
        with suppress(LinkLost):  # then it has returned already
            self.source.send(BasicNack(tag, requeue=True))

    def _count(self, redelivered: bool) -> None:
        self.counts.forwarded += 1
        self.counts.redelivered += redelivered
        if self.remaining_unacked is not None:
            self.remaining_unacked -= 1

    def _end_if_done(self) -> None:
        if self.remaining_unacked is not None and self.remaining_unacked <= 0:
            raise Finished
