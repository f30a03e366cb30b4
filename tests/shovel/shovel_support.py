"""Two brokers with an operator at each, and how to wait for what a shovel does.

Owns: publishing and reading with pika, the management API. Must not touch: what is asserted.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import pika

T = TypeVar("T")
DEADLINE = 180.0  # seconds; reached only by a test that would fail anyhow


def eventually(probe: Callable[[], T], what: str = "") -> T:
    """Ask until the answer is true."""
    end = time.monotonic() + DEADLINE
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < end, f"never came true: {what or probe}"
        time.sleep(0.02)


class Operator:
    """A broker's management API and a channel."""

    def __init__(self, http_url: str, amqp_url: str, user: str = "guest", password: str = "guest") -> None:
        self.amqp_url = amqp_url
        self.http = httpx.Client(base_url=http_url + "/api", auth=(user, password), timeout=60)

    def close(self) -> None:
        self.http.close()

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def channel(self) -> Any:
        """A new connection's channel; close it with its connection."""
        connection = pika.BlockingConnection(pika.URLParameters(self.amqp_url))
        return connection.channel()

    def declare(self, queue: str, **arguments: object) -> None:
        body = {"durable": True, "arguments": arguments}
        self.http.put(f"/queues/%2F/{quote(queue, safe='')}", json=body).raise_for_status()

    def publish(self, queue: str, bodies: list[str], exchange: str = "", **properties: Any) -> None:
        """Publish with confirms."""
        channel = self.channel()
        channel.confirm_delivery()
        for body in bodies:
            sent = pika.BasicProperties(**{"delivery_mode": 2, **properties})
            channel.basic_publish(exchange, queue, body.encode(), sent, mandatory=True)
        channel.connection.close()

    def take(self, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
        """Wait for this many messages; (method, properties, body) of each, acknowledged."""
        eventually(lambda: self.has_queue(queue), f"queue {queue} exists")
        channel = self.channel()
        taken: list[tuple[Any, Any, bytes]] = []
        for method, properties, body in channel.consume(queue, inactivity_timeout=DEADLINE):
            assert method is not None, f"{len(taken)} of {count} messages came"
            channel.basic_ack(method.delivery_tag)
            taken.append((method, properties, body))
            if len(taken) == count:
                break
        channel.cancel()
        channel.connection.close()
        return taken

    def has_queue(self, queue: str) -> bool:
        return self.http.get(f"/queues/%2F/{quote(queue, safe='')}").status_code == 200

    def messages(self, queue: str) -> int:
        return int(self.get(f"/queues/%2F/{quote(queue, safe='')}")["messages"])

    def put_shovel(self, name: str, **value: object) -> httpx.Response:
        named = {key.replace("_", "-"): item for key, item in value.items()}
        return self.http.put(f"/parameters/shovel/%2F/{name}", json={"value": named})

    def shovel(self, name: str) -> dict[str, Any]:
        return dict(self.get(f"/shovels/vhost/%2F/{name}"))

    def shovel_exists(self, name: str) -> bool:
        return self.http.get(f"/shovels/vhost/%2F/{name}").status_code == 200

    def in_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait until the shovel is in this state."""
        eventually(lambda: self.shovel(name)["state"] == state, f"shovel {name} is {state}")
        return self.shovel(name)

    def delete_shovel(self, name: str) -> None:
        self.http.delete(f"/shovels/vhost/%2F/{name}").raise_for_status()
