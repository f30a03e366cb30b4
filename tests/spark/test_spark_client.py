"""The connector's HTTP client: a broker that goes away, one that refuses, one that wants a token."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pytest

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.config import Auth, Config, Limits
from holtmq.config.values import Secret
from holtmq.first_start import GUEST_HASH
from holtmq.spark.client import BrokerClient, Fetch
from holtmq.spark.errors import BrokerRefused, BrokerUnreachable
from holtmq.spark.options import Connection, Selection
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

SECRET = "0123456789abcdef0123456789abcdef"
QUEUES = Selection(("q",))


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as one:
        yield one


def push(broker: TestBroker, count: int, pad: int = 10) -> None:
    for at in range(0, count, 5000):
        items = [
            {"queue": "q", "payload": {"n": n, "pad": "x" * pad}} for n in range(at, min(at + 5000, count))
        ]
        answer = httpx.post(f"{broker.http_url}/api/v1/push", json={"items": items}, timeout=60)
        assert answer.status_code == 201, answer.text


def test_a_stream_that_is_cut_goes_on_where_it_was(broker: TestBroker) -> None:
    push(broker, 20_000, pad=500)
    offsets: list[int] = []

    with BrokerClient(Connection(broker.http_url, retry_seconds=20)) as client:
        (head,) = client.heads(QUEUES)
        wanted = Fetch("q", head.number, 0, head.next, ("offset", "payload"))
        for place, fetched in enumerate(client.fetch(wanted)):
            offsets += fetched.rows.column("offset").to_pylist()
            if place in (1, 3):
                broker.crash_and_restart()

    assert offsets == list(range(20_000))


def test_a_broker_that_comes_back_in_time_is_waited_for(broker: TestBroker) -> None:
    push(broker, 3)
    with BrokerClient(Connection(broker.http_url, retry_seconds=20)) as client:
        assert client.heads(QUEUES)[0].next == 3
        broker.restart()
        assert client.heads(QUEUES)[0].next == 3


def test_a_broker_that_stays_away_is_named_with_its_address() -> None:
    with (
        BrokerClient(Connection("http://127.0.0.1:9", retry_seconds=0.5)) as client,
        pytest.raises(BrokerUnreachable, match=r"no answer from http://127\.0\.0\.1:9 for 0\.5 seconds"),
    ):
        client.heads(QUEUES)


def test_a_refusal_is_not_repeated_and_says_why(broker: TestBroker) -> None:
    with (
        BrokerClient(Connection(broker.http_url)) as client,
        pytest.raises(BrokerRefused, match="does not exist"),
    ):
        client.heads(QUEUES)


def test_a_user_opens_what_its_permissions_allow(tmp_path: Path) -> None:
    def add(node: FaultyNode) -> None:
        for name, patterns in (("reader", ("", "", "^q")), ("writer", ("", "^q", ""))):
            node.broker.access.put_user(User(name, GUEST_HASH))
            node.broker.access.set_permissions(name, "/", Permissions(*patterns))
            node.amqp.authenticator.remember(name, "secret", GUEST_HASH)

    (tmp_path / "password").write_text("secret\n")
    with TestBroker(clock="real") as broker:
        broker.call(add)
        reader = Connection(broker.http_url, user="reader", password="secret")
        writer = Connection(broker.http_url, user="writer", password_file=str(tmp_path / "password"))

        with BrokerClient(reader) as client:
            assert client.call("GET", "/api/v1/ranges") == {"queues": []}
            with pytest.raises(BrokerRefused) as refusal:
                client.commit("w", 0, [])
            assert refusal.value.status == 403
        with BrokerClient(writer) as client:
            assert client.commit("w", 0, [])["rows"] == 0
            with pytest.raises(BrokerRefused) as refusal:
                client.call("GET", "/api/v1/ranges")
            assert refusal.value.status == 403


def test_a_token_opens_what_its_role_allows() -> None:
    auth = Auth(jwt_enabled=True, jwt_secret=Secret(SECRET))
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    with TestBroker(clock="real", config=Config(auth=auth, limits=limits)) as broker:

        def client(role: str | None) -> BrokerClient:
            claims = {"sub": "spark", "role": role, "exp": int(time.time()) + 600}
            token = jwt.encode(claims, SECRET, algorithm="HS256") if role else ""
            return BrokerClient(Connection(broker.http_url, token))

        with client(None) as stranger, pytest.raises(BrokerRefused) as refusal:
            stranger.call("GET", "/api/v1/ranges")
        assert refusal.value.status == 401
        with client("read-only") as reader:
            assert reader.call("GET", "/api/v1/ranges") == {"queues": []}
            with pytest.raises(BrokerRefused) as refusal:
                reader.commit("w", 0, [])
            assert refusal.value.status == 403
        with client("read-write") as writer:
            assert writer.commit("w", 0, [])["rows"] == 0
