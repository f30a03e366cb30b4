"""Spans of messages join the trace context that they carry, through both doors."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import httpx
import pika
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from otlp_receiver import Received, receiver

from holtmq.config import Config
from holtmq.config.settings import Limits, Tracing
from holtmq.testing import TestBroker
from holtmq.tracing.spans import of_text

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
TRACED = Config(tracing=Tracing(enabled=True), limits=Limits(memory_high_watermark=1.0))
Work = Callable[[TestBroker], None]
Trace = Callable[[Work], Received]


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    """Run something on a traced broker; everything is exported when the broker has stopped."""
    with receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-broker")

        def run(work: Work) -> Received:
            with TestBroker(config=TRACED) as broker:
                work(broker)
            return received

        yield run


def headers(**more: object) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, headers={"traceparent": CONTEXT, **more})


def test_a_message_over_amqp_leaves_publish_deliver_and_settle(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"tea", headers())
        channel.basic_publish("", "orders", b"untraced", pika.BasicProperties(delivery_mode=2))
        for method, _, _ in channel.consume("orders", inactivity_timeout=120):
            channel.basic_ack(method.delivery_tag)
            if method.delivery_tag == 2:
                break
        connection.close()

    received = trace(work)

    assert sorted(span.name for span in received.spans) == [
        "deliver orders",
        "publish amq.default",
        "settle orders",
    ]
    assert {(span.trace, span.parent) for span in received.spans} == {(TRACE, SPAN)}
    (published,), (settled,) = received.named("publish amq.default"), received.named("settle orders")
    assert published.attributes["messaging.system"] == "holtmq"
    assert published.attributes["messaging.rabbitmq.destination.routing_key"] == "orders"
    assert published.attributes["messaging.message.body.size"] == 3
    assert settled.attributes["holtmq.settle.outcome"] == "ack"
    assert received.services == {"shop-broker"}


def test_every_end_of_a_lease_is_a_settlement(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(5):
            channel.basic_publish("", "q", b"x", headers())
        tags = [channel.basic_get("q")[0].delivery_tag for _ in range(4)]
        channel.basic_get("q", auto_ack=True)
        channel.basic_ack(tags[1], multiple=True)
        channel.basic_reject(tags[2], requeue=False)
        channel.close()  # releases the last
        connection.close()

    received = trace(work)

    outcomes = sorted(span.attributes["holtmq.settle.outcome"] for span in received.named("settle q"))
    assert outcomes == ["ack", "ack", "reject", "release"]
    assert len(received.named("deliver q")) == 5


def test_the_headers_of_an_instrumented_client_are_understood(trace: Trace) -> None:
    """As OpenTelemetry's instrumentations of clients do it: the propagator writes into the headers."""
    span = TracerProvider(shutdown_on_exit=False).get_tracer("client").start_span("send")
    carried: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carried, set_span_in_context(span))

    def work(broker: TestBroker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.exchange_declare("shop", "topic")
        channel.basic_publish("shop", "nobody.listens", b"x", pika.BasicProperties(headers=dict(carried)))
        connection.close()

    (published,) = trace(work).named("publish shop")

    assert published.trace == f"{span.get_span_context().trace_id:032x}"
    assert published.parent == f"{span.get_span_context().span_id:016x}"


def test_a_message_over_http_leaves_publish_deliver_and_settle(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        with httpx.Client(base_url=broker.http_url) as http:
            item = {"queue": "log", "payload": 1, "transactionId": "t1"}
            pushed = http.post("/api/v1/push", json={"items": [item]}, headers={"traceparent": CONTEXT})
            pushed.raise_for_status()
            popped = http.get(
                "/api/v1/pop/queue/log", params={"consumerGroup": "g"}, headers={"traceparent": OTHER}
            )
            (message,) = popped.json()["messages"]
            assert message["traceId"] == str(UUID(TRACE))  # what a worker joins
            ack = {
                "transactionId": "t1",
                "partitionId": message["partitionId"],
                "consumerGroup": "g",
                "leaseId": message["leaseId"],
                "status": "completed",
            }
            http.post("/api/v1/ack", json=ack).raise_for_status()

    received = trace(work)

    (published,), (delivered,), (settled,) = map(received.named, ("publish log", "deliver log", "settle log"))
    assert {span.trace for span in received.spans} == {TRACE}
    assert published.parent == SPAN
    assert delivered.links == [("1" * 32, "2" * 16)]
    assert delivered.attributes["messaging.consumer.group.name"] == "g"
    assert settled.attributes["holtmq.settle.outcome"] == "completed"
    assert settled.attributes["messaging.message.id"] == "t1"


def test_a_message_may_come_through_one_door_and_leave_through_the_other(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("stream", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", "stream", b"1", headers())
        connection.close()
        with httpx.Client(base_url=broker.http_url) as http:
            popped = http.get("/api/v1/pop/queue/stream", params={"autoAck": "true"})
            assert len(popped.json()["messages"]) == 1

    received = trace(work)

    assert {(span.name, span.trace, span.parent) for span in received.spans} == {
        ("publish amq.default", TRACE, SPAN),
        ("deliver stream", TRACE, SPAN),
    }


def test_pops_and_acks_of_a_work_queue_leave_spans(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"1", headers())
        channel.basic_publish("", "jobs", b"2")  # has no trace
        connection.close()
        with httpx.Client(base_url=broker.http_url) as http:
            popped = http.get("/api/v1/pop/queue/jobs", params={"batch": 2}, headers={"traceparent": OTHER})
            for message in popped.json()["messages"]:
                names = ("transactionId", "partitionId", "leaseId")
                ack = {name: message[name] for name in names} | {"status": "failed"}
                http.post("/api/v1/ack", json=ack).raise_for_status()

    received = trace(work)

    (delivered,), (settled,) = map(received.named, ("deliver jobs", "settle jobs"))
    assert {(span.trace, span.parent) for span in (delivered, settled)} == {(TRACE, SPAN)}
    assert delivered.links == [("1" * 32, "2" * 16)]
    assert settled.attributes["holtmq.settle.outcome"] == "failed"


def test_a_range_read_is_linked_to_the_traces_of_its_messages(trace: Trace) -> None:
    traces = [str(UUID(int=(n << 64) + n)) for n in range(1, 4)]

    def work(broker: TestBroker) -> None:
        with httpx.Client(base_url=broker.http_url) as http:
            items = [{"queue": "log", "payload": n, "traceId": one} for n, one in enumerate(traces)]
            items.append({"queue": "log", "payload": "untraced"})
            http.post("/api/v1/push", json={"items": items}).raise_for_status()
            http.get("/api/v1/ranges/log/rows", params={"columns": "offset"}).raise_for_status()

    (read,) = trace(work).named("read log")

    assert [UUID(linked) for linked, _ in read.links] == [UUID(one) for one in traces]
    assert read.attributes["holtmq.offset.end"] == 4


def test_a_refused_push_fails_its_span(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        with httpx.Client(base_url=broker.http_url) as http:
            item = {"queue": "log", "payload": 1}
            http.post("/api/v1/configure", json={"queue": "log", "options": {"maxQueueSize": 1}})
            answer = http.post("/api/v1/push", json={"items": [item, item]}, headers={"traceparent": CONTEXT})
            assert answer.status_code == 429

    spans = trace(work).named("publish log")

    assert len(spans) == 2
    assert all(span.failed for span in spans)


def test_a_trace_that_is_not_sampled_makes_no_spans(trace: Trace) -> None:
    def work(broker: TestBroker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x", headers(traceparent=f"00-{TRACE}-{SPAN}-00"))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        connection.close()

    assert trace(work).spans == []


@pytest.mark.parametrize(
    "text",
    ["", "00-" + "0" * 32 + "-" + SPAN + "-01", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}", "x" * 55],
)
def test_what_is_no_trace_context_is_ignored(text: str) -> None:
    assert of_text(text) is None


def test_without_tracing_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys, holtmq.node, holtmq.amqp.server, holtmq.http.server\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or 'holtmq.tracing' in name])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_an_unknown_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin-of-old")
    with pytest.raises(Exception, match=r"tracing.enabled: no exporter of traces is called 'zipkin-of-old'"):
        TestBroker(config=TRACED).__enter__()
