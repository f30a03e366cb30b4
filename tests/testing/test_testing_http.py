"""The HTTP side of a broker in a test: the same clock, the same faults, the same looking."""

import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from holtmq.config import Config, Limits, Queue
from holtmq.testing import TestBroker

Message = dict[str, str]


@pytest.fixture
def http(holt_broker: TestBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=holt_broker.http_url, timeout=60) as client:
        yield client


def configure(http: httpx.Client, **options: object) -> None:
    http.post("/api/v1/configure", json={"queue": "orders", "options": options}).raise_for_status()


def push(http: httpx.Client, *payloads: int, partition: str = "north") -> None:
    items = [{"queue": "orders", "partition": partition, "payload": payload} for payload in payloads]
    http.post("/api/v1/push", json={"items": items}).raise_for_status()


def take(http: httpx.Client, group: str = "kitchen", batch: int = 10, **more: object) -> list[Message]:
    parameters = {"consumerGroup": group, "batch": batch, **more}
    answer = http.get("/api/v1/pop/queue/orders", params=parameters)  # type: ignore[arg-type]
    answer.raise_for_status()
    messages: list[Message] = answer.json()["messages"] if answer.content else []
    return messages


def pop(http: httpx.Client, group: str = "kitchen", batch: int = 10) -> list[object]:
    return [message["data"] for message in take(http, group, batch)]


def settle(http: httpx.Client, message: Message, status: str, group: str = "kitchen") -> None:
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    answer = http.post(
        "/api/v1/ack", json={**ack, "consumerGroup": group, "status": status, "error": "burnt"}
    )
    assert answer.json()[0]["success"], answer.text


def test_a_lease_expires_when_the_clock_says_so(holt_broker: TestBroker, http: httpx.Client) -> None:
    push(http, 1, 2)

    first, second = pop(http), pop(http)
    holt_broker.clock.advance(seconds=299)
    third = pop(http)
    holt_broker.clock.advance(seconds=1)

    assert (first, second, third, pop(http)) == ([1, 2], [], [], [1, 2])


def test_an_expired_lease_wakes_whoever_waits(holt_broker: TestBroker, http: httpx.Client) -> None:
    push(http, 1)
    pop(http)
    got: list[Message] = []

    def wait() -> None:
        with httpx.Client(base_url=holt_broker.http_url, timeout=60) as other:
            got.extend(take(other, wait="true", timeout=60_000))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: holt_broker.groups("orders")[0].waiting == 1)
    holt_broker.clock.advance(minutes=5)
    waiting.join(60)

    assert [message["data"] for message in got] == [1]  # type: ignore[comparison-overlap]


def test_a_failed_message_comes_again_after_its_retry_delay(
    holt_broker: TestBroker, http: httpx.Client
) -> None:
    configure(http, retryDelay=5_000)
    push(http, 1)
    settle(http, take(http)[0], "failed")

    holt_broker.clock.advance(milliseconds=4_999)
    early = pop(http)
    holt_broker.clock.advance(milliseconds=1)

    assert (early, pop(http)) == ([], [1])


def test_delayed_messages_become_visible(holt_broker: TestBroker, http: httpx.Client) -> None:
    configure(http, delayedProcessing=60)
    push(http, 1)

    early = pop(http)
    holt_broker.clock.advance(minutes=1)

    assert (early, pop(http)) == ([], [1])


def test_retention_takes_what_is_old_without_anybody_asking() -> None:
    config = Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0), queue=Queue())
    with TestBroker(config=config) as broker, httpx.Client(base_url=broker.http_url, timeout=60) as http:
        configure(http, retentionEnabled=True, retentionSeconds=3600)
        push(http, 1)
        broker.clock.advance(minutes=40)
        push(http, 2)
        before = broker.queue_depth("orders")
        broker.clock.advance(minutes=30)

        assert (before, [message.text for message in broker.messages("orders")]) == (2, ["2"])


def test_what_was_pushed_survives_a_crash_on_the_same_port(
    holt_broker: TestBroker, http: httpx.Client
) -> None:
    push(http, 1, 2)
    url = holt_broker.http_url

    holt_broker.crash_and_restart()

    assert holt_broker.http_url == url
    with httpx.Client(base_url=url, timeout=60) as again:
        assert pop(again, "bar") == [1, 2]


def test_a_push_is_refused_when_the_disk_fails(holt_broker: TestBroker, http: httpx.Client) -> None:
    holt_broker.disk.fail_next_sync()

    with pytest.raises(httpx.HTTPStatusError, match=r"50[03]"):
        push(http, 1)

    assert http.get("/health").status_code == 503


def test_a_waiting_client_can_be_cut_off(holt_broker: TestBroker, http: httpx.Client) -> None:
    push(http, 1)
    pop(http)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            with httpx.Client(base_url=holt_broker.http_url, timeout=60) as other:
                take(other, wait="true", timeout=60_000)
        except httpx.TransportError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: holt_broker.groups("orders")[0].waiting == 1)
    dropped = holt_broker.drop_http_connections()
    waiting.join(60)

    assert dropped >= 1
    assert len(errors) == 1
    until(lambda: holt_broker.groups("orders")[0].waiting == 0)


def test_stored_messages_are_seen_with_their_partition(holt_broker: TestBroker, http: httpx.Client) -> None:
    push(http, 1)
    push(http, 2, partition="south")

    found = holt_broker.messages("orders")

    assert [(message.text, message.headers["x-partition"]) for message in found] == [
        ("1", "north"),
        ("2", "south"),
    ]
    assert holt_broker.queues() == ["orders"]
    assert holt_broker.queue_depth("orders") == 2
    assert len({message.properties.message_id for message in found}) == 2


def test_groups_show_how_far_they_are(holt_broker: TestBroker, http: httpx.Client) -> None:
    push(http, 1, 2, 3)
    push(http, 4, partition="south")
    settle(http, take(http, batch=2)[0], "completed")
    take(http, "bar", batch=1)

    groups = {group.name: group for group in holt_broker.groups("orders")}

    assert set(groups) == {"kitchen", "bar"}
    assert groups["kitchen"].lags == {"north": 2, "south": 1}
    assert groups["kitchen"].cursors == {"north": 1, "south": 0}
    assert holt_broker.group_lag("orders", "kitchen") == 3
    assert holt_broker.group_lag("orders", "bar") == 4
    with pytest.raises(KeyError, match="no group 'nobody'"):
        holt_broker.group_lag("orders", "nobody")


def test_partition_leases_show_what_a_worker_has_not_settled(
    holt_broker: TestBroker, http: httpx.Client
) -> None:
    push(http, 1, 2, 3)
    first, *_ = take(http)
    settle(http, first, "completed")

    (lease,) = holt_broker.partition_leases("orders")

    assert (lease.id, lease.group, lease.partition) == (first["leaseId"], "kitchen", "north")
    assert [message.text for message in lease.messages] == ["2", "3"]
    assert 299 < lease.expires_at - holt_broker.clock.now <= 301
    assert holt_broker.partition_leases(group="bar") == []
    holt_broker.clock.advance(minutes=10)
    assert holt_broker.partition_leases() == []


def test_dead_letters_name_the_group_and_the_error(holt_broker: TestBroker, http: httpx.Client) -> None:
    configure(http, retryLimit=1)
    push(http, 1, 2)
    for _ in range(2):
        settle(http, take(http)[0], "failed")

    (letter,) = holt_broker.dead_letters("orders")

    assert letter.text == "1"
    assert letter.deaths[0]["group"] == "kitchen"
    assert (letter.deaths[0]["error"], letter.deaths[0]["count"]) == ("burnt", 2)
    assert holt_broker.dead_letters() == [letter]
    assert pop(http) == [2]


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Ask the broker again and again: a request is on its way in another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
