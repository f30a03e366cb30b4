"""Whatever is sent over HTTP, the answer is never a 500, and never none."""

import logging
import sys
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_run import config, run

from holtmq.config import Auth, Config
from holtmq.config.values import Secret
from holtmq.testing import TestBroker


def test_random_requests_to_every_route_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    with TestBroker(config=config()) as broker:
        counts = run(broker, range(1500))

    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert {200, 400, 401, 403, 404} <= set(counts)  # it gets behind the door, and past the first check


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/push", b'{"items":[{"queue":"\xff","payload":1}]}'),
        ("/api/v1/ack", b'{"transactionId":"\xe3","partitionId":"1-0"}'),
        ("/api/v1/ack/batch", b'{"acknowledgments":"\xed\xa0\x80"}'),
        ("/api/v1/transaction", b'{"operations":[{"type":"\xff"}]}'),
        ("/api/v1/configure", b'{"queue":"\xff"}'),
        ("/api/v1/kv", b'{"operations":[{"op":"get","ns":"\xff","key":"k"}]}'),
        ("/api/v1/session", b'{"user":"\xff","password":""}'),
        ("/api/definitions", b'{"queues":"\xff"}'),
    ],
)
def test_a_string_that_is_not_utf_8_is_a_bad_request(path: str, body: bytes) -> None:
    with TestBroker() as broker:
        json = {"Content-Type": "application/json"}
        answer = httpx.post(f"{broker.http_url}{path}", content=body, headers=json, timeout=60)

    assert answer.status_code == 400


@pytest.mark.parametrize("path", ["/api/v1/pop/queue/q", "/api/v1/resources/queues", "/api/whoami"])
@pytest.mark.parametrize("header", [b"Bearer \xc3\xbc", b"\xff", b"Basic \xff", b"Basic /w=="])
def test_an_authorization_that_is_not_ascii_is_no_login(path: str, header: bytes) -> None:
    secret = Secret("a secret that is long enough for HS256")
    for auth in (Auth(), Auth(jwt_enabled=True, jwt_secret=secret)):
        with TestBroker(config=Config(auth=auth)) as broker:
            answer = httpx.get(f"{broker.http_url}{path}", headers={b"authorization": header}, timeout=60)

        assert answer.status_code == 401
