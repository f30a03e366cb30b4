"""Pushes of one message from many connections are stored together and answered apart."""

import json
import socket
from urllib.parse import urlsplit

from http_support import Api

from holtmq.node import Node
from holtmq.testing import TestBroker


def request(queue: str, transaction_id: str) -> bytes:
    body = json.dumps({"items": [{"queue": queue, "payload": 1, "transactionId": transaction_id}]}).encode()
    return b"POST /api/v1/push HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def answer_of(sock: socket.socket) -> tuple[int, object]:
    stream = sock.makefile("rb")
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, json.loads(stream.read(length))


def push_at_once(broker: TestBroker, requests: list[bytes]) -> list[tuple[int, object]]:
    """All of them lie in their sockets before the broker looks at any; the answers, in order."""
    where = urlsplit(broker.http_url)
    sockets = [socket.create_connection((where.hostname, where.port), timeout=120) for _ in requests]

    def send_all(_: Node) -> None:
        for sock, data in zip(sockets, requests, strict=True):
            sock.sendall(data)

    try:
        broker.call(send_all)  # on the loop, which reads nothing meanwhile
        return [answer_of(sock) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def test_each_is_answered_with_its_own_result(broker: TestBroker, api: Api) -> None:
    api.push("q", "first")

    answers = push_at_once(broker, [request("q", f"id-{number}") for number in range(20)])

    assert [status for status, _ in answers] == [201] * 20
    assert [body[0]["transaction_id"] for _, body in answers] == [f"id-{number}" for number in range(20)]  # type: ignore[index]
    assert len({body[0]["message_id"] for _, body in answers}) == 20  # type: ignore[index]
    assert len(api.pop("q", batch=100)) == 21


def test_the_same_id_from_two_connections_is_stored_once(broker: TestBroker, api: Api) -> None:
    api.push("q", "first")

    answers = push_at_once(broker, [request("q", "same") for _ in range(6)])

    statuses = sorted(body[0]["status"] for _, body in answers)  # type: ignore[index]
    assert statuses == ["duplicate"] * 5 + ["queued"]
    assert len({body[0]["message_id"] for _, body in answers}) == 1  # type: ignore[index]


def test_a_full_queue_refuses_its_own_and_no_other(broker: TestBroker, api: Api) -> None:
    api.configure("full", maxSize=2)
    api.push("full", "a")
    api.push("q", "first")

    answers = push_at_once(
        broker, [request("full" if number % 2 else "q", f"id-{number}") for number in range(10)]
    )

    assert [status for status, _ in answers[::2]] == [201] * 5
    assert sum(status == 201 for status, _ in answers[1::2]) == 1
    assert len(api.pop("q", batch=100)) == 6
    assert len(api.pop("full", batch=100)) == 2


def test_each_counts_as_a_request(broker: TestBroker, api: Api) -> None:
    api.push("q", "first")
    before = broker.call(lambda node: node.partitioned.counters.of("q").push_requests)

    push_at_once(broker, [request("q", f"id-{number}") for number in range(8)])

    assert broker.call(lambda node: node.partitioned.counters.of("q").push_requests) == before + 8
