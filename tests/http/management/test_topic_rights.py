"""Topic permissions hold over HTTP, too, and for every key of a message."""

import io
from collections.abc import Iterator

import pyarrow as pa
import pytest
from http_support import Api

from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.first_start import GUEST_HASH
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

REFUSED = "access to topic 'bad.a' in exchange 'topics' in vhost '/' refused for user 'me'"


@pytest.fixture
def me(broker: TestBroker, api: Api) -> Iterator[Api]:
    """A user with every right, but on the exchange ``topics`` for keys that begin with ``ok.`` alone."""

    def add(node: FaultyNode) -> None:
        node.broker.access.put_user(User("me", GUEST_HASH, ("management",)))
        node.amqp.authenticator.remember("me", "me", GUEST_HASH)
        node.broker.access.set_permissions("me", "/", FULL_ACCESS)

    broker.call(add)
    topics = {"exchange": "topics", "write": r"^ok\.", "read": r"^ok\."}
    for path, body in (
        ("exchanges/%2F/topics", {"type": "topic"}),
        ("exchanges/%2F/free", {"type": "topic"}),
        ("queues/%2F/q", {}),
        ("queues/%2F/source", {}),
        ("topic-permissions/%2F/me", topics),
    ):
        assert api.http.put(f"/api/{path}", json=body).is_success
    one = Api(broker.http_url, auth=("me", "me"))
    yield one
    one.http.close()


def publish(api: Api, exchange: str, key: str, **headers: object) -> tuple[int, str]:
    body = {
        "properties": {"headers": headers},
        "routing_key": key,
        "payload": "x",
        "payload_encoding": "string",
    }
    answer = api.post(f"/api/exchanges/%2F/{exchange}/publish", body)
    return answer.status_code, answer.json().get("reason", "")


def test_a_message_is_published_with_permitted_keys_alone(me: Api, api: Api) -> None:
    assert publish(me, "topics", "ok.a")[0] == 200
    assert publish(me, "topics", "bad.a") == (403, REFUSED)
    assert publish(me, "topics", "ok.a", CC=["ok.b", "bad.a"]) == (403, REFUSED)
    assert publish(me, "topics", "ok.a", BCC=["bad.a"]) == (403, REFUSED)
    assert publish(me, "free", "bad.a", CC=["bad.b"])[0] == 200
    assert publish(api, "topics", "bad.a")[0] == 200


def test_bindings_are_made_and_removed_for_permitted_keys_alone(me: Api, api: Api) -> None:
    path = "/api/bindings/%2F/e/topics/q/q"
    assert api.post(path, {"routing_key": "bad.a"}).status_code == 201

    assert me.post(path, {"routing_key": "ok.#"}).status_code == 201
    refused = me.post(path, {"routing_key": "bad.a"})
    kept = me.http.delete(f"{path}/bad.a")

    assert [(answer.status_code, answer.json()["reason"]) for answer in (refused, kept)] == [
        (403, REFUSED)
    ] * 2
    assert me.http.delete(f"{path}/ok.%2523").status_code == 204


def test_rows_are_published_with_permitted_keys_alone(me: Api) -> None:
    def rows(*keys: str) -> int:
        sink = io.BytesIO()
        table = pa.table({"payload": ["1"] * len(keys), "routing_key": list(keys)})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return me.http.post("/api/v1/exchanges/topics/rows", content=sink.getvalue()).status_code

    assert rows("ok.a", "ok.b") == 200
    assert rows("ok.a", "bad.a") == 403


def test_messages_are_moved_to_a_topic_exchange_with_a_permitted_key_alone(me: Api) -> None:
    def move(**to: object) -> int:
        return me.post(
            "/api/v1/operator/queues/%2F/source/move", {"to": {"exchange": "topics", **to}}
        ).status_code

    assert move(routing_key="ok.a") == 202
    assert move(routing_key="bad.a") == 403
    assert move() == 403  # each would keep its own key
