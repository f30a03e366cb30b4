"""The HTTP port with TLS: hot routes, the other ones, and the Python client."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from certificates import Certificates
from holtmq.client import SyncClient
from holtmq.config import Config, Http, Limits
from holtmq.testing import TestBroker


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def url(certificates: Certificates) -> Iterator[str]:
    cert, key = certificates.issue("broker")
    config = Config(
        http=Http(tls_port=0, tls_cert=cert, tls_key=key),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    with TestBroker(config=config) as broker:
        yield f"https://127.0.0.1:{broker.call(lambda node: node.http_tls_port)}"


def test_hot_routes_and_the_others_answer_over_tls(url: str, certificates: Certificates) -> None:
    verify = ssl.create_default_context(cafile=certificates.authority)
    with httpx.Client(base_url=url, verify=verify, timeout=60) as http:
        items = [{"queue": "q", "payload": "x" * 200_000}]  # more than one TLS record
        assert http.post("/api/v1/push", json={"items": items}).status_code == 201
        (message,) = http.get("/api/v1/pop/queue/q").json()["messages"]
        assert message["data"] == "x" * 200_000
        assert http.get("/health").json()["status"] == "healthy"


def test_the_client_speaks_tls(url: str, certificates: Certificates) -> None:
    tls = ssl.create_default_context(cafile=certificates.authority)
    with SyncClient(url, tls=tls) as client:
        client.queue("q").push([{"n": 1}])
        (message,) = client.queue("q").batch(1).pop()
        assert message.data == {"n": 1}


def test_who_does_not_know_the_authority_does_not_come_in(url: str) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/health", timeout=60)


def test_a_long_answer_comes_whole_over_tls(url: str, certificates: Certificates) -> None:
    verify = ssl.create_default_context(cafile=certificates.authority)
    with httpx.Client(base_url=url, verify=verify, timeout=60, auth=("guest", "guest")) as http:
        text = "x" * 60_000
        ends = {"source": "amq.topic", "vhost": "/", "destination": "q"}
        rows = [{**ends, "arguments": {"n": number, "text": text}} for number in range(40)]
        document = {"queues": [{"name": "q", "vhost": "/", "durable": True}], "bindings": rows}
        assert http.post("/api/definitions", json=document).status_code == 204
        for _ in range(2):
            found = http.get("/api/bindings").json()
            assert [row["arguments"]["n"] for row in found[1:]] == list(range(40))
            assert {row["arguments"]["text"] for row in found[1:]} == {text}
