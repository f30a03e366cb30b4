"""What a scraper reads: valid text, RabbitMQ's names, and figures that are true."""

import pika
import pytest
from http_support import Api
from prometheus_client.parser import text_string_to_metric_families

from holtmq.testing import TestBroker

SCRAPER = {
    "accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
}


def scrape(api: Api, path: str = "/metrics") -> dict[tuple[str, tuple[str, ...]], float]:
    answer = api.http.get(path, headers=SCRAPER)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture
def client(broker: TestBroker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.amqp_url))


def second(broker: TestBroker) -> None:
    broker.clock.advance(1)
    broker.call(lambda node: node.sample_figures())


def test_queens_clients_still_get_json(api: Api) -> None:
    assert api.get("/metrics").json()["requests"]["total"] == 0
    assert api.http.get("/metrics", headers={"accept": "application/json"}).json()["uptime"] >= 0


def test_messages_are_counted_under_rabbitmqs_names(
    broker: TestBroker, api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    channel.queue_declare("work")
    for n in range(10):
        channel.basic_publish("", "work", b"%d" % n)
    for _ in range(3):
        channel.basic_get("work", auto_ack=True)
    channel.basic_get("work")
    api.push("log", "a", "b")
    second(broker)

    found = scrape(api)

    assert found["rabbitmq_global_messages_received_total", ("amqp091",)] == 10
    assert found["rabbitmq_global_messages_received_total", ("http",)] == 2
    assert found["rabbitmq_global_messages_delivered_total", ("amqp091",)] == 4
    assert found["rabbitmq_global_messages_acknowledged_total", ("amqp091",)] == 3
    assert found["rabbitmq_queue_messages_ready", ()] == 6
    assert found["rabbitmq_queue_messages_unacked", ()] == 1
    assert found["rabbitmq_connections", ()] == 1
    assert found["holtmq_up", ()] == 1
    client.close()


def test_a_deleted_queue_leaves_the_sums(
    broker: TestBroker, api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    for name in ("stays", "goes"):
        channel.queue_declare(name)
        channel.basic_publish("", name, b"x")
    second(broker)

    channel.queue_delete("goes")
    second(broker)

    found = scrape(api)
    assert found["rabbitmq_queue_messages_ready", ()] == 1
    assert found["rabbitmq_global_messages_received_total", ("amqp091",)] == 2
    client.close()


def test_each_queue_and_group_has_its_age_and_lag(
    broker: TestBroker, api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    channel.queue_declare("work")
    channel.basic_publish("", "work", b"x")
    channel.basic_publish("", "work", b"y")
    channel.basic_get("work")
    api.push("log", "a", "b")
    api.pop("log", consumerGroup="g", batch=1)
    broker.clock.advance(90)

    found = scrape(api, "/metrics/per-object")

    assert found["rabbitmq_detailed_queue_messages_ready", ("work", "/")] == 1
    assert found["holtmq_queue_oldest_message_age_seconds", ("work", "/")] == pytest.approx(90, abs=2)
    assert found["holtmq_group_lag_messages", ("g", "log")] == 2
    assert found["holtmq_group_lag_seconds", ("g", "log")] == pytest.approx(90, abs=2)
    client.close()


def test_names_with_quotes_are_escaped(broker: TestBroker, api: Api, client: pika.BlockingConnection) -> None:
    name = 'a "quoted" \\ name'
    channel = client.channel()
    channel.queue_declare(name)

    assert scrape(api, "/metrics/per-object")["rabbitmq_detailed_queue_messages_ready", (name, "/")] == 0
    client.close()
