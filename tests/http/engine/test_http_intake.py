"""What one client may send at once, before anyone asks who it is: heads, trailers, pipelined requests."""

import re
import socket
from contextlib import suppress

import pytest
from http_support import Api

from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.request_parser import RequestParser
from holtmq.testing import TestBroker

Head = tuple[bytes, bytes, bytes, dict[bytes, bytes], bool]


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def parser(heads: list[Head]) -> RequestParser:
    return RequestParser(lambda *head: heads.append(head), lambda piece: None, lambda: None)


def test_trailers_are_no_headers() -> None:
    heads: list[Head] = []
    one = parser(heads)

    one.feed(b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", 1.0)
    one.feed(b"authorization: Basic eA==\r\nhost: b\r\n\r\n", 1.0)
    one.feed(b"GET /b HTTP/1.1\r\nhost: c\r\n\r\n", 1.0)

    assert [head[3] for head in heads] == [{b"host": b"a", b"transfer-encoding": b"chunked"}, {b"host": b"c"}]
    assert not one.is_unusual


def test_a_head_has_a_thousand_headers_at_most() -> None:
    heads: list[Head] = []
    line = b"GET /a HTTP/1.1\r\n"

    parser(heads).feed(line + b"a: b\r\n" * 1000 + b"\r\n", 1.0)
    with pytest.raises(Refusal) as refused:
        parser(heads).feed(line + b"a: b\r\n" * 1001 + b"\r\n", 1.0)

    assert len(heads) == 1
    assert refused.value.status == 431


def until_it_ends(port: int, *pieces: bytes) -> bytes:
    """What came back before the other side closed, which it may do before it has read everything."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        with suppress(ConnectionError):
            for piece in pieces:
                wire.sendall(piece)
        with suppress(ConnectionError):
            while more := wire.recv(1 << 16):
                answer += more
    return answer


@pytest.mark.parametrize(
    ("begun", "endless", "end"),
    [
        (b"1\r\nx\r\n0\r\n", b"name: value\r\n", b"\r\n"),
        (b"1\r\nx\r\n0\r\nname: ", b"value", b"\r\n\r\n"),
        (b"1;name=", b"value", b"\r\nx\r\n0\r\n\r\n"),
    ],
)
def test_trailers_and_extensions_without_end_are_refused(
    broker: TestBroker, begun: bytes, endless: bytes, end: bytes
) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    last = b"GET /nowhere HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"

    short = until_it_ends(broker.http_port, head, begun, endless * 100, end, last)
    long = until_it_ends(broker.http_port, head, begun, *[endless * 1_000] * 30, end, last)

    assert statuses(short) == [200, 404]
    assert 404 not in statuses(long)


def test_requests_that_wait_behind_another_are_kept_as_bytes(broker: TestBroker, api: Api) -> None:
    """They were parsed: two megabytes of objects for the 256 KiB that a client without a login may send."""
    first = b"GET /api/v1/pop/queue/q?wait=true&timeout=60000 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=60) as wire:
        wire.sendall(first + b"GET /nowhere HTTP/1.1\r\n\r\n" * 4_000)
        parsed = 0
        while not parsed:
            parsed = broker.call(lambda node: max(len(one._queue) for one in node.http.engine.connections))
        api.push("q", "a")
        answer = b""
        while len(statuses(answer)) < 4_001:
            answer += wire.recv(1 << 20)

    assert parsed < 500
    assert statuses(answer) == [200] + [404] * 4_000
