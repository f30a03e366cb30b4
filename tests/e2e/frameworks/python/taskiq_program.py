"""taskiq: tasks in a worker of this process, retried by its middleware, delayed by a delayed exchange.

taskiq acks a task that has failed for good: its dead-letter queue is declared and stays empty.
"""

import asyncio
import json
import sys

from taskiq import SimpleRetryMiddleware
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker

broker = AioPikaBroker(sys.argv[1], delayed_message_exchange_plugin=True).with_middlewares(
    SimpleRetryMiddleware(default_retry_count=3)
)
broker.is_worker_process = True
done: list[str] = []
tries: dict[str, int] = {}


@broker.task(retry_on_error=True, max_retries=3)
async def work(name: str) -> None:
    tries[name] = tries.get(name, 0) + 1
    if name == "poison" or (name == "shaky" and tries[name] == 1):
        raise RuntimeError(f"{name} fails")
    done.append(name)


async def main() -> None:
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker))
    for name in ("plain", "shaky", "poison"):
        await work.kiq(name)
    await work.kicker().with_labels(delay=1).kiq("delayed")
    while set(done) != {"plain", "shaky", "delayed"} or tries.get("poison", 0) < 3:
        await asyncio.sleep(0.02)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await broker.shutdown()
    print(json.dumps({"done": sorted(done), "tries": tries, "dead": []}))


asyncio.run(main())
