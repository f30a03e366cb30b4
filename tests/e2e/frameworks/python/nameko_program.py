"""nameko: RPC, and a consumer whose failures are requeued until they are dead letters."""

import json
import sys

import eventlet

eventlet.monkey_patch()

from kombu import Queue  # noqa: E402
from nameko.amqp.publish import get_producer  # noqa: E402
from nameko.containers import ServiceContainer  # noqa: E402
from nameko.messaging import consume  # noqa: E402
from nameko.rpc import rpc  # noqa: E402
from nameko.standalone.rpc import ClusterRpcProxy  # noqa: E402

url = sys.argv[1]
config = {"AMQP_URI": url}
done: list[str] = []
tries: dict[str, int] = {}
dead: list[str] = []
jobs = Queue(
    "nameko.jobs",
    durable=True,
    queue_arguments={
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "nameko.dead",
    },
)


class Worker:
    name = "worker"

    @rpc
    def shout(self, text: str) -> str:
        return text.upper()

    @consume(jobs, requeue_on_error=True)
    def work(self, name: str) -> None:
        tries[name] = tries.get(name, 0) + 1
        if name == "poison" or (name == "shaky" and tries[name] == 1):
            raise RuntimeError(f"{name} fails")
        done.append(name)

    @consume(Queue("nameko.dead", durable=True))
    def bury(self, name: str) -> None:
        dead.append(name)


container = ServiceContainer(Worker, config=config)
container.start()
with get_producer(url) as producer:
    for each in ("plain", "shaky", "poison"):
        producer.publish(each, routing_key="nameko.jobs", serializer="json")
with ClusterRpcProxy(config, timeout=60) as cluster:
    answer = cluster.worker.shout("hello")
while len(dead) < 1 or len(done) < 2:
    eventlet.sleep(0.02)
container.stop()
print(json.dumps({"done": sorted(done), "tries": tries, "dead": dead, "answer": answer}))
