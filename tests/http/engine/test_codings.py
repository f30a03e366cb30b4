"""Bodies that come compressed, to hot routes and to all others."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from threading import get_ident

import pytest
from http_support import Api, ids

from holtmq.config import Config, Http, Limits
from holtmq.http.engine import protocol, request
from holtmq.http.engine.codings import plain_body
from holtmq.testing import TestBroker

PUSH = json.dumps({"items": [{"queue": "q", "payload": 1, "transactionId": "a"}]}).encode()
CONFIGURE = json.dumps({"queue": "q", "options": {"leaseTime": 77}}).encode()
BOMB = gzip.compress(b" " * 3000)


@pytest.fixture(params=[0, 4096], ids=["in a thread", "at once"])
def at_once(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, at_once: int) -> Iterator[TestBroker]:
    monkeypatch.setattr(protocol, "_UNPACKED_AT_ONCE", at_once)
    config = Config(
        http=Http(max_body_bytes=2048, max_long_body_bytes=2048),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    with TestBroker(config=config) as one:
        yield one


def in_two_members(body: bytes) -> bytes:
    return gzip.compress(body[:10]) + gzip.compress(body[10:])


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZip", in_two_members),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
    ],
)
def test_a_compressed_body_is_read_everywhere(api: Api, coding: str, pack: Callable[[bytes], bytes]) -> None:
    headers = {"content-encoding": coding, "content-type": "application/json"}

    pushed = api.http.post("/api/v1/push", content=pack(PUSH), headers=headers)
    configured = api.http.post("/api/v1/configure", content=pack(CONFIGURE), headers=headers)
    declared = api.http.put(
        "/api/queues/%2F/work", content=pack(b'{"durable": true}'), headers=headers, auth=("guest", "guest")
    )

    assert pushed.status_code == 201, pushed.text
    assert ids(api.pop("q")) == ["a"]
    assert configured.json()["options"]["leaseTime"] == 77
    assert declared.status_code == 201, declared.text


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/configure", "/api/definitions"])
@pytest.mark.parametrize(
    ("coding", "body", "status", "word"),
    [
        ("gzip", BOMB, 413, "2048"),
        ("gzip", in_two_members(b" " * 3000), 413, "2048"),
        ("gzip", gzip.compress(PUSH)[:-9], 400, "gzip"),
        ("gzip", b"\x1f\x8b not so", 400, "gzip"),
        ("deflate", b"\x01\x02", 400, "deflate"),
        ("br", b"\x0b\x02\x80{}\x03", 415, "gzip, deflate"),
        ("br", b"[\x02\x80{}\x03", 415, "gzip, deflate"),
        ("gzip, gzip", gzip.compress(gzip.compress(PUSH)), 415, "gzip, deflate"),
        (None, b"QPB1\x00\x00", 415, "application/json"),
        (None, b"QTB1\x00\x00", 415, "application/json"),
    ],
    ids=[
        "a bomb",
        "a bomb in two members",
        "cut short",
        "not gzip",
        "not deflate",
        "br",
        "br that begins as JSON does",
        "twice packed",
        "a binary push",
        "a binary transaction",
    ],
)
def test_a_body_that_cannot_be_unpacked_is_refused_with_the_reason(
    api: Api, path: str, coding: str | None, body: bytes, status: int, word: str
) -> None:
    headers = {} if coding is None else {"content-encoding": coding}

    answer = api.http.post(path, content=body, headers=headers, auth=("guest", "guest"))

    assert (answer.status_code, word in answer.text) == (status, True), answer.text
    assert answer.headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)
    assert api.http.post("/api/v1/push", content=PUSH).status_code == 201  # the connection is as it was


def test_what_is_wrong_inside_a_compressed_body_is_said_as_of_any_other(api: Api) -> None:
    headers = {"content-encoding": "gzip"}

    answer = api.http.post("/api/v1/push", content=gzip.compress(b"{"), headers=headers)

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid JSON")


def test_a_long_compressed_body_is_unpacked_beside_the_event_loop(
    broker: TestBroker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_UNPACKED_AT_ONCE", 100)
    threads: list[int] = []

    def note(body: bytes, header: str | None, most: int) -> bytes:
        threads.append(get_ident())
        return plain_body(body, header, most)

    monkeypatch.setattr(request, "plain_body", note)
    headers = {"content-encoding": "gzip"}
    long = gzip.compress(PUSH + b" " * 1_000, compresslevel=0)

    for body in (gzip.compress(PUSH), long):
        assert api.http.post("/api/v1/push", content=body, headers=headers).status_code == 201

    assert [thread == broker.call(lambda _: get_ident()) for thread in threads] == [True, False]


def test_a_compressed_body_that_no_one_reads_is_left_alone(api: Api) -> None:
    long = gzip.compress(PUSH * 100, compresslevel=0)

    answer = api.http.request("GET", "/health", content=long, headers={"content-encoding": "gzip"})

    assert answer.status_code == 200
