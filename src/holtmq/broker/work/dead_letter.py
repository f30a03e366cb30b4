"""How a message's headers change when it is dead-lettered.

Owns: the ``x-death`` history, the first and last death, and the rule that ends dead-letter cycles.
Must not touch: routing and queues. All other properties keep their bytes.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final

from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import PROPERTIES_AT, raw_headers, read_content_header, with_headers
from holtmq.wire.tables import FieldTable, FieldValue, Long

_REJECTED: Final = "rejected"
_HEADER_BYTES: Final = 400  # decoded and encoded in the time that the rest of a dead letter takes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead-lettered message, ready to be published again."""

    header: bytes
    headers: FieldTable
    routing_keys: list[str]  # its own key and the CC keys; BCC was removed at publish
    deaths: list[FieldTable]

    def cycles_through(self, queue: str) -> bool:
        """Whether it died in this queue before and was never rejected since: it would cycle for ever."""
        return queue in _cycling(self.deaths)


def dead_letter(
    header: bytes,
    exchange: str,
    routing_key: str,
    queue: str,
    reason: str,
    now_s: int,
    *,
    keep_cc: bool = True,
) -> DeadLetter:
    """Add a death to a message's headers and remove its expiration.

    With a dead-letter routing key the CC keys no longer apply: pass ``keep_cc=False`` to remove the header.
    """
    property_bytes = header[PROPERTIES_AT:]
    try:
        headers = raw_headers(property_bytes)
    except CodecError:
        headers = {}  # not decoded until now; a malformed table must not prevent dead-lettering
    cc = headers.get("CC")
    keys = [routing_key, *(key for key in (cc if isinstance(cc, list) else []) if isinstance(key, str))]
    expiration = read_content_header(header).expiration
    deaths = _with_death(_history(headers), exchange, keys, queue, reason, now_s, expiration)
    changed: FieldTable = dict(headers)
    if not keep_cc:
        changed.pop("CC", None)
    history: list[FieldValue] = [death for death in deaths]  # noqa: C416 (list is invariant)
    changed["x-death"] = history
    if "x-first-death-queue" not in headers:
        changed["x-first-death-exchange"] = exchange
        changed["x-first-death-queue"] = queue
        changed["x-first-death-reason"] = reason
    changed["x-last-death-exchange"] = exchange
    changed["x-last-death-queue"] = queue
    changed["x-last-death-reason"] = reason
    rewritten = with_headers(property_bytes, changed, drop_expiration=True)
    return DeadLetter(header[:PROPERTIES_AT] + rewritten, changed, keys, deaths)


def letter_work(header: bytes) -> int:
    """How many short dead letters take as long as that of a message with this content header."""
    return 1 + len(header) // _HEADER_BYTES


def cycling_queues(header: bytes) -> frozenset[str]:
    """The queues that a dead letter with this content header must not enter."""
    try:
        return _cycling(_history(raw_headers(header[PROPERTIES_AT:])))
    except CodecError:
        return frozenset()


def _cycling(deaths: list[FieldTable]) -> frozenset[str]:
    """Where a message has died since it was last rejected; the latest death is first."""
    since = takewhile(lambda death: death.get("reason") != _REJECTED, deaths)
    return frozenset([_word(death.get("queue")) for death in since])


@dataclass(frozen=True, slots=True)
class Death:
    """The latest death of a message."""

    queue: str
    reason: str
    exchange: str
    routing_key: str
    at_s: int | None
    count: int  # over all its deaths


def last_death(header: bytes) -> Death | None:
    """The latest death in a content header; None when it has none."""
    try:
        headers = raw_headers(header[PROPERTIES_AT:])
    except CodecError:
        return None
    history = _history(headers)
    if not history:
        return None
    death = history[0]
    keys, at = death.get("routing-keys"), death.get("time")
    return Death(
        _word(death.get("queue")),
        _word(death.get("reason")),
        _word(death.get("exchange")),
        _word(keys[0]) if isinstance(keys, list) and keys else "",
        int(at.timestamp()) if isinstance(at, datetime) else None,
        sum(_count(death) for death in history),
    )


def _word(value: FieldValue) -> str:
    return value if isinstance(value, str) else ""


def _history(headers: FieldTable) -> list[FieldTable]:
    deaths = headers.get("x-death")
    # A client may have sent anything under this name; ignore what we could not have written.
    if not isinstance(deaths, list):
        return []
    return [{**death, "count": _count(death)} for death in deaths if isinstance(death, dict)]


def _count(death: FieldTable) -> Long:
    """Always 64 bits on the wire, as in RabbitMQ: Java and Go clients cast it to that type."""
    count = death.get("count")
    return Long(count) if isinstance(count, int) else Long(0)


def _with_death(
    history: list[FieldTable],
    exchange: str,
    keys: list[str],
    queue: str,
    reason: str,
    now_s: int,
    expiration: bytes | None,
) -> list[FieldTable]:
    """One entry per (queue, reason), latest first."""
    for at, death in enumerate(history):
        if death.get("queue") == queue and death.get("reason") == reason:
            again: FieldTable = {**death, "count": Long(_count(death) + 1)}
            return [again, *history[:at], *history[at + 1 :]]
    routing_keys: list[FieldValue] = [key for key in keys]  # noqa: C416
    death = {
        "count": Long(1),
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(now_s, UTC),
        "exchange": exchange,
        "routing-keys": routing_keys,
    }
    if expiration is not None:
        death["original-expiration"] = expiration.decode("utf-8", "replace")
    return [death, *history]
