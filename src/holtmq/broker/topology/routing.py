"""Routing: from the exchange a message was published to, to its queues.

Owns: the walk over exchange-to-exchange bindings and alternate exchanges, and where a delay interrupts it.
Must not touch: what happens to the message in those queues; ``CC`` and ``BCC`` (the caller routes each key).
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Generic, cast

from holtmq.broker.topology.destinations import Q, Table
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.recent_history import RecentHistory

_name: Final = attrgetter("name")
_EXCHANGE: Final = 3  # bindings that are looked at in the time that it takes to pass an exchange
_FAR: Final = 2_000  # exchanges to pass: about 5 ms
_NO_TABLE: Mapping[str, object] = {}
_MAX_DELAY_MS = 2**32 - 1  # the limit of RabbitMQ's delayed-message plugin


@dataclass(frozen=True, slots=True)
class Delay(Generic[Q]):
    """The message must wait; then the caller routes it from ``exchange`` with ``delay_served``."""

    exchange: Exchange[Q]
    delay_ms: int


@dataclass(frozen=True, slots=True)
class RouteResult(Generic[Q]):
    queues: tuple[Q, ...]
    # True when the route can depend on headers or properties, or varies per message. Then it must not be
    # cached by key, and a caller that passed None (to save decoding them) must route again with them.
    depends_on_message: bool
    delays: tuple[Delay[Q], ...] = ()
    histories: tuple[RecentHistory, ...] = ()  # of the exchanges it passed: each keeps a copy
    is_wide: bool = False  # it is not complete


def route(
    exchange: Exchange[Q],
    routing_key: str,
    headers: Table | None,
    find_queue: Callable[[str], Q | None],
    alternate_of: Callable[[Exchange[Q]], Exchange[Q] | None],
    properties: Table | None = None,
    delay_served: bool = False,
    widest: int = sys.maxsize,
) -> RouteResult[Q]:
    """Every queue that the message reaches, each once, nearest exchange first.

    If there are more than ``widest``, only some of them, and ``is_wide``; also if the way to them is long.

    As in RabbitMQ, the alternate exchange is used when the exchange itself has no match. A bound exchange
    counts as a match even if it leads to no queue. Each exchange is visited once, so cycles end.
    """
    walk = RouteWalk(exchange, routing_key, headers, find_queue, alternate_of, properties, delay_served)
    queues: dict[str, Q] = {}
    is_wide = False
    for part in walk:
        if len(part) == 1:
            queues.setdefault(part[0].name, part[0])
        else:
            queues.update(zip(map(_name, part), part, strict=True))
        if len(queues) > widest or (walk.passed > _FAR and widest < sys.maxsize):
            is_wide = True
            break
    return RouteResult(
        tuple(queues.values()),
        walk.depends,
        tuple(walk.delays),
        tuple(walk.histories),
        is_wide,
    )


class RouteWalk(Generic[Q]):
    """``route``, in parts, each of which takes about a millisecond at most. A queue may be in several
    parts. The topology may change between them; ``delays`` and ``histories`` are complete at the end."""

    __slots__ = ("_parts", "delays", "depends", "histories", "looked_at", "passed")

    def __init__(
        self,
        exchange: Exchange[Q],
        routing_key: str,
        headers: Table | None,
        find_queue: Callable[[str], Q | None],
        alternate_of: Callable[[Exchange[Q]], Exchange[Q] | None],
        properties: Table | None = None,
        delay_served: bool = False,
    ) -> None:
        self.depends = False
        self.looked_at = 0  # bindings, in the parts so far
        self.passed = 0  # exchanges, or to be passed
        self.delays: list[Delay[Q]] = []
        self.histories: list[RecentHistory] = []
        self._parts = self._walk(
            exchange,
            routing_key,
            _NO_TABLE if headers is None else headers,
            find_queue,
            alternate_of,
            properties,
            delay_served,
        )

    def __iter__(self) -> Iterator[list[Q]]:
        """The queues, nearest exchange first."""
        return self._parts

    def _walk(
        self,
        exchange: Exchange[Q],
        routing_key: str,
        headers: Table,
        find_queue: Callable[[str], Q | None],
        alternate_of: Callable[[Exchange[Q]], Exchange[Q] | None],
        properties: Table | None,
        delay_served: bool,
    ) -> Iterator[list[Q]]:
        delay_ms = 0 if delay_served else delay_of(headers)
        seen = {exchange.name}
        work = [exchange]
        for current in work:  # grows in the loop: breadth first
            self.depends = self.depends or current.needs_headers or current.needs_properties or current.varies
            if current.is_delayed and not delay_served:
                self.depends = True
                if delay_ms:
                    self.delays.append(Delay(current, delay_ms))
                    continue
            if current.history is not None:
                self.histories.append(current.history)
            matches = False
            if current.is_default:
                queue = find_queue(routing_key)
                if queue is not None:
                    matches = True
                    yield [queue]
            else:
                for part in current.route_in_parts(routing_key, headers, properties):
                    matches = matches or bool(part)
                    self.looked_at += max(len(part), current.compared, _EXCHANGE)
                    if Exchange in set(map(type, part)):
                        further = [one for one in part if isinstance(one, Exchange) and one.name not in seen]
                        seen.update(map(_name, further))
                        work += further
                        self.passed += len(further)
                        yield [one for one in part if not isinstance(one, Exchange)]
                    else:
                        yield cast("list[Q]", part)
            if (
                not matches
                and (alternate := alternate_of(current)) is not None
                and alternate.name not in seen
            ):
                seen.add(alternate.name)
                work.append(alternate)
                self.passed += 1


def delay_of(headers: Table) -> int:
    """How many milliseconds a delayed exchange holds a message; 0 unless x-delay is a positive integer."""
    delay = headers.get("x-delay")
    if not isinstance(delay, int) or isinstance(delay, bool) or delay <= 0:
        return 0
    return min(delay, _MAX_DELAY_MS)
