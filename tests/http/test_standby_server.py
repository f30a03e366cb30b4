"""The HTTP side of a standby, over a real socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import pytest_asyncio

from certificates import Certificates
from holtmq.http.engine import listening
from holtmq.http.standby import StandbyServer
from holtmq.replica_life import advertised


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    server = StandbyServer(lambda: {"status": "standby"}, lambda: "the owner is elsewhere")
    yield await server.listen(["127.0.0.1"], 0)
    await server.close()


async def talk(port: int, *pieces: bytes) -> bytes:
    """Send the pieces, one packet each; everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        (b"/health", b"200 OK", b'{"status":"standby"}'),
        (b"/health?verbose=1", b"200 OK", b'{"status":"standby"}'),
        (b"/ready", b"503 Service Unavailable", b'"ready":false'),
        (b"/metrics", b"200 OK", b"\nholtmq_standby 1.0\n"),
        (b"/api/v1/push", b"503 Service Unavailable", b"the owner is elsewhere"),
    ],
)
async def test_only_health_and_metrics_are_answered(
    port: int, path: bytes, status: bytes, text: bytes
) -> None:
    answer = await talk(port, b"GET " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 " + status)
    assert text in answer


async def test_a_request_may_come_byte_by_byte_and_another_may_follow(port: int) -> None:
    first = b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

    answer = await talk(port, *[bytes([byte]) for byte in first + last])

    assert answer.count(b"HTTP/1.1 ") == 2
    assert answer.endswith(b'{"status":"standby"}')


async def test_what_is_no_request_is_refused(port: int) -> None:
    answer = await talk(port, b"\x16\x03\x01 this is TLS\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_head_request_gets_no_body(port: int) -> None:
    answer = await talk(port, b"HEAD /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"\r\n\r\n")


async def test_many_clients_can_connect_before_the_standby_accepts_one(port: int) -> None:
    """As on the owner: after a failover all clients look for the new one at once."""
    clients = 300
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < clients:
        pytest.skip("this kernel allows fewer")

    with ExitStack() as stack:
        for _ in range(clients):  # the loop accepts none meanwhile: this does not await
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=20)))


async def test_a_client_that_never_begins_with_tls_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_HANDSHAKE_SECONDS", 0.05)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*Certificates(tmp_path).issue("standby"))
    server = StandbyServer(lambda: {}, lambda: "")
    port = await server.listen(["127.0.0.1"], 0, tls)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async with asyncio.timeout(40):  # without a limit of ours it would be a minute
        assert await reader.read() == b""

    writer.close()
    await server.close()


def test_a_node_with_tls_alone_is_advertised_with_tls() -> None:
    both = {"amqp": 1, "amqp/ssl": 2, "http": 3, "https": 4}

    assert advertised("one", both) == "amqp://one:1 http://one:3"
    assert advertised("one", {"amqp/ssl": 2, "https": 4}) == "amqps://one:2 https://one:4"
