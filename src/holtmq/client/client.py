"""``Client``: the asyncio client for one broker or several.

Owns: the life cycle of connections, consumers and buffers. Must not touch: requests; ``api`` makes them.
"""

import asyncio
import logging
import signal
import ssl
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from holtmq.client.api import Api, PopQuery, segment
from holtmq.client.buffering import Outbox
from holtmq.client.consumption import Stoppable
from holtmq.client.errors import ClientError
from holtmq.client.grouping import Group
from holtmq.client.message import Message
from holtmq.client.options import QueueOptions
from holtmq.client.queue import Queue
from holtmq.client.records import (
    AckResult,
    Acks,
    GroupOnQueue,
    MessageKey,
    Popped,
    Renewal,
    Status,
    TraceEvent,
)
from holtmq.client.retrying import Backoff, default_backoff
from holtmq.client.transacting import Transaction
from holtmq.client.transport import Token, Transport

log = logging.getLogger(__name__)

DEFAULT_URL: Final = "http://127.0.0.1:6632"
STOP_SECONDS: Final = 30.0


class _Traced(msgspec.Struct):
    success: bool = True


class _Traces(msgspec.Struct):
    traces: list[TraceEvent] = []
    total: int = 0


class Client:
    """One per program is enough: it pools its connections.

    ``url`` may name several brokers: the first that answers is used until it fails. ``timeout`` applies to
    one attempt of one call; a waiting pop adds its own wait. ``token`` may be a function, called before every
    request; ``user`` and ``password`` are those of a broker user. Without credentials the address decides.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        token: Token | None = None,
        user: str | None = None,
        password: str = "",
        tls: ssl.SSLContext | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        backoff: Backoff | None = None,
        max_connections: int = 64,
        stop_timeout: float = STOP_SECONDS,
    ) -> None:
        urls = [url] if isinstance(url, str) else url
        self.api = Api(
            Transport(
                urls,
                token=token,
                login=None if user is None else (user, password),
                tls=tls,
                timeout=timeout,
                connect_timeout=connect_timeout,
                backoff=backoff or default_backoff(len(urls)),
                max_connections=max_connections,
            )
        )
        self._stop_timeout = stop_timeout
        self._running: set[Stoppable] = set()
        self._outboxes: list[Outbox] = []
        self._stops: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def stop(self, timeout: float | None = None) -> None:
        """Stop every ``consume`` gracefully (see ``Consumption.stop``). The client remains usable."""
        seconds = self._stop_timeout if timeout is None else timeout
        await asyncio.gather(*(running.stop(seconds) for running in list(self._running)))

    async def close(self) -> None:
        """Stop consuming, flush buffers, close connections. Raises if buffered messages were not stored."""
        try:
            await self.stop()
            outboxes, self._outboxes = self._outboxes, []
            results = await asyncio.gather(
                *(outbox.close(self._stop_timeout) for outbox in outboxes), return_exceptions=True
            )
        finally:
            await self.api.transport.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def stop_on_signals(self, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """From now on these signals stop every ``consume``, which then returns to its caller."""
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self.begin_stop)

    def begin_stop(self) -> None:
        """Start ``stop`` without waiting for it."""
        task = asyncio.get_running_loop().create_task(self.stop(), name="holt-stop")
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def queue(self, name: str = "") -> Queue[list[Message]]:
        """A queue; without a name, all queues of the ``namespace`` and ``task`` set on it."""
        return Queue(self, QueueOptions(PopQuery(queue=name)))

    def transaction(self) -> Transaction:
        """Acks and pushes that are applied together or not at all."""
        return Transaction(self)

    def group(self, name: str) -> Group:
        """A consumer group: its progress, start and cursors."""
        return Group(self, name)

    async def ack(self, message: MessageKey) -> AckResult:
        """Acknowledge. Raises ``LeaseLost`` when the message was or will be delivered again."""
        return await self.api.ack(message, Status.COMPLETED)

    async def nack(self, message: MessageKey, error: str | Exception | None = None) -> AckResult:
        """Report a failure: redeliver the message, or dead-letter it when the queue's retries are used up."""
        return await self.api.ack(message, Status.FAILED, None if error is None else str(error))

    async def release(self, message: MessageKey) -> AckResult:
        """Return the message, and those after it in its batch, without counting a retry."""
        return await self.api.ack(message, Status.RETRY)

    async def reject(self, message: MessageKey, error: str | Exception | None = None) -> AckResult:
        """Dead-letter the message at once."""
        return await self.api.ack(message, Status.DEAD_LETTER, None if error is None else str(error))

    async def ack_batch(self, acks: Acks) -> list[AckResult]:
        """Settle many: handled messages, or ``Ack(message, status, error)``. Check each result."""
        return await self.api.ack_batch(acks)

    async def renew(self, message: MessageKey, seconds: float | None = None) -> Renewal:
        """Extend the lease of a message and of all messages popped with it."""
        return await self.api.extend(message.lease_id, seconds)

    async def groups(self) -> list[GroupOnQueue]:
        """Every consumer group on every queue."""
        return await self.api.get("/api/v1/consumer-groups", list[GroupOnQueue])

    async def trace(
        self, message: MessageKey, data: object, *, names: str | Sequence[str] = (), event: str = "info"
    ) -> bool:
        """Record an event about a message; see ``Message.trace``."""
        body = {
            "transactionId": message.transaction_id,
            "partitionId": message.partition_id,
            "consumerGroup": message.group or None,
            "traceNames": [names] if isinstance(names, str) else list(names),
            "eventType": event,
            "data": data,
        }
        try:
            return (await self.api.send("POST", "/api/v1/traces", body, _Traced, tries=1)).success
        except ClientError as error:
            log.warning("a trace was not stored", extra={"reason": str(error)})
            return False

    async def traces(self, message: MessageKey) -> list[TraceEvent]:
        """Trace events of a message, oldest first."""
        path = f"/api/v1/traces/{segment(message.partition_id)}/{segment(message.transaction_id)}"
        found: list[TraceEvent] = []
        while True:
            page = await self.api.get(path, _Traces, {"offset": len(found)})
            found += page.traces
            if not page.traces or len(found) >= page.total:
                return found

    async def traces_named(self, name: str, *, limit: int = 100, offset: int = 0) -> list[TraceEvent]:
        """Trace events recorded under a name, for any message."""
        path = f"/api/v1/traces/by-name/{segment(name)}"
        return (await self.api.get(path, _Traces, {"limit": limit, "offset": offset})).traces

    def adopt(self, popped: Popped) -> Message:
        message = Message.of(popped)
        message._client = self
        return message

    def register(self, running: Stoppable) -> None:
        self._running.add(running)

    def unregister(self, running: Stoppable) -> None:
        self._running.discard(running)

    def register_outbox(self, outbox: Outbox) -> None:
        self._outboxes = [other for other in self._outboxes if not other.closed]
        self._outboxes.append(outbox)
