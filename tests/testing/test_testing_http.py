"""The HTTP side of a broker in a test: the same faults, the same clock."""

import httpx
import pytest

from holtmq.testing import TestBroker


def push(broker: TestBroker, *payloads: int) -> None:
    items = [{"queue": "orders", "partition": "north", "payload": payload} for payload in payloads]
    httpx.post(f"{broker.http_url}/api/v1/push", json={"items": items}).raise_for_status()


def pop(broker: TestBroker, group: str) -> list[object]:
    answer = httpx.get(
        f"{broker.http_url}/api/v1/pop/queue/orders", params={"consumerGroup": group, "batch": 10}
    )
    return [message["data"] for message in answer.json()["messages"]] if answer.content else []


def test_a_lease_expires_when_the_clock_says_so(holt_broker: TestBroker) -> None:
    push(holt_broker, 1, 2)

    first, second = pop(holt_broker, "kitchen"), pop(holt_broker, "kitchen")
    holt_broker.clock.advance(minutes=10)

    assert (first, second, pop(holt_broker, "kitchen")) == ([1, 2], [], [1, 2])


def test_what_was_pushed_survives_a_crash_on_the_same_port(holt_broker: TestBroker) -> None:
    push(holt_broker, 1, 2)
    url = holt_broker.http_url

    holt_broker.crash_and_restart()

    assert holt_broker.http_url == url
    assert pop(holt_broker, "bar") == [1, 2]


def test_a_push_is_refused_when_the_disk_fails(holt_broker: TestBroker) -> None:
    holt_broker.disk.fail_next_sync()

    with pytest.raises(httpx.HTTPStatusError, match=r"50[03]"):
        push(holt_broker, 1)

    assert httpx.get(f"{holt_broker.http_url}/health").status_code == 503
