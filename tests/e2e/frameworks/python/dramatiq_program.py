"""dramatiq: a message that works, one that fails once, one that ends among the dead letters."""

import json
import sys

import dramatiq
import pika
from dramatiq.brokers.rabbitmq import RabbitmqBroker

url = sys.argv[1]
broker = RabbitmqBroker(url=url)
dramatiq.set_broker(broker)
done: list[str] = []
tries: dict[str, int] = {}


@dramatiq.actor(max_retries=2, min_backoff=10, max_backoff=20)
def work(name: str) -> None:
    tries[name] = tries.get(name, 0) + 1
    if name == "poison" or (name == "shaky" and tries[name] == 1):
        raise RuntimeError(f"{name} fails")
    done.append(name)


worker = dramatiq.Worker(broker, worker_threads=1)
worker.start()
for each in ("plain", "shaky", "poison"):
    work.send(each)
dead = None
with pika.BlockingConnection(pika.URLParameters(url)) as connection:
    channel = connection.channel()
    while dead is None:  # dramatiq keeps them in a queue of its own
        _, _, dead = channel.basic_get("default.XQ", auto_ack=True)
        connection.process_data_events(0.02)
broker.join("default")
worker.stop()
broker.close()
print(json.dumps({"done": sorted(done), "tries": tries, "dead": json.loads(dead)["args"]}))
