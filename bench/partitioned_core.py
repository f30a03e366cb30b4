"""How fast the partitioned queue's rules are by themselves: no journal, no HTTP, per second of CPU time.

Run: PYTHONPATH=src:tests python bench/partitioned_core.py [--memory]
"""

import resource
import sys
import time
import uuid
from collections.abc import Callable

from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.events import GroupStarted, QueueConfigured, encode
from holtmq.broker.partitioned.groups.acknowledgment import Ack
from holtmq.broker.partitioned.log.snapshot import CapturedQueue
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig
from snapshots import restore

NOW = 1_800_000_000.0
BATCH = 100


def unread(offset: int, position: int) -> str | None:
    return None


def new_queue(groups: int = 1) -> PartitionedQueue:
    queue = PartitionedQueue(1, QueueConfigured("bench", "", "", QueueConfig(), 0), unread)
    for number in range(groups):
        queue.apply(GroupStarted(f"g{number}", number, 0))
    return queue


def push(queue: PartitionedQueue, items: list[tuple[str, str]], now: float) -> None:
    decision = decide_push(queue, items, now)
    assert decision.event is not None
    encode(queue.number, decision.event)
    queue.apply(decision.event, range(decision.event.first_offset, decision.event.first_offset + len(items)))
    queue.show(decision.event)


def best_rate(work: Callable[[], int], rounds: int = 3) -> float:
    rates = []
    for _ in range(rounds):
        begin = time.process_time()
        rates.append(work() / (time.process_time() - begin))
    return max(rates)


def bench_push(partitions: int, batches: int = 600) -> float:
    ids = [str(uuid.uuid4()) for _ in range(batches * BATCH)]
    calls = [
        [(f"p{(at + n) % partitions}", ids[at + n]) for n in range(BATCH)] for at in range(0, len(ids), BATCH)
    ]

    def work() -> int:
        queue = new_queue()
        for number, items in enumerate(calls):
            push(queue, items, NOW + number / 1000)
        return len(ids)

    return best_rate(work)


def bench_claim_and_ack(partitions: int, groups: int = 1, batch: int = BATCH, batches: int = 600) -> float:
    ids = [str(uuid.uuid4()) for _ in range(batches * BATCH)]

    def work() -> int:
        queue = new_queue(groups)
        for at in range(0, len(ids), BATCH):
            name = f"p{at // BATCH % partitions}"
            push(queue, [(name, ids[at + n]) for n in range(BATCH)], NOW + at / 1e6)
        begin = time.process_time()
        done = 0
        for group in queue.groups:
            while True:
                claim = queue.claim(group, f"lease{done}", batch, NOW + 10)
                if not claim.deliveries:
                    break
                delivery = claim.deliveries[0]
                mine = [ids[offset] for offset, _, _ in queue.log.refs(delivery.offsets)]
                queue.delivered(delivery, mine)
                assert delivery.lease is not None
                acks = [Ack(delivery.partition, one, lease_id=delivery.lease.id) for one in mine]
                decision = decide_acks(queue, group, acks, NOW + 10)
                for event in decision.events:
                    encode(queue.number, event)
                    queue.apply(event)
                done += len(mine)
        spent.append(time.process_time() - begin)
        return done

    spent: list[float] = []
    counts = [work() for _ in range(3)]
    return max(count / seconds for count, seconds in zip(counts, spent, strict=True))


def bench_memory(partitions: int = 100_000, messages: int = 1_000_000) -> None:
    before = resident()
    queue = new_queue()
    for at in range(0, messages, BATCH):
        items = [(f"partition-{(at + n) % partitions}", str(uuid.uuid4())) for n in range(BATCH)]
        push(queue, items, NOW + at / 1e5)
    print(f"{partitions:,} partitions, {messages:,} messages: +{resident() - before:.0f} MB resident")
    begin = time.process_time()
    assert queue.claim("g0", "lease", 10, NOW + 100).count == 10
    print(f"first claim (builds the line): {(time.process_time() - begin) * 1e3:.0f} ms")
    begin = time.process_time()
    for number in range(10_000):
        queue.claim("g0", f"lease{number}", 10, NOW + 100)
    print(f"next claims of 10: {(time.process_time() - begin) * 1e2:.1f} µs each")
    begin = time.process_time()
    captured = CapturedQueue(queue)
    taken = time.process_time()
    records = list(captured.records())
    made = time.process_time()
    restore(records, unread)
    print(
        f"captured in {(taken - begin) * 1e3:.1f} ms, records made in {(made - taken) * 1e3:.0f} ms, "
        f"restored in {(time.process_time() - made) * 1e3:.0f} ms"
    )


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    for partitions in (1, 2, 100, 10_001):
        print(f"push, batch {BATCH}, {partitions:>6,} partitions: {bench_push(partitions):>10,.0f} msg/s")
    for partitions in (2, 10_001):
        rate = bench_claim_and_ack(partitions)
        print(f"claim + ack, batch {BATCH}, {partitions:>6,} partitions: {rate:>10,.0f} msg/s")
    rate = bench_claim_and_ack(100, groups=10, batches=100)
    print(f"claim + ack, batch {BATCH}, 10 groups: {rate:>10,.0f} deliveries/s")
    if "--memory" in sys.argv:
        bench_memory()


if __name__ == "__main__":
    main()
