"""Buffered pushes: batches by count and time, order, backpressure, and what happens when things fail."""

import asyncio
import json

import pytest
from client_waiting import PATIENCE, until
from stub_broker import PUSHED, Say, StubBroker

from holtmq.client import Backoff, BufferedPushFailed, Client, ClientClosed
from holtmq.testing import TestBroker

QUICK = Backoff(tries=2, first=0.005, longest=0.01)
STORED = Say(201, PUSHED)


def sizes(stub: StubBroker) -> list[int]:
    return [len(json.loads(asked.body)["items"]) for asked in stub.asked]


def payloads(stub: StubBroker) -> list[int]:
    return [item["payload"] for asked in stub.asked for item in json.loads(asked.body)["items"]]


async def test_a_full_batch_goes_at_once_and_the_rest_waits_for_its_time() -> None:
    async with StubBroker(STORED) as stub, Client(stub.url, backoff=QUICK) as client:
        buffer = client.queue("q").buffer(count=3, seconds=2 * PATIENCE)
        for number in range(7):
            await buffer.push(number)
        await until(lambda: len(buffer) == 1)

        assert sizes(stub) == [3, 3]
        assert payloads(stub) == list(range(6))


async def test_a_batch_that_is_not_full_goes_after_its_time() -> None:
    async with StubBroker(STORED) as stub, Client(stub.url, backoff=QUICK) as client:
        buffer = client.queue("q").buffer(count=3, seconds=0.2)
        await buffer.push([0, 1])
        assert sizes(stub) == []

        await until(lambda: len(buffer) == 0)

        assert sizes(stub) == [2]
        assert payloads(stub) == [0, 1]


async def test_a_flush_does_not_wait_for_the_time() -> None:
    async with StubBroker(STORED) as stub, Client(stub.url) as client:
        buffer = client.queue("q").buffer(count=100, seconds=2 * PATIENCE)
        await buffer.push([1, 2, 3])

        async with asyncio.timeout(PATIENCE):
            await buffer.flush()

        assert payloads(stub) == [1, 2, 3]


async def test_a_full_buffer_holds_the_producer_back() -> None:
    async with StubBroker(Say(201, PUSHED, delay=0.1)) as stub, Client(stub.url) as client:
        buffer = client.queue("q").buffer(count=2, seconds=0, most=4)
        longest = 0
        for number in range(12):
            await buffer.push(number)
            longest = max(longest, len(buffer))

        assert longest == 4
        await buffer.flush()
        assert payloads(stub) == list(range(12))


async def test_closing_the_client_flushes() -> None:
    async with StubBroker(STORED) as stub:
        async with Client(stub.url) as client:
            await client.queue("q").partition("p").buffer(seconds=60).push([1, 2])

        assert payloads(stub) == [1, 2]


async def test_nothing_is_dropped_while_the_broker_is_away_and_nothing_sent_twice_differs() -> None:
    faults = [Say(503, {"error": "down"}), Say(drop=True), Say(503, {"error": "down"}), Say(drop=True)]
    async with StubBroker(*faults, STORED) as stub, Client(stub.url, backoff=QUICK) as client:
        buffer = client.queue("q").buffer(count=2, seconds=0)
        await buffer.push([1, 2, 3])

        await buffer.flush()

        ids = [[item["transactionId"] for item in json.loads(asked.body)["items"]] for asked in stub.asked]
        assert ids[0] == ids[1] == ids[2] == ids[3] == ids[4]
        assert payloads(stub)[-3:] == [1, 2, 3]


async def test_what_the_broker_refuses_is_told_by_the_next_call_and_the_rest_goes_on() -> None:
    async with StubBroker(Say(400, {"error": "no such thing"}), STORED) as stub, Client(stub.url) as client:
        buffer = client.queue("q").buffer(count=2, seconds=0)
        await buffer.push([1, 2])
        await until(lambda: len(buffer) == 0)

        with pytest.raises(BufferedPushFailed, match="2 buffered messages were refused: no such thing"):
            await buffer.push(3)

        await buffer.push(4)
        await buffer.flush()
        assert payloads(stub) == [1, 2, 4]


async def test_a_close_that_cannot_deliver_says_how_many_are_lost() -> None:
    async with StubBroker(Say(503, {"error": "down"})) as stub:
        client = Client(stub.url, backoff=QUICK, stop_timeout=0.2)
        await client.queue("q").buffer().push([1, 2, 3])

        with pytest.raises(BufferedPushFailed, match="3 buffered messages"):
            await client.close()


async def test_a_closed_buffer_takes_nothing() -> None:
    async with StubBroker(STORED) as stub, Client(stub.url) as client:
        async with client.queue("q").buffer() as buffer:
            await buffer.push(1)

        with pytest.raises(ClientClosed):
            await buffer.push(2)
        assert payloads(stub) == [1]


async def test_many_producers_share_a_buffer_and_each_ones_order_is_kept(client: Client, name: str) -> None:
    async with client.queue(name).partition("p").buffer(count=50, seconds=0.01, most=100) as buffer:

        async def produce(producer: int) -> None:
            for number in range(200):
                await buffer.push([[producer, number]])

        await asyncio.gather(*(produce(producer) for producer in range(5)))

    popped = [message.data for message in await client.queue(name).batch(2000).pop()]
    assert len(popped) == 1000
    for producer in range(5):
        assert [number for who, number in popped if who == producer] == list(range(200))


async def test_a_buffer_outlives_a_restart_of_the_broker_without_loss_or_double(name: str) -> None:
    with TestBroker(clock="real") as broker:
        async with Client(broker.http_url, backoff=QUICK) as client:
            async with client.queue(name).partition("p").buffer(count=20, seconds=0.001, most=100) as buffer:

                async def produce() -> None:
                    for number in range(1500):
                        await buffer.push(number)

                producing = asyncio.create_task(produce())
                for _ in range(3):
                    await asyncio.sleep(0.05)
                    await asyncio.to_thread(broker.crash_and_restart)
                await producing

            popped = [message.data for message in await client.queue(name).batch(5000).pop()]
    assert popped == list(range(1500))
