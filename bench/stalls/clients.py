"""Very many connections, users and policies."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pika
from bench.stalls.site import Site

from holtmq.node import Node

_OPEN = b"\x01\x00\x00"


def open_connections(site: Site, count: int, user: str = "guest", vhost: str = "/") -> list[socket.socket]:
    """Open connections by hand: a client library needs too much memory for thousands."""
    port = int(site.broker.amqp_url.rsplit(":", 1)[1].split("/")[0])
    plain = b"\0" + user.encode() + b"\0guest"
    start = (
        b"\x00\x0a\x00\x0b"
        + (0).to_bytes(4, "big")
        + b"\x05PLAIN"
        + len(plain).to_bytes(4, "big")
        + plain
        + b"\x00"
    )
    tune = b"\x00\x0a\x00\x1f\x00\x00" + (131_072).to_bytes(4, "big") + b"\x00\x00"
    opened = b"\x00\x0a\x00\x28" + bytes([len(vhost)]) + vhost.encode() + b"\x00\x00"
    hello = b"AMQP\x00\x00\x09\x01"
    for method in (start, tune, opened):
        hello += _OPEN + len(method).to_bytes(4, "big") + method + b"\xce"
    sockets: list[socket.socket] = []
    while len(sockets) < count:  # few at a time: logins of one address are limited
        some = [socket.create_connection(("127.0.0.1", port)) for _ in range(min(10, count - len(sockets)))]
        for one in some:
            one.sendall(hello)
        for one in some:
            read = b""
            while b"\x00\x0a\x00\x29" not in read:  # connection.open-ok
                piece = one.recv(65_536)
                if not piece:
                    raise RuntimeError(f"connection refused after {read!r}")
                read += piece
        sockets += some
    return sockets


def list_connections(site: Site, count: int) -> Callable[[], object]:
    sockets = open_connections(site, count)

    def ask() -> None:
        site.get("/api/connections")
        assert sockets

    return ask


def delete_user(site: Site, count: int) -> Callable[[], object]:
    body = {"password": "guest", "tags": ""}
    site.http.put("/api/users/many", json=body).raise_for_status()
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    site.http.put("/api/permissions/%2F/many", json=rights).raise_for_status()
    sockets = open_connections(site, count, "many")

    def delete() -> None:
        site.http.delete("/api/users/many").raise_for_status()
        for one in sockets:
            one.close()

    return delete


def change_rights(site: Site, count: int) -> Callable[[], object]:
    sockets = open_connections(site, count)
    rights = {"configure": ".*", "write": "^a", "read": ".*"}

    def change() -> None:
        site.http.put("/api/permissions/%2F/guest", json=rights).raise_for_status()
        assert sockets

    return change


def declare_among_policies(site: Site, count: int) -> Callable[[], object]:
    def make(node: Node) -> None:
        for number in range(count):
            node.broker.policy_changes.put(
                "/", f"policy-{number}", f"^(some|thing)-{number}-.*$", {"max-length": 5}, priority=number
            )

    site.topology(make)

    def declare() -> None:
        for number in range(10):
            site.channel.queue_declare(f"new-{number}")

    return declare


def put_among_policies(site: Site, count: int) -> Callable[[], object]:
    declare_among_policies(site, count)

    def make(node: Node) -> None:
        for number in range(1_000):
            node.broker.declare_queue(node.broker.vhost("/"), f"queue-{number}")

    site.topology(make)
    body = {"pattern": "^queue-", "definition": {"max-length": 10}}
    return lambda: site.http.put("/api/policies/%2F/wide", json=body).raise_for_status()


def reconnect(site: Site, count: int) -> Callable[[], object]:
    """All connections are lost at once, as when a network ends."""
    sockets = open_connections(site, count)

    def lose() -> None:
        for one in sockets:
            one.close()
        pika.BlockingConnection(pika.URLParameters(site.broker.amqp_url)).close()

    return lose
