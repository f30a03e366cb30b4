"""Pushes with ``delaySeconds``, and ``data`` in the place of ``payload``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from http_support import Api

from holtmq.testing import TestBroker


def push(api: Api, *items: dict[str, Any]) -> list[Any]:
    answer = api.post("/api/v1/push", {"items": list(items)})
    assert answer.status_code == 201, answer.text
    rows = answer.json()
    assert [row["index"] for row in rows] == [*range(len(items))]
    return list(rows)


def data(api: Api, queue: str) -> list[Any]:
    return [message["data"] for message in api.pop(queue, batch=10, autoAck="true")]


def test_data_is_the_payload_where_there_is_none(api: Api) -> None:
    push(
        api,
        {"queue": "q", "data": {"n": 1}},
        {"queue": "q", "data": {"n": 2}},
        {"queue": "q", "payload": {"n": 3}, "data": "ignored"},
        {"queue": "q", "payload": None, "data": "payload is there, and null"},
        {"queue": "q"},
    )

    assert data(api, "q") == [{"n": 1}, {"n": 2}, {"n": 3}, None, None]


def test_a_delayed_message_comes_when_its_time_has_come_and_holds_nobody_up(
    broker: TestBroker, api: Api
) -> None:
    now, later = push(
        api,
        {"queue": "q", "payload": "late", "delaySeconds": 60, "transactionId": "l"},
        {"queue": "q", "payload": "now"},
    )

    assert now["status"] == later["status"] == "queued"
    assert data(api, "q") == ["now"]
    broker.clock.advance(59)
    assert data(api, "q") == []
    broker.clock.advance(1.5)
    (message,) = api.pop("q")
    assert (message["data"], message["transactionId"], message["id"]) == ("late", "l", now["message_id"])


def test_a_delay_survives_a_restart_and_keeps_its_trace(tmp_path: Path) -> None:
    trace = "0190d6a4-52a5-7c1e-8d6b-0d2f6a1c7b11"
    with TestBroker(tmp_path) as broker:
        api = Api(broker.http_url)
        push(api, {"queue": "q", "payload": 1, "delaySeconds": 60, "traceId": trace})
        api.http.close()
        broker.crash_and_restart()
        broker.clock.advance(61)

        api = Api(broker.http_url)
        (message,) = api.pop("q")
        assert (message["data"], message["traceId"]) == (1, trace)
        api.http.close()


def test_a_delayed_duplicate_names_the_original(broker: TestBroker, api: Api) -> None:
    item = {"queue": "q", "payload": 1, "transactionId": "x", "delaySeconds": 10}
    (first,) = push(api, item)

    rows = push(api, item, {**item, "partition": "other"})

    assert [row["status"] for row in rows] == ["duplicate", "queued"]
    assert rows[0]["message_id"] == first["message_id"]
    broker.clock.advance(11)
    assert len(api.pop("q", batch=10, partitions=2, autoAck="true")) == 2
    (stored,) = push(api, item)
    assert (stored["status"], stored["message_id"]) == ("duplicate", first["message_id"])


def test_a_delayed_message_is_listed_and_cancelled_like_a_timer(broker: TestBroker, api: Api) -> None:
    push(api, {"queue": "q", "payload": 1, "transactionId": "x", "delaySeconds": 10})

    (timer,) = api.get("/api/v1/timers/q").json()["rows"]
    cancel = {"operations": [{"op": "cancel", "queue": "q", "timerKey": timer["timerKey"]}]}
    api.post("/api/v1/timers", cancel)

    broker.clock.advance(20)
    assert api.pop("q") == []


def test_a_transaction_delays_some_of_its_pushes(broker: TestBroker, api: Api) -> None:
    answer = api.post(
        "/api/v1/transaction",
        {
            "operations": [
                {"type": "push", "items": [{"queue": "q", "data": "late", "delaySeconds": 5}]},
                {"type": "push", "queue": "q", "data": "flat and late", "delaySeconds": 6},
                {"type": "push", "items": [{"queue": "q", "data": "now"}]},
            ]
        },
    ).json()

    assert [row["success"] for row in answer["results"]] == [True, True, True]
    assert data(api, "q") == ["now"]
    broker.clock.advance(10)
    assert data(api, "q") == ["late", "flat and late"]


def test_a_work_queue_takes_delayed_pushes_too(broker: TestBroker, api: Api) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    connection.channel().queue_declare("jobs", durable=True)

    rows = push(
        api,
        {"queue": "jobs", "payload": "late", "delaySeconds": 30, "transactionId": "l"},
        {"queue": "log", "payload": "beside", "delaySeconds": 30},
        {"queue": "jobs", "payload": "now"},
    )

    assert [row["status"] for row in rows] == ["queued"] * 3
    assert data(api, "jobs") == ["now"]
    broker.clock.advance(31)
    (message,) = broker.messages("jobs")
    assert (message.body, message.properties.message_id) == (b'"late"', "l")
    assert not message.properties.headers
    assert data(api, "log") == ["beside"]
    connection.close()


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        ("soon", "DelaySeconds must be a number"),
        (True, "DelaySeconds must be a number"),
        (-1, "delaySeconds must be from 0 to 31622400, not -1"),
        (1e9, "delaySeconds must be from 0 to 31622400, not 1e+09"),
    ],
)
def test_a_delay_that_makes_no_sense_is_refused(api: Api, delay: object, text: str) -> None:
    items = [{"queue": "q", "payload": 1}, {"queue": "q", "payload": 2, "delaySeconds": delay}]

    answer = api.post("/api/v1/push", {"items": items})

    assert (answer.status_code, answer.json()["error"]) == (400, text)
    assert api.pop("q") == []


def test_no_delay_is_no_delay(connect: Callable[..., Api]) -> None:
    api = connect()
    push(
        api,
        {"queue": "q", "payload": 1, "delaySeconds": 0},
        {"queue": "q", "payload": 2, "delaySeconds": None},
    )

    assert data(api, "q") == [1, 2]
