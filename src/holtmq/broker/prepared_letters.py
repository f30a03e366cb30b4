"""Dead letters of a large transaction, made in steps.

Owns: their headers and routes. Must not touch: queues and the journal, into which they get with the publishes
of the transaction (``publish/prepared.py``); which messages are dead-lettered (``prepared_settlements.py``);
how a single one is (``dead_lettering.py``).

To make a letter takes ten times as long as to prepare a publish, so the topology may well change meanwhile.
Then the few different routes are compared again, rather than all letters made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from holtmq.broker.message import Message, make_address
from holtmq.broker.publish.due_message import Origin
from holtmq.broker.publish.prepared import Outdated, PreparedPublishes, Unpreparable
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import Overflow, QueueOptions
from holtmq.broker.topology.routing import RouteResult
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.work.dead_letter import DeadLetter, dead_letter
from holtmq.broker.work.outcasts import Reason
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow

_COMPARED: Final = 500  # routes that are looked up again at the moment of the commit: about 3 ms


class PreparedLetters:
    """Dead letters of the queues of one vhost."""

    def __init__(self, flow: Flow, prepared: PreparedPublishes, vhost: VHost) -> None:
        self._flow = flow
        self._prepared = prepared
        self._vhost = vhost
        self._version = vhost.version
        self._routes: dict[tuple[QueueExchange, str], RouteResult[Queue]] = {}  # by exchange and key
        self._depends = False  # the routes of some letters depend on more than that
        self._exchanges: dict[WorkQueue, QueueExchange | None] = {}  # of queues with letters, as found
        self._passed_on: list[tuple[WorkQueue, QueueExchange, Message]] = []  # letters that were refused
        self._options: dict[WorkQueue, QueueOptions] = {}  # of the queues that refused them
        self._counts: Counter[WorkQueue] = Counter()  # letters by the queue that they come from

    def add(self, origin: WorkQueue, exchange: QueueExchange, reason: Reason, message: Message) -> None:
        """Make a letter."""
        prepared, now_ms = self._prepared, self._prepared.now_ms
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
        address, seq = make_address(exchange.name, keys[0]), prepared.next_seq()
        body, priority = message.body, message.priority
        moved = Message(seq, address, letter.header, body, now_ms, 0, priority, message.persistent)
        routes = self._routes_of(exchange, keys, letter)
        if routes is None:
            where = self._vhost.name, exchange.name
            prepared.accept(moved, where, Origin.LETTER, is_kept=moved.persistent)
            return
        queues = {
            queue.name: queue
            for route in routes
            for queue in route.queues
            if not letter.cycles_through(queue.name)
        }
        delays = {delay.exchange.name: delay.delay_ms for route in routes for delay in route.delays}
        histories = dict.fromkeys(history for route in routes for history in route.histories)
        if not (queues or delays or histories):
            return
        accepting = self._asked(queues.values(), origin, moved)
        targets = prepared.targets_of(accepting)
        for history in histories:
            prepared.keep(history, moved, letter.headers)
        moved.persistent = message.persistent or targets.persists
        prepared.push(moved, targets.streams)
        if targets.work_queues:
            prepared.place(moved, targets)
        for waits_at, delay_ms in delays.items():
            prepared.delay(moved, self._vhost.name, waits_at, now_ms + delay_ms)
        if accepting or delays:
            self._counts[origin] += 1

    def _routes_of(
        self, exchange: QueueExchange, keys: list[str], letter: DeadLetter
    ) -> list[RouteResult[Queue]] | None:
        """Where a letter goes by each key; None: to very many queues, or behind a letter that does."""
        vhost = self._vhost
        if self._prepared.is_lined_up(vhost, exchange):
            return None
        routes = [self._route(exchange, key, letter) for key in keys]
        is_wide = any(route.is_wide for route in routes)
        return None if is_wide or sum(len(route.queues) for route in routes) > vhost.widest else routes

    def _route(self, exchange: QueueExchange, key: str, letter: DeadLetter) -> RouteResult[Queue]:
        known = self._routes.get((exchange, key))
        if known is not None:
            return known
        vhost = self._vhost
        result = vhost.route_of_key(exchange, key)
        if not result.depends_on_message:
            self._routes[exchange, key] = result
            return result
        self._depends = True
        properties = self._flow.publish_properties.of(letter.header).hash_properties()
        return vhost.route(exchange, key, letter.headers, properties, widest=vhost.widest)

    def _asked(self, queues: Iterable[Queue], origin: WorkQueue, letter: Message) -> list[Queue]:
        """The queues that take a letter. One takes letters of its own even if it is full.

        A queue that refuses one may dead-letter it instead, as it does publishes.
        """
        size = len(letter.body)
        accepting: list[Queue] = []
        for queue in queues:
            if queue is not origin:
                if queue.refuses_when_full and self._flow.publishing.is_full(queue, size):
                    self._refuse(queue, letter)
                    continue
                self._prepared.room.dead_letter(queue, size)
            accepting.append(queue)
        return accepting

    def _refuse(self, queue: Queue, letter: Message) -> None:
        if isinstance(queue, WorkQueue):
            self._options[queue] = queue.options
            if queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
                exchange = self.exchange_of(queue)
                if exchange is not None:
                    self._passed_on.append((queue, exchange, letter))

    def pass_on(self) -> Iterator[None]:
        """Make the letters of letters that full queues have refused; an item is a letter."""
        for queue, exchange, letter in self._passed_on:  # grows; ends, since none passes a queue twice
            self.add(queue, exchange, Reason.MAXLEN, letter)
            yield

    def exchange_of(self, queue: WorkQueue) -> QueueExchange | None:
        """Where the letters of a queue go."""
        if queue not in self._exchanges:
            self._exchanges[queue] = self._find_exchange(queue)
        return self._exchanges[queue]

    def _find_exchange(self, queue: WorkQueue) -> QueueExchange | None:
        name = queue.options.dead_letter_exchange
        return self._vhost.exchanges.get(name) if name is not None else None

    def check(self) -> None:
        """Outdated unless the letters still go to the same queues, Unpreparable if they must wait in line."""
        if any(queue.options is not options for queue, options in self._options.items()):
            raise Outdated
        placings = self._flow.delays.placings
        for queue, exchange in self._exchanges.items():
            if self._find_exchange(queue) is not exchange:
                raise Outdated
            if exchange is not None and placings.has_line((queue.vhost, exchange.name)):
                raise Unpreparable  # an earlier letter is not in all its queues
        if self._vhost.version != self._version:
            self._compare_routes()

    def _compare_routes(self) -> None:
        vhost = self._vhost
        if self._depends or len(self._routes) > _COMPARED:
            raise Outdated
        if any(vhost.route_of_key(*where) != known for where, known in self._routes.items()):
            raise Outdated
        self._version = vhost.version

    def count(self) -> None:
        """Count the letters, which have been placed."""
        flow = self._flow
        flow.dead_lettering.count += self._counts.total()
        for origin, count in self._counts.items():
            origin.figures.dead_lettered(flow.now_ms, count)
