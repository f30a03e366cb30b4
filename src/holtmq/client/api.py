"""The broker's HTTP calls as typed functions: push, pop, acknowledge, extend, commit.

Owns: paths, parameters and bodies of the calls that move messages, and decoding their responses. Transaction
ids are created here, before the first attempt, so that a push sent twice is stored once.
Must not touch: sockets, retries, when to call what.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec

from holtmq.client.errors import BadAnswer, OutcomeUnknown, PushFailed, TransactionFailed, ack_refusal
from holtmq.client.http1 import HangUp
from holtmq.client.records import (
    Ack,
    AckResult,
    Acks,
    Item,
    MessageKey,
    Popped,
    PushResult,
    PushStatus,
    Renewal,
    Status,
    TransactionResult,
)
from holtmq.client.transport import Attempts, Request, Transport

T = TypeVar("T")
Parameters = Mapping[str, str | int | bool | None]

_POLL_MARGIN: Final = 5.0  # seconds a response may take beyond the requested wait


class WireItem(msgspec.Struct, rename="camel", omit_defaults=True):
    """A push item on the wire. ``payload`` is always sent, even when null."""

    queue: str
    payload: msgspec.Raw
    transaction_id: str
    partition: str | None = None
    trace_id: str | None = None


class WireAck(msgspec.Struct, rename="camel", omit_defaults=True):
    """An acknowledgment on the wire."""

    transaction_id: str
    partition_id: str
    status: str
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None
    type: str | None = None  # only inside a transaction


class _PopAnswer(msgspec.Struct):
    messages: list[Popped] = []


@dataclass(frozen=True, slots=True)
class PopQuery:
    """What to pop. Without a queue: from every queue of the namespace and task."""

    queue: str = ""
    partition: str = ""
    namespace: str = ""
    task: str = ""
    group: str = ""
    batch: int = 1
    partitions: int = 1
    auto_ack: bool = False
    lease_seconds: int | None = None
    subscription_mode: str = ""
    subscription_from: str = ""

    def path(self, wait: float) -> str:
        path = "/api/v1/pop"
        if self.queue:
            path += f"/queue/{segment(self.queue)}"
            if self.partition:
                path += f"/partition/{segment(self.partition)}"
        return path + query_string(
            {
                "batch": self.batch,
                "wait": wait > 0,
                "timeout": max(1, round(wait * 1000)) if wait > 0 else None,
                "consumerGroup": self.group or None,
                "partitions": self.partitions if self.partitions > 1 else None,
                "autoAck": self.auto_ack or None,
                "leaseSeconds": self.lease_seconds,
                "subscriptionMode": self.subscription_mode or None,
                "subscriptionFrom": self.subscription_from or None,
                "namespace": None if self.queue else self.namespace or None,
                "task": None if self.queue else self.task or None,
            }
        )


class Api:
    """The broker's message calls: each method sends one request and decodes its response."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def push(self, items: Sequence[WireItem]) -> list[PushResult]:
        """Store all items. Raises ``PushFailed`` when the broker stored only some."""
        if not items:
            return []
        results = await self.send("POST", "/api/v1/push", {"items": items}, list[PushResult])
        failed = [result for result in results if result.status is PushStatus.FAILED]
        if failed:
            raise PushFailed(f"{len(failed)} of {len(items)} items failed: {failed[0].error}", results)
        return results

    async def pop(
        self, query: PopQuery, wait: float = 0.0, *, hang_up: HangUp | None = None, forever: bool = False
    ) -> list[Popped]:
        """Pop messages. Returns an empty list when none arrive within ``wait`` seconds."""
        request = Request(
            "GET",
            query.path(wait),
            seconds=wait + _POLL_MARGIN if wait > 0 else None,
            tries=None if forever else 0,
            waits=wait > 0,
        )
        answer = await self.transport.call(request, hang_up)
        return read(answer.body, _PopAnswer).messages if answer.body else []

    async def ack(self, message: MessageKey, status: Status, error: str | None = None) -> AckResult:
        """Settle one message; raise if the broker refuses."""
        results = await self.send(
            "POST", "/api/v1/ack", _wire_ack(Ack(message, status, error)), list[AckResult]
        )
        if len(results) != 1:
            raise BadAnswer(f"one acknowledgment was answered with {len(results)} results")
        if not results[0].success:
            raise ack_refusal(results[0].error)
        message.settled = status
        return results[0]

    async def ack_batch(self, acks: Acks) -> list[AckResult]:
        """Settle many messages. Each has its own result; a refused one raises nothing."""
        entries = [entry if isinstance(entry, Ack) else Ack(entry) for entry in acks]
        if not entries:
            return []
        groups = {entry.message.group for entry in entries}
        body: dict[str, object] = {"acknowledgments": [_wire_ack(entry) for entry in entries]}
        if len(groups) == 1:
            body["consumerGroup"] = groups.pop() or None
        results = await self.send("POST", "/api/v1/ack/batch", body, list[AckResult])
        if len(results) != len(entries):
            raise BadAnswer(f"{len(entries)} acknowledgments were answered with {len(results)} results")
        for entry, result in zip(entries, results, strict=True):
            if result.success:
                entry.message.settled = entry.status
        return results

    async def extend(self, lease_id: str, seconds: float | None) -> Renewal:
        """Extend a lease; ``success`` is false when it has expired."""
        body = None if seconds is None else {"seconds": seconds}
        return await self.send("POST", f"/api/v1/lease/{segment(lease_id)}/extend", body, Renewal)

    async def commit(self, items: Sequence[WireItem], acks: Sequence[Ack]) -> TransactionResult:
        """Apply all items and acks, or none."""
        operations: list[object] = []
        if items:
            operations.append({"type": "push", "items": items})
        operations += [_wire_ack(entry, "ack") for entry in acks]
        leases = sorted({entry.message.lease_id for entry in acks if entry.message.lease_id})
        body = msgspec.json.encode({"operations": operations, "requiredLeases": leases})
        attempts = Attempts()
        answer = await self.transport.call(Request("POST", "/api/v1/transaction", body), attempts=attempts)
        result = read(answer.body, TransactionResult)
        if result.success:
            for entry in acks:
                entry.message.settled = entry.status
            return result
        text = result.error or "the transaction was refused"
        if attempts.unclear and acks:
            # A repeated push is reported as a duplicate, but a repeated ack is refused: this may be the
            # second attempt of a commit whose response was lost.
            raise OutcomeUnknown(f"the connection broke during the commit; tried again: {text}")
        raise TransactionFailed(text)

    async def send(self, method: str, path: str, body: object, kind: type[T], *, tries: int | None = 0) -> T:
        """Send one request with a JSON body (None: no body) and decode the response as ``kind``."""
        raw = None if body is None else msgspec.json.encode(body)
        answer = await self.transport.call(Request(method, path, raw, tries=tries))
        return read(answer.body, kind)

    async def get(self, path: str, kind: type[T], parameters: Parameters | None = None) -> T:
        return await self.send("GET", path + query_string(parameters or {}), None, kind)


def wire_items(queue: str, partition: str, payloads: object) -> list[WireItem]:
    """Build push items from one payload, or from a list of payloads and ``Item``s."""
    if not queue:
        raise ValueError("a push needs the name of a queue")
    entries: Iterable[object] = payloads if isinstance(payloads, list | tuple) else (payloads,)
    items: list[WireItem] = []
    call = str(uuid4())  # one UUID for all items: creating one costs as much as the rest of an item
    for number, entry in enumerate(entries):
        item = entry if isinstance(entry, Item) else Item(entry)
        payload = msgspec.Raw(msgspec.json.encode(item.payload))
        name = item.transaction_id or (f"{call}-{number}" if number else call)
        items.append(WireItem(queue, payload, name, item.partition or partition or None, item.trace_id))
    return items


def read(body: bytes, kind: type[T]) -> T:
    """Decode the JSON of a response."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"the broker's answer cannot be read: {error}") from error


def segment(name: str) -> str:
    """Encode a name as one path segment."""
    if name in (".", ".."):  # proxies and servers normalize these, even percent-encoded
        raise ValueError(f"{name!r} cannot be part of an address")
    return quote(name, safe="")


def query_string(parameters: Parameters) -> str:
    """The query string with its question mark; parameters that are None are omitted."""
    pairs = [
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in parameters.items()
        if value is not None
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def iso(moment: datetime | str) -> str:
    """Format a time for the broker. A datetime without a zone is local time."""
    if isinstance(moment, str):
        return moment
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _wire_ack(entry: Ack, kind: str | None = None) -> WireAck:
    message = entry.message
    return WireAck(
        message.transaction_id,
        message.partition_id,
        entry.status.value,
        message.group or None,
        message.lease_id or None,
        entry.error,
        kind,
    )
