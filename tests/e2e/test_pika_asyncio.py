"""pika's asyncio adapter: callbacks on an event loop."""

import asyncio
from typing import Any

import pika
import pytest
from e2e_support import DEADLINE
from pika.adapters.asyncio_connection import AsyncioConnection

from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e


async def opened(broker: TestBroker) -> AsyncioConnection:
    """A connection that is open."""
    ready: asyncio.Future[AsyncioConnection] = asyncio.get_running_loop().create_future()

    def failed(_: object, error: BaseException) -> None:
        ready.set_exception(error)

    AsyncioConnection(
        pika.URLParameters(broker.amqp_url),
        on_open_callback=ready.set_result,
        on_open_error_callback=failed,
        custom_ioloop=asyncio.get_running_loop(),
    )
    return await asyncio.wait_for(ready, DEADLINE)


async def answered(call: Any, *arguments: Any, **options: Any) -> Any:
    """Call something that takes a callback, and wait for it."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(*arguments, callback=done.set_result, **options)
    return await asyncio.wait_for(done, DEADLINE)


async def closed(connection: AsyncioConnection) -> None:
    """Say goodbye and wait until it is over."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.add_on_close_callback(lambda *_: over.set_result(None))
    connection.close()
    await asyncio.wait_for(over, DEADLINE)


async def channel_of(connection: AsyncioConnection) -> Any:
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=ready.set_result)
    return await asyncio.wait_for(ready, DEADLINE)


async def test_publish_confirm_consume_and_ack(broker: TestBroker, name: str) -> None:
    connection = await opened(broker)
    channel = await channel_of(connection)
    await answered(channel.queue_declare, name, exclusive=True)
    confirms: list[Any] = []
    delivered: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    await answered(channel.confirm_delivery, confirms.append)
    channel.basic_qos(prefetch_count=5)
    await answered(
        channel.basic_consume,
        name,
        lambda _, method, __, body: delivered.put_nowait((method.delivery_tag, body)),
    )

    for n in range(20):
        channel.basic_publish("", name, str(n).encode())
    bodies = []
    for _ in range(20):
        tag, body = await asyncio.wait_for(delivered.get(), DEADLINE)
        channel.basic_ack(tag)
        bodies.append(body)

    assert bodies == [str(n).encode() for n in range(20)]
    assert max(frame.method.delivery_tag for frame in confirms) == 20
    await closed(connection)


async def test_a_channel_error_reaches_its_callback_and_the_connection_lives(broker: TestBroker) -> None:
    connection = await opened(broker)
    channel = await channel_of(connection)
    reason: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda _, error: reason.set_result(error))

    channel.queue_declare("does.not.exist", passive=True, callback=lambda _: None)

    error = await asyncio.wait_for(reason, DEADLINE)
    assert (error.reply_code, error.reply_text) == (
        404,
        "NOT_FOUND - no queue 'does.not.exist' in vhost '/'",
    )
    await channel_of(connection)
    await closed(connection)
