"""Dead letters of both kinds of queue in one form, grouped by what went wrong.

Owns: that form, the error signature, and which letters a choice means. Must not touch: queues' state, clocks,
wire names.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from holtmq.broker.jobs.job import Chosen
from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.identifiers import dead_letter_id
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.work.dead_letter import last_death
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import PROPERTIES_AT, raw_headers

FAILED: Final = "failed"
# Where frameworks that republish a failed message say why.
_ERROR_HEADERS: Final = ("x-exception-message", "x-error-message", "x-error", "error")
_NORMALISED: Final = (
    (re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"\"[^\"]*\"|'[^']*'"), "<text>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,}\b"), "<id>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)
_TEXT_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    id: str
    kind: str  # work, partitioned
    vhost: str
    queue: str  # where it died
    lies_in: str
    group: str | None
    reason: str
    error: str
    failed_ms: int | None
    deaths: int

    @property
    def text(self) -> str:
        """The error without what differs from one failure to the next."""
        return normalised(self.error)

    @property
    def signature(self) -> str:
        """The same for letters of one queue and group with the same reason and text."""
        parts = (self.kind, self.vhost, self.queue, self.lies_in, self.group or "", self.reason, self.text)
        return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def is_one_of(self, chosen: Chosen) -> bool:
        """Whether it is meant."""
        return (
            (chosen.died_in is None or chosen.died_in == self.queue)
            and (chosen.group is None or chosen.group == self.group)
            and (chosen.reason is None or chosen.reason == self.reason)
            and (not chosen.ids or self.id in chosen.ids)
            and (chosen.signature is None or chosen.signature == self.signature)
        )


def normalised(error: str) -> str:
    """An error text with ids, numbers and quoted values replaced."""
    text = error[:_TEXT_MAX]
    for pattern, word in _NORMALISED:
        text = pattern.sub(word, text)
    return text.strip()


def work_letter(queue: WorkQueue, message: Message) -> Letter | None:
    """A message of a work queue as a dead letter; None when it never died."""
    death = last_death(message.header)
    if death is None:
        return None
    return Letter(
        f"w{queue.id}-{message.seq:x}",
        "work",
        queue.vhost,
        death.queue,
        queue.name,
        None,
        death.reason,
        _error(message.header),
        None if death.at_s is None else death.at_s * 1000,
        death.count,
    )


def _error(header: bytes) -> str:
    try:
        headers = raw_headers(header[PROPERTIES_AT:])
    except CodecError:
        return ""
    found = (headers.get(name) for name in _ERROR_HEADERS)
    return next((value for value in found if isinstance(value, str)), "")


def partitioned_letter(queue: PartitionedQueue, letter: DeadLetter, vhost: str, name: str) -> Letter:
    """A consumer group's dead letter; ``vhost`` and ``name`` are where AMQP sees the queue."""
    return Letter(
        dead_letter_id(queue.number, letter.number),
        "partitioned",
        vhost,
        name,
        name,
        letter.group,
        FAILED,
        letter.error,
        letter.failed_us // 1000,
        letter.retry_count,
    )


def dead_letter_queues(vhost: VHost) -> Iterator[WorkQueue | None]:
    """The work queues of a vhost that a dead-letter exchange leads to; None for each other queue that was
    looked at, since there may be very many."""
    seen: set[str] = set()
    begun: set[str] = set()
    for queue in list(vhost.queues.values()):
        exchange = queue.options.dead_letter_exchange
        if exchange is None or exchange not in vhost.exchanges:
            yield None
            continue
        if not exchange:
            direct = vhost.queues.get(queue.options.dead_letter_routing_key or "")
            found: Iterable[Queue | None] = () if direct is None else (direct,)
        elif exchange in begun:
            yield None
            continue
        else:
            begun.add(exchange)
            found = _reached(vhost.exchanges[exchange])
        for reached in found:
            if isinstance(reached, WorkQueue) and reached.name not in seen:
                seen.add(reached.name)
                yield reached
            else:
                yield None


def _reached(exchange: QueueExchange) -> Iterator[Queue | None]:
    """The queues that an exchange leads to, also through others; None for each of those."""
    passed = {exchange.name}
    begun = [iter(list(exchange.bindings()))]  # not by recursion: a chain of exchanges may be long
    while begun:
        for binding in begun[-1]:
            where = binding.destination
            if not isinstance(where, Exchange):
                yield where
            elif where.name not in passed:
                passed.add(where.name)
                yield None
                begun.append(iter(list(where.bindings())))
                break
        else:
            begun.pop()
