"""The fast path of publishing: a run of plain publishes on one channel, in one loop.

Owns: messages whose frames are complete and in order, whose properties need no special handling
(``property_walker.py``) and whose key leads directly to queues without limits (``targets.py``). The loop
stops at any other message; the general path in ``frame_loop.py`` handles or refuses it.
Must not touch: acks, other methods.
"""

import struct
from typing import TYPE_CHECKING, Final

from holtmq.amqp.channel import Channel
from holtmq.amqp.publish_caches import BODY_MAX, PublishCaches, RepeatedPublish
from holtmq.auth.permissions import Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.message import Message, encode_message
from holtmq.broker.records.changes import Kind
from holtmq.broker.topology.targets import ExchangeTargets, QueueSet
from holtmq.broker.topology.vhost import VHost
from holtmq.journal.interface import JournalFailed
from holtmq.wire.property_walker import PERSISTENT

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

# kind, channel, size; class and method; (ticket); length of the exchange's name
_PUBLISH_FRAME: Final = struct.Struct(">BHII2xB").unpack_from
# kind, channel, size; class and weight; body size; property flags
_HEADER_FRAME: Final = struct.Struct(">BHIIQH").unpack_from
_FRAME: Final = struct.Struct(">BHI").unpack_from
_PUBLISH: Final = 0x003C0028
_BASIC: Final = 0x003C0000  # the class, and a weight of zero
_ADDRESS_AT: Final = 13  # exchange and key, each with its length in front
_HEADER_MIN: Final = 22
_PROPERTIES_AT: Final = 21
_MESSAGE: Final = int(Kind.MESSAGE)
_PRIORITY: Final = PERSISTENT - 1
_COPIES_MAX: Final = 20_000  # in queues of a fanout; then the frame loop may give way: about 5 ms
_SAMPLE: Final = 127  # one in 127 messages is offered to the cache; prime, so cycling keys are all sampled


class PublishRun:
    """The fast path of one connection."""

    __slots__ = (
        "_caches",
        "_connection",
        "_exchange",
        "_exchanges",
        "_flow",
        "_intercepts",
        "_limit",
        "_prefix_length",
        "_rules_version",
        "_vhost",
        "_walkers",
        "elsewhere",
    )

    def __init__(self, connection: "Connection", vhost: VHost, caches: PublishCaches) -> None:
        self._connection = connection
        self._caches = caches
        self._vhost = vhost
        self._flow = connection.flow
        self._walkers = connection.flow.walkers.by_flags
        self._exchanges: dict[bytes, ExchangeTargets] = {}  # only those this user may publish to
        self._exchange = b"\x00"  # the last one used: its length and name
        self._rules_version = 0
        self._prefix_length = 0  # length of the prefixes to look up; 0: no lookup
        self._limit = connection.settings.max_message_bytes
        self._intercepts = not connection.settings.interceptors.are_off  # which change every header
        self.elsewhere = b""  # the publish frame that ended the last run, if its key needs the general path

    def take(self, channel: Channel, data: bytes, at: int, end: int) -> int:
        """Publish messages from ``at`` on until one needs the general path; return the offset of that one."""
        flow = self._flow
        self.elsewhere = b""
        if channel.transaction is not None or self._intercepts:
            return at
        exchange = self._exchange
        targets = self._targets(exchange)
        token = targets.token if targets is not None else None
        walkers = self._walkers
        number = channel.number
        repeated = self._caches.repeated(number)
        prefix_length, missed = self._prefix_length, 0
        max_payload = self._connection.max_payload
        limit = min(self._limit, max_payload)
        now_ms = flow.now_ms
        append = flow.journal.append
        pending, streams = flow.pending_publishes, flow.stream_publishes
        first_seq = counted = seq = flow.seq
        sample_at = seq + -seq % _SAMPLE
        journalled = False
        dropped = more_copies = 0
        last_address = b""
        queues: QueueSet | None = None
        found: QueueSet | None
        try:
            while end - at > _HEADER_MIN:
                if (
                    prefix_length
                    and (known := repeated.get(data[at : at + prefix_length])) is not None
                    and known.token is token
                    and (stop := at + prefix_length + known.body_bytes) < end
                    and data[stop] == 0xCE
                ):
                    body = data[at + prefix_length : stop]
                    address, header, properties = known.address, known.header, known.properties
                    found = known.queues
                else:
                    kind, channel_number, size, method, name_bytes = _PUBLISH_FRAME(data, at)
                    stop = at + 7 + size
                    header_at = stop + 1
                    if (
                        method != _PUBLISH
                        or channel_number != number
                        or kind != 1
                        or end - header_at < _HEADER_MIN
                        or size > max_payload
                        or data[stop] != 0xCE
                        or data[stop - 1] > 1  # of the bits only mandatory may be set
                    ):
                        break
                    address = data[at + _ADDRESS_AT : stop - 1]
                    if address == last_address:
                        address, found = last_address, queues
                    else:
                        key_at = name_bytes + 2
                        if len(address) < key_at or len(address) != key_at + address[key_at - 1]:
                            break
                        if not address.startswith(exchange):  # both begin with the name's length
                            if targets is not None and seq != counted:
                                flow.count(targets.exchange, seq - counted, more_copies)
                                counted, more_copies = seq, 0
                            exchange = address[: key_at - 1]
                            targets = self._targets(exchange)
                            token = targets.token if targets is not None else None
                        if targets is None:
                            break
                        found = targets.find(address[key_at:])
                        last_address, queues = address, found
                    if found is None:
                        self.elsewhere = data[at:header_at]
                        break
                    if not found.queues and data[stop - 1]:
                        break
                    kind, channel_number, size, basic, body_bytes, flags = _HEADER_FRAME(data, header_at)
                    header_end = header_at + 7 + size
                    if (
                        kind != 2
                        or channel_number != number
                        or basic != _BASIC
                        or body_bytes > limit
                        or size > max_payload
                        or header_end >= end
                        or data[header_end] != 0xCE
                    ):
                        break
                    walk = walkers.get(flags)
                    if walk is None:
                        flow.walkers.note(flags)
                        break
                    properties = walk(data, header_at + _PROPERTIES_AT, header_end)
                    if properties < 0:
                        break
                    header = data[header_at + 7 : header_end]
                    if body_bytes:
                        body_at = header_end + 8
                        stop = body_at + body_bytes
                        if stop >= end or data[stop] != 0xCE:
                            break
                        kind, channel_number, size = _FRAME(data, header_end + 1)
                        if kind != 3 or channel_number != number or size != body_bytes:
                            break
                        body = data[body_at:stop]
                        if prefix_length:
                            missed += 1
                        if seq >= sample_at and body_bytes <= BODY_MAX:
                            sample_at = seq + _SAMPLE
                            like = RepeatedPublish(token, found, address, header, properties, body_bytes)
                            if self._caches.offer(number, data[at:body_at], like):
                                prefix_length = body_at - at
                                repeated = self._caches.repeated(number)
                    else:
                        body = b""
                        stop = header_end
                seq += 1
                if properties >= PERSISTENT or found.persists:
                    if found.is_streams:
                        priority = properties & _PRIORITY
                        if streams is None or not streams.take_plain(found, address, header, priority, body):
                            seq -= 1
                            break
                        journalled = True
                        more_copies += len(found.queues) - 1
                        at = stop + 1
                        continue
                    message = Message(seq, address, header, body, now_ms, 0, properties & _PRIORITY, True)
                    if found.durable_ids:
                        if pending:
                            flow.write_pending_publishes()
                        message.position = append(_MESSAGE, encode_message(message, found.durable_ids))
                        journalled = True
                else:
                    message = Message(seq, address, header, body, now_ms, 0, properties)
                queue = found.queue
                if queue is not None:
                    fifo = found.fifo
                    if fifo is None:
                        fifo = queue.fifos[message.priority]
                    fifo.inbox.append(message)
                    queue.bytes += len(body)
                    if not queue.dirty:
                        flow.touch(queue)
                else:
                    flow.place(message, found.work_queues)
                    more_copies += len(found.queues) - 1
                    if not found.queues:
                        dropped += 1
                    if more_copies > _COPIES_MAX:
                        at = stop + 1
                        break
                at = stop + 1
        except JournalFailed:
            seq -= 1  # the general path takes this message and reports the failure
        finally:
            flow.seq = seq
        taken = seq - first_seq
        counts = channel.counts
        counts.received += taken
        channel.received += taken
        if targets is not None and seq != counted:
            flow.count(targets.exchange, seq - counted, more_copies)
        if dropped:
            counts.dropped += dropped
            channel.messages.dropped += dropped
        channel.messages.used_ms = now_ms
        self._exchange = exchange
        # With more misses than hits the lookup is not worth its cost.
        self._prefix_length = 0 if missed * 2 > taken else prefix_length
        if taken:
            self._connection.note_published()
            if channel.confirms is not None:
                channel.published(taken, journalled)
        return at

    def _targets(self, exchange: bytes) -> ExchangeTargets | None:
        """The targets of an exchange, if it exists and this user may publish to it."""
        vhost = self._vhost
        if self._rules_version != vhost.rules_version:
            self._exchanges.clear()
            self._rules_version = vhost.rules_version
        found = self._exchanges.get(exchange)
        if found is not None and not found.exchange.is_abandoned:
            found.refresh()
            return found
        name = exchange[1:].decode("utf-8", "surrogateescape")
        known = vhost.find_exchange(name)
        if known is None or known.internal:
            return None
        if self._connection.rights.restricts_topics(known):
            return None  # the general path checks each key
        try:
            self._connection.rights.check(Action.WRITE, name)
        except BrokerError:
            return None
        found = self._exchanges[exchange] = vhost.targets_of(known)
        return found
