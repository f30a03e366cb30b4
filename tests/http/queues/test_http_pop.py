"""Popping over HTTP: claims, leases, long polls, subscriptions."""

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from http_support import Api, ids

from holtmq.broker.partitioned.commands import popping
from holtmq.broker.partitioned.requests import Popped, Waiter
from holtmq.config import Config, Http
from holtmq.http.queues import pop
from holtmq.node import Node
from holtmq.testing import TestBroker

SOON = 60.0  # seconds; reached only by a test that would fail anyhow


def test_a_popped_message_carries_all_that_an_ack_needs(api: Api) -> None:
    api.push("q", "a", partition="c-42")

    answer = api.get("/api/v1/pop/queue/q").json()

    (message,) = answer["messages"]
    assert answer["success"] is True
    assert (answer["queue"], answer["partition"], answer["partitionsClaimed"]) == ("q", "c-42", 1)
    assert message["data"] == {"id": "a"}
    assert message["leaseId"] == answer["leaseId"]
    assert message["partitionId"] == answer["partitionId"]
    assert message["consumerGroup"] == "__QUEUE_MODE__"
    assert message["deliveryAttempt"] == 1
    assert message["createdAt"].endswith("Z")


def test_nothing_is_204_without_body_and_length(api: Api) -> None:
    answer = api.get("/api/v1/pop/queue/unknown")

    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    assert "content-type" not in answer.headers


def test_a_pop_creates_no_queue(api: Api) -> None:
    api.pop("q", consumerGroup="g")

    assert api.get("/api/v1/resources/queues").json()["queues"] == []


def test_a_pop_leaves_nothing_behind_under_the_name_of_a_queue_that_is_not_there(
    api: Api, broker: TestBroker
) -> None:
    api.push("q", "a")
    for name in ("q", "q", "never", "nor this"):
        api.pop(name)

    assert set(broker.call(lambda node: node.partitioned.counters.queues)) == {"q"}


def test_without_a_batch_one_message_is_popped_and_under_autopilot_many(api: Api) -> None:
    api.push("q", *"abc")

    assert len(api.get("/api/v1/pop/queue/q", consumerGroup="one").json()["messages"]) == 1
    assert len(api.get("/api/v1/pop/queue/q", consumerGroup="two", autopilot="true").json()["messages"]) == 3


def test_a_pop_of_very_many_returns_some_and_the_next_one_the_rest(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "AT_ONCE", 3)
    api.push("orders", *"abcde")

    found = [len(api.pop("orders", batch=10_000, autoAck="true")) for _ in range(3)]

    assert found == [3, 2, 0]


def test_batch_is_a_total_and_partitions_a_cap(api: Api) -> None:
    for partition in "uvwxy":
        api.push("q", *(f"{partition}{n}" for n in range(100)), partition=partition)

    answer = api.get("/api/v1/pop/queue/q", batch=10, partitions=5).json()
    wide = api.get("/api/v1/pop/queue/q", batch=1000, partitions=3).json()

    assert len(answer["messages"]) == 10
    assert wide["partitionsClaimed"] == 3
    assert len({message["leaseId"] for message in wide["messages"]}) == 1


def test_a_leased_partition_is_skipped_by_its_group_and_open_to_others(api: Api) -> None:
    api.push("q", "a", "b")

    assert ids(api.pop("q", batch=1)) == ["a"]
    assert api.pop("q") == []
    assert ids(api.pop("q", consumerGroup="other")) == ["a", "b"]


def test_an_expired_lease_gives_the_messages_back_and_charges_no_retry(broker: TestBroker, api: Api) -> None:
    api.configure("q", leaseTime=1, retryLimit=0)
    api.push("q", "a")
    (first,) = api.pop("q")

    broker.clock.advance(1.001)

    (again,) = api.pop("q")
    assert again["deliveryAttempt"] == 2
    assert api.ack(first)["error"] == "Invalid or expired lease"
    assert api.ack(again)["success"]
    assert api.letters() == []


def test_auto_ack_settles_at_delivery(api: Api) -> None:
    api.push("q", "a")

    answer = api.get("/api/v1/pop/queue/q", autoAck="true").json()

    assert answer["leaseId"] == answer["messages"][0]["leaseId"] == ""
    assert api.pop("q") == []
    assert api.ack(answer["messages"][0]) | {"noop": True} == api.ack(answer["messages"][0])


def test_pop_by_namespace_and_task_waits_for_any_of_their_queues(api: Api) -> None:
    api.push("shop.orders", "a")
    api.push("shop.returns", "b")
    api.push("other.orders", "c")

    both = {m["transactionId"] for _ in range(2) for m in _wide(api, namespace="shop")}

    assert both == {"a", "b"}
    assert ids(_wide(api, task="orders")) == ["c"]
    assert _wide(api, namespace="nothing") == []


def _wide(api: Api, **params: object) -> list[dict[str, object]]:
    answer = api.get("/api/v1/pop", **params)
    return list(answer.json()["messages"]) if answer.status_code == 200 else []


def _in_background(work: Callable[[], object]) -> "Waiting":
    return Waiting(work)


class Waiting:
    """A request on its way, in a thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(work)

    def result(self) -> object:
        try:
            return self._future.result(SOON)
        finally:
            self._pool.shutdown()

    @property
    def done(self) -> bool:
        return self._future.done()


def _until_parked(broker: TestBroker, count: int = 1) -> None:
    deadline = time.monotonic() + SOON
    while broker.call(lambda node: len(node.partitioned.line)) != count:
        assert time.monotonic() < deadline, "the pop never waited"
        time.sleep(0.002)


def test_a_waiting_pop_is_woken_by_the_push(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    other = connect()
    waiting = _in_background(lambda: other.pop("q", wait="true", timeout=60000))
    _until_parked(broker)

    api.push("q", "a")

    assert ids(waiting.result()) == ["a"]  # type: ignore[arg-type]


def _waiters_and_what_they_got() -> list[object]:
    return [thing for thing in gc.get_objects() if type(thing) in (Waiter, Popped)]


@pytest.mark.parametrize("ends", ["served", "in vain"])
def test_a_wait_that_is_over_leaves_nothing_for_the_garbage_collector(
    broker: TestBroker, api: Api, connect: Callable[..., Api], ends: str
) -> None:
    other = connect()
    gc.collect()
    others = {id(thing) for thing in _waiters_and_what_they_got()}  # of other tests
    gc.disable()
    try:
        for name in ("a", "b", "c"):
            if ends == "in vain":
                assert other.pop("q", wait="true", timeout=20) == []
                continue
            waiting = _in_background(lambda: other.pop("q", wait="true", timeout=60000, autoAck="true"))
            _until_parked(broker)
            api.push("q", name)
            assert ids(waiting.result()) == [name]  # type: ignore[arg-type]
        left = broker.call(lambda _: [x for x in _waiters_and_what_they_got() if id(x) not in others])
    finally:
        gc.enable()

    assert left == []


def test_a_waiting_pop_is_woken_by_a_release_a_seek_and_the_end_of_a_lease(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    api.push("q", "a")
    (held,) = api.pop("q")
    other = connect()

    waiting = _in_background(lambda: other.pop("q", wait="true", timeout=60000))
    _until_parked(broker)
    api.ack(held, "retry")
    (second,) = waiting.result()  # type: ignore[misc]
    waiting = _in_background(lambda: other.pop("q", wait="true", timeout=60000))
    _until_parked(broker)
    broker.clock.advance(301)
    (third,) = waiting.result()  # type: ignore[misc]
    api.ack(third)  # type: ignore[has-type]
    waiting = _in_background(lambda: other.pop("q", wait="true", timeout=60000))
    _until_parked(broker)
    body = {"timestamp": "2000-01-01T00:00:00Z"}
    api.post("/api/v1/consumer-groups/__QUEUE_MODE__/queues/q/seek", body)

    assert ids(waiting.result()) == ["a"]  # type: ignore[arg-type]
    assert second["transactionId"] == third["transactionId"] == "a"  # type: ignore[has-type]


class _BrokenConsumer:
    """What a bug in the other half of the broker looks like from here."""

    priority = 0

    def __init__(self) -> None:
        self.arguments: dict[str, object] = {}

    def room(self) -> int:
        raise RuntimeError("this consumer is broken")


def test_a_consumer_that_breaks_the_turn_of_amqp_does_not_keep_a_waiting_pop_from_its_message(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    api.configure("broken")
    other = connect()
    waiting = _in_background(lambda: other.pop("q", wait="true", timeout=60000))
    _until_parked(broker)
    broker.call(lambda node: node.broker.vhosts["/"].queues["broken"].add_consumer(_BrokenConsumer()))  # type: ignore[arg-type]

    items = [{"queue": name, "payload": 1, "transactionId": name} for name in ("broken", "q")]
    assert api.post("/api/v1/push", {"items": items}).status_code == 201

    assert ids(waiting.result()) == ["q"]  # type: ignore[arg-type]


def test_a_waiting_pop_over_a_namespace_is_woken(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    other = connect()
    waiting = _in_background(lambda: other.get("/api/v1/pop", namespace="shop", wait="true").json())
    _until_parked(broker)

    api.push("else.where", "x")
    api.push("shop.orders", "a")

    assert ids(waiting.result()["messages"]) == ["a"]  # type: ignore[index]


@pytest.mark.parametrize("waits", [{}, {"wait": "true", "timeout": 60_000}])
def test_a_pop_finds_what_is_behind_very_many_partitions(
    broker: TestBroker, api: Api, waits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "LOOKS", 30)
    api.configure("q", windowBuffer=5)
    api.push("q", "a")
    assert api.pop("q") == []
    broker.clock.advance(4)
    items = [{"queue": "q", "partition": f"p{number}", "payload": 1} for number in range(100)]
    assert api.post("/api/v1/push", {"items": items}).status_code == 201
    broker.clock.advance(2)

    assert ids(api.pop("q", **waits)) == ["a"]
    assert api.pop("q") == []


def test_a_wait_that_finds_nothing_ends_in_time(api: Api) -> None:
    began = time.monotonic()

    assert api.pop("q", wait="true", timeout=200) == []

    assert time.monotonic() - began > 0.1


def test_a_waiter_that_hung_up_does_not_claim(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    gone = connect(trust_env=False)
    thread = threading.Thread(target=lambda: _hang_up(gone), daemon=True)
    thread.start()
    thread.join(SOON)
    deadline = time.monotonic() + SOON
    while broker.call(lambda node: len(node.partitioned.line)):
        assert time.monotonic() < deadline, "the waiter stayed"
        time.sleep(0.002)

    api.push("q", "a")

    assert ids(api.pop("q")) == ["a"]


def _hang_up(api: Api) -> None:
    import httpx

    patience = httpx.Timeout(SOON, read=0.1)
    with pytest.raises(httpx.ReadTimeout):
        api.http.get("/api/v1/pop/queue/q", params={"wait": "true"}, timeout=patience)


def test_many_waiters_share_many_pushes_without_loss_or_double(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    clients = [connect() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = [
            pool.submit(lambda c=c: c.pop("q", wait="true", timeout=60000, batch=1))  # type: ignore[misc]
            for c in clients
        ]
        _until_parked(broker, 8)
        for n in range(8):
            api.push("q", f"t{n}", partition=f"p{n}")

        popped = [message for future in found for message in future.result(SOON)]

    assert sorted(ids(popped)) == [f"t{n}" for n in range(8)]


def test_delay_and_window_hold_messages_back_and_wake_who_waits(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    api.configure("late", delayedProcessing=2)
    api.configure("quiet", windowBuffer=3)
    api.push("late", "a")
    api.push("quiet", "b")
    other = connect()

    assert api.pop("late") == api.pop("quiet") == []
    waiting = _in_background(lambda: other.pop("late", wait="true", timeout=60000))
    _until_parked(broker)
    broker.clock.advance(2.001)
    assert ids(waiting.result()) == ["a"]  # type: ignore[arg-type]
    api.push("quiet", "c")
    broker.clock.advance(2)
    assert api.pop("quiet") == []
    broker.clock.advance(1.001)
    assert ids(api.pop("quiet")) == ["b", "c"]


def test_a_new_group_gets_what_comes_after_it_even_on_an_empty_queue(broker: TestBroker, api: Api) -> None:
    api.push("q", "old")
    broker.clock.advance(10)

    assert api.pop("q", consumerGroup="g", subscriptionMode="new") == []
    assert api.pop("fresh", consumerGroup="g", subscriptionFrom="now") == []
    api.push("q", "young", partition="later")
    api.push("fresh", "first")

    assert ids(api.pop("q", consumerGroup="g")) == ["young"]
    assert ids(api.pop("fresh", consumerGroup="g")) == ["first"]


def test_the_first_mode_wins(broker: TestBroker, api: Api) -> None:
    api.push("q", "old")
    broker.clock.advance(10)
    api.pop("q", consumerGroup="g", subscriptionMode="new")

    assert api.pop("q", consumerGroup="g", subscriptionMode="all") == []
    assert ids(api.pop("q", consumerGroup="h")) == ["old"]


def test_a_timestamp_starts_at_the_first_message_not_older(broker: TestBroker, api: Api) -> None:
    api.push("q", "old")
    broker.clock.advance(10)
    api.push("q", "new")
    created = api.pop("q", consumerGroup="look")[1]["createdAt"]

    assert ids(api.pop("q", consumerGroup="g", subscriptionFrom=created)) == ["new"]


def test_a_time_that_is_none_is_refused(api: Api) -> None:
    answer = api.get("/api/v1/pop/queue/q", consumerGroup="g", subscriptionFrom="yesterday")

    assert answer.status_code == 400
    assert "subscriptionFrom" in answer.json()["error"]


def test_unknown_parameters_and_bad_numbers_are_ignored(api: Api) -> None:
    api.push("q", "a", "b")

    answer = api.get("/api/v1/pop/queue/q", batch="many", frames="true", whatever="1", wait="yes")

    assert ids(answer.json()["messages"]) == ["a"]


def test_a_conflating_group_gets_the_newest_and_its_ack_settles_all(api: Api) -> None:
    api.push("q", "a", "b", "c")

    nothing = api.get("/api/v1/pop/queue/none", consumerGroup="g", conflation="true").json()
    answer = api.get("/api/v1/pop/queue/q", consumerGroup="g", conflation="true", batch=10).json()

    assert nothing["conflation"] is True
    assert nothing["messages"] == []
    assert answer["conflation"] is True
    assert ids(answer["messages"]) == ["c"]
    assert api.ack(answer["messages"][0])["leaseReleased"]
    assert api.pop("q", consumerGroup="g") == []
    assert api.get("/api/v1/pop/queue/q", conflation="true").status_code == 400


def test_the_policy_a_group_was_made_with_beats_what_a_pop_declares(api: Api) -> None:
    api.push("q", "a", "b")
    newest = api.get("/api/v1/pop/queue/q", consumerGroup="newest", conflation="true").json()
    every = api.get("/api/v1/pop/queue/q", consumerGroup="every", conflation="false", batch=9).json()
    for message in newest["messages"] + every["messages"]:
        assert api.ack(message)["success"]
    api.push("q", "c", "d")

    folded = api.get("/api/v1/pop/queue/q", consumerGroup="newest", conflation="false", batch=9).json()
    whole = api.get("/api/v1/pop/queue/q", consumerGroup="every", conflation="true", batch=9).json()

    assert "conflationConflict" not in newest
    assert "conflation" not in every
    assert ids(folded["messages"]) == ["d"]
    assert (folded["conflation"], folded["conflationConflict"]) == (True, True)
    assert ids(whole["messages"]) == ["c", "d"]
    assert "conflation" not in whole
    assert whole["conflationConflict"] is True


def test_a_pop_that_finds_nothing_says_that_its_group_conflates_otherwise(api: Api) -> None:
    api.configure("q")
    url = "/api/v1/pop/queue/q"
    first = api.get(url, consumerGroup="newest", conflation="true")
    api.pop("q", consumerGroup="every")

    folded = api.get(url, consumerGroup="newest", conflation="false")
    whole = api.get(url, consumerGroup="every", conflation="true")

    assert first.json() == {"success": True, "conflation": True, "messages": []}
    assert folded.json() == {
        "success": True,
        "conflation": True,
        "conflationConflict": True,
        "messages": [],
    }
    assert whole.json() == {"success": True, "conflationConflict": True, "messages": []}
    assert api.get(url, consumerGroup="every").status_code == 204
    assert api.get(url, consumerGroup="every", conflation="false").status_code == 204


def test_ten_workers_of_one_group_keep_every_partition_in_order(
    api: Api, connect: Callable[..., Api]
) -> None:
    for n in range(60):
        api.push("q", f"{n:03d}", partition=f"p{n % 4}")
    seen: dict[str, list[str]] = {}
    lock = threading.Lock()

    def work(client: Api) -> None:
        while messages := client.pop("q", batch=3, partitions=2, wait="true", timeout=300):
            with lock:
                for message in messages:
                    seen.setdefault(message["partition"], []).append(message["transactionId"])
            assert all(verdict["success"] for verdict in client.ack_batch(messages))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, [connect() for _ in range(10)]))

    assert sorted(id_ for found in seen.values() for id_ in found) == [f"{n:03d}" for n in range(60)]
    assert all(found == sorted(found) for found in seen.values())


@pytest.mark.parametrize("auto_ack", ["true", "false"])
def test_a_pop_ends_where_it_would_get_too_large(broker: TestBroker, api: Api, auto_ack: str) -> None:
    def limit(node: Node) -> None:
        node.partitioned._popping.most_bytes = 2500

    broker.call(limit)
    for partition in "pq":
        items = [
            {"queue": "q", "partition": partition, "payload": "x" * 1000, "transactionId": f"{partition}{n}"}
            for n in range(7)
        ]
        api.post("/api/v1/push", {"items": items})
    got: list[list[str]] = []
    while messages := api.pop("q", batch=100, partitions=2, autoAck=auto_ack):
        got.append(ids(messages))
        if auto_ack == "false":
            assert all(verdict["success"] for verdict in api.ack_batch(messages))

    assert max(map(len, got)) == 3
    for partition in "pq":
        order = [name for names in got for name in names if name[0] == partition]
        assert order == [f"{partition}{n}" for n in range(7)]


@pytest.mark.parametrize("auto_ack", ["true", "false"])
def test_a_pop_over_many_queues_ends_where_all_of_it_would_get_too_large(
    broker: TestBroker, api: Api, auto_ack: str
) -> None:
    def limit(node: Node) -> None:
        node.partitioned._popping.most_bytes = 2500

    broker.call(limit)
    for queue in "pqr":
        api.post("/api/v1/configure", {"queue": queue, "namespace": "wide"})
        items = [
            {"queue": queue, "payload": "x" * 1000, "transactionId": f"{queue}{number}"}
            for number in range(2)
        ]
        api.post("/api/v1/push", {"items": items})
    got: list[list[str]] = []
    while (
        answer := api.get("/api/v1/pop", namespace="wide", batch=100, partitions=9, autoAck=auto_ack)
    ).content:
        messages = answer.json()["messages"]
        got.append(ids(messages))
        if auto_ack == "false":
            assert all(verdict["success"] for verdict in api.ack_batch(messages))

    assert [len(names) for names in got] == [3, 3]
    assert sorted(name for names in got for name in names) == ["p0", "p1", "q0", "q1", "r0", "r1"]


def test_a_message_larger_than_a_pop_may_be_is_handed_out_alone(broker: TestBroker, api: Api) -> None:
    def limit(node: Node) -> None:
        node.partitioned._popping.most_bytes = 10

    broker.call(limit)
    api.post("/api/v1/push", {"items": [{"queue": "q", "payload": "x" * 100} for _ in range(2)]})

    assert [len(api.pop("q", batch=9, autoAck="true")) for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("path", ["pop/queue/q", "ephemeral/pop"])
def test_a_pop_that_names_no_time_waits_no_longer_than_any_may(path: str) -> None:
    """It waited for 30 seconds, the default, where ``http.max_wait_ms`` was less."""
    with TestBroker(config=Config(http=Http(max_wait_ms=20))) as broker, httpx.Client(timeout=5) as http:
        http.post(f"{broker.http_url}/api/v1/ephemeral/push", json={"queue": "q", "messages": []})
        answer = http.get(f"{broker.http_url}/api/v1/{path}", params={"wait": "true", "queue": "q"})

    assert answer.is_success, answer.text
