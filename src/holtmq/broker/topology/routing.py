"""Routing: from the exchange a message was published to, to its queues.

Owns: the walk over exchange-to-exchange bindings and alternate exchanges, and where a delay interrupts it.
Must not touch: what happens to the message in those queues; ``CC`` and ``BCC`` (the caller routes each key).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from holtmq.broker.topology.destinations import Q, Table
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.recent_history import RecentHistory

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


def route(
    exchange: Exchange[Q],
    routing_key: str,
    headers: Table | None,
    find_queue: Callable[[str], Q | None],
    alternate_of: Callable[[Exchange[Q]], Exchange[Q] | None],
    properties: Table | None = None,
    delay_served: bool = False,
) -> RouteResult[Q]:
    """Every queue that the message reaches, each once, nearest exchange first.

    As in RabbitMQ, the alternate exchange is used when the exchange itself has no match. A bound exchange
    counts as a match even if it leads to no queue. Each exchange is visited once, so cycles end.
    """
    headers = _NO_TABLE if headers is None else headers
    delay_ms = 0 if delay_served else delay_of(headers)
    queues: dict[str, Q] = {}
    delays: list[Delay[Q]] = []
    histories: list[RecentHistory] = []
    depends = False
    seen = {exchange.name}
    work = [exchange]
    for current in work:  # grows in the loop: breadth first
        depends = depends or current.needs_headers or current.needs_properties or current.varies
        if current.is_delayed and not delay_served:
            depends = True
            if delay_ms:
                delays.append(Delay(current, delay_ms))
                continue
        if current.history is not None:
            histories.append(current.history)
        if current.is_default:
            queue = find_queue(routing_key)
            destinations: list[Q | Exchange[Q]] = [] if queue is None else [queue]
        else:
            destinations = current.route(routing_key, headers, properties)
        if not destinations and (alternate := alternate_of(current)) is not None:
            destinations = [alternate]
        for destination in destinations:
            if not isinstance(destination, Exchange):
                queues.setdefault(destination.name, destination)
            elif destination.name not in seen:
                seen.add(destination.name)
                work.append(destination)
    return RouteResult(tuple(queues.values()), depends, tuple(delays), tuple(histories))


def delay_of(headers: Table) -> int:
    """How many milliseconds a delayed exchange holds a message; 0 unless x-delay is a positive integer."""
    delay = headers.get("x-delay")
    if not isinstance(delay, int) or isinstance(delay, bool) or delay <= 0:
        return 0
    return min(delay, _MAX_DELAY_MS)
