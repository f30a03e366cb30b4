"""Dead letters of a large transaction: made in steps, then placed at one moment.

Owns: their headers, queues and records until that moment. Must not touch: queues and the journal until then;
which messages are dead-lettered (``prepared_settlements.py``); how a single one is (``dead_lettering.py``).

To make a letter takes ten times as long as to prepare a publish, so the topology may well change meanwhile.
Then the few different routes are compared again, rather than all letters made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.broker.message import Message, encode_message, make_address
from holtmq.broker.publish.due_message import Origin
from holtmq.broker.publish.prepared import Outdated, PreparedPublishes, Unpreparable
from holtmq.broker.records.changes import Kind
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.targets import durable_ids, splits_transient
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.work.dead_letter import DeadLetter, dead_letter
from holtmq.broker.work.outcasts import Reason
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow

_MESSAGE: Final = int(Kind.MESSAGE)
_COMPARED: Final = 500  # routes that are looked up again at the moment of the commit: about 3 ms


class _Targets(NamedTuple):
    """The queues of some letters."""

    work_queues: tuple[WorkQueue, ...]
    durable_ids: bytes
    persists: bool  # also messages that are not persistent


class _Arrivals:
    """The letters for one queue."""

    __slots__ = ("bytes", "messages", "refusable", "refusable_bytes")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.bytes = 0
        self.refusable = 0  # of these, not from the queue itself, which takes its own even if it is full
        self.refusable_bytes = 0


class PreparedLetters:
    """Dead letters for the work queues of one vhost."""

    def __init__(self, flow: Flow, prepared: PreparedPublishes, vhost: VHost) -> None:
        self._flow = flow
        self._prepared = prepared
        self._vhost = vhost
        self._version = vhost.version
        self._routes: dict[tuple[QueueExchange, str], tuple[Queue, ...]] = {}  # by exchange and key
        self._exchanges: set[str] = set()  # that the letters are published to
        self._depends = False  # the routes of some letters depend on more than that
        self._targets: dict[tuple[int, ...], _Targets] = {}  # by ids of the queues
        self._arrivals: dict[WorkQueue, _Arrivals] = {}
        self._journalled: list[Message] = []
        self._offsets: list[int] = []  # of their records
        self._counts: dict[WorkQueue, int] = {}  # letters by the queue that they come from

    def add(self, origin: WorkQueue, exchange: QueueExchange, reason: Reason, message: Message) -> None:
        """Make a letter. Unpreparable: it is for a stream, or is delayed."""
        self._exchanges.add(exchange.name)
        now_ms = self._prepared.now_ms
        routing_key = origin.options.dead_letter_routing_key
        letter = dead_letter(
            message.header,
            message.exchange,
            message.routing_key,
            origin.name,
            reason.value,
            now_ms // 1000,
            keep_cc=routing_key is None,
        )
        keys = [routing_key] if routing_key is not None else letter.routing_keys
        queues = self._queues(exchange, keys, letter)
        if queues is None:
            address, seq = make_address(exchange.name, keys[0]), self._prepared.next_seq()
            moved = Message(
                seq, address, letter.header, message.body, now_ms, 0, message.priority, message.persistent
            )
            where = self._vhost.name, exchange.name
            self._prepared.accept(moved, where, Origin.LETTER, is_kept=moved.persistent)
            return
        if not queues:
            return
        targets = self._targets_of(queues.values())
        persistent = message.persistent or targets.persists
        address = make_address(exchange.name, keys[0])
        seq = self._prepared.next_seq()
        moved = Message(seq, address, letter.header, message.body, now_ms, 0, message.priority, persistent)
        if persistent and targets.durable_ids:
            record = encode_message(moved, targets.durable_ids)
            self._journalled.append(moved)
            self._offsets.append(self._prepared.add_record(_MESSAGE, record))
        for queue in targets.work_queues:
            self._arrive(queue, moved, queue is not origin)
        self._counts[origin] = self._counts.get(origin, 0) + 1

    def _queues(
        self, exchange: QueueExchange, keys: list[str], letter: DeadLetter
    ) -> dict[str, Queue] | None:
        """Where a letter goes; None: to very many queues, or behind a letter that does."""
        vhost = self._vhost
        if self._prepared.is_lined_up(vhost, exchange):
            return None
        queues: dict[str, Queue] = {}
        for key in keys:
            found = self._route(exchange, key, letter)
            if found is None or len(queues) + len(found) > vhost.widest:
                return None
            queues.update((queue.name, queue) for queue in found if not letter.cycles_through(queue.name))
        return queues

    def _route(self, exchange: QueueExchange, key: str, letter: DeadLetter) -> tuple[Queue, ...] | None:
        known = self._routes.get((exchange, key))
        if known is not None:
            return known
        vhost = self._vhost
        result = vhost.route_of_key(exchange, key)
        if result.depends_on_message:
            self._depends = True
            properties = self._flow.publish_properties.of(letter.header).hash_properties()
            result = vhost.route(exchange, key, letter.headers, properties, widest=vhost.widest)
        elif not result.is_wide:
            self._routes[exchange, key] = result.queues
        if result.is_wide:
            return None
        if result.delays or result.histories:
            raise Unpreparable
        return result.queues

    def _targets_of(self, queues: Iterable[Queue]) -> _Targets:
        found = tuple(queues)
        ids = tuple([queue.id for queue in found])
        known = self._targets.get(ids)
        if known is None:
            work_queues = tuple(queue for queue in found if isinstance(queue, WorkQueue))
            if len(work_queues) < len(found) or splits_transient(found):
                raise Unpreparable
            persists = any(queue.always_persists for queue in work_queues)
            known = self._targets[ids] = _Targets(work_queues, durable_ids(work_queues), persists)
        return known

    def _arrive(self, queue: WorkQueue, letter: Message, refusable: bool) -> None:
        arrivals = self._arrivals.get(queue)
        if arrivals is None:
            arrivals = self._arrivals[queue] = _Arrivals()
        arrivals.messages.append(letter)
        arrivals.bytes += len(letter.body)
        if refusable:
            arrivals.refusable += 1
            arrivals.refusable_bytes += len(letter.body)

    def check(self, returning: Callable[[WorkQueue], tuple[int, int]]) -> None:
        """Outdated unless the letters still go to the same queues, Unpreparable if one of these is too full.

        ``returning``: messages and bytes that return to a queue in this transaction.
        """
        placings, vhost = self._flow.delays.placings, self._vhost
        if any(placings.has_line((vhost.name, name)) for name in self._exchanges):
            raise Unpreparable  # they must not overtake a letter that is placed in steps
        if vhost.version != self._version:
            self._compare_routes()
        for queue, arrivals in self._arrivals.items():
            if queue.refuses_when_full and arrivals.refusable:
                published, published_bytes = self._prepared.on_the_way(queue)
                returned, returned_bytes = returning(queue)
                others = published_bytes + returned_bytes
                count = published + returned + arrivals.refusable
                if queue.is_full(0, count - 1, others + arrivals.refusable_bytes):
                    raise Unpreparable

    def _compare_routes(self) -> None:
        vhost = self._vhost
        if self._depends or len(self._routes) > _COMPARED:
            raise Outdated
        for (exchange, key), queues in self._routes.items():
            found = vhost.route_of_key(exchange, key)
            if found.queues != queues or found.depends_on_message or found.is_wide or found.histories:
                raise Outdated
        self._version = vhost.version

    def place(self, base: int) -> None:
        """Put the letters into their queues; their record was written at ``base``."""
        flow = self._flow
        for message, offset in zip(self._journalled, self._offsets, strict=True):
            message.position = base + offset
        for queue, arrivals in self._arrivals.items():
            flow.place_all(queue, arrivals.messages, arrivals.bytes)
        for origin, count in self._counts.items():
            flow.dead_lettering.count += count
            origin.figures.dead_lettered(flow.now_ms, count)
