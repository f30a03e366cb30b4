"""Walks over the dead letters of both kinds of queue, in steps, without taking any.

Owns: where dead letters lie, and reading them one after the other while queues change. Must not touch: state,
clocks, wire names.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holtmq.broker.jobs.filters import Filter, Subject
from holtmq.broker.jobs.job import Chosen, Source
from holtmq.broker.jobs.letters import Letter, dead_letter_queues, partitioned_letter, work_letter
from holtmq.broker.jobs.subjects import letter_subject, levels, work_subject
from holtmq.broker.streams.stream_queue import stored_name
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.partitioned.queue import PartitionedQueue

WORK: Final = "work"
PARTITIONED: Final = "partitioned"
_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A dead letter and its message."""

    letter: Letter
    subject: Subject


def sources(
    broker: "Broker", kind: str | None = None, vhost: str | None = None, lies_in: str | None = None
) -> Generator[None, None, list[Source]]:
    """The queues in which dead letters lie; in steps, since there may be very many queues."""
    found: list[Source] = []
    for name, home in list(broker.vhosts.items()):
        if kind != PARTITIONED and vhost in (None, name):
            queues: Iterable[WorkQueue | None] = (
                dead_letter_queues(home) if lies_in is None else _named(home.queues.get(lies_in))
            )
            for work_queue in queues:
                if work_queue is not None and (len(work_queue) or lies_in is not None):
                    found.append(Source(name, work_queue.name))
                yield
    service, streams = broker.jobs.partitioned, broker.streams
    if kind != WORK and service is not None and streams is not None:
        for queue in list(service.store.queues.values()):
            where, name = streams.place_of(queue.name)
            if len(queue.dead_letters) and vhost in (None, where) and lies_in in (None, name):
                found.append(Source(where, name, partitioned=True))
            yield
    return found


def exists(broker: "Broker", vhost: str | None, name: str) -> bool:
    """Whether there is a queue of this name, of either kind."""
    service, streams = broker.jobs.partitioned, broker.streams
    if any(name in home.queues for where, home in broker.vhosts.items() if vhost in (None, where)):
        return True
    if service is None or streams is None:
        return False
    places = map(streams.place_of, service.store.queues)
    return any(name == found and vhost in (None, where) for where, found in places)


def _named(queue: Queue | None) -> list[WorkQueue]:
    return [queue] if isinstance(queue, WorkQueue) else []


def walk(broker: "Broker", source: Source, chosen: Chosen, matches: Filter) -> Iterator[Found | None]:
    """The chosen letters of one source; None for each message that is not one of them.

    The caller may do other work, and queues may change, between two items.
    """
    if source.partitioned:
        service = broker.jobs.partitioned
        name = stored_name(source.vhost, source.queue)
        stream = service.store.queues.get(name) if service is not None else None
        if stream is not None:
            yield from _partitioned(broker, source, stream, chosen, matches)
        return
    vhost = broker.vhosts.get(source.vhost)
    queue = vhost.queues.get(source.queue) if vhost is not None else None
    if isinstance(queue, WorkQueue):
        yield from _work(broker, queue, chosen, matches)


def _work(broker: "Broker", queue: WorkQueue, chosen: Chosen, matches: Filter) -> Iterator[Found | None]:
    flow = broker.flow
    upto = flow.seq
    for _, fifo in levels(queue):
        place = (0, 0)
        while run := fifo.following(place, _AT_ONCE, _BYTES_AT_ONCE, flow.pager):
            for message in run:
                if message.seq > upto:
                    break
                letter = work_letter(queue, message)
                found = None
                if letter is not None and letter.is_one_of(chosen):
                    subject = work_subject(queue, message, flow.now_ms)
                    found = Found(letter, subject) if matches(subject) else None
                yield found
            place = run[-1].seq, max(place[1], *(message.position for message in run))


def _partitioned(
    broker: "Broker", source: Source, queue: "PartitionedQueue", chosen: Chosen, matches: Filter
) -> Iterator[Found | None]:
    service = broker.jobs.partitioned
    assert service is not None
    for number in [letter.number for letter in queue.dead_letters]:
        letter = queue.dead_letters.get(number)
        if letter is None:
            continue
        shown = partitioned_letter(queue, letter, source.vhost, source.queue)
        found = None
        if shown.is_one_of(chosen):
            subject = letter_subject(service, queue, letter, broker.flow.now_ms)
            found = Found(shown, subject) if matches(subject) else None
        yield found
