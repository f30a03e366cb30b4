"""Which fields the management API of a broker answers with, under traffic of every kind.

Owns: the traffic, the resources that are asked for, the paths of fields. Must not touch: which broker it is.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika
import pika.exceptions

VHOST: Final = "fields"
Fields = dict[str, set[str]]
_QUEUES: Final[dict[str, dict[str, object]]] = {
    "classic": {},
    "lazy": {"x-queue-mode": "lazy"},
    "levels": {"x-max-priority": 3},
    "quorum": {"x-queue-type": "quorum"},
    "single": {"x-single-active-consumer": True},
    "stream": {"x-queue-type": "stream"},
}
# Under these, names are the user's or the node's.
_OPEN: Final = (
    "arguments",
    "client_properties",
    "cluster_state",
    "effective_policy_definition",
    "open_files",
    "priority_lengths",
    "readers",
    "socket_opts",
)
# What only comes with time: without it the comparison would be of less than there is.
_AWAITED: Final = {
    "overview": ("message_stats.ack", "message_stats.redeliver", "message_stats.get_empty"),
    "channels": ("message_stats.ack", "message_stats.get", "message_stats.confirm", "idle_since"),
    "queues": ("message_stats.deliver", "message_stats.get_no_ack", "idle_since", "consumer_utilisation"),
    "queue": ("consumer_details.consumer_tag", "message_stats.ack"),
    "consumers": ("consumer_tag",),
    "vhosts": ("message_stats.deliver",),
}


_RECORDED: Final = Path(__file__).with_name("recorded_fields.json")
RABBITMQ_AWAITED: Final = {"queues": ("open_files", "messages_dlx"), "nodes": ("io_sync_avg_time",)}


def fields_of(
    amqp_url: str,
    http_url: str,
    between: Callable[[], None],
    more_awaited: Mapping[str, tuple[str, ...]] = {},
    patience: float = 120.0,
) -> Fields:
    """Make traffic in a vhost of its own; return the fields of each resource, once all kinds were seen.

    ``between`` is called between two looks: it lets time pass for the broker.
    """
    with httpx.Client(base_url=f"{http_url}/api", auth=("guest", "guest"), timeout=60) as api:
        api.put(f"/vhosts/{VHOST}", json={}).raise_for_status()
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        api.put(f"/permissions/{VHOST}/guest", json=everything).raise_for_status()
        parameters = pika.URLParameters(amqp_url)
        parameters.virtual_host, parameters.heartbeat = VHOST, 0
        connection = pika.BlockingConnection(parameters)
        try:
            _make_traffic(connection)
            seen: Fields = {}
            deadline = time.monotonic() + patience
            while True:
                for resource, answer in _answers(api):
                    seen.setdefault(resource, set()).update(_paths(answer))
                lacking = [
                    f"{resource}.{field}"
                    for awaited in (_AWAITED, more_awaited)
                    for resource, fields in awaited.items()
                    for field in fields
                    if field not in seen.get(resource, ())
                ]
                if not lacking:
                    return seen
                assert time.monotonic() < deadline, f"never seen: {lacking}"
                between()
                connection.process_data_events(0)
        finally:
            with suppress(pika.exceptions.AMQPError):  # pika rejects what it has prefetched, also of a stream
                connection.close()
            api.delete(f"/vhosts/{VHOST}").raise_for_status()


def recorded() -> Fields:
    """The fields of RabbitMQ 3.10.8."""
    return {resource: set(fields) for resource, fields in json.loads(_RECORDED.read_text()).items()}


def record(fields: Fields) -> None:
    """Keep these for ``recorded``."""
    rows = {resource: sorted(found) for resource, found in sorted(fields.items())}
    _RECORDED.write_text(json.dumps(rows, indent=1) + "\n")


def _make_traffic(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.exchange_declare("events", "topic", durable=True)
    for name, arguments in _QUEUES.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, "events", "#")
    channel.confirm_delivery()
    for _ in range(10):
        channel.basic_publish("events", "key", b"body", pika.BasicProperties(delivery_mode=2, timestamp=1))
    channel.basic_publish("amq.direct", "nowhere", b"")
    with suppress(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.direct", "nowhere", b"", mandatory=True)
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=5)

    def acknowledge(on: Any, method: Any, _: object, __: object) -> None:
        if method.delivery_tag < 5:
            on.basic_ack(method.delivery_tag)

    for name, more in (
        ("stream", {"x-stream-offset": "first"}),
        ("classic", {}),
        ("quorum", {}),
        ("single", {}),
    ):
        consuming.basic_consume(name, acknowledge, arguments=more)
    others = connection.channel()
    others.basic_consume("lazy", lambda *_: None, auto_ack=True)
    method, _, _ = others.basic_get("levels")
    others.basic_nack(method.delivery_tag)
    others.basic_get("levels")
    others.basic_get("levels", auto_ack=True)
    others.queue_declare("empty")
    others.basic_get("empty")
    connection.process_data_events(0)


def _answers(api: httpx.Client) -> Iterator[tuple[str, Any]]:
    """(resource, object) of everything that is compared."""

    def get(path: str) -> Any:
        return api.get(path).raise_for_status().json()

    yield "overview", get("/overview")
    for resource in (
        "nodes",
        "connections",
        "channels",
        "queues",
        "exchanges",
        "consumers",
        "vhosts",
        "bindings",
    ):
        place = (
            f"/{resource}/{VHOST}" if resource in ("queues", "exchanges", "consumers", "bindings") else None
        )
        if resource in ("connections", "channels"):
            place = f"/vhosts/{VHOST}/{resource}"
        rows = get(place or f"/{resource}")
        for row in rows:
            yield resource, row
            if resource in ("connections", "channels"):  # the answer about one has more than its row
                with suppress(httpx.HTTPStatusError):
                    yield resource.removesuffix("s"), get(f"/{resource}/{quote(row['name'], safe='')}")
            elif resource in ("queues", "exchanges") and row["name"]:
                yield resource.removesuffix("s"), get(f"/{resource}/{VHOST}/{row['name']}")


def _paths(value: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    match value:
        case dict():
            for key, inner in value.items():
                path = f"{prefix}.{key}" if prefix else key
                found.add(path)
                if key not in _OPEN:
                    found |= _paths(inner, path)
        case list():
            for inner in value:
                found |= _paths(inner, prefix)
    return found
