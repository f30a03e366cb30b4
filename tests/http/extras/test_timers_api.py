"""Timers over HTTP: what one may say of them, and what is told about one that waits."""

import base64
import json

import httpx
import pytest
from http_support import Api, Json, ids

from holtmq.testing import TestBroker

_PATH = "/api/v1/timers"


def timer(key: str = "k", **fields: object) -> Json:
    payload = base64.b64encode(json.dumps({"n": 1}).encode()).decode()
    return {
        **{
            "op": "schedule",
            "queue": "q",
            "timerKey": key,
            "delayMs": 60_000,
            "txn": "t",
            "payload": payload,
        },
        **fields,
    }


def schedule(api: Api, operation: Json) -> httpx.Response:
    return api.post(_PATH, {"operations": [operation]})


def test_operations_may_come_as_a_bare_list(api: Api) -> None:
    answer = api.post(_PATH, [timer("a"), timer("b")])

    assert [row["status"] for row in answer.json()["results"]] == ["scheduled", "scheduled"]
    assert api.post(_PATH, [1]).status_code == 400


def test_a_look_at_a_timer_shows_its_payload_as_it_came_and_a_list_shows_none(api: Api) -> None:
    (row,) = schedule(api, timer()).json()["results"]

    seen = api.get(f"{_PATH}/q/k").json()
    (listed,) = api.get(f"{_PATH}/q").json()["rows"]

    assert seen.pop("found") is True
    assert seen.pop("payload") == timer()["payload"]
    assert seen == listed
    assert (seen["partition"], seen["txn"], seen["messageId"]) == ("Default", "t", row["messageId"])
    assert (seen["attempts"], seen["claimed"], seen["lastError"]) == (0, False, None)


def test_a_list_of_timers_goes_on_after_a_key(api: Api) -> None:
    api.post(_PATH, [timer(key) for key in "cab"])

    first = api.get(f"{_PATH}/q", limit=2).json()
    second = api.get(f"{_PATH}/q", after=first["nextAfter"]).json()

    assert [row["timerKey"] for row in first["rows"]] == ["a", "b"]
    assert (first["truncated"], first["nextAfter"]) == (True, "b")
    assert [row["timerKey"] for row in second["rows"]] == ["c"]
    assert (second["truncated"], second["nextAfter"]) == (False, None)


def test_a_cancel_goes_by_the_key_whatever_transaction_it_names(broker: TestBroker, api: Api) -> None:
    """A reschedule gives the timer a new one, and a client that cancels may know only the old one."""
    schedule(api, timer(txn="old"))
    schedule(api, timer(txn="new"))

    gone = api.delete(f"{_PATH}/q/k", txn="old").json()
    absent = api.delete(f"{_PATH}/q/k", txn="old").json()
    broker.clock.advance(61)

    assert (gone["ok"], gone["status"], gone["txn"]) == (True, "cancelled", "new")
    assert (absent["ok"], absent["status"], absent["txn"]) == (False, "absent", "old")
    assert api.pop("q") == []


@pytest.mark.parametrize(
    "fields",
    [
        {"txn": "t" * 65_536},
        {"txn": "\N{EURO SIGN}" * 21_846},
        {"partition": "p" * 1025},
        {"queue": "q" * 1025},
    ],
    ids=["txn", "txn in bytes", "partition", "queue"],
)
def test_a_timer_that_could_not_become_a_message_is_refused_and_holds_up_no_other(
    broker: TestBroker, api: Api, fields: Json
) -> None:
    refused = schedule(api, timer("bad", **{"delayMs": 1000, **fields}))
    schedule(api, timer("good", delayMs=1000))
    broker.clock.advance(2)

    assert (refused.status_code, refused.json()["error"]) == (400, "timers_bad_request")
    assert ids(api.pop("q")) == ["t"]


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({key: value for key, value in timer().items() if key != "delayMs"}, "timers_delay_required"),
        (timer(payload="not base64!"), "timers_payload_not_base64"),
        (timer(payload="\N{EURO SIGN}"), "timers_payload_not_base64"),
        (timer(producerSub="somebody"), "timers_server_owned_field"),
        (timer(tenantId="x"), "timers_server_owned_field"),
        (timer(_messageId="x"), "timers_server_owned_field"),
    ],
)
def test_a_bad_timer_is_refused_by_a_word(api: Api, operation: Json, reason: str) -> None:
    answer = api.post(_PATH, {"operations": [operation]})
    rider = api.post("/api/v1/transaction", {"operations": [], "timers": [operation]})

    assert (answer.status_code, answer.json()["reason"]) == (400, reason)
    assert rider.status_code == 400
    assert api.get(f"{_PATH}/q").json()["rows"] == []


def test_a_key_that_is_too_long_is_refused_in_the_path_as_in_a_body(api: Api) -> None:
    answer = api.delete("/api/v1/timers/q/" + "k" * 600)

    assert (answer.status_code, answer.json()["reason"]) == (400, "timerKey")
