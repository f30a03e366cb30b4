"""Fast routing by key: the queues of an exchange's routing keys, when the key alone decides.

Owns: one ``QueueSet`` for each set of queues, shared by all keys that lead to it, and the lookup from a
key's bytes. Must not touch: messages. Exchanges bound to exchanges, alternate exchanges that apply, headers,
hashes, delays, queues with limits, streams together with work queues, and very many queues are left to
``routing.py``: then the answer is None.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from holtmq.broker.topology.binding_indexes import destinations_of, in_order
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.broker.topology.exchanges import Binding, Exchange
from holtmq.broker.topology.topic_automaton import TopicAutomaton
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.topology.vhost import VHost

_SETS_MAX: Final = 4_096
_SHORT_WAY: Final = (ExchangeKind.DIRECT, ExchangeKind.FANOUT, ExchangeKind.TOPIC)


def durable_ids(queues: Iterable[Queue]) -> bytes:
    """The journal ids of the persisted work queues among these."""
    ids = [queue.id for queue in queues if queue.persisted and not queue.is_stream]
    return struct.pack(f">{len(ids)}I", *ids)


def splits_transient(queues: Collection[Queue]) -> bool:
    """Whether a transient message is kept by some of these queues and lost by others at a restart."""
    return any(queue.always_persists for queue in queues) and any(queue.forgets_transient for queue in queues)


class QueueSet:
    """The queues that a message is enqueued on: work queues without limits, or streams."""

    __slots__ = ("durable_ids", "fifo", "is_streams", "persists", "queue", "queues", "work_queues")

    def __init__(self, queues: tuple[Queue, ...]) -> None:
        self.queues = queues
        self.work_queues = tuple(queue for queue in queues if isinstance(queue, WorkQueue))
        self.is_streams = len(self.work_queues) < len(queues)  # then all of them are
        self.queue = self.work_queues[0] if len(self.work_queues) == 1 else None
        self.fifo = (
            self.queue.fifo if self.queue is not None else None
        )  # None: priorities, several queues, streams
        self.durable_ids = durable_ids(queues)
        # True for streams: the publish path looks for them only if a message is persistent.
        self.persists = self.is_streams or any(queue.always_persists for queue in queues)


NO_QUEUES: Final = QueueSet(())


class ExchangeTargets:
    """The lookup of one exchange. ``token`` is replaced whenever the results may have changed."""

    __slots__ = ("_automaton", "_by_key", "_exchange", "_fanout", "_seen", "_vhost", "token")

    def __init__(self, vhost: VHost, exchange: Exchange[Queue]) -> None:
        self._vhost = vhost
        self._exchange = exchange
        self._seen = (-1, -1)
        self._by_key: dict[bytes, QueueSet | None] = {}  # by bound key, or by queue name (default exchange)
        self._automaton: TopicAutomaton[Binding[Queue], QueueSet | None] | None = None
        self._fanout: list[QueueSet | None] = []
        self.token = object()

    @property
    def exchange(self) -> Exchange[Queue]:
        """The exchange whose keys are looked up."""
        return self._exchange

    def refresh(self) -> None:
        """Drop cached results if bindings or rules have changed."""
        seen = (self._exchange.version, self._vhost.rules_version)
        if seen == self._seen:
            return
        self._seen = seen
        self.token = object()
        self._by_key.clear()
        self._fanout.clear()
        exchange = self._exchange
        topic = exchange.kind is ExchangeKind.TOPIC
        self._automaton = TopicAutomaton(exchange.topics) if topic and exchange.topics is not None else None

    def forget_queue(self, name: str) -> None:
        """Drop the default exchange's entry for a deleted queue."""
        if self._by_key.pop(name.encode("utf-8", "surrogateescape"), None) is not None:
            self.token = object()

    def find(self, key: bytes) -> QueueSet | None:
        """The queues for a routing key, as of the last ``refresh``; None: use ``routing.py``."""
        automaton = self._automaton
        if automaton is not None:
            state = automaton.start
            if key:
                for word in key.split(b"."):
                    following = state.following.get(word, state.other)
                    state = following if following is not None else automaton.extend(state, word)
            return state.known if state.has_result else state.result(self._of_bindings)
        if key in self._by_key:
            return self._by_key[key]
        return self._find_other(key)

    def _find_other(self, key: bytes) -> QueueSet | None:
        exchange = self._exchange
        if exchange.kind not in _SHORT_WAY:
            return None
        if exchange.kind is ExchangeKind.FANOUT:
            if not self._fanout:
                wide = exchange.destination_count > self._vhost.widest
                self._fanout.append(None if wide else self._of(exchange.route("")))
            return self._fanout[0]
        text = key.decode("utf-8", "surrogateescape")
        destinations: list[Queue | Exchange[Queue]]
        if exchange.is_default:
            queue = self._vhost.queues.get(text)
            destinations = [] if queue is None else [queue]
        else:
            destinations = self._destinations(text)
        found = self._of(destinations)
        if destinations:  # unbound keys are not cached: their number has no bound
            self._by_key[key] = found
        return found

    def _destinations(self, key: str) -> list[Queue | Exchange[Queue]]:
        """Where a key leads; of very many destinations only some."""
        widest = self._vhost.widest
        if self._exchange.destination_count <= widest:
            return self._exchange.route(key)
        found: dict[int, Queue | Exchange[Queue]] = {}
        for part in self._exchange.route_in_parts(key, {}, None):
            found.update(zip(map(id, part), part, strict=True))
            if len(found) > widest:
                break
        return list(found.values())

    def _of_bindings(self, bindings: list[Binding[Queue]]) -> QueueSet | None:
        widest = self._vhost.widest
        if len(bindings) > widest and self._exchange.destination_count > widest:
            return None
        gone = self._exchange.is_gone
        return self._of([one for one in destinations_of(in_order(bindings)) if not gone(one)])

    def _of(self, destinations: Collection[Queue | Exchange[Queue]]) -> QueueSet | None:
        queues: list[Queue] = []
        if len(destinations) > self._vhost.widest:
            return None
        for destination in destinations:
            if isinstance(destination, Exchange) or destination.limited:
                return None
            queues.append(destination)
        if not queues:
            return NO_QUEUES if self._vhost.alternate_of(self._exchange) is None else None
        if any(queue.is_stream is not queues[0].is_stream for queue in queues) or splits_transient(queues):
            return None
        return self._vhost.queue_set(tuple(queues))


class QueueSets:
    """The queue sets of one vhost, cached."""

    __slots__ = ("_by_ids",)

    def __init__(self) -> None:
        self._by_ids: dict[tuple[int, ...], QueueSet] = {}

    def of(self, queues: tuple[Queue, ...]) -> QueueSet:
        """The shared set of these queues."""
        key = tuple(queue.id for queue in queues)
        found = self._by_ids.get(key)
        if found is None:
            if len(self._by_ids) >= _SETS_MAX:
                self._by_ids.clear()
            found = self._by_ids[key] = QueueSet(queues)
        return found

    def clear(self) -> None:
        """Drop all sets, since a queue was deleted or its options changed."""
        self._by_ids.clear()
