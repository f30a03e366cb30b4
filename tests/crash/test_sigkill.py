"""kill -9 at random moments under load, again and again, against a record kept outside.

Owns: the claims. Nothing confirmed is lost, nothing acked and synced comes back, a rejected message is in one
place, each publisher's messages keep their order. HOLT_TEST_CRASH_ROUNDS asks for more rounds,
HOLT_TEST_CRASH_SEED repeats a run's moments.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Final

import pytest
from crash_support import BrokerProcess, Delivery, Gone, Peer

from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReject,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.wire.tables import FieldValue

pytestmark = [pytest.mark.crash, pytest.mark.slow]

# Read at import: the test session takes HOLT_ variables away from the tests themselves.
ROUNDS: Final = int(os.environ.get("HOLT_TEST_CRASH_ROUNDS", "8"))
SEED: Final = int(os.environ.get("HOLT_TEST_CRASH_SEED", "0")) or Random().randrange(1, 10**9)
PUBLISHERS: Final = 3
CONSUMERS: Final = 2
BACKLOG: Final = 3_000  # waiting and not confirmed messages a publisher may run ahead by
TO_DEAD: Final[dict[str, FieldValue]] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
ONE_QUEUE: Final = ["work"]
# More than a checkpoint copies in one step, with and without priorities.
MANY_QUEUES: Final = [f"work-{number}" for number in range(800)] + [
    f"sorted-{number}" for number in range(500)
]


@dataclass
class Record:
    """What the world outside knows. Message ids are (publisher, number)."""

    queues: list[str]
    sent: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PUBLISHERS), 0))
    confirmed: set[tuple[int, int]] = field(default_factory=set)
    acked: set[tuple[int, int]] = field(default_factory=set)  # perhaps synced
    synced: set[tuple[int, int]] = field(default_factory=set)  # a marker sent after the ack was confirmed
    rejected: set[tuple[int, int]] = field(default_factory=set)
    reject_synced: set[tuple[int, int]] = field(default_factory=set)
    marks_confirmed: set[int] = field(default_factory=set)
    marks: int = 0


def body_of(publisher: int, number: int, size: int) -> bytes:
    return b"%d:%d:" % (publisher, number) + b"." * size


def id_of(body: bytes) -> tuple[int, int]:
    publisher, number, _ = body.split(b":", 2)
    return int(publisher), int(number)


class Confirming:
    """Which publishes of one connection are confirmed, in tag order."""

    def __init__(self, peer: Peer) -> None:
        self.waiting: dict[int, list[tuple[int, int]] | tuple[int, int]] = {}
        self.oldest = 1
        peer.on_confirm = self.told
        self.confirmed: list[list[tuple[int, int]] | tuple[int, int]] = []

    def told(self, tag: int, multiple: bool, ok: bool) -> None:
        assert ok, "the broker refused a message though its journal works"
        for one in range(self.oldest if multiple else tag, tag + 1):
            what = self.waiting.pop(one, None)
            if what is not None:
                self.confirmed.append(what)
        if multiple:
            self.oldest = tag + 1


async def publish(port: int, publisher: int, record: Record, random: Random) -> None:
    """As fast as it goes, with confirms, until the broker dies."""
    peer = await Peer.connect(port)
    await peer.ask(ConfirmSelect(), ConfirmSelectOk)
    confirming = Confirming(peer)
    while not peer.gone.is_set():
        for _ in range(random.randrange(1, 40)):
            record.sent[publisher] += 1
            number = record.sent[publisher]
            tag = peer.publish(
                random.choice(record.queues), body_of(publisher, number, random.choice([10, 100, 1500]))
            )
            confirming.waiting[tag] = (publisher, number)
        await peer.drain()
        await asyncio.sleep(0)
        while len(confirming.waiting) > 500 and not peer.gone.is_set():
            await asyncio.sleep(0.001)
        while sum(record.sent.values()) - len(record.acked) > BACKLOG and not peer.gone.is_set():
            await asyncio.sleep(0.005)
        for what in confirming.confirmed:
            assert isinstance(what, tuple)
            record.confirmed.add(what)
        confirming.confirmed = []
    record.confirmed.update(what for what in confirming.confirmed if isinstance(what, tuple))
    await peer.close()


async def consume(port: int, record: Record, random: Random) -> None:
    """Ack most, reject some, requeue some; then a marker whose confirm says that all of it is synced."""
    peer = await Peer.connect(port)
    await peer.ask(ConfirmSelect(), ConfirmSelectOk)
    await peer.ask(BasicQos(prefetch_count=200), BasicQosOk)
    confirming = Confirming(peer)
    arrived: list[Delivery] = []
    peer.on_delivery = arrived.append
    verdicts: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for queue in record.queues:
        peer.send(BasicConsume(queue, no_wait=True))
    while not peer.gone.is_set():
        batch, arrived[:] = arrived[:], []
        acked: list[tuple[int, int]] = []
        rejected: list[tuple[int, int]] = []
        for delivery in batch:
            which = id_of(delivery.body)
            assert which not in record.synced, f"{which} was acked, synced and delivered again"
            dice = random.random()
            if dice < 0.9:
                record.acked.add(which)
                acked.append(which)
                peer.send(BasicAck(delivery.tag))
            elif dice < 0.95:
                record.rejected.add(which)
                rejected.append(which)
                peer.send(BasicReject(delivery.tag, False))
            else:
                peer.send(BasicNack(delivery.tag, False, True))
        if acked or rejected:
            record.marks += 1
            tag = peer.publish("marks", b"%d" % record.marks)
            confirming.waiting[tag] = (-1, record.marks)
            verdicts[record.marks] = acked, rejected
        await peer.drain()
        note_marks(confirming, verdicts, record)
        await asyncio.sleep(random.choice([0, 0.001, 0.01]))
    note_marks(confirming, verdicts, record)
    await peer.close()


def note_marks(
    confirming: Confirming,
    verdicts: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]],
    record: Record,
) -> None:
    for what in confirming.confirmed:
        assert isinstance(what, tuple)
        record.marks_confirmed.add(what[1])
        acked, rejected = verdicts.pop(what[1])
        record.synced.update(acked)
        record.reject_synced.update(rejected)
    confirming.confirmed = []


def arguments_of(queue: str) -> dict[str, FieldValue]:
    if queue in ("dead", "marks"):
        return {}
    return TO_DEAD | {"x-max-priority": 3} if queue.startswith("sorted") else TO_DEAD


async def read_all(port: int, queues: list[str]) -> dict[str, list[bytes]]:
    """Everything in these queues, in order, without an ack: hanging up puts it back."""
    peer = await Peer.connect(port)
    arrived: dict[str, list[bytes]] = {queue: [] for queue in queues}
    everything = asyncio.Event()
    declared = [
        await peer.ask(QueueDeclare(queue, durable=True, arguments=arguments_of(queue)), QueueDeclareOk)
        for queue in queues
    ]
    missing = sum(queue.message_count for queue in declared)

    def note(delivery: Delivery) -> None:
        nonlocal missing
        arrived[delivery.consumer].append(delivery.body)
        missing -= 1
        if not missing:
            everything.set()

    peer.on_delivery = note
    if missing:
        for queue in queues:
            peer.send(BasicConsume(queue, queue, no_wait=True))
        await asyncio.wait_for(everything.wait(), 120)
    await peer.close()
    return arrived


async def check(port: int, record: Record) -> None:
    """The record against what the restarted broker has."""
    found = await read_all(port, ["dead", "marks", *record.queues])
    dead = [id_of(body) for body in found.pop("dead")]
    marks = [int(body) for body in found.pop("marks")]
    by_queue = [[id_of(body) for body in bodies] for bodies in found.values()]
    work = list(chain.from_iterable(by_queue))
    held, buried = set(work), set(dead)

    lost = record.confirmed - record.acked - held - buried
    assert not lost, f"confirmed and lost: {sorted(lost)[:10]} ({len(lost)})"
    undead = record.synced & (held | buried)
    assert not undead, f"acked, synced and back: {sorted(undead)[:10]} ({len(undead)})"
    assert not record.reject_synced & held, "rejected, synced and back in the queue"
    assert not record.reject_synced & record.confirmed - buried, "rejected and not in the dead-letter queue"
    assert not held & buried, "a message is in two places"
    assert len(work) == len(held), "a message is twice in the queue"
    assert len(dead) == len(buried), "a message died twice"
    for ids, publisher in product(by_queue, range(PUBLISHERS)):
        numbers = [number for who, number in ids if who == publisher]
        assert numbers == sorted(numbers), f"publisher {publisher}'s messages changed their order"
    assert record.marks_confirmed <= set(marks)
    assert len(marks) == len(set(marks))
    # Messages that were stored without a confirm may stay; the record includes them from now on.
    record.acked &= record.acked - held


async def one_round(broker: BrokerProcess, record: Record, random: Random) -> None:
    await broker.start()
    try:
        await check(broker.port, record)
        load = [
            asyncio.create_task(
                publish(broker.port, publisher, record, random), name=f"publisher {publisher}"
            )
            for publisher in range(PUBLISHERS)
        ]
        load += [
            asyncio.create_task(consume(broker.port, record, random), name=f"consumer {number}")
            for number in range(CONSUMERS)
        ]
        done, _ = await asyncio.wait(
            load, timeout=random.uniform(0.05, 2.5), return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:  # before the kill, only a failed claim ends a task
            task.result()
    finally:
        await broker.kill()
    for result in await asyncio.gather(*load, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, (Gone, ConnectionError)):
            raise result


@pytest.mark.timeout(240 + 30 * ROUNDS)
@pytest.mark.parametrize("queues", [ONE_QUEUE, MANY_QUEUES], ids=["one queue", "many queues"])
async def test_kill_9_at_any_moment_loses_nothing_confirmed_and_brings_back_nothing_acked(
    tmp_path: Path, queues: list[str]
) -> None:
    print(f"HOLT_TEST_CRASH_SEED={SEED}")
    random = Random(SEED)
    record = Record(queues)
    # Small, so that checkpoints and compaction happen under fire.
    broker = BrokerProcess(
        tmp_path / "data", HOLT_JOURNAL_CHECKPOINT_BYTES="1MiB", HOLT_JOURNAL_SEGMENT_BYTES="256KiB"
    )

    for _ in range(ROUNDS):
        await one_round(broker, record, random)
    # A slow machine needs more rounds until there was a load to speak of.
    while len(record.confirmed) <= 100 * ROUNDS or len(record.synced) <= 10 * ROUNDS:
        await one_round(broker, record, random)

    await broker.start()
    await check(broker.port, record)
    assert await broker.stop() == 0
    print(f"{len(record.confirmed)} confirmed, {len(record.synced)} acked and synced, {record.marks} marks")
