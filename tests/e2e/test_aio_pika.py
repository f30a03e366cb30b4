"""aio-pika: robust connections, confirms, rpc, transactions, iterators."""

import asyncio
from collections.abc import Callable

import aio_pika
import pytest
from aio_pika.patterns import RPC, Master, NackMessage
from e2e_support import DEADLINE

from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e


async def test_publish_with_confirms_and_iterate(broker: TestBroker, name: str) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(name, auto_delete=True)

        for n in range(30):
            await channel.default_exchange.publish(
                aio_pika.Message(str(n).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT), name
            )

        bodies = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    bodies.append(message.body)
                if len(bodies) == 30:
                    break
        assert bodies == [str(n).encode() for n in range(30)]


async def test_an_unroutable_mandatory_message_raises(broker: TestBroker, name: str) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)

        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), name, mandatory=True)


async def test_headers_of_every_type_come_back(broker: TestBroker, name: str) -> None:
    headers = {"int": 1, "text": "ü", "float": 1.5, "bool": True, "nested": {"a": [1, None]}}
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, exclusive=True)

        await channel.default_exchange.publish(aio_pika.Message(b"x", headers=headers), name)  # type: ignore[arg-type]

        message = await queue.get()
        assert message is not None
        await message.ack()
        assert message.headers == headers


async def test_rpc_pattern(broker: TestBroker, name: str) -> None:
    async def double(*, x: int) -> int:
        return 2 * x

    async with await aio_pika.connect(broker.amqp_url) as connection:
        rpc = await RPC.create(await connection.channel())
        await rpc.register(name, double, auto_delete=True)

        assert await asyncio.gather(*(rpc.call(name, {"x": n}) for n in range(5))) == [0, 2, 4, 6, 8]


async def test_worker_pattern_retries_what_is_nacked(broker: TestBroker, name: str) -> None:
    tried: list[int] = []
    done = asyncio.Event()

    async def work(*, n: int) -> None:
        tried.append(n)
        if len(tried) == 1:
            raise NackMessage(requeue=True)
        done.set()

    async with await aio_pika.connect(broker.amqp_url) as connection:
        master = Master(await connection.channel())
        worker = await master.create_worker(name, work, auto_delete=True)
        await master.create_task(name, {"n": 7})

        await asyncio.wait_for(done.wait(), DEADLINE)
        await worker.close()
        assert tried == [7, 7]


async def test_transactions(broker: TestBroker, name: str) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(name, exclusive=True)

        async with channel.transaction():
            await channel.default_exchange.publish(aio_pika.Message(b"kept"), name)
        transaction = channel.transaction()
        await transaction.select()
        await channel.default_exchange.publish(aio_pika.Message(b"forgotten"), name)
        await transaction.rollback()

        message = await queue.get()
        assert message is not None
        assert message.body == b"kept"
        assert await queue.get(fail=False) is None


async def test_a_robust_connection_comes_back_after_a_restart(
    start_broker: Callable[..., TestBroker], name: str
) -> None:
    broker = await asyncio.to_thread(start_broker)
    connection = await aio_pika.connect_robust(broker.amqp_url, reconnect_interval=0.05)
    got: asyncio.Queue[bytes] = asyncio.Queue()
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                got.put_nowait(message.body)

        await queue.consume(take)
        again = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: again.set())

        await asyncio.to_thread(broker.restart)
        await asyncio.wait_for(again.wait(), DEADLINE)

        async with await aio_pika.connect(broker.amqp_url) as other:
            await (await other.channel()).default_exchange.publish(aio_pika.Message(b"after"), name)
        assert await asyncio.wait_for(got.get(), DEADLINE) == b"after"
