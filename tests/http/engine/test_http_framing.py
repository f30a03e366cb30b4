"""Where one request ends and the next begins: what two servers could read differently is refused."""

import re
import socket

import pytest
from http_support import Api, ids, raw_exchange

from holtmq.testing import TestBroker

PUSH = b'{"items":[{"queue":"q","payload":1,"transactionId":"a"}]}'
LENGTH = b"content-length: %d" % len(PUSH)
CODED = b"transfer-encoding: "
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(PUSH), PUSH)
NEXT = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


def statuses(
    broker: TestBroker, *headers: bytes, body: bytes = CHUNKED, start: bytes = b"POST /api/v1/push HTTP/1.1"
) -> list[int]:
    """Of a request and of the next one in the same write, until the broker hangs up."""
    sent = b"\r\n".join([start, b"host: 127.0.0.1", *headers]) + b"\r\n\r\n" + body + NEXT
    answer = b""
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=60) as peer:
        peer.sendall(sent)
        while more := peer.recv(65536):
            answer += more
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


@pytest.mark.parametrize("coding", [b"chunked", b"CHUNKED", b"   Chunked"])
def test_a_chunked_body_is_taken(broker: TestBroker, api: Api, coding: bytes) -> None:
    assert statuses(broker, CODED + coding) == [201, 200]
    assert ids(api.pop("q")) == ["a"]


@pytest.mark.parametrize(
    "headers",
    [
        (CODED + b"gzip, chunked",),
        (CODED + b"GZIP, CHUNKED",),
        (CODED + b"identity, chunked",),
        (CODED + b", chunked",),
        (CODED + b"gzip", CODED + b"chunked"),
        (CODED + b"identity", b"Transfer-Encoding: chunked"),
        (CODED + b"identity",),
        (CODED + b"gzip",),
        (CODED + b"xchunked",),
        (CODED + b"chunked;a=b",),
        (CODED + b'"chunked"',),
    ],
    ids=str,
)
def test_a_transfer_coding_that_is_not_understood_is_501(
    broker: TestBroker, api: Api, headers: tuple[bytes, ...]
) -> None:
    assert statuses(broker, *headers) == [501]
    assert api.pop("q") == []


def test_a_request_without_use_for_a_body_does_not_run_either(broker: TestBroker, api: Api) -> None:
    api.push("q", "a")

    assert statuses(broker, CODED + b"gzip", start=b"DELETE /api/v1/resources/queues/q HTTP/1.1") == [501]
    assert ids(api.pop("q")) == ["a"]


@pytest.mark.parametrize(
    "headers",
    [
        (CODED + b"chunked, gzip",),
        (CODED + b"chunked, chunked",),
        (CODED + b"chunked", CODED + b"chunked"),
        (CODED + b"chunked", CODED + b"identity"),
        (CODED,),
        (CODED + b"\x0bchunked",),
        (CODED + b"\r\n chunked",),
        (b"x: 1\r\n " + CODED + b"chunked",),
        (b"transfer-encoding : chunked",),
        (b"transfer-encoding\t: chunked",),
        (b" transfer-encoding: chunked",),
        (CODED + b"chunked", LENGTH),
        (LENGTH, CODED + b"chunked"),
        (LENGTH, CODED + b"identity"),
    ],
    ids=str,
)
def test_a_doubtful_transfer_coding_is_refused(
    broker: TestBroker, api: Api, headers: tuple[bytes, ...]
) -> None:
    assert statuses(broker, *headers) == [400]
    assert api.pop("q") == []


@pytest.mark.parametrize(
    "headers",
    [
        (LENGTH, LENGTH),
        (LENGTH, b"content-length: 1"),
        (b"content-length: %d, %d" % (len(PUSH), len(PUSH)),),
        (b"content-length : %d" % len(PUSH),),
        (b"content-length: +%d" % len(PUSH),),
        (b"content-length: -%d" % len(PUSH),),
        (b"content-length: 0x%x" % len(PUSH),),
        (b"content-length: 5_7",),
        (b"content-length: 5 7",),
        (b"content-length:",),
        (b"content-length: 1\r\n 2",),
        (b"content-length: 99999999999999999999",),
    ],
    ids=str,
)
def test_a_doubtful_length_is_refused(broker: TestBroker, api: Api, headers: tuple[bytes, ...]) -> None:
    assert statuses(broker, *headers, body=PUSH) == [400]
    assert api.pop("q") == []


@pytest.mark.parametrize(
    "body",
    [
        CHUNKED.replace(b"0\r\n\r\n", b"00;a=b\r\nx: y\r\n\r\n"),
        b"000" + CHUNKED,
        CHUNKED.replace(b"\r\n", b';a;b=c;d="e\t"\r\n', 1),
    ],
    ids=str,
)
def test_extensions_trailers_and_zeros_of_chunks_are_skipped(broker: TestBroker, body: bytes) -> None:
    assert statuses(broker, CODED + b"chunked", body=body) == [201, 200]


@pytest.mark.parametrize(
    "body",
    [
        b"+" + CHUNKED,
        b"-" + CHUNKED,
        b"0x" + CHUNKED,
        b" " + CHUNKED,
        b"\r\n" + CHUNKED,
        CHUNKED.replace(b"\r\n", b" \r\n", 1),
        CHUNKED.replace(b"\r\n", b" ;a\r\n", 1),
        CHUNKED.replace(b"\r\n", b"\n", 1),
        CHUNKED.replace(b"\r\n", b"\r", 1),
        CHUNKED.replace(b"\r\n", b";a\nb\r\n", 1),
        CHUNKED.replace(b"\r\n", b';a="\n"\r\n', 1),
        CHUNKED.replace(b"}\r\n", b"}"),
        CHUNKED.replace(b"}\r\n", b"}\n"),
        CHUNKED.replace(b"}\r\n", b"}x\r\n"),
        CHUNKED[:-2],
        CHUNKED[:-2] + b"\n",
        CHUNKED[:-2] + b"content-length: 5\r\n\r\n",
        CHUNKED[:-2] + b"transfer-encoding: chunked\r\n\r\n",
        CHUNKED[:-2] + b"x : y\r\n\r\n",
        b"1" + b"0" * 14 + CHUNKED,
        b"F" * 17 + b"\r\n" + PUSH,
    ],
    ids=str,
)
def test_doubtful_chunks_are_refused(broker: TestBroker, api: Api, body: bytes) -> None:
    assert statuses(broker, CODED + b"chunked", body=body) == [400]
    assert api.pop("q") == []


def test_http_1_0_has_no_chunks(broker: TestBroker, api: Api) -> None:
    assert statuses(broker, CODED + b"chunked", start=b"POST /api/v1/push HTTP/1.0") == [400]
    assert api.pop("q") == []


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
def test_another_version_is_refused(broker: TestBroker, api: Api, version: bytes) -> None:
    start = b"POST /api/v1/push HTTP/" + version

    assert statuses(broker, LENGTH, b"connection: keep-alive", start=start, body=PUSH) == [505]
    assert api.pop("q") == []


@pytest.mark.parametrize(
    ("framing", "body"), [(LENGTH, PUSH), (CODED + b"chunked", CHUNKED)], ids=["length", "chunks"]
)
@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_another_protocol_is_not_spoken_and_the_body_is_read_all_the_same(
    broker: TestBroker, api: Api, framing: bytes, body: bytes, step: int
) -> None:
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA"
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: 127.0.0.1\r\n" + upgrade + b"\r\n" + framing + b"\r\n\r\n"
    sent = head + body + head + body

    answer = raw_exchange(
        broker.http_port, *(sent[at : at + step] for at in range(0, len(sent), step)), answers=2
    )

    assert re.findall(rb'"status":"(\w+)"', answer) == [b"queued", b"duplicate"]
    assert ids(api.pop("q")) == ["a"]


def test_what_is_checked_in_a_head_is_checked_in_one_that_asks_for_another_protocol(
    broker: TestBroker, api: Api
) -> None:
    upgrade = (b"connection: upgrade", b"upgrade: h2c")

    assert statuses(broker, *upgrade, CODED + b"gzip, chunked") == [501]
    assert statuses(broker, *upgrade, CODED + b"chunked", b"host: 127.0.0.1") == [400]
    assert statuses(broker, *upgrade, CODED + b"chunked", LENGTH) == [400]
    assert api.pop("q") == []


def test_a_tunnel_is_refused_and_its_bytes_are_not_read_as_requests(broker: TestBroker) -> None:
    assert statuses(broker, start=b"CONNECT 127.0.0.1:1 HTTP/1.1", body=b"") == [404]
