"""``SyncClient``: the same client for programs without an event loop.

Owns: the sync counterpart of every async class; each holds the async object and waits for it. Handlers run
in threads. Must not touch: calls, retries, the consume loop; none of it is duplicated here.
"""

import asyncio
import signal
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from holtmq.client.api import PopQuery
from holtmq.client.bridge import Face, blocking
from holtmq.client.client import DEFAULT_URL, STOP_SECONDS, Client
from holtmq.client.consuming import Consumed, Hooks
from holtmq.client.consumption import Running
from holtmq.client.dead_letters import DeadLetterFilter, DeadLetters, DeadLetterWords
from holtmq.client.grouping import Group
from holtmq.client.loop_thread import LoopThread
from holtmq.client.message import Message
from holtmq.client.options import QueueOptions, QueueWords
from holtmq.client.queue import Buffer, Queue
from holtmq.client.records import AckResult, DeadLetter, Delivery, Popped, Renewal
from holtmq.client.retrying import Backoff
from holtmq.client.transacting import Transaction, TransactionWords
from holtmq.client.transport import Token

U = TypeVar("U")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class SyncMessage(Delivery):
    """A message under a lease."""

    _client: "SyncClient | None" = field(default=None, repr=False)

    @property
    def client(self) -> "SyncClient":
        if self._client is None:
            raise RuntimeError("this message was not popped by a client")
        return self._client

    def ack(self) -> AckResult:
        """See ``Message.ack``; the same holds for the other methods."""
        return self.client.ack(self)

    def nack(self, error: str | Exception | None = None) -> AckResult:
        return self.client.nack(self, error)

    def renew(self, seconds: float | None = None) -> Renewal:
        return self.client.renew(self, seconds)

    def trace(self, data: object, *, names: str | Sequence[str] = (), event: str = "info") -> bool:
        return self.client.trace(self, data, names=names, event=event)


class SyncConsumption(Generic[U]):
    """``run`` it to consume until it ends, or ``start`` it in the background and ``stop`` it later."""

    def __init__(self, client: "SyncClient", options: QueueOptions, handler: Callable[[U], object]) -> None:
        self._client = client
        self._each = options.each
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="holt-handler")
        self._hooks: Hooks[SyncMessage] = Hooks(lambda unit: self._aside(lambda: handler(self._unit(unit))))
        self._running = client.on_loop(lambda: Running(client.twin, options, client.adopt, self._hooks))

    def on_success(self, callback: Callable[[U], object]) -> Self:
        self._hooks.succeeded = lambda unit: self._aside(lambda: callback(self._unit(unit)))
        return self

    def on_error(self, callback: Callable[[U, Exception], object]) -> Self:
        self._hooks.failed = lambda unit, error: self._aside(lambda: callback(self._unit(unit), error))
        return self

    def run(self) -> Consumed:
        """Consume until a stop, ``limit`` or ``idle``; return the counts."""
        return self.start().wait()

    def start(self) -> Self:
        """Consume in the background."""
        self._client.on_loop(self._running.start)
        return self

    def wait(self) -> Consumed:
        """Wait for the end. On Ctrl-C, release messages that are not finished."""
        try:
            return self._client.thread.run(self._running.wait())
        finally:
            self._threads.shutdown(wait=False)

    def stop(self, timeout: float | None = None) -> None:
        """As in the async API, but handlers in threads cannot be cancelled: they go on after the timeout."""
        self._client.thread.run(self._running.stop(timeout))
        self._threads.shutdown(wait=False)

    @property
    def done(self) -> Consumed:
        return self._running.done

    async def _aside(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _unit(self, messages: Sequence[SyncMessage]) -> U:
        return cast(U, messages[0] if self._each else messages)


class SyncQueue(QueueWords, Face[Queue[list[Message]]], Generic[U]):
    """See ``Queue``."""

    def __init__(self, client: "SyncClient", options: QueueOptions) -> None:
        super().__init__(options)
        self._client = client
        self._thread = client.thread

    @property
    def twin(self) -> Queue[list[Message]]:
        return Queue(self._client.twin, self._options)

    def _with(self, options: QueueOptions) -> Self:
        return type(self)(self._client, options)

    def each(self) -> "SyncQueue[SyncMessage]":
        """Pass handlers one message at a time."""
        return SyncQueue(self._client, replace(self._options, each=True))

    def pop(self, *, wait: float = 0.0) -> list[SyncMessage]:
        """See ``Queue.pop``."""
        popped = self._thread.run(self._client.twin.api.pop(self._options.pop, wait))
        return [self._client.adopt(message) for message in popped]

    def consume(self, handler: Callable[[U], object]) -> SyncConsumption[U]:
        """See ``Queue.consume``. Handlers run in threads, ``concurrency`` of them."""
        return SyncConsumption(self._client, self._options, handler)

    def dlq(self, group: str = "") -> "SyncDeadLetters":
        pop = self._options.pop
        chosen = DeadLetterFilter(pop.queue, group or pop.group, partition=pop.partition)
        return SyncDeadLetters(self._client, chosen)

    def buffer(self, *, count: int = 100, seconds: float = 0.05, most: int = 10_000) -> "SyncBuffer":
        """See ``Queue.buffer``."""
        twin = self.twin
        return SyncBuffer(
            self._thread, self._client.on_loop(lambda: twin.buffer(count=count, seconds=seconds, most=most))
        )

    push = blocking(Queue[list[Message]].push)
    configure = blocking(Queue[list[Message]].configure)
    create = blocking(Queue[list[Message]].create)
    delete = blocking(Queue[list[Message]].delete)
    seek = blocking(Queue[list[Message]].seek)
    seek_to_end = blocking(Queue[list[Message]].seek_to_end)


class SyncBuffer(Face[Buffer]):
    """See ``Buffer``."""

    def __init__(self, thread: LoopThread, twin: Buffer) -> None:
        self._thread = thread
        self._twin = twin

    @property
    def twin(self) -> Buffer:
        return self._twin

    def __len__(self) -> int:
        return len(self._twin)

    push = blocking(Buffer.push)
    flush = blocking(Buffer.flush)
    close = blocking(Buffer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncDeadLetters(DeadLetterWords, Face[DeadLetters]):
    """See ``DeadLetters``."""

    def __init__(self, client: "SyncClient", chosen: DeadLetterFilter) -> None:
        super().__init__(chosen)
        self._client = client
        self._thread = client.thread

    @property
    def twin(self) -> DeadLetters:
        return DeadLetters(self._client.twin, self._chosen)

    def _with(self, chosen: DeadLetterFilter) -> Self:
        return type(self)(self._client, chosen)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self._thread.run(self.twin.all()))

    get = blocking(DeadLetters.get)
    all = blocking(DeadLetters.all)
    replay = blocking(DeadLetters.replay)
    replay_all = blocking(DeadLetters.replay_all)
    purge = blocking(DeadLetters.purge)


class SyncTransaction(TransactionWords, Face[Transaction]):
    """See ``Transaction``."""

    def __init__(self, client: "SyncClient") -> None:
        super().__init__()
        self._client = client
        self._thread = client.thread

    @property
    def twin(self) -> Transaction:
        twin = Transaction(self._client.twin)
        twin.share(self)
        return twin

    commit = blocking(Transaction.commit)


class SyncGroup(Face[Group]):
    """See ``Group``."""

    def __init__(self, client: "SyncClient", name: str) -> None:
        self._thread = client.thread
        self._twin = Group(client.twin, name)

    @property
    def twin(self) -> Group:
        return self._twin

    partitions = blocking(Group.partitions)
    delete = blocking(Group.delete)
    start_from = blocking(Group.start_from)
    seek = blocking(Group.seek)


class SyncClient(Face[Client]):
    """See ``Client``: same parameters, same methods, no ``await``. Safe to share between threads."""

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
        self._twin = Client(
            url,
            token=token,
            user=user,
            password=password,
            tls=tls,
            timeout=timeout,
            connect_timeout=connect_timeout,
            backoff=backoff,
            max_connections=max_connections,
            stop_timeout=stop_timeout,
        )
        self._thread = LoopThread()

    @property
    def twin(self) -> Client:
        return self._twin

    @property
    def thread(self) -> LoopThread:
        return self._thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """See ``Client.close``."""
        if not self._thread.alive:
            return
        try:
            self._thread.run(self._twin.close())
        finally:
            self._thread.close()

    def stop_on_signals(self, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """See ``Client.stop_on_signals``. Call it from the main thread."""
        for number in signals:
            signal.signal(number, lambda *_: self._thread.call(self._twin.begin_stop))

    def queue(self, name: str = "") -> SyncQueue[list[SyncMessage]]:
        """See ``Client.queue``."""
        return SyncQueue(self, QueueOptions(PopQuery(queue=name)))

    def transaction(self) -> SyncTransaction:
        """See ``Client.transaction``."""
        return SyncTransaction(self)

    def group(self, name: str) -> SyncGroup:
        """See ``Client.group``."""
        return SyncGroup(self, name)

    stop = blocking(Client.stop)
    ack = blocking(Client.ack)
    nack = blocking(Client.nack)
    release = blocking(Client.release)
    reject = blocking(Client.reject)
    ack_batch = blocking(Client.ack_batch)
    renew = blocking(Client.renew)
    groups = blocking(Client.groups)
    trace = blocking(Client.trace)
    traces = blocking(Client.traces)
    traces_named = blocking(Client.traces_named)

    def adopt(self, popped: Popped) -> SyncMessage:
        message = SyncMessage.of(popped)
        message._client = self
        return message

    def on_loop(self, work: Callable[[], T]) -> T:
        """Run a plain function on the loop's thread; return its result."""

        async def there() -> T:
            return work()

        return self._thread.run(there())
