"""The loop that drives publishers and consumers: one thread, one selector, big reads and writes.

Owns: the scheduling, and the bound on what is published and not yet consumed.
Must not touch: set-up, measuring, reporting.
"""

from __future__ import annotations

import select
import selectors
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from holtmq.load.actors import Consumer, Publisher
from holtmq.load.errors import LoadError

_POLL_SECONDS: Final = 0.05
_STALL_SECONDS: Final = 30.0
_UNLIMITED: Final = 1 << 60


class Engine:
    """Publishers, the consumers of each queue, and the selector between them."""

    def __init__(
        self,
        publishers: Sequence[Publisher],
        queues: Sequence[Sequence[Consumer]],
        backlog: int,
        *,
        shared_out: bool = False,
    ) -> None:
        self.publishers = list(publishers)
        self.queues = [list(consumers) for consumers in queues]
        self.consumers = [consumer for consumers in self.queues for consumer in consumers]
        self.limit = _UNLIMITED  # total publishes allowed
        self._backlog = backlog
        self._shared_out = shared_out  # each message goes to one of the queues, not to all of them
        # Refilling the backlog message by message would cost a system call each: wait for an eighth.
        self._step = max(backlog // 8, 1)
        self._selector = selectors.DefaultSelector()
        self._masks: dict[Publisher | Consumer, int] = {}
        self._actors: list[Publisher | Consumer] = [*self.publishers, *self.consumers]
        for actor in self._actors:
            self._masks[actor] = selectors.EVENT_READ
            self._selector.register(actor.link.sock, selectors.EVENT_READ, actor)

    @property
    def sent(self) -> int:
        return sum(publisher.sent for publisher in self.publishers)

    @property
    def confirmed(self) -> int:
        return sum(publisher.confirmed for publisher in self.publishers)

    @property
    def consumed(self) -> int:
        """Messages that reached the consumers of all their queues."""
        if self._shared_out:
            return self.delivered
        return min((sum(c.received for c in consumers) for consumers in self.queues), default=0)

    @property
    def delivered(self) -> int:
        """Deliveries of all queues together."""
        return sum(consumer.received for consumer in self.consumers)

    def run(self, done: Callable[[], bool], until: float = float("inf")) -> None:
        """Run until ``done()`` or until the clock (``perf_counter``) reaches ``until``."""
        last, moved = -1, perf_counter()
        while not done():
            now = perf_counter()
            if now >= until:
                return
            progress = self.sent + self.confirmed + self.delivered
            if progress != last:
                last, moved = progress, now
            elif now - moved > _STALL_SECONDS:
                raise LoadError(
                    f"nothing moved for {_STALL_SECONDS:.0f} s: "
                    f"{self.sent} sent, {self.confirmed} confirmed, {self.consumed} consumed"
                )
            self._publish()
            self._poll(min(_POLL_SECONDS, until - now))

    def run_paced(self, rate: int, until: float) -> None:
        """Send ``rate`` messages a second, evenly spaced, and read what comes back.

        A selector waits in whole milliseconds; ``select`` waits in microseconds, which a gap of half a
        millisecond needs.
        """
        start = perf_counter()
        already = self.sent
        socks = {actor.link.sock: actor for actor in self._actors}
        publisher = self.publishers[0]
        while (now := perf_counter()) < until:
            due = int((now - start) * rate) - (self.sent - already)
            if due > 0:
                publisher.send(due)
            pause = start + (self.sent - already + 1) / rate - perf_counter()
            ready, _, _ = select.select(list(socks), (), (), max(pause, 0.0))
            for sock in ready:
                socks[sock].readable()

    def close(self) -> None:
        """Unregister the sockets; they stay open."""
        self._selector.close()

    def resume(self) -> None:
        """Publish again after ``drain``."""
        for publisher in self.publishers:
            publisher.finishing = False

    def drain(self) -> None:
        """Stop publishing, and wait until everything sent is confirmed and consumed."""
        for publisher in self.publishers:
            publisher.finishing = True
        self.run(self._is_drained)

    def _is_drained(self) -> bool:
        sent = self.sent
        return (
            not any(publisher.half_sent for publisher in self.publishers)
            and all(not p.window or p.confirmed == p.sent for p in self.publishers)
            and (not self.queues or self.consumed == sent)
        )

    def _publish(self) -> None:
        allowed = self._room()
        share = -(-allowed // len(self.publishers)) if self.publishers else 0
        for publisher in self.publishers:
            if publisher.stuck:
                continue
            if publisher.finishing:
                publisher.send(1)
            elif allowed > 0:
                before = publisher.sent
                publisher.send(min(share, allowed))
                allowed -= publisher.sent - before

    def _room(self) -> int:
        """How many more messages may be published now."""
        sent = self.sent
        allowed = self.limit - sent
        if not self.queues or not self._backlog:
            return allowed
        room = self.consumed + self._backlog - sent
        return min(allowed, room) if room >= self._step or allowed < self._step else 0

    def _poll(self, seconds: float) -> None:
        for actor in self._actors:
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if actor.stuck else 0)
            if mask != self._masks[actor]:
                self._selector.modify(actor.link.sock, mask, actor)
                self._masks[actor] = mask
        eager = self._room() > 0 and any(self._could_send(publisher) for publisher in self.publishers)
        for key, events in self._selector.select(0 if eager else max(seconds, 0.0)):
            actor = key.data
            if events & selectors.EVENT_WRITE:
                if isinstance(actor, Publisher):
                    actor.stuck = False
                else:
                    actor.writable()
            if events & selectors.EVENT_READ:
                actor.readable()

    @staticmethod
    def _could_send(publisher: Publisher) -> bool:
        if publisher.stuck or publisher.finishing:
            return False
        return not publisher.window or publisher.sent - publisher.confirmed < publisher.window
