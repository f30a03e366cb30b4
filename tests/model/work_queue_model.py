"""What work queues should do, as lists: slow, plain, without a journal.

Owns: the model that ``test_work_queue_model`` holds the broker against. Must not touch: the broker; time
comes in, and which consumer took a message is told, not decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

DEAD: Final = "dead"
QUEUES: Final = ("q0", "q1", "q2")
TOPICS: Final = {"q0": ("a.b", "a.c"), "q1": ("a.b", "a.c", "z.b"), "q2": ("a.b", "z.b")}


@dataclass(frozen=True)
class Shape:
    """How a queue was declared."""

    durable: bool = True
    top: int = 0
    ttl_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letters: bool = False
    delivery_limit: int | None = None
    retry_delay_ms: int = 0
    quorum: bool = False  # every message of such a queue is persistent

    @property
    def refuses(self) -> bool:
        return self.overflow != "drop-head" and (self.max_length is not None or self.max_bytes is not None)

    def arguments(self) -> dict[str, object]:
        named = {
            "x-max-priority": self.top or None,
            "x-message-ttl": self.ttl_ms,
            "x-max-length": self.max_length,
            "x-max-length-bytes": self.max_bytes,
            "x-overflow": self.overflow,
            "x-dead-letter-exchange": "" if self.dead_letters else None,
            "x-dead-letter-routing-key": DEAD if self.dead_letters else None,
            "x-delivery-limit": self.delivery_limit,
            "x-retry-delay": self.retry_delay_ms or None,
            "x-queue-type": "quorum" if self.quorum else None,
        }
        return {key: value for key, value in named.items() if value is not None}


@dataclass(eq=False)
class Item:
    """A message in one queue. The same body in two queues is two items."""

    n: int  # order of arrival
    body: bytes
    persistent: bool
    priority: int
    arrived_ms: int
    expires_ms: int
    died_in: str = ""
    was_out: bool = False

    def __repr__(self) -> str:
        return f"{self.body!r}"


@dataclass
class ModelQueue:
    name: str
    shape: Shape
    waiting: list[Item] = field(default_factory=list)
    leased: list[Item] = field(default_factory=list)
    held: list[tuple[int, Item]] = field(default_factory=list)  # due, item
    counts: Counter[Item] = field(default_factory=Counter)
    outcasts: list[tuple[str, Item]] = field(default_factory=list)

    def level(self, item: Item) -> int:
        return min(item.priority, self.shape.top)

    def in_order(self) -> list[Item]:
        """What waits, next first."""
        return sorted(self.waiting, key=lambda item: (-self.level(item), item.n))

    @property
    def size(self) -> int:
        return sum(len(item.body) for item in self.waiting)

    def is_over(self) -> bool:
        shape = self.shape
        return (shape.max_length is not None and len(self.waiting) > shape.max_length) or (
            shape.max_bytes is not None and self.size > shape.max_bytes
        )

    def would_refuse(self, body: bytes, ahead: int = 0, bytes_ahead: int = 0) -> bool:
        shape = self.shape
        return shape.refuses and (
            (shape.max_length is not None and len(self.waiting) + ahead + 1 > shape.max_length)
            or (shape.max_bytes is not None and self.size + bytes_ahead + len(body) > shape.max_bytes)
        )

    def deadline(self, item: Item) -> int:
        """When it dies here; 0: never."""
        ends = [item.expires_ms] if item.expires_ms else []
        if self.shape.ttl_ms is not None:
            ends.append(item.arrived_ms + self.shape.ttl_ms)
        return min(ends, default=0)

    def drop_expired(self, now_ms: int) -> None:
        """From the head of every level."""
        for level in sorted({self.level(item) for item in self.waiting}, reverse=True):
            for item in [item for item in self.in_order() if self.level(item) == level]:
                if not 0 < self.deadline(item) <= now_ms:
                    break
                self.leave(item, "expired")

    def shed(self) -> None:
        """The oldest of the lowest level, until the limits hold."""
        while not self.shape.refuses and self.waiting and self.is_over():
            self.leave(min(self.waiting, key=lambda item: (self.level(item), item.n)), "maxlen")

    def leave(self, item: Item, reason: str) -> None:
        self.waiting.remove(item)
        self.outcasts.append((reason, item))

    def give_back(self, items: Iterable[Item], now_ms: int) -> None:
        """Leases ended without a verdict."""
        for item in items:
            self.leased.remove(item)
            self.counts[item] += 1
            limit = self.shape.delivery_limit
            if limit is not None and self.counts[item] > limit:
                self.outcasts.append(("delivery_limit", item))
            elif self.shape.retry_delay_ms:
                self.held.append((now_ms + self.shape.retry_delay_ms, item))
            else:
                self.waiting.append(item)

    def take_out(self, item: Item) -> bool:
        """A late verdict: only if no consumer holds it."""
        if item in self.waiting:
            self.waiting.remove(item)
            return True
        for entry in self.held:
            if entry[1] is item:
                self.held.remove(entry)
                return True
        return False

    def everything(self) -> list[Item]:
        out = [*self.waiting, *self.leased, *(item for _, item in self.held)]
        return sorted(out, key=lambda item: (-self.level(item), item.n))


@dataclass(frozen=True)
class Kept:
    """What a restart would find in one queue."""

    shape: Shape
    items: tuple[Item, ...]
    counts: tuple[int, ...]
    out: frozenset[Item]  # handed out before, as far as the disk knows


Projection = dict[str, Kept]


class Model:
    """All queues, and what waits for its time."""

    def __init__(self) -> None:
        self.queues: dict[str, ModelQueue] = {DEAD: ModelQueue(DEAD, Shape())}
        self.delayed: list[tuple[int, Item]] = []
        self.now_ms = 0
        self._n = 0

    def item(
        self, body: bytes, persistent: bool, priority: int = 0, ttl_ms: int | None = None, died_in: str = ""
    ) -> Item:
        self._n += 1
        expires = 0 if ttl_ms is None else self.now_ms + ttl_ms
        return Item(self._n, body, persistent, priority, self.now_ms, expires, died_in)

    def route(self, exchange: str, keys: Iterable[str]) -> Iterator[ModelQueue]:
        """The queues a message reaches, each once."""
        keys = list(keys)
        for name, queue in self.queues.items():
            if (
                (exchange == "" and name in keys)
                or (exchange == "fan" and name in QUEUES)
                or (exchange == "top" and any(key in TOPICS.get(name, ()) for key in keys))
            ):
                yield queue

    def cast_out(self) -> dict[str, list[Item]]:
        """Outcasts leave for good; those that die into the dead-letter queue, by the queue they left."""
        dead_lettered: dict[str, list[Item]] = {}
        for queue in self.queues.values():
            outcasts, queue.outcasts = queue.outcasts, []
            for _, item in outcasts:
                queue.counts.pop(item, None)
                if queue.shape.dead_letters:
                    again = self.item(item.body, item.persistent, item.priority, died_in=queue.name)
                    dead_lettered.setdefault(queue.name, []).append(again)
        return dead_lettered

    def projection(self) -> Projection:
        kept: Projection = {}
        for queue in self.queues.values():
            if queue.shape.durable:
                items = tuple(item for item in queue.everything() if item.persistent)
                limited = queue.shape.delivery_limit is not None
                counts = tuple(queue.counts[item] if limited else 0 for item in items)
                out = frozenset(item for item in items if item.was_out)
                kept[queue.name] = Kept(queue.shape, items, counts, out)
        return kept

    def lasting_delays(self) -> list[tuple[int, Item]]:
        return [(due, item) for due, item in self.delayed if item.persistent]

    def restart(self, projection: Projection, delayed: list[tuple[int, Item]]) -> None:
        """Only what lasts is left, all of it waiting."""
        self.delayed = list(delayed)
        for _, item in self.delayed:
            item.was_out = False  # its delay may have ended, and the crash undid it
        self.queues = {}
        for name, kept in projection.items():
            queue = self.queues[name] = ModelQueue(name, kept.shape, list(kept.items))
            queue.counts.update(dict(zip(kept.items, kept.counts, strict=True)))
            for item in kept.items:
                item.was_out = item in kept.out
            queue.shed()
