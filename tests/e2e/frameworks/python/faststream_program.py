"""FastStream: a handler that answers, one that fails once and is tried again, and dead letters."""

import asyncio
import json
import sys

from faststream import AckPolicy
from faststream.rabbit import QueueType, RabbitBroker, RabbitQueue

broker = RabbitBroker(sys.argv[1])
arguments = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "fs.dead"}
jobs = RabbitQueue("fs.jobs", queue_type=QueueType.QUORUM, durable=True, arguments=arguments)
done: list[str] = []
tries: dict[str, int] = {}
dead: asyncio.Queue[str] = asyncio.Queue()


@broker.subscriber(jobs, ack_policy=AckPolicy.NACK_ON_ERROR)
async def work(name: str) -> None:
    tries[name] = tries.get(name, 0) + 1
    if name == "poison" or (name == "shaky" and tries[name] == 1):
        raise RuntimeError(f"{name} fails")
    done.append(name)


@broker.subscriber("fs.dead")
async def bury(name: str) -> None:
    await dead.put(name)


@broker.subscriber("fs.echo")
async def echo(name: str) -> str:
    return name.upper()


async def main() -> None:
    async with broker:
        await broker.start()
        for name in ("plain", "shaky", "poison"):
            await broker.publish(name, "fs.jobs")
        letter = await dead.get()
        answer = await broker.request("hello", "fs.echo", timeout=60)
        print(
            json.dumps(
                {"done": sorted(done), "tries": tries, "dead": [letter], "answer": await answer.decode()}
            )
        )


asyncio.run(main())
