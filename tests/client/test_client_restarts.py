"""A broker that restarts and crashes while clients consume: nothing lost, order kept, doubles only of
what was in hand. The lease, not the client, decides what comes again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

import pytest
from client_waiting import PATIENCE, until

from holtmq.client import Backoff, Client, LeaseLost, Message, TransactionFailed
from holtmq.testing import TestBroker

QUICK = Backoff(tries=1000, first=0.01, longest=0.1)  # however long a restart takes
PARTITIONS = 5
EACH = 60
BATCH = 8
WORKERS = 3


def restart(broker: TestBroker) -> None:
    broker.restart()


def crash(broker: TestBroker) -> None:
    broker.crash_and_restart()


@pytest.mark.parametrize("blow", [restart, crash])
async def test_consuming_goes_on_through_restarts_without_loss(blow: Callable[[TestBroker], None]) -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK, stop_timeout=60) as client:
            for partition in range(PARTITIONS):
                await client.queue("q").partition(f"p{partition}").push(list(range(EACH)))
            seen: dict[str, list[int]] = defaultdict(list)

            async def handler(message: Message) -> None:
                await asyncio.sleep(0.002)
                seen[message.partition].append(message.data)

            queue = client.queue("q").group("g").batch(BATCH).concurrency(WORKERS).each()
            consuming = queue.consume(handler).start()
            blows = 3
            for _ in range(blows):
                before = sum(map(len, seen.values()))
                # On a slow machine the last blow may find everything handled.
                while sum(map(len, seen.values())) < min(before + 30, PARTITIONS * EACH):
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(blow, broker)
            await until(
                lambda: len(seen) == PARTITIONS and all(EACH - 1 in numbers for numbers in seen.values())
            )
            await consuming.stop()

            left = await queue.pop()

    assert left == []
    doubles = 0
    for numbers in seen.values():
        assert set(numbers) == set(range(EACH))
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts)  # whatever came twice, nothing came before its predecessor
        doubles += len(numbers) - EACH
    # Only what a worker held when the broker went away may come again.
    assert doubles <= blows * WORKERS * BATCH


async def test_a_push_during_a_crash_is_stored_exactly_once() -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK) as client:

            async def produce(producer: int) -> None:
                for number in range(40):
                    await client.queue("q").partition(str(producer)).push(number)

            producing = asyncio.gather(*(produce(producer) for producer in range(6)))
            for _ in range(3):
                await asyncio.sleep(0.05)
                await asyncio.to_thread(broker.crash_and_restart)
            await producing

            for producer in range(6):
                popped = await client.queue("q").partition(str(producer)).batch(100).pop()
                assert [message.data for message in popped] == list(range(40))


async def test_a_lease_from_before_a_restart_goes_on() -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK) as client:
            await client.queue("q").push([1, 2])
            first, second = await client.queue("q").batch(2).pop()
            await asyncio.to_thread(broker.restart)

            await first.ack()
            await client.transaction().ack(second).queue("b").push(3).commit()

            assert await client.queue("q").pop() == []
            assert [message.data for message in await client.queue("b").pop()] == [3]


async def test_a_lease_that_expired_during_a_restart_is_lost() -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK) as client:
            await client.queue("q").push([1])
            (message,) = await client.queue("q").lease(1).pop()
            await asyncio.to_thread(broker.restart)
            again = await client.queue("q").pop(wait=PATIENCE)

            with pytest.raises(LeaseLost):
                await message.ack()
            with pytest.raises(TransactionFailed):
                await client.transaction().ack(message).queue("b").push(1).commit()
            assert [message.data for message in again] == [1]


async def test_a_waiting_pop_outlives_a_restart() -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK) as client:
            seen: list[int] = []

            async def handler(message: Message) -> None:
                seen.append(message.data)

            consuming = client.queue("q").each().limit(1).consume(handler).start()
            await asyncio.sleep(0.05)
            await asyncio.to_thread(broker.restart)
            await client.queue("q").push(7)

            async with asyncio.timeout(PATIENCE):
                await consuming.wait()
            assert seen == [7]


async def test_a_pipeline_of_transactions_loses_and_doubles_nothing_through_crashes() -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK) as client:
            await client.queue("in").push(list(range(100)))

            async def forward(message: Message) -> None:
                await client.transaction().ack(message).queue("out").push(message.data).commit()

            consuming = client.queue("in").batch(5).each().consume(forward).start()
            for _ in range(3):
                await asyncio.sleep(0.05)
                await asyncio.to_thread(broker.crash_and_restart)
            arrived: list[int] = []
            async with asyncio.timeout(PATIENCE):
                while len(arrived) < 100:
                    popped = await client.queue("out").batch(100).auto_ack().pop(wait=1)
                    arrived += [message.data for message in popped]
            await consuming.stop()
            rest = await client.queue("out").pop()

    assert arrived == list(range(100))
    assert rest == []
