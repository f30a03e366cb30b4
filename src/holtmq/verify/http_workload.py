"""The HTTP workload: producers, a worker with leases, and a client that moves messages in transactions.

Owns: what HTTP clients do until the broker is killed, and reading the queues as a consumer group.
Must not touch: verdicts; every step is written into the record before or after it, never guessed.

A place in the record is one partition as its group sees it: the messages the group has not settled.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypedDict

import msgspec

from holtmq.verify.http_client import HttpClient
from holtmq.verify.record import Record, make_body
from holtmq.verify.workload import Gone, Ports, Watch, Workload, connect_all, raise_unless_gone

# Different from the other workload's names: one name is one queue.
STORE: Final = "log.store"  # pushed to, never consumed
JOBS: Final = "log.jobs"
IN: Final = "log.in"
OUT: Final = "log.out"
AUDIT: Final = "log.audit"
QUEUES: Final = (STORE, JOBS, IN, OUT, AUDIT)
PARTITIONS: Final = ("north", "south", "west")
GROUP: Final = "verifiers"

_BATCH_MAX: Final = 6
_PADDING_MAX: Final = 2_000
_PER_TRANSACTION: Final = 3
_MOST: Final = 5_000  # messages in one answer; more of one partition cannot be leased at the same time
_MOST_BYTES: Final = 11 << 20  # in one answer
_UNREAD: Final = 1_500  # messages of a producer until the next reading, at most: see _MOST
_REST_SECONDS: Final = 0.1
_IDLE_MS: Final = 200
_NO_LEASE: Final = b'"invalid_lease"'
_BUFFERED: Final = "buffered"  # during maintenance: in the spool
# Settled messages are deleted soon, so that segments empty and are compacted while the check runs.
_OPTIONS: Final = {"leaseTime": 300, "retentionEnabled": True, "completedRetentionSeconds": 1}


class _Batch(TypedDict):
    consumerGroup: str
    acknowledgments: list[dict[str, str]]


class _Pushed(msgspec.Struct):
    status: str


class PoppedMessage(msgspec.Struct, rename="camel"):
    """A message under a lease."""

    transaction_id: str
    partition_id: str
    partition: str
    lease_id: str
    data: str


class _Popped(msgspec.Struct):
    messages: list[PoppedMessage]


class _Verdict(msgspec.Struct):
    success: bool
    error: str | None = None


_pushed: Final = msgspec.json.Decoder(list[_Pushed]).decode
_popped: Final = msgspec.json.Decoder(_Popped).decode
_verdicts: Final = msgspec.json.Decoder(list[_Verdict]).decode
_committed: Final = msgspec.json.Decoder(_Verdict).decode


@dataclass(slots=True)
class _Producer:
    """One publisher across all runs of the broker; it repeats pushes that were not answered."""

    name: str
    queue: str
    in_doubt: list[dict[str, str]] = field(default_factory=list)
    unread: int = 0  # pushed since the last reading


class HttpWorkload:
    """The clients and queues of the HTTP workload."""

    def __init__(self) -> None:
        self.record = Record()
        self.watch = Watch()
        self._producers = (
            _Producer("s", STORE),
            _Producer("t", STORE),
            _Producer("j", JOBS),
            _Producer("i", IN),
        )
        self._being_read: list[list[PoppedMessage]] = []

    async def prepare(self, ports: Ports) -> None:
        """Create queues that delete settled messages."""
        with closing(await HttpClient.connect(ports.http)) as client:
            for queue in QUEUES:
                status, body = await client.post("/api/v1/configure", {"queue": queue, "options": _OPTIONS})
                if status != 200:
                    raise Gone(f"a queue could not be made: {body[:200]!r}")

    async def read(self, ports: Ports) -> dict[str, list[bytes]]:
        """Lease everything the group has not settled; ``finish_reading`` releases it."""
        with closing(await HttpClient.connect(ports.http)) as client:
            leased = await lease_all(client, QUEUES, PARTITIONS, self._being_read)
        for producer in self._producers:
            producer.unread = 0
        return bodies_of(leased)

    async def finish_reading(self, ports: Ports, most: int) -> None:
        """Release the leases. Of a place with too many messages, ack the last one, which settles all."""
        with closing(await HttpClient.connect(ports.http)) as client:
            await let_go(client, self, self._being_read, most, lambda message: message.transaction_id)

    async def work(self, ports: Ports, random: Random) -> None:
        """Run all clients until each producer has lost its connection: then there is nothing to consume."""
        seeds = [Random(random.random()) for _ in range(len(self._producers) + 2)]
        try:
            clients = await connect_all(HttpClient.connect, ports.http, len(seeds))
        except Gone:
            return
        producing = asyncio.gather(
            *[
                self._produce(client, producer, seed)
                for client, producer, seed in zip(clients, self._producers, seeds, strict=False)
            ],
            return_exceptions=True,
        )
        consuming = asyncio.gather(
            self._consume(clients[-2], seeds[-2]), self._move(clients[-1], seeds[-1]), return_exceptions=True
        )
        outcomes: list[BaseException | None] = list(await producing)
        for client in clients:
            client.close()
        outcomes += await consuming
        raise_unless_gone(outcomes)

    async def _produce(self, client: HttpClient, producer: _Producer, random: Random) -> None:
        """Push batch after batch; first repeat what the last run did not answer."""
        if producer.in_doubt:
            for item in producer.in_doubt:
                self.record.send_again(item["transactionId"])
            for item, status in zip(
                producer.in_doubt, await self._push(client, producer.in_doubt), strict=True
            ):
                # The spool does not check for duplicates yet: the response only says that the push is kept.
                stored = None if status == _BUFFERED else status == "queued"
                self.record.sent_again(item["transactionId"], stored=stored)
            producer.in_doubt = []
        while True:
            if producer.unread >= _UNREAD:
                await asyncio.sleep(_REST_SECONDS)
                await client.get("/ready")  # finds out that the connection is lost
                continue
            items = producer.in_doubt = [
                self._item(producer, random) for _ in range(random.randint(1, _BATCH_MAX))
            ]
            began = time.perf_counter()
            statuses = await self._push(client, items)
            self.watch.confirm_seconds.append(time.perf_counter() - began)
            if any(status not in ("queued", _BUFFERED) for status in statuses):
                raise self.watch.refuse("a new message was taken for another")
            producer.in_doubt = []
            producer.unread += len(items)
            for item in items:
                self.record.confirm(item["transactionId"])
            self.watch.on_promise()

    def _item(self, producer: _Producer, random: Random) -> dict[str, str]:
        partition = random.choice(PARTITIONS)
        name = self.record.next_name(place_of(producer.queue, partition), producer.name)
        return new_item(producer.queue, partition, name, int(random.random() ** 3 * _PADDING_MAX))

    async def _push(self, client: HttpClient, items: list[dict[str, str]]) -> list[str]:
        status, body = await client.post("/api/v1/push", {"items": items})
        if status != 201:
            raise self.watch.refuse(f"a push was refused: {body[:200]!r}")
        return [answer.status for answer in _pushed(body)]

    async def _consume(self, client: HttpClient, random: Random) -> None:
        """Lease batches; ack them whole, one by one, by their last message, or in part."""
        while True:
            messages = await pop(client, JOBS, random.randint(1, 12), random.randint(1, 3), _IDLE_MS)
            for partition in {message.partition: None for message in messages}:
                mine = [message for message in messages if message.partition == partition]
                for message in mine:
                    self.watch.receive(place_of(JOBS, partition), message.data.encode())
                await self._finish(client, mine, random.random())

    async def _finish(self, client: HttpClient, messages: list[PoppedMessage], how: float) -> None:
        names = [message.transaction_id for message in messages]
        if how < 0.2:  # one by one
            for message in messages:
                self.record.leave(message.transaction_id)
                await self._settle(client, [message], "completed", single=True)
                self._acked([message.transaction_id])
            return
        half = len(messages) // 2
        if how < 0.4 and half:  # in part; the rest is released, no failure is counted
            self._leave(names[:half])
            await self._settle(client, messages[:half], "completed")
            self._acked(names[:half])
            await self._settle(client, [messages[half]], "retry", single=True)
            return
        self._leave(names)
        # Only the last: everything before it is settled, too.
        await self._settle(client, messages if how < 0.7 else messages[-1:], "completed")
        self._acked(names)

    def _leave(self, names: list[str]) -> None:
        for name in names:
            self.record.leave(name)

    def _acked(self, names: list[str]) -> None:
        self.record.ack_is_durable(names)
        self.watch.on_promise()

    async def _settle(
        self, client: HttpClient, messages: list[PoppedMessage], status: str, *, single: bool = False
    ) -> None:
        await settle(client, self.watch, messages, status, single=single)

    async def _move(self, client: HttpClient, random: Random) -> None:
        """Take from one queue and push to two others, a few at a time, each time in one transaction."""
        while True:
            batch = await pop(client, IN, random.randint(1, _PER_TRANSACTION), 1, _IDLE_MS)
            if not batch:
                continue
            partition = batch[0].partition
            for message in batch:
                self.watch.receive(place_of(IN, partition), message.data.encode())
            sources = [message.transaction_id for message in batch]
            homes = {place_of(queue, partition): queue for queue in (OUT, AUDIT)}
            operations: list[dict[str, object]] = [
                {
                    "type": "ack",
                    "transactionId": message.transaction_id,
                    "partitionId": message.partition_id,
                    "leaseId": message.lease_id,
                    "consumerGroup": GROUP,
                }
                for message in batch
            ]
            operations += [
                {"type": "push", "items": [new_item(homes[place], partition, name, 0)]}
                for place, name in self.record.move(sources, tuple(homes))
            ]
            status, body = await client.post("/api/v1/transaction", {"operations": operations})
            if status != 200 or not _committed(body).success:
                raise self.watch.refuse(f"a transaction was refused: {body[:200]!r}")
            self.record.moved()
            self.watch.on_promise()


async def pop(
    client: HttpClient, queue: str, batch: int, partitions: int, wait_ms: int = 0
) -> list[PoppedMessage]:
    """Pop available messages under a lease of the group."""
    wait = f"&wait=true&timeout={wait_ms}" if wait_ms else ""
    return await _pop(client, f"{queue}?consumerGroup={GROUP}&batch={batch}&partitions={partitions}{wait}")


async def _pop(client: HttpClient, asked: str) -> list[PoppedMessage]:
    status, body = await client.get(f"/api/v1/pop/queue/{asked}")
    if status not in (200, 204):
        raise Gone(f"a pop was refused: {body[:200]!r}")
    return _popped(body).messages if status == 200 else []


async def lease_all(
    client: HttpClient, queues: Sequence[str], partitions: Sequence[str], held: list[list[PoppedMessage]]
) -> dict[str, list[PoppedMessage]]:
    """Lease everything that the group has not settled; the messages of each place.

    Workers that have died held some of it, perhaps under leases that they never heard of: these are released.

    ``held`` gets them, too, so that they can be released even if the connection is lost half way.
    """
    leased: dict[str, list[PoppedMessage]] = {}
    for queue in queues:
        for partition in partitions:
            place = place_of(queue, partition)
            await _release(client, queue, partition)
            asked = f"{queue}/partition/{partition}?consumerGroup={GROUP}&batch={_MOST}"
            messages = leased[place] = await _pop(client, asked)
            if messages:
                held.append(messages)
            size = sum([len(message.data) for message in messages])
            if len(messages) >= _MOST or size >= _MOST_BYTES:
                raise Gone(f"{place} has more messages than one reading takes")
    return leased


async def _release(client: HttpClient, queue: str, partition: str) -> None:
    where = f"/api/v1/consumer-groups/{GROUP}/queues/{queue}/partitions/{partition}/lease"
    status, body = await client.delete(where)
    if status not in (200, 404):  # there is none
        raise Gone(f"a lease was not released: {body[:200]!r}")


def bodies_of(leased: Mapping[str, Sequence[PoppedMessage]]) -> dict[str, list[bytes]]:
    return {place: [message.data.encode() for message in messages] for place, messages in leased.items()}


async def let_go(
    client: HttpClient,
    workload: Workload,
    being_read: list[list[PoppedMessage]],
    most: int,
    name: Callable[[PoppedMessage], str],
) -> None:
    """Release the leases of a reading; of a place with more than ``most`` messages, ack the last one instead,
    which settles all. It can be repeated when the connection was lost half way.

    A node that has taken over meanwhile does not know the leases: then nothing is held.
    """
    while being_read:
        messages = being_read[-1]
        is_purged = len(messages) > most
        for message in messages if is_purged else ():
            workload.record.leave(name(message))
        one, status = (messages[-1], "completed") if is_purged else (messages[0], "retry")
        answered, body = await client.post("/api/v1/ack/batch", _acks([one], status))
        is_done = answered == 200 and all(verdict.success for verdict in _verdicts(body))
        if not is_done and _NO_LEASE not in body:
            raise workload.watch.refuse(f"an ack was refused: {body[:200]!r}")
        being_read.pop()
        if is_done and is_purged:
            workload.record.purged_names(map(name, messages))


def _acks(messages: list[PoppedMessage], status: str) -> _Batch:
    acks = [
        {
            "transactionId": message.transaction_id,
            "partitionId": message.partition_id,
            "leaseId": message.lease_id,
            "consumerGroup": GROUP,
            "status": status,
        }
        for message in messages
    ]
    return {"consumerGroup": GROUP, "acknowledgments": acks}


async def settle(
    client: HttpClient, watch: Watch, messages: list[PoppedMessage], status: str, *, single: bool = False
) -> None:
    """Acknowledge messages with this status under their leases."""
    acks = _acks(messages, status)
    if single:
        answer = await client.post("/api/v1/ack", acks["acknowledgments"][0])
    else:
        answer = await client.post("/api/v1/ack/batch", acks)
    if answer[0] != 200 or not all(verdict.success for verdict in _verdicts(answer[1])):
        raise watch.refuse(f"an ack was refused: {answer[1][:200]!r}")


def place_of(queue: str, partition: str) -> str:
    """The name of the partition in the record."""
    return f"{queue}/{partition}"


def new_item(queue: str, partition: str, name: str, padding: int) -> dict[str, str]:
    """A push item. The name is the transaction id, so that a repeated push is recognised."""
    payload = make_body(name, padding).decode()
    return {"queue": queue, "partition": partition, "transactionId": name, "payload": payload}
