"""A client that says exactly what it is told to, and the few calls every test makes.

Owns: nothing of the broker's; answers are returned as they came.
"""

import socket
from collections.abc import Sequence
from typing import Any

import httpx

Json = dict[str, Any]


class Api:
    """The HTTP API with plain words."""

    def __init__(self, url: str, **options: Any) -> None:
        self.http = httpx.Client(base_url=url, timeout=60, **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        return (
            self.http.post(path, json=body, **options)
            if body is not None
            else self.http.post(path, **options)
        )

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.http.get(path, params=params)

    def delete(self, path: str, **params: Any) -> httpx.Response:
        return self.http.delete(path, params=params)

    def configure(self, queue: str, **options: object) -> Json:
        answer = self.post("/api/v1/configure", {"queue": queue, "options": options})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def push(self, queue: str, *ids: str, partition: str = "Default", **fields: object) -> list[Json]:
        items = [
            {"queue": queue, "partition": partition, "payload": {"id": id_}, "transactionId": id_, **fields}
            for id_ in ids
        ]
        answer = self.post("/api/v1/push", {"items": items})
        assert answer.status_code == 201, answer.text
        return list(answer.json())

    def pop(self, queue: str, partition: str = "", **params: Any) -> list[Json]:
        path = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
        answer = self.get(path, **{"batch": 10, **params})
        assert answer.status_code in (200, 204), answer.text
        return list(answer.json()["messages"]) if answer.status_code == 200 else []

    def ack(self, message: Json, status: str = "completed", **fields: object) -> Json:
        answer = self.post("/api/v1/ack", {**address(message), "status": status, **fields})
        assert answer.status_code == 200, answer.text
        (verdict,) = answer.json()
        return dict(verdict)

    def ack_batch(
        self, messages: Sequence[Json], status: str | Sequence[str] = "completed", **fields: object
    ) -> list[Json]:
        words = [status] * len(messages) if isinstance(status, str) else status
        acks = [{**address(m), "status": word} for m, word in zip(messages, words, strict=True)]
        answer = self.post("/api/v1/ack/batch", {"acknowledgments": acks, **fields})
        assert answer.status_code == 200, answer.text
        return list(answer.json())

    def letters(self, **params: Any) -> list[Json]:
        return list(self.get("/api/v1/dlq", **params).json()["messages"])


def address(message: Json) -> Json:
    """What an ack needs of a popped message."""
    names = ("transactionId", "partitionId", "leaseId", "consumerGroup")
    return {name: message[name] for name in names if message.get(name)}


def ids(messages: Sequence[Json]) -> list[str]:
    return [message["transactionId"] for message in messages]


def raw_exchange(port: int, *pieces: bytes, answers: int = 1) -> bytes:
    """Send bytes as they are, piece by piece, and read until so many answers are complete (or it closes)."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            wire.sendall(piece)
        got = b""
        while _complete(got) < answers:
            more = wire.recv(65536)
            if not more:
                break
            got += more
        return got


def _complete(data: bytes) -> int:
    count = 0
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line[15:])
        if len(rest) < size:
            break
        count += 1
        data = rest[size:]
    return count
