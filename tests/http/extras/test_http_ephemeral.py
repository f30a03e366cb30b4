"""Ephemeral queues over HTTP: memory alone, with leases, bounds and groups."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_support import Api

from holtmq.broker.partitioned.extras.ephemeral_waiting import WaitingPops
from holtmq.config import Config, Http, Limits
from holtmq.node import Node
from holtmq.testing import TestBroker

BASE = "/api/v1/ephemeral"


def push(api: Api, *payloads: object, queue: str = "e", partition: str | None = None) -> Any:
    body = {"queue": queue, "partition": partition, "messages": [{"payload": one} for one in payloads]}
    return api.post(f"{BASE}/push", body)


def pop(api: Api, queue: str = "e", **params: Any) -> list[dict[str, Any]]:
    return list(api.get(f"{BASE}/pop", queue=queue, **{"batch": 10, **params}).json()["messages"])


def ack(api: Api, message: dict[str, Any], **more: Any) -> str:
    status = more.pop("status", None)
    body = {"queue": "e", "acks": [{"id": message["id"], "status": status}], **more}
    return str(api.post(f"{BASE}/ack", body).json()["results"][0]["outcome"])


def test_messages_come_in_order_once_per_group(api: Api) -> None:
    assert push(api, 1, {"a": 2}, None).status_code == 201

    first = pop(api, group="g")

    assert [message["payload"] for message in first] == [1, {"a": 2}, None]
    assert pop(api, group="g") == []
    assert len(pop(api, group="h")) == 3
    assert [ack(api, message, group="g") for message in first] == ["acked"] * 3
    assert ack(api, first[0], group="g") == "unknown"
    assert ack(api, {"id": "p/99"}, group="g") == "unknown"


def test_an_unsettled_message_comes_again_until_its_retries_are_spent(broker: TestBroker, api: Api) -> None:
    api.post(f"{BASE}/configure", {"queue": "e", "options": {"leaseSeconds": 5, "retryLimit": 1}})
    push(api, 1)

    (first,) = pop(api)
    broker.clock.advance(6)
    (again,) = pop(api)

    assert (first["attempts"], again["attempts"]) == (1, 2)
    assert ack(api, again, status="failed") == "acked"
    assert pop(api) == []


def test_a_failed_ack_gives_it_back_at_once(api: Api) -> None:
    push(api, 1)

    assert ack(api, pop(api)[0], status="failed") == "redelivered"
    assert pop(api)[0]["attempts"] == 2


@pytest.mark.parametrize(("policy", "status", "left"), [("reject", 429, [1, 2]), ("dropOldest", 201, [2, 3])])
def test_a_full_queue_refuses_or_drops(api: Api, policy: str, status: int, left: list[int]) -> None:
    api.post(f"{BASE}/configure", {"queue": "e", "options": {"maxLength": 2, "policy": policy}})
    push(api, 1, 2)

    answer = push(api, 3)

    assert answer.status_code == status
    assert [message["payload"] for message in pop(api)] == left


def test_gauges_reset_and_deletion(api: Api) -> None:
    push(api, 1, 2)
    pop(api, group="g", batch=1)

    shown = api.get(f"{BASE}/queues/e/depth").json()

    assert (shown["length"], shown["groups"]["g"]) == (2, {"pending": 1, "inFlight": 1})
    assert (shown["depth"], shown["pending"], shown["tier"]) == (2, 1, "implicit")
    assert [row["queue"] for row in api.get(f"{BASE}/queues").json()["queues"]] == ["e"]
    assert api.post(f"{BASE}/reset", {"queue": "e"}).json() == {"queue": "e", "dropped": 2}
    assert api.delete(f"{BASE}/queue/e").json() == {"queue": "e", "deleted": True}
    missing = api.get(f"{BASE}/queues/e/depth")
    assert (missing.status_code, missing.json()["code"]) == (404, "ephemeral_queue_not_found")


def test_time_takes_messages_and_a_window_holds_them(broker: TestBroker, api: Api) -> None:
    api.post(f"{BASE}/configure", {"queue": "e", "options": {"ttlSeconds": 10}})
    api.post(f"{BASE}/configure", {"queue": "w", "options": {"windowBuffer": {"ms": 5000, "count": 2}}})
    push(api, 1)
    push(api, 1, queue="w")

    assert pop(api, queue="w") == []
    push(api, 2, queue="w")
    assert len(pop(api, queue="w")) == 2
    broker.clock.advance(11)
    assert pop(api) == []


def test_nothing_survives_a_restart(broker: TestBroker, api: Api) -> None:
    push(api, 1)

    broker.restart()

    assert pop(api) == []


def test_a_negative_option_is_refused(api: Api) -> None:
    for options in ({"maxLength": -1}, {"leaseSeconds": -0.5}, {"windowBuffer": {"ms": -1}}):
        answer = api.post("/api/v1/ephemeral/configure", {"queue": "q", "options": options})

        assert answer.status_code == 400
        assert "must not be negative" in answer.json()["error"]


@pytest.mark.parametrize(
    ("loss", "outcome"), [("reset", "unknown"), ("deletion", "stale"), ("restart", "stale")]
)
def test_an_ack_of_what_was_thrown_away_settles_nothing_of_what_came_after(
    broker: TestBroker, api: Api, loss: str, outcome: str
) -> None:
    push(api, "before")
    (lost,) = pop(api)
    if loss == "reset":
        api.post(f"{BASE}/reset", {"queue": "e"})
    elif loss == "deletion":
        api.delete(f"{BASE}/queue/e")
    else:
        broker.restart()
    push(api, "after")
    (held,) = pop(api)

    assert ack(api, lost) == outcome
    assert ack(api, held, status="failed") == "redelivered"
    assert [message["payload"] for message in pop(api)] == ["after"]


def test_an_id_leads_to_its_message_whatever_the_partition_is_called(api: Api) -> None:
    push(api, 1, partition="a:b/c:7")

    assert ack(api, pop(api)[0]) == "acked"


@pytest.mark.parametrize("wrong", ["", "p/99", "e:", "e::", "e:x:y", "e:x:Default:²", "e:x:Default:-1"])
def test_an_id_nobody_was_given_is_unknown(api: Api, wrong: str) -> None:
    push(api, 1)
    pop(api)

    assert ack(api, {"id": wrong}) == "unknown"


def test_inboxes_nobody_uses_make_room_for_new_ones(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.http.extras.ephemeral._QUEUES_MAX", 3)
    api.post(f"{BASE}/configure", {"queue": "declared"})
    push(api, 1, queue="full")
    push(api, 1, queue="inbox-1")
    (read,) = pop(api, queue="inbox-1")
    api.post(f"{BASE}/ack", {"queue": "inbox-1", "acks": [{"id": read["id"]}]})

    assert push(api, 1, queue="inbox-2").status_code == 201
    names = [row["queue"] for row in api.get(f"{BASE}/queues").json()["queues"]]
    assert names == ["declared", "full", "inbox-2"]
    assert push(api, 1, queue="inbox-3").status_code == 429


def test_every_ack_of_a_call_is_answered_in_its_place(api: Api) -> None:
    push(api, 1, 2)
    first, second = pop(api)
    acks = [
        {"id": "no id"},
        {"id": first["id"]},
        {"id": "e:0123456789ab:Default:0"},
        {"id": second["id"], "status": "retry"},
        {"id": first["id"]},
    ]

    results = api.post(f"{BASE}/ack", {"queue": "e", "acks": acks}).json()["results"]

    assert [row["id"] for row in results] == [ack["id"] for ack in acks]
    assert [row["outcome"] for row in results] == ["unknown", "acked", "stale", "redelivered", "unknown"]


@pytest.mark.parametrize(
    ("options", "status"),
    [({"leaseSeconds": 0.3}, None), ({"windowBuffer": {"ms": 300}}, None), ({}, "failed")],
)
def test_a_pop_waits_until_something_comes_back(options: dict[str, Any], status: str | None) -> None:
    config = Config(limits=Limits(disk_free_min_bytes=0))
    with TestBroker(clock="real", config=config) as broker, ThreadPoolExecutor(1) as pool:
        api, other = Api(broker.http_url), Api(broker.http_url)
        api.post(f"{BASE}/configure", {"queue": "e", "options": options})
        push(api, 1)
        held = pop(api)
        waiting = pool.submit(pop, other, wait="true", timeout=30_000)
        if status:
            assert ack(api, held[0], status=status) == "redelivered"

        assert [message["payload"] for message in waiting.result(20)] == [1]
        for one in (api, other):
            one.http.close()


def test_every_waiting_pop_gets_one_of_as_many_messages(broker: TestBroker, api: Api) -> None:
    with ThreadPoolExecutor(30) as pool:
        clients = [Api(broker.http_url) for _ in range(30)]
        waiting = [pool.submit(pop, one, batch=1, wait="true", autoAck="true") for one in clients]
        while broker.call(lambda node: len(_waiting(node))) < 30:
            pass

        push(api, *range(30))

        found = [row["payload"] for one in waiting for row in one.result(20)]
    assert sorted(found) == list(range(30))
    assert broker.call(lambda node: len(_waiting(node))) == 0
    for one in clients:
        one.http.close()


def _waiting(node: Node) -> WaitingPops:
    queue = node.partitioned.ephemeral.get("e")
    return WaitingPops() if queue is None else queue._state.waiting


def test_too_many_messages_or_acks_in_one_call_are_refused() -> None:
    with TestBroker(config=Config(http=Http(max_batch=3))) as broker:
        api = Api(broker.http_url)
        acks = {"queue": "e", "acks": [{"id": "e:1:p:1"}] * 4}

        assert push(api, 1, 2, 3).status_code == 201
        for answer in (push(api, 1, 2, 3, 4), api.post(f"{BASE}/ack", acks)):
            assert (answer.status_code, answer.json()["code"]) == (413, "batch_too_large")
        api.http.close()


def test_a_pop_that_waits_for_a_deleted_queue_ends_with_nothing(broker: TestBroker, api: Api) -> None:
    push(api, 1)
    pop(api)
    with ThreadPoolExecutor(1) as pool:
        client = Api(broker.http_url)
        waiting = pool.submit(pop, client, wait="true", timeout=1_000)
        while not broker.call(lambda node: len(_waiting(node))):
            pass

        assert api.delete(f"{BASE}/queue/e").json()["deleted"]

        assert waiting.result(20) == []
        client.http.close()
