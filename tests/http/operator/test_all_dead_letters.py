"""Dead letters of both kinds: grouped by what went wrong, brought back, discarded, exported."""

import json
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from http_support import Api

from holtmq.broker.jobs.letters import normalised
from holtmq.cli import main
from holtmq.testing import TestBroker

_BASE = "/api/v1/operator/dead-letters"


def holt(broker: TestBroker, *arguments: str, fails: bool = False) -> str:
    result = CliRunner().invoke(main, ["dead-letters", *arguments], env={"HOLT_ADMIN_URL": broker.http_url})
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def work_letters(broker: TestBroker, *bodies: bytes) -> None:
    """Reject these in queue ``work``; they go through exchange ``dlx`` to queue ``dead``."""
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("dlx", "fanout", durable=True)
        channel.exchange_declare("in", "direct", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_bind("dead", "dlx")
        channel.queue_declare("work", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
        channel.queue_bind("work", "in", "key")
        channel.confirm_delivery()
        for number, body in enumerate(bodies):
            properties = pika.BasicProperties(
                delivery_mode=2, headers={"x-exception-message": f"order {number} is bad"}, type="t"
            )
            channel.basic_publish("in", "key", body, properties)
            channel.basic_reject(channel.basic_get("work")[0].delivery_tag, requeue=False)
        channel.queue_declare("dead", passive=True)


def group_letters(api: Api, queue: str, *errors: str) -> None:
    """Messages of which group ``g`` says that they cannot be handled."""
    for number, error in enumerate(errors):
        api.push(queue, f"t{number}")
        (message,) = api.pop(queue, consumerGroup="g", subscriptionMode="all")
        api.ack(message, "dlq", error=error, consumerGroup="g")


def test_letters_of_both_kinds_are_grouped_by_what_went_wrong(broker: TestBroker, api: Api) -> None:
    work_letters(broker, b"1", b"2")
    group_letters(api, "s", "timeout after 17 ms", "timeout after 4 ms", "no such 'thing'")
    answer = api.get(_BASE).json()
    names = ("kind", "queue", "in", "group", "reason", "text", "count")
    assert {tuple(row[name] for name in names) for row in answer["signatures"]} == {
        ("work", "work", "dead", None, "rejected", "order <n> is bad", 2),
        ("partitioned", "s", "s", "g", "failed", "timeout after <n> ms", 2),
        ("partitioned", "s", "s", "g", "failed", "no such <text>", 1),
    }
    assert (answer["total"], answer["truncated"]) == (5, False)
    assert len(api.get(_BASE, kind="work").json()["signatures"]) == 1
    printed = holt(broker, "list", "--queue", "s")
    assert "timeout after <n> ms" in printed
    assert "3 dead letters" in printed


def test_letters_are_counted_over_time_and_those_of_the_last_day_need_attention(
    broker: TestBroker, api: Api
) -> None:
    work_letters(broker, b"1", b"2")
    group_letters(api, "s", "timeout")
    broker.clock.advance(20 * 3600)
    work_letters(broker, b"3")

    answer = api.get(_BASE).json()
    by_queue = {row["queue"]: row["over_time"] for row in answer["signatures"]}
    step = answer["over_time"]["step_ms"]
    now_ms = int(broker.clock() * 1000)
    assert answer["over_time"]["from"] <= now_ms - 20 * 3_600_000 < answer["over_time"]["from"] + step
    assert 0 <= now_ms - (answer["over_time"]["from"] + step * (len(by_queue["work"]) - 1)) < step
    assert (by_queue["work"][0], by_queue["work"][-1], sum(by_queue["work"])) == (2, 1, 3)
    assert (by_queue["s"][0], sum(by_queue["s"])) == (1, 1)

    def today() -> dict[str, tuple[int, int | None]]:
        rows = api.get("/api/v1/dashboard/queues").json()["rows"]
        return {row["name"]: (row["died_today"], row["died_since"]) for row in rows}

    counts = today()
    assert (counts["work"][0], counts["s"][0], counts["dead"]) == (3, 1, (0, None))
    assert counts["work"][1] is not None
    assert abs(counts["work"][1] - (now_ms - 20 * 3_600_000)) < 60_000
    broker.clock.advance(5 * 3600)
    counts = today()
    assert (counts["work"][0], counts["s"]) == (1, (0, None))


def test_a_work_queues_letters_go_home_as_they_were(broker: TestBroker, api: Api) -> None:
    work_letters(broker, b"\xff\x00", b"2", b"3")
    rows = api.get(f"{_BASE}/messages", kind="work").json()["messages"]
    assert [row["payload_encoding"] for row in rows] == ["base64", "string", "string"]
    assert rows[0]["deaths"] == 1
    assert "1 of 3 messages would be redriven" in holt(broker, "redrive", "--id", rows[1]["id"], "--dry-run")
    assert "1 of 3 messages redriven" in holt(broker, "redrive", "--id", rows[1]["id"])
    assert "1 of 1 messages redriven" in holt(broker, "redrive", "--in", "dead", "--count", "1")
    broker.crash_and_restart()
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        got = [channel.basic_get("work", auto_ack=True) for _ in range(3)]
        assert [body for _, _, body in got] == [b"2", b"\xff\x00", None]
        method, properties, _ = got[0]
        assert (method.exchange, method.routing_key) == ("in", "key")
        assert (properties.type, properties.headers["x-death"][0]["count"]) == ("t", 1)
        assert channel.basic_get("dead", auto_ack=True)[2] == b"3"


def test_a_groups_letters_go_home_or_elsewhere_in_batches(broker: TestBroker, api: Api) -> None:
    group_letters(api, "s", "bad 1", "bad 2", "worse")
    (worse,) = [row for row in api.get(_BASE).json()["signatures"] if row["text"] == "worse"]
    api.configure("other")
    assert "1 of 3" in holt(broker, "redrive", "--signature", worse["signature"], "--to-queue", "other")
    assert api.pop("other", consumerGroup="g", subscriptionMode="all")[0]["data"] == {"id": "t2"}
    assert "2 of 2 messages redriven" in holt(broker, "redrive", "--queue", "s")
    broker.crash_and_restart()
    assert api.get(_BASE).json()["total"] == 0
    assert [m["data"] for m in api.pop("s", consumerGroup="g")] == [{"id": "t0"}, {"id": "t1"}]


def test_discarding_and_exporting(broker: TestBroker, api: Api) -> None:
    work_letters(broker, b'{"n": 1}', b'{"n": 2}')
    group_letters(api, "s", "bad")
    lines = [json.loads(line) for line in holt(broker, "export").splitlines()]
    assert [(line["kind"], line["payload"]) for line in lines] == [
        ("work", '{"n": 1}'),
        ("work", '{"n": 2}'),
        ("partitioned", '{"id":"t0"}'),
    ]
    assert "which dead letters" in holt(broker, "discard", fails=True)
    assert "1 of 3 messages discarded" in holt(broker, "discard", "--filter", "json.n=2")
    assert "2 of 2 messages discarded" in holt(broker, "discard", "--all")
    broker.crash_and_restart()
    assert api.get(_BASE).json()["total"] == 0


@pytest.mark.parametrize("path", ["", "/messages", "/export"])
def test_a_filter_that_is_not_understood_is_refused_before_the_answer_begins(api: Api, path: str) -> None:
    answer = api.get(_BASE + path, filter="..")

    assert answer.status_code == 400, answer.text
    assert "filter '..' is not understood" in answer.text


def test_a_reason_or_a_queue_that_does_not_exist_is_named(broker: TestBroker, api: Api) -> None:
    work_letters(broker, b"1")
    group_letters(api, "s", "bad")

    typo = api.get(_BASE, reason="typo")
    nowhere = api.get(_BASE, **{"in": "nix"})

    assert (typo.status_code, nowhere.status_code) == (400, 404)
    assert "'typo' is none of rejected, expired, maxlen, delivery_limit, failed" in typo.text
    assert "no queue is named 'nix'" in nowhere.json()["error"]
    assert "no queue is named 'nix'" in holt(broker, "list", "--in", "nix", fails=True)
    assert "'typo' is not one of" in holt(broker, "list", "--reason", "typo", fails=True)
    for known in ("dead", "s", "work"):
        assert api.get(_BASE, **{"in": known}).status_code == 200


def test_a_letter_whose_queue_is_gone_stays(broker: TestBroker, api: Api) -> None:
    work_letters(broker, b"1")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_delete("work")
    assert "stay, because there is no queue for them" in holt(broker, "redrive", "--in", "dead")
    assert api.get("/api/queues/%2F/dead").json()["messages_ready"] == 1


def test_a_forged_origin_does_not_open_a_queue(broker: TestBroker, api: Api, connect: Any) -> None:
    """A publisher may write any x-death: redriving needs the right to write to that queue."""
    api.http.put("/api/users/ops", json={"password": "pw", "tags": "management"})
    api.http.put("/api/permissions/%2F/ops", json={"configure": "", "write": "^dead$", "read": "^dead$"})
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("secret", durable=True)
        death = {"queue": "secret", "reason": "rejected", "exchange": "", "routing-keys": ["k"]}
        channel.confirm_delivery()
        channel.basic_publish("", "dead", b"x", pika.BasicProperties(headers={"x-death": [death]}))
    ops = connect(auth=("ops", "pw"))
    job = ops.post(f"{_BASE}/redrive?wait=30", {"in": "dead"}).json()
    assert (job["state"], job["done"]) == ("failed", 0)
    assert "'secret', to which you may not write" in job["error"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("timeout after 1,234.5 ms at 10:01:02", "timeout after <n> ms at <n>"),
        ("key 7f0e8a9c-1b2d-4e3f-8a9b-0c1d2e3f4a5b gone", "key <id> gone"),
        ("object at 0x7f3a deadbeef0123456789", "object at <id> <id>"),
        ("no 'x' in \"y\"", "no <text> in <text>"),
    ],
)
def test_texts_are_normalised(error: str, text: str) -> None:
    assert normalised(error) == text
