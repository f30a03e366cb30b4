"""A RabbitMQ with users, policies and traffic moves to HoltMQ while both are killed: nothing is lost."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
from migrate_support import NewBroker, Producer, account, command, outcome
from shovel_support import Operator, eventually

from rabbitmq import RabbitMq

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("migrate")]  # one RabbitMQ for all

WAITING = 1500


@pytest.fixture(scope="module")
def shop(old: RabbitMq) -> Iterator[Operator]:
    """What a RabbitMQ user has after some years."""
    operator = Operator(old.http_url, old.amqp_url)
    put = operator.http.put
    user = {"password": "wonderland", "tags": "management"}
    put("/users/alice", json=user).raise_for_status()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    put("/permissions/%2F/alice", json=everything).raise_for_status()
    mirrored = {"pattern": "^jobs", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    put("/policies/%2F/mirrors", json=mirrored).raise_for_status()
    put("/exchanges/%2F/events", json={"type": "topic", "durable": True}).raise_for_status()
    for name, arguments in (
        ("orders", {}),
        ("audit", {"x-queue-type": "quorum"}),
        ("jobs", {"x-max-priority": 5, "x-queue-mode": "lazy"}),
        ("log", {"x-queue-type": "stream"}),
        ("empty", {}),
    ):
        operator.declare(name, **arguments)
    for queue, key in (("orders", "order.#"), ("audit", "#"), ("log", "order.#")):
        body = {"routing_key": key}
        operator.http.post(f"/bindings/%2F/e/events/q/{queue}", json=body).raise_for_status()
    channel = operator.channel()
    for number in range(WAITING):
        # Every other message has an id; the others cannot be recognised when they come twice.
        name = f"waiting-{number}"
        sent = pika.BasicProperties(
            delivery_mode=2,
            message_id=name if number % 2 else None,
            timestamp=1_500_000_000 + number,
            headers={"n": number},
        )
        channel.basic_publish("events", "order.new", name.encode(), sent)
    for number in range(10):
        sent = pika.BasicProperties(delivery_mode=2, priority=number % 5)
        channel.basic_publish("", "jobs", f"job-{number}".encode(), sent)
    channel.connection.close()
    yield operator
    operator.close()


@pytest.fixture
def new(tmp_path: Path) -> Iterator[NewBroker]:
    broker = NewBroker(tmp_path)
    yield broker
    broker.stop()


def ends(old: RabbitMq) -> tuple[str, ...]:
    return old.amqp_url.removesuffix("/%2F"), "--management", old.http_url


def in_order(operator: Operator) -> list[tuple[str, str, int | None, object]]:
    """Body, routing key, timestamp and header of all messages in the stream; one more marks its end."""
    channel = operator.channel()
    channel.basic_publish("", "log", b"the end")
    channel.basic_qos(prefetch_count=500)
    found: list[tuple[str, str, int | None, object]] = []
    for method, properties, body in channel.consume("log", arguments={"x-stream-offset": "first"}):
        channel.basic_ack(method.delivery_tag)
        if body == b"the end":
            break
        found.append((body.decode(), method.routing_key, properties.timestamp, properties.headers["n"]))
    channel.cancel()
    channel.connection.close()
    return found


def test_a_dry_run_explains_the_plan_and_changes_nothing(
    old: RabbitMq, shop: Operator, new: NewBroker
) -> None:
    plan = outcome(command(new, *ends(old), "--dry-run"))

    assert "5 queues" in plan
    assert "user 'guest'" in plan
    assert "ha-mode" in plan
    assert "Messages of 4 queues are moved, those of 1 stream copied." in plan
    here = Operator(new.http_url, "")
    assert here.get("/queues") == []
    assert here.http.get("/users/alice").status_code == 404
    here.close()


def test_messages_move_under_load_while_either_broker_is_killed(
    old: RabbitMq, shop: Operator, new: NewBroker
) -> None:
    here = Operator(new.http_url, f"amqp://guest:guest@127.0.0.1:{new.amqp_port}/%2F")
    producer = Producer(old.amqp_url, "events", "order.live")
    producer.start()
    running = command(new, *ends(old), "--yes")

    def moved() -> int:
        try:
            return sum(int(row["forwarded"]) for row in here.get("/shovels"))
        except httpx.HTTPError:
            return 0

    eventually(lambda: moved() > 200)
    new.kill()
    new.start()
    eventually(lambda: moved() > 900)
    old.kill()
    old.start()
    outcome(running)
    seen = len(producer.confirmed)
    eventually(lambda: len(producer.confirmed) > seen + 10)
    producer.finish()
    done = account(command(new, *ends(old), "--finish", "--json"))

    assert here.get("/shovels") == []
    assert "migration" not in [row["name"] for row in here.get("/global-parameters")]
    waiting = {f"waiting-{number}" for number in range(WAITING)}
    for queue in ("orders", "audit"):
        taken = here.take(queue, done[queue]["moved"])
        arrived = Counter(body.decode() for _, _, body in taken)
        assert waiting | producer.confirmed <= set(arrived) <= waiting | producer.sent
        twice = {name: count for name, count in arrived.items() if count > 1}
        if queue == "audit":  # a killed classic queue may not know what it had delivered: not asserted there
            assert sum(twice.values()) - len(twice) <= done[queue]["maybe_twice"]
            assert not [name for name in twice if name.startswith("live") or int(name[8:]) % 2]
        assert {(method.exchange, method.routing_key) for method, _, _ in taken} == {
            ("events", "order.new"),
            ("events", "order.live"),
        }
        stamps = {body.decode(): properties.timestamp for _, properties, body in taken}
        assert all(stamps[f"waiting-{number}"] == 1_500_000_000 + number for number in range(WAITING))
        assert here.messages(queue) == 0
    assert done["jobs"]["at_start"] == 10
    assert 10 <= done["jobs"]["moved"] <= 10 + done["jobs"]["maybe_twice"]
    jobs = Counter(body.decode() for _, _, body in here.take("jobs", done["jobs"]["moved"]))
    assert set(jobs) == {f"job-{number}" for number in range(10)}
    assert all(done[queue]["left"] == 0 for queue in done)
    log = done["log"]
    assert log["at_start"] >= WAITING
    assert log["moved"] == log["here"] == here.messages("log")
    copied, original = in_order(here), in_order(shop)
    assert len(copied) == log["moved"]
    assert copied == original  # in order, none twice, none missing
    # RabbitMQ's stream itself may lose what it confirmed just before the kill.
    assert waiting <= {body for body, _, _, _ in copied}
    with httpx.Client(auth=("alice", "wonderland")) as alice:
        assert alice.get(new.http_url + "/api/whoami").json()["name"] == "alice"
    here.close()
