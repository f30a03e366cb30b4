"""Stops in the middle of everything, again and again: nothing is lost, nothing stays behind in a lease."""

import asyncio
import random
from collections import defaultdict

import pytest
from client_waiting import PATIENCE

from holtmq.client import Client, Message, http1
from holtmq.testing import TestBroker

LONG_LEASE = 600  # what is stuck in a lease stays stuck for the whole test


@pytest.mark.parametrize("seed", range(4))
async def test_workers_that_come_and_go_leave_nothing_behind(
    broker: TestBroker, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client that gives up on a broker which stands still leaves what was sent meanwhile to the lease.
    monkeypatch.setattr(http1, "_HANG_UP_SECONDS", PATIENCE)
    dice = random.Random(seed)
    seen: dict[str, list[int]] = defaultdict(list)

    async def handler(message: Message) -> None:
        await asyncio.sleep(dice.choice((0, 0, 0.001, 0.003)))
        seen[message.partition].append(message.data)

    async with Client(broker.http_url) as producer:
        await producer.queue(name).configure(lease_time=LONG_LEASE, retry_limit=0)

        async def produce() -> None:
            for number in range(120):
                partition = f"p{number % 6}"
                await producer.queue(name).partition(partition).push(number)
                await asyncio.sleep(dice.choice((0, 0.002, 0.006)))

        producing = asyncio.create_task(produce())
        while not producing.done():
            async with Client(broker.http_url, stop_timeout=PATIENCE) as worker:
                queue = worker.queue(name).group("g").batch(dice.randint(1, 5)).partitions(dice.randint(1, 3))
                queue.concurrency(dice.randint(1, 4)).each().consume(handler).start()
                await asyncio.sleep(dice.random() * 0.04)
        await producing
        await producer.queue(name).group("g").batch(10).each().idle(0.3).consume(handler)

        assert seen == {f"p{p}": list(range(p, 120, 6)) for p in range(6)}  # each once, each in order
        assert await producer.queue(name).dlq().all() == []


async def test_a_first_pop_whose_client_hangs_up_before_the_answer_leaves_no_lease(
    broker: TestBroker, client: Client, name: str
) -> None:
    await client.queue(name).configure(lease_time=LONG_LEASE)
    await client.queue(name).push("kept")

    for attempt in range(20):
        group = f"g{attempt}"  # a group's first pop is written down, and its answer waits for the disk
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
        writer.write(
            f"GET /api/v1/pop/queue/{name}?consumerGroup={group} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()

        came = answer.startswith(b"HTTP/1.1 200")
        again = await client.queue(name).group(group).pop(wait=0 if came else PATIENCE)
        assert bool(again) != came  # it came, or it can be had
