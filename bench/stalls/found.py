"""Requests of which nobody had thought: rights and parameters by the ten thousand, clients with very much."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bench.stalls.checkpoints import make as make_checkpoint
from bench.stalls.clients import open_connections
from bench.stalls.crowds import _OPEN_CHANNEL, _consume, _method
from bench.stalls.site import Prepare, Site

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import User
from holtmq.broker.topology.parameters import Parameter
from holtmq.node import Node
from holtmq.wire.tables import FieldTable

_RIGHTS = {"configure": ".*", "write": "^a", "read": ".*"}
_JSON = {"Content-Type": "application/json"}


def _in_parts(site: Site, count: int, make: Callable[[Node, int], object]) -> None:
    def part(start: int) -> Callable[[Node], None]:
        def work(node: Node) -> None:
            for number in range(start, min(start + 5_000, count)):
                make(node, number)

        return work

    for start in range(0, count, 5_000):
        site.topology(part(start))


def _vhost(name: str, node: Node) -> None:
    node.broker.put_vhost(name)


def _users(site: Site, count: int, *, topics: bool = True) -> None:
    """Users with permissions in ``/``, in no order."""

    def make(node: Node, number: int) -> None:
        name = f"user-{number * 7919 % count}"
        access = node.broker.access
        access.put_user(User(name, "", ("management",)))
        access.set_permissions(name, "/", Permissions("", f"^{number}", ".*"))
        if topics:
            access.put_topic_permission(TopicPermission(name, "/", "amq.topic", ".*", ".*"))
        access.set_user_limits(name, {"max-channels": 100})

    _in_parts(site, count, make)


def users(method: str, path: str, body: Any = None) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _users(site, count)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare


def bulk_delete(site: Site, count: int) -> Callable[[], object]:
    _users(site, count)
    body = {"users": [f"user-{number}" for number in range(count)]}
    return lambda: site.http.post("/api/users/bulk-delete", json=body).raise_for_status()


def delete_vhost_of_users(site: Site, count: int) -> Callable[[], object]:
    site.topology(lambda node: node.broker.put_vhost("shared"))

    def make(node: Node, number: int) -> None:
        name = f"user-{number * 7919 % count}"
        access = node.broker.access
        access.put_user(User(name, "", ("management",)))
        access.set_permissions(name, "shared", Permissions("", f"^{number}", ".*"))
        access.put_topic_permission(TopicPermission(name, "shared", "amq.topic", ".*", ".*"))

    _in_parts(site, count, make)
    return lambda: site.http.delete("/api/vhosts/shared").raise_for_status()


def vhosts(method: str, path: str, body: Any = None) -> Prepare:
    """One user has permissions and topic permissions in each vhost."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        site.topology(lambda node: node.broker.access.put_user(User("one", "", ("management",))))

        def make(node: Node, number: int) -> None:
            name = f"vhost-{number * 7919 % count}"
            node.broker.put_vhost(name)
            node.broker.access.set_permissions("one", name, Permissions("", f"^{number}", ".*"))
            node.broker.access.put_topic_permission(TopicPermission("one", name, "amq.topic", ".*", ".*"))
            node.broker.access.set_vhost_limits(name, {"max-queues": 100})

        _in_parts(site, count, make)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare


def topics_of_one(method: str, path: str, body: Any = None) -> Prepare:
    """One user has topic permissions for very many exchanges."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def make(node: Node, number: int) -> None:
            node.broker.access.put_topic_permission(
                TopicPermission("guest", "/", f"exchange-{number * 7919 % count}", ".*", ".*")
            )

        _in_parts(site, count, make)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare


def parameters(method: str, path: str, body: Any = None, *, spread: int = 1) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        for number in range(1, spread):
            site.topology(partial(_vhost, f"v{number}"))

        def make(node: Node, number: int) -> None:
            name = f"upstream-{number * 7919 % count}"
            where = number % spread
            node.broker.parameter_changes.put(
                Parameter(f"v{where}" if where else "/", "federation-upstream", name, b'{"uri":"amqp://x"}')
            )
            node.broker.parameter_changes.put_global(name, b'{"uri":"amqp://x"}')

        _in_parts(site, count, make)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare


def imported(part: str, row: Callable[[int], dict[str, Any]]) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        body = json.dumps({part: [row(number * 7919 % count) for number in range(count)]}).encode()
        return lambda: site.load_definitions(body)

    return prepare


def connections(method: str, path: str) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        site.http.put("/api/users/many", json={"password": "guest", "tags": ""}).raise_for_status()
        site.http.put("/api/permissions/%2F/many", json=_RIGHTS).raise_for_status()
        sockets = open_connections(site, count, "many")

        def ask() -> None:
            site.http.request(method, path).raise_for_status()
            for one in sockets:
                one.close()

        return ask

    return prepare


def _wide_channel(site: Site, count: int, queues: int, auto_delete: bool = False) -> socket.socket:
    def make(node: Node, number: int) -> None:
        node.broker.declare_queue(node.broker.vhost("/"), f"own-{number}", auto_delete=auto_delete)

    _in_parts(site, queues, make)
    (one,) = open_connections(site, 1)
    one.sendall(_OPEN_CHANNEL)
    for number in range(count):
        one.sendall(_consume(f"own-{number % queues}", no_ack=False))

    def consumers(node: Node) -> int:
        return sum(len(c.consumers) for p in node.amqp.connections for c in p.connection.channels.values())

    while site.broker.call(consumers) < count:
        time.sleep(0.1)
    return one


def wide(action: str, queues: int = 100_000, auto_delete: bool = False) -> Prepare:
    """A channel with a consumer of each of very many queues."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        one = _wide_channel(site, count, min(queues, count), auto_delete)
        name = site.http.get("/api/connections").json()
        name = next(row["name"] for row in name if "pika" not in str(row.get("client_properties")))

        def ask() -> None:
            if action == "close":
                one.close()
                while site.broker.call(lambda node: len(node.amqp.connections)) > 1:
                    pass
            elif action == "close channel":
                one.sendall(_method(b"\x00\x14\x00\x28\x00\x00\x00\x00\x00\x00\x00"))
                while b"\x00\x14\x00\x29" not in one.recv(65536):
                    pass
            elif action == "qos":
                one.sendall(_method(b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00\x01\x00"))
                while b"\x00\x3c\x00\x0b" not in one.recv(65536):
                    pass
            elif action == "flow":
                one.sendall(_method(b"\x00\x14\x00\x14\x01"))
                while b"\x00\x14\x00\x15" not in one.recv(65536):
                    pass
            else:
                path = action.replace("NAME", name).replace(" ", "%20")
                site.get(path)
            assert one

        return ask

    return prepare


def got(action: str) -> Prepare:
    """basic.get from each of very many queues on one channel."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def make(node: Node, number: int) -> None:
            node.broker.declare_queue(node.broker.vhost("/"), f"got-{number}")

        _in_parts(site, count, make)
        for number in range(count):
            site.channel.basic_publish("", f"got-{number}", b"x")
        site.channel.queue_declare("last")
        site.channel.basic_publish("", "last", b"x")
        for number in range(count):
            site.channel.basic_get(f"got-{number}")

        def ask() -> None:
            if action == "close":
                site.channel.close()
            elif action == "ack":
                site.channel.basic_ack(count, multiple=True)
                site.channel.basic_get("last")
            elif action == "get":
                site.channel.basic_get("last")
            elif action == "recover":
                site.channel.basic_recover(requeue=True)

        return ask

    return prepare


def checkpoint(site: Site, count: int) -> Callable[[], object]:
    _users(site, count)
    parameters("GET", "/")(site, count)
    make_checkpoint(site)  # not the first one
    return lambda: make_checkpoint(site)


def letters_of_queues(verb: str, body: Any, *, full: bool = True) -> Prepare:
    """A job over very many dead letter queues, each with a letter."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def make(node: Node, number: int) -> None:
            broker, vhost = node.broker, node.broker.vhost("/")
            arguments: FieldTable = {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": f"dead-{number}",
                "x-max-length": 0,
            }
            broker.declare_queue(vhost, f"live-{number}", durable=True, arguments=arguments)
            broker.declare_queue(vhost, f"dead-{number}", durable=True)

        _in_parts(site, count, make)
        for number in range(count if full else 0):
            site.channel.basic_publish("", f"live-{number}", b"x")
        site.channel.queue_declare("dead-0", passive=True)

        def ask() -> None:
            site.http.post(f"/api/v1/operator/dead-letters/{verb}", json=body).raise_for_status()
            while site.http.get("/api/v1/operator/jobs").json()["jobs"][0]["state"] == "running":
                time.sleep(0.2)

        return ask

    return prepare


def _upstream(number: int) -> dict[str, Any]:
    name = f"upstream-{number}"
    return {"vhost": "/", "component": "federation-upstream", "name": name, "value": {"uri": "amqp://x"}}


def _global(number: int) -> dict[str, Any]:
    return {"name": f"global-{number}", "value": {"uri": "amqp://x"}}


_MANY: Final = 100_000
_ONE: Final = "/api/permissions/%2F/user-7"
_TOPIC: Final = "/api/topic-permissions/%2F"
_UPSTREAM: Final = "/api/parameters/federation-upstream/%2F/upstream-7"
REQUESTS: dict[str, tuple[int, Prepare]] = {
    "list users": (_MANY, users("GET", "/api/users")),
    "list users without permissions": (_MANY, users("GET", "/api/users/without-permissions")),
    "list permissions": (_MANY, users("GET", "/api/permissions")),
    "list permissions of a vhost": (_MANY, users("GET", "/api/vhosts/%2F/permissions")),
    "show permissions of one of many users": (_MANY, users("GET", "/api/users/user-7/permissions")),
    "show a permission among many": (_MANY, users("GET", _ONE)),
    "put a permission among many": (_MANY, users("PUT", _ONE, _RIGHTS)),
    "list topic permissions": (_MANY, users("GET", "/api/topic-permissions")),
    "put a topic permission among many": (
        _MANY,
        users("PUT", _TOPIC + "/user-7", {"exchange": "amq.topic", "write": "a", "read": "b"}),
    ),
    "list limits of users": (_MANY, users("GET", "/api/user-limits")),
    "delete one of many users": (_MANY, users("DELETE", "/api/users/user-7")),
    "export users with permissions": (_MANY, users("GET", "/api/definitions")),
    "delete very many users": (10_000, bulk_delete),
    "delete a vhost with permissions of many users": (_MANY, delete_vhost_of_users),
    "the first request after a change, many vhosts": (10_000, vhosts("GET", "/api/users")),
    "list limits of vhosts": (10_000, vhosts("GET", "/api/vhost-limits")),
    "delete a user with permissions in many vhosts": (10_000, vhosts("DELETE", "/api/users/one")),
    "export many vhosts": (10_000, vhosts("GET", "/api/definitions")),
    "list parameters of many vhosts": (10_000, vhosts("GET", "/api/parameters")),
    "overview of many vhosts": (10_000, vhosts("GET", "/api/overview")),
    "list topic permissions of one user": (_MANY, topics_of_one("GET", "/api/topic-permissions")),
    "delete topic permissions of one user": (_MANY, topics_of_one("DELETE", _TOPIC + "/guest")),
    "list parameters": (_MANY, parameters("GET", "/api/parameters")),
    "list global parameters": (_MANY, parameters("GET", "/api/global-parameters")),
    "put a parameter among many": (_MANY, parameters("PUT", _UPSTREAM, {"value": {"uri": "amqp://y"}})),
    "show a parameter among many": (_MANY, parameters("GET", _UPSTREAM)),
    "delete a parameter among many": (_MANY, parameters("DELETE", _UPSTREAM)),
    "list parameters in 1,000 vhosts": (10_000, parameters("GET", "/api/parameters", spread=1_000)),
    "export parameters in 1,000 vhosts": (10_000, parameters("GET", "/api/definitions", spread=1_000)),
    "delete a vhost with parameters": (_MANY, parameters("DELETE", "/api/vhosts/v1", spread=2)),
    "list what has no meaning": (_MANY, parameters("GET", "/api/without-meaning")),
    "checkpoint of users and parameters": (_MANY, checkpoint),
    "import parameters": (20_000, imported("parameters", _upstream)),
    "import global parameters": (20_000, imported("global_parameters", _global)),
    "close the connections of a user": (3_000, connections("DELETE", "/api/connections/username/many")),
    "list the connections of a user": (3_000, connections("GET", "/api/connections/username/many")),
    "connection lost with consumers of very many queues": (_MANY, wide("close")),
    "close a channel with consumers of very many queues": (_MANY, wide("close channel")),
    "qos with consumers of very many queues": (_MANY, wide("qos")),
    "flow with consumers of very many queues": (_MANY, wide("flow")),
    "show a channel with very many consumers": (_MANY, wide("/api/channels/NAME (1)")),
    "connections in the dashboard, one with very many consumers": (
        _MANY,
        wide("/api/v1/dashboard/connections"),
    ),
    "dashboard of a connection with very many consumers": (
        _MANY,
        wide("/api/v1/dashboard/connections/NAME/consumers"),
    ),
    "connection lost with consumers of auto-delete queues": (20_000, wide("close", auto_delete=True)),
    "close a channel with consumers of auto-delete queues": (
        20_000,
        wide("close channel", auto_delete=True),
    ),
    "close a channel that got from very many queues": (20_000, got("close")),
    "ack what was got from very many queues": (20_000, got("ack")),
    "get from one more of very many queues": (20_000, got("get")),
    "recover what was got from very many queues": (20_000, got("recover")),
    "discard dead letters of very many queues": (5_000, letters_of_queues("discard", {})),
    "discard no dead letters of very many queues": (100_000, letters_of_queues("discard", {}, full=False)),
}
