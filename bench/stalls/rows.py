"""Requests about very many objects of one kind: imports of them, and lists."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from bench.stalls.site import Prepare, Site

from holtmq.node import Node

_HASH = "2lYSQdrBJNcOHbPMyIGXHZ+7LDmGgk0VdPkJX7FDhTvS0Ejv"  # a SHA-256 of RabbitMQ, with its salt


def _exchange(number: int) -> dict[str, Any]:
    return {
        "name": f"exchange-{number}",
        "vhost": "/",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }


def _user(number: int) -> dict[str, Any]:
    return {
        "name": f"user-{number}",
        "password_hash": _HASH,
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["management"],
        "limits": {},
    }


def _permission(number: int) -> dict[str, Any]:
    return {"user": f"user-{number}", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}


def _policy(number: int) -> dict[str, Any]:
    return {
        "name": f"policy-{number}",
        "vhost": "/",
        "pattern": f"^tenant-{number}-",
        "apply-to": "queues",
        "definition": {"max-length": 10},
        "priority": 1,
    }


def _vhost(number: int) -> dict[str, Any]:
    return {"name": f"vhost-{number}"}


_PARTS: dict[str, dict[str, Callable[[int], dict[str, Any]]]] = {
    "exchanges": {"exchanges": _exchange},
    "users": {"users": _user, "permissions": _permission},
    "policies": {"policies": _policy},
    "vhosts": {"vhosts": _vhost},
}


def load(what: str, *, again: bool = False) -> Prepare:
    """An import of one kind of object; ``again``: all of them are there."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        parts = {part: [row(number) for number in range(count)] for part, row in _PARTS[what].items()}
        document = json.dumps(parts).encode()
        if again:
            site.load_definitions(document)
        return lambda: site.load_definitions(document)

    return prepare


def listed(path: str, what: str = "queues") -> Prepare:
    """A request about objects whose names are in no order."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        names = [f"{what}-{number}" for number in range(count)]
        random.Random(7).shuffle(names)

        def make(part: list[str]) -> Callable[[Node], None]:
            def work(node: Node) -> None:
                broker, vhost = node.broker, node.broker.vhost("/")
                for name in part:
                    if what == "queues":
                        broker.declare_queue(vhost, name, durable=True)
                    else:
                        broker.exchanges.declare(vhost, name, "direct", durable=True)

            return work

        for start in range(0, count, 10_000):
            site.topology(make(names[start : start + 10_000]))
        if path.startswith("DELETE "):
            return lambda: site.http.delete(path.removeprefix("DELETE ")).raise_for_status()
        return lambda: site.get(path)

    return prepare
