"""Move, copy and purge: byte for byte, all or nothing per batch, restartable, with filter, count and rate."""

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result
from http_support import Api

from holtmq.cli import main
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode
from holtmq.testing.views import work_queue

Raw = tuple[bytes, bytes]  # content header and body


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def declare(broker: TestBroker, *names: str, **arguments: object) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        for name in names:
            connection.channel().queue_declare(
                name,
                durable=True,
                arguments={key.replace("_", "-"): value for key, value in arguments.items()},
            )


def fill(broker: TestBroker, queue: str, count: int, first: int = 0, **properties: Any) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.tx_select()
        for number in range(first, first + count):
            headers = {"n": number, "even": number % 2 == 0, "list": [1, "a", None]}
            given = pika.BasicProperties(
                delivery_mode=2, headers=headers, message_id=f"m{number}", app_id="é", **properties
            )
            channel.basic_publish("", queue, b'{"n": %d}' % number, given)
        channel.tx_commit()


def contents(broker: TestBroker, queue: str) -> list[Raw]:
    """Every ready message as its bytes, in order of delivery."""

    def look(node: FaultyNode) -> list[Raw]:
        flow = node.broker.flow
        flow.turn()
        found = work_queue(node.broker, queue).store
        fifos = [f for _, f in found.by_level(True)] if hasattr(found, "by_level") else [found]
        return [(one.header, one.body) for fifo in fifos for one in fifo.browse(flow.pager)]

    return broker.call(look)


def numbers(broker: TestBroker, queue: str) -> list[int]:
    return [json.loads(body)["n"] for _, body in contents(broker, queue)]


def run(api: Api, queue: str, verb: str, **body: object) -> dict[str, Any]:
    answer = api.post(f"/api/v1/operator/queues/%2F/{queue}/{verb}?wait=30", body)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def run_to_its_end(broker: TestBroker, api: Api, path: str) -> dict[str, Any]:
    """Let time pass until the job has ended: each of its steps waits for the disk, which knows no clock."""
    while (job := api.get(path).json())["state"] == "running":
        broker.clock.advance(seconds=1)
    return dict(job)


def holt(broker: TestBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"HOLT_ADMIN_URL": broker.http_url})


def test_a_move_keeps_every_byte_and_the_address_and_survives_a_crash(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 50)
    before = contents(broker, "a")
    job = run(api, "a", "move", to={"queue": "b"})
    assert (job["state"], job["matched"], job["done"], job["total"]) == ("done", 50, 50, 50)
    broker.crash_and_restart()
    assert contents(broker, "a") == []
    assert contents(broker, "b") == before
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        method, _, _ = connection.channel().basic_get("b")
    assert (method.routing_key, method.redelivered) == ("a", False)


def test_a_copy_leaves_the_original_and_is_not_marked_redelivered(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 3)
    run(api, "a", "copy", to={"queue": "b"}, count=2)
    broker.crash_and_restart()
    assert numbers(broker, "a") == [0, 1, 2]
    assert contents(broker, "b") == contents(broker, "a")[:2]
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        assert not channel.basic_get("a")[0].redelivered


def test_a_filter_and_a_count_choose_and_a_dry_run_only_counts(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 20)
    dry = run(api, "a", "move", to={"queue": "b"}, filter=["header.even=true", "json.n>9"], dry_run=True)
    assert (dry["matched"], dry["done"], dry["scanned"]) == (5, 0, 20)
    assert numbers(broker, "b") == []
    run(api, "a", "move", to={"queue": "b"}, filter=["header.even=true", "json.n>9"], count=2)
    assert numbers(broker, "b") == [10, 12]
    purged = run(api, "a", "purge", filter=["property.message_id=m3"])
    assert purged["done"] == 1
    broker.crash_and_restart()
    assert numbers(broker, "a") == [n for n in range(20) if n not in (3, 10, 12)]


def test_an_exchange_routes_and_what_it_routes_nowhere_stays(
    broker: TestBroker, api: Api, channel: Any
) -> None:
    declare(broker, "a", "b", "c")
    channel.exchange_declare("x", "headers")
    channel.queue_bind("b", "x", arguments={"even": True, "x-match": "all"})
    channel.queue_bind("c", "x", arguments={"even": True, "x-match": "all"})
    fill(broker, "a", 4)
    before = contents(broker, "a")
    job = run(api, "a", "move", to={"exchange": "x"})
    assert (job["done"], job["unrouted"], job["state"]) == (2, 2, "done")
    assert numbers(broker, "a") == [1, 3]
    assert contents(broker, "b") == contents(broker, "c") == [before[0], before[2]]
    run(api, "a", "move", to={"exchange": "", "routing_key": "b"})
    assert numbers(broker, "b") == [0, 2, 1, 3]


def test_a_move_to_the_queue_itself_ends(broker: TestBroker, api: Api) -> None:
    declare(broker, "a")
    fill(broker, "a", 5)
    assert run(api, "a", "move", to={"queue": "a"}, filter=["json.n<2"])["done"] == 2
    assert numbers(broker, "a") == [2, 3, 4, 0, 1]


def test_a_full_queue_stops_the_job_and_it_goes_on_when_there_is_room(broker: TestBroker, api: Api) -> None:
    declare(broker, "a")
    declare(broker, "b", x_max_length=3, x_overflow="reject-publish")
    fill(broker, "a", 5)
    job = run(api, "a", "move", to={"queue": "b"}, filter=["json.n!=1"])
    broker.clock.advance(seconds=1)
    job = api.get(f"/api/v1/operator/jobs/{job['id']}", wait=30).json()
    assert (job["state"], job["done"]) == ("failed", 3)
    assert "full, and refuses messages: b" in job["error"]
    assert (numbers(broker, "a"), numbers(broker, "b")) == ([1, 4], [0, 2, 3])
    broker.crash_and_restart()
    run(api, "b", "purge")
    result = holt(broker, "job", "resume", job["id"])
    assert "4 of 5 messages moved" in result.output, result.output
    assert (numbers(broker, "a"), numbers(broker, "b")) == ([1], [4])


def test_priorities_are_kept_and_walked_through(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b", x_max_priority=5)
    for priority in (1, 5, 0):
        fill(broker, "a", 2, first=priority * 10, priority=priority)
    before = contents(broker, "a")
    assert run(api, "a", "copy", to={"queue": "b"})["done"] == 6
    assert contents(broker, "b") == contents(broker, "a") == before


def test_a_rate_is_kept_and_a_job_is_cancelled_and_resumed(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 30)
    body = {"to": {"queue": "b"}, "rate": 10}
    job = api.post("/api/v1/operator/queues/%2F/a/copy?wait=0", body).json()
    path = f"/api/v1/operator/jobs/{job['id']}"
    assert job["state"] == "running"
    broker.clock.advance(seconds=1)
    assert 1 <= api.get(path).json()["done"] <= 12
    assert api.delete(path).json()["state"] == "cancelled"
    copied = len(contents(broker, "b"))
    broker.clock.advance(seconds=10)
    assert len(contents(broker, "b")) == copied
    broker.crash_and_restart()
    assert api.post(f"{path}/resume?wait=0").json()["state"] == "running"
    assert run_to_its_end(broker, api, path)["state"] == "done"
    assert numbers(broker, "b") == list(range(30))
    assert api.get("/api/v1/operator/jobs").json()["jobs"][0]["id"] == job["id"]
    api.delete(path)
    assert api.get(path).status_code == 404


def test_a_crash_in_the_middle_loses_and_doubles_nothing(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 400)
    job = api.post("/api/v1/operator/queues/%2F/a/copy?wait=0", {"to": {"queue": "b"}, "rate": 1000}).json()
    broker.clock.advance(seconds=0.15)
    broker.crash_and_restart()
    shown = api.get(f"/api/v1/operator/jobs/{job['id']}").json()
    assert shown["state"] == "interrupted"
    assert 0 < shown["done"] < 400
    assert numbers(broker, "b") == list(range(shown["done"]))
    api.post(f"/api/v1/operator/jobs/{job['id']}/resume?wait=0")
    assert run_to_its_end(broker, api, f"/api/v1/operator/jobs/{job['id']}")["state"] == "done"
    assert numbers(broker, "b") == list(range(400))


def test_messages_that_a_consumer_holds_are_left_alone(broker: TestBroker, api: Api, channel: Any) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 3)
    held = channel.basic_get("a")[0]
    assert run(api, "a", "move", to={"queue": "b"})["done"] == 2
    channel.basic_nack(held.delivery_tag)
    assert (numbers(broker, "a"), numbers(broker, "b")) == ([0], [1, 2])


def test_a_move_to_a_stream_is_one_record_too(broker: TestBroker, api: Api) -> None:
    declare(broker, "a")
    api.configure("s")
    fill(broker, "a", 3)
    assert run(api, "a", "move", to={"queue": "s"})["done"] == 3
    broker.crash_and_restart()
    assert numbers(broker, "a") == []
    popped = api.pop("s", consumerGroup="g", subscriptionMode="all")
    assert [message["data"]["n"] for message in popped] == [0, 1, 2]


def test_the_verbs_in_a_terminal(broker: TestBroker) -> None:
    declare(broker, "a", "b")
    fill(broker, "a", 4)
    dry = holt(broker, "queue", "move", "a", "--to-queue", "b", "--filter", "json.n>1", "--dry-run")
    assert "2 of 4 messages would be moved." in dry.output, dry.output
    assert (
        "2 of 4 messages moved."
        in holt(broker, "queue", "move", "a", "--to-queue", "b", "--filter", "json.n>1").output
    )
    copied = holt(broker, "queue", "copy", "a", "--to-exchange", "", "--routing-key", "b", "--json")
    assert json.loads(copied.output)["done"] == 2
    assert "1 of 1 messages deleted." in holt(broker, "queue", "purge", "a", "--count", "1").output
    assert (numbers(broker, "a"), numbers(broker, "b")) == ([1], [2, 3, 0, 1])
    assert [row["verb"] for row in json.loads(holt(broker, "job", "list", "--json").output)][:2] == [
        "purge",
        "copy",
    ]
    for wrong, complaint in (
        (("--to-queue", "b", "--to-exchange", "x"), "not both"),
        ((), "name --to-queue or --to-exchange"),
        (("--to-queue", "nowhere"), "no queue 'nowhere'"),
        (("--to-queue", "b", "--filter", "n=1"), "filter 'n=1' is not understood"),
    ):
        result = holt(broker, "queue", "move", "a", *wrong)
        assert result.exit_code != 0
        assert complaint in result.output


def test_bad_requests_are_refused(broker: TestBroker, api: Api) -> None:
    declare(broker, "a", "b")
    api.push("s", "x")
    for queue, body, complaint in (
        ("a", {"to": {"queue": "b"}, "count": 0}, "count"),
        ("a", {"to": {"queue": "b"}, "rate": 0}, "rate"),
        ("a", {"to": {"queue": "b", "exchange": "x"}}, "not both"),
        ("a", {"to": {"queue": "b"}, "rat": 5}, "rat"),
        ("s", {"to": {"queue": "b"}}, "partitioned queue"),
    ):
        answer = api.post(f"/api/v1/operator/queues/%2F/{queue}/move", body)
        assert answer.status_code == 400, answer.text
        assert complaint in answer.text
    assert api.post("/api/v1/operator/queues/%2F/none/move", {"to": {"queue": "b"}}).status_code == 404
