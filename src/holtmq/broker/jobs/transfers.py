"""One batch of messages leaves a work queue, or is copied: as one record, all or nothing.

Owns: what a batch does, and where each message goes. Must not touch: which messages are meant, clocks. Body,
properties and headers stay byte for byte.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from holtmq.broker.errors import AccessRefused, BrokerError, Conflict, LimitReached, NotFound
from holtmq.broker.flow import Flow
from holtmq.broker.jobs.job import Target
from holtmq.broker.message import Message, make_address
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import encode_settled
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.dead_letter import last_death
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.primitives import CodecError

MayWrite = Callable[[str, str], bool]  # vhost and name of a queue or exchange
# The payload of a change that is written with the batch. Its arguments: the first message that was not looked
# at any more (None: all were), how many were placed or removed, how many led to no queue and stay.
Beside = Callable[[Message | None, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one message goes, and under which address."""

    vhost: str
    queues: Sequence[Queue]
    delays: Sequence[tuple[str, int]]  # delaying exchange, milliseconds
    address: bytes


NOWHERE: Final = Destination("", (), (), b"")


def to_target(
    flow: Flow, home: VHost, target: Target, message: Message, properties: PublishProperties
) -> Destination:
    """The queues that a target means for a message; ``home`` is the source's vhost."""
    vhost = home if target.vhost is None else flow.vhosts.get(target.vhost)
    if vhost is None:
        raise NotFound(f"no vhost '{target.vhost}'")
    if target.queue is not None:
        return Destination(vhost.name, (vhost.queue(target.queue),), (), message.address)
    exchange = vhost.exchange(target.exchange or "")
    keys = (
        [message.routing_key, *properties.extra_keys] if target.routing_key is None else [target.routing_key]
    )
    hashed = properties.hash_properties() if exchange.needs_properties else None
    queues: dict[str, Queue] = {}
    delays: dict[str, int] = {}
    for key in keys:
        result = vhost.route(exchange, key, properties.headers, hashed)
        queues.update((queue.name, queue) for queue in result.queues)
        delays.update((delay.exchange.name, delay.delay_ms) for delay in result.delays)
    address = make_address(exchange.name, keys[0])
    return Destination(vhost.name, tuple(queues.values()), tuple(delays.items()), address)


def to_origin(home: VHost, message: Message, may_write: MayWrite) -> Destination:
    """The queue in which a dead letter died, with the address it had there; NOWHERE when that is gone."""
    death = last_death(message.header)
    queue = home.queues.get(death.queue) if death is not None else None
    if death is None or queue is None:
        return NOWHERE
    if not may_write(home.name, queue.name):  # the headers are the publisher's word: he may have written any
        raise AccessRefused(f"a dead letter came from queue '{queue.name}', to which you may not write")
    return Destination(home.name, (queue,), (), make_address(death.exchange, death.routing_key))


def transfer(
    flow: Flow,
    source: WorkQueue,
    messages: Sequence[Message],
    destination: Callable[[Message, PublishProperties], Destination] | None,
    *,
    keep: bool,
    beside: Beside,
) -> None:
    """Move, copy (``keep``) or remove (no ``destination``) messages of a queue, and write ``beside`` with it.

    Ends early at a message whose queue is full. Raises LimitReached when that is the first one; then, and
    after any other error, nothing has changed.
    """
    flow.begin()
    gone: list[Message] = []
    try:
        if destination is None:
            gone, report = list(messages), beside(None, len(messages), 0)
        else:
            taken, report = _place(flow, messages, destination, beside)
            gone = [] if keep else taken
        flow.add_record(Kind.CHANGE, report)
        lasting = [message for message in gone if message.persistent and message.position]
        if lasting and source.persisted:
            size = sum([len(message.body) for message in lasting])
            positions = [message.position for message in lasting]
            flow.add_record(Kind.SETTLED, encode_settled(source.id, size, positions))
        _take_out(source, gone)  # before the commit, which may deliver from the same queue
        try:
            flow.commit()
        except BaseException:
            source.restore(gone, flow.pager)
            source.figures.purged -= len(gone)
            raise
    except BaseException:
        flow.abort()
        raise
    for message in gone:
        source.returned.pop(message.seq, None)
    flow.touch(source)


def _place(
    flow: Flow,
    messages: Sequence[Message],
    destination: Callable[[Message, PublishProperties], Destination],
    beside: Beside,
) -> tuple[list[Message], bytes]:
    taken: list[Message] = []
    unrouted = 0
    stopped_at: Message | None = None
    for message in messages:
        properties = _properties(flow, message)
        where = destination(message, properties)
        if not where.queues and not where.delays:
            unrouted += 1
            continue
        moved = _again(flow, message, where, properties)
        if not flow.publishing.forward(moved, where.queues):
            if not taken:
                names = ", ".join(queue.name for queue in where.queues)
                raise LimitReached(f"full, and refuses messages: {names}")
            stopped_at = message
            break
        for exchange, delay_ms in where.delays:
            flow.delays.add(moved, where.vhost, exchange, flow.now_ms + delay_ms)
        taken.append(message)
    return taken, beside(stopped_at, len(taken), unrouted)


def _take_out(source: WorkQueue, messages: list[Message]) -> None:
    store = source.store
    if isinstance(store, Levels):
        by_level: dict[int, list[Message]] = {}
        for message in messages:
            by_level.setdefault(store.level_of(message.priority), []).append(message)
        for level, part in by_level.items():
            store.fifos[level].remove(part)
    else:
        store.remove(messages)
    source.bytes -= sum([len(message.body) for message in messages])
    source.figures.purged += len(messages)


def _properties(flow: Flow, message: Message) -> PublishProperties:
    try:
        return flow.publish_properties.of(message.header)
    except (BrokerError, CodecError) as error:  # accepted when it was published, so only a rule has changed
        raise Conflict(f"a message cannot be published again: {error}") from error


def _again(flow: Flow, message: Message, where: Destination, properties: PublishProperties) -> Message:
    flow.seq += 1
    ttl = properties.ttl_ms
    return replace(
        message,
        seq=flow.seq,
        address=where.address,
        arrived_ms=flow.now_ms,
        expires_ms=0 if ttl is None else flow.now_ms + ttl,
        persistent=message.persistent or any(queue.always_persists for queue in where.queues),
        position=0,
    )
