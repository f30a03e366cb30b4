"""Acknowledgments, transactions, leases and dead letters over HTTP."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from http_support import Api, address, ids

from holtmq.http.queues import ack
from holtmq.testing import TestBroker


def test_an_ack_is_answered_with_an_array_of_one(api: Api) -> None:
    api.push("q", "a", partition="p")
    (message,) = api.pop("q")

    answer = api.post("/api/v1/ack", address(message))

    assert answer.status_code == 200
    (verdict,) = answer.json()
    assert verdict["success"] is True
    assert verdict["error"] is None
    assert (verdict["queueName"], verdict["partitionName"]) == ("q", "p")
    assert verdict["leaseReleased"] is True
    assert verdict["dlq"] is False


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("ack", None, "Empty request body"),
        ("ack", {"partitionId": "1"}, "transactionId is required"),
        ("ack", {"transactionId": "", "partitionId": "1"}, "transactionId is required"),
        ("ack", {"transactionId": "a"}, "partitionId is required to ensure message uniqueness"),
        ("ack/batch", {}, "acknowledgments array is required"),
        ("ack/batch", {"acknowledgments": 1}, "acknowledgments array is required"),
        (
            "ack/batch",
            {"acknowledgments": [{"partitionId": "1"}]},
            "Each acknowledgment must have a valid transactionId string",
        ),
        (
            "ack/batch",
            {"acknowledgments": [{"transactionId": "a", "partitionId": 1}]},
            "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
        ),
        ("transaction", {}, "operations array required"),
        ("transaction", {"operations": []}, "operations array cannot be empty"),
        ("transaction", {"operations": [{"type": "push"}]}, "items array is required"),
        ("transaction", {"operations": [{"type": "push", "items": [{}]}]}, "queue is required"),
        ("transaction", {"operations": [{"type": "ack", "partitionId": "1"}]}, "transactionId is required"),
    ],
)
def test_a_request_of_the_wrong_shape_is_refused_by_name(
    api: Api, path: str, body: object, text: str
) -> None:
    answer = api.post(f"/api/v1/{path}", body)

    assert (answer.status_code, answer.json()["error"]) == (400, text)


def test_a_refused_ack_is_a_200_that_says_so(api: Api) -> None:
    api.push("q", "a")
    (message,) = api.pop("q")

    unknown = api.ack({**message, "transactionId": "nobody", "leaseId": ""})
    nowhere = api.ack({**message, "partitionId": "999999999999999"})
    no_number = api.ack({**message, "partitionId": "p"})
    stranger = api.ack({**message, "leaseId": "another"})
    odd = api.ack(message, "finished")

    assert (unknown["success"], unknown["error"]) == (False, "Message not found")
    assert (nowhere["success"], no_number["success"]) == (False, False)
    assert (stranger["success"], stranger["error"]) == (False, "Invalid or expired lease")
    assert (odd["success"], odd["error"]) == (False, "Unknown acknowledgment status")
    assert api.ack(message)["success"]


def test_an_ack_without_a_lease_is_not_checked(api: Api) -> None:
    api.push("q", "a", "b")
    messages = api.pop("q")

    assert api.ack({**messages[1], "leaseId": ""})["success"]
    assert api.pop("q") == []


def test_a_partial_ack_leaves_the_rest_to_come_again(broker: TestBroker, api: Api) -> None:
    api.configure("q", leaseTime=5)
    api.push("q", "a", "b", "c")
    messages = api.pop("q")

    verdict = api.ack(messages[1])
    broker.clock.advance(6)

    assert verdict["leaseReleased"] is False
    assert ids(api.pop("q")) == ["c"]


def test_one_failure_always_is_delivered_limit_plus_one_times_then_filed(api: Api) -> None:
    api.configure("q", retryLimit=2)
    api.push("q", "a")

    verdicts = [api.ack(api.pop("q")[0], "failed", error=f"try {n}") for n in range(3)]

    assert [verdict["dlq"] for verdict in verdicts] == [False, False, True]
    assert api.pop("q") == []
    (letter,) = api.letters(queue="q")
    assert (letter["errorMessage"], letter["retryCount"], letter["data"]) == ("try 2", 2, {"id": "a"})


def test_a_batch_failed_as_a_whole_costs_one_retry(api: Api) -> None:
    api.configure("q", retryLimit=1)
    api.push("q", *"abc")

    api.ack_batch(api.pop("q"), "failed")
    again = api.pop("q")

    assert ids(again) == ["a", "b", "c"]
    assert all(verdict["success"] for verdict in api.ack_batch(again))
    assert api.letters() == []


def test_a_failure_in_the_middle_loses_nothing(api: Api) -> None:
    api.push("q", *"abc")

    verdicts = api.ack_batch(api.pop("q"), ["completed", "failed", "completed"])

    assert [verdict["success"] for verdict in verdicts] == [True, True, True]
    assert ids(api.pop("q")) == ["b", "c"]


def test_a_batch_may_span_queues_and_each_item_has_its_own_verdict(api: Api) -> None:
    api.push("q", "a")
    api.push("r", "b")
    messages = [*api.pop("q"), *api.pop("r")]
    messages.append({**messages[0], "transactionId": "nobody", "leaseId": ""})

    verdicts = api.ack_batch(messages)

    assert [verdict["success"] for verdict in verdicts] == [True, True, False]
    assert [verdict["index"] for verdict in verdicts] == [0, 1, 2]
    assert [verdict["queueName"] for verdict in verdicts[:2]] == ["q", "r"]


def test_the_group_of_the_call_is_the_group_of_its_items(api: Api) -> None:
    api.push("q", "a")
    (message,) = api.pop("q", consumerGroup="g")
    del message["consumerGroup"]

    (verdict,) = api.ack_batch([message], consumerGroup="g")

    assert verdict["success"]
    assert api.pop("q", consumerGroup="g") == []
    assert ids(api.pop("q")) == ["a"]


def test_the_ack_that_released_a_lease_is_answered_alike_when_repeated(api: Api) -> None:
    api.push("q", "a")
    (message,) = api.pop("q")

    assert api.ack(message) == api.ack(message)


def test_an_empty_batch_is_an_empty_array(api: Api) -> None:
    assert api.ack_batch([]) == []


def test_one_extension_renews_every_partition_of_a_lease(broker: TestBroker, api: Api) -> None:
    api.configure("q", leaseTime=10)
    api.push("q", "a", partition="1")
    api.push("q", "b", partition="2")
    messages = api.pop("q", partitions=2)
    lease = messages[0]["leaseId"]

    bare = api.post(f"/api/v1/lease/{lease}/extend").json()
    longer = api.post(f"/api/v1/lease/{lease}/extend", {"seconds": 100}).json()
    broker.clock.advance(99)

    assert (bare["success"], bare["renewed"], bare["leaseId"]) == (True, 2, lease)
    assert longer["newExpiresAt"] == longer["expiresAt"] == longer["lease_expires_at"] > bare["newExpiresAt"]
    assert all(verdict["success"] for verdict in api.ack_batch(messages))


def test_a_lease_that_is_gone_cannot_be_revived(broker: TestBroker, api: Api) -> None:
    api.configure("q", leaseTime=1)
    api.push("q", "a")
    (message,) = api.pop("q")
    broker.clock.advance(2)

    gone = api.post(f"/api/v1/lease/{message['leaseId']}/extend")
    never = api.post("/api/v1/lease/nobody/extend").json()

    assert gone.status_code == 200
    assert (gone.json()["success"], gone.json()["renewed"], gone.json()["newExpiresAt"]) == (False, 0, None)
    assert never["error"] == "Lease not found"


def _commit(api: Api, *operations: object, **more: object) -> dict[str, Any]:
    answer = api.post("/api/v1/transaction", {"operations": list(operations), **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _push(queue: str, id_: str) -> dict[str, object]:
    return {"type": "push", "items": [{"queue": queue, "payload": id_, "transactionId": id_}]}


def test_a_transaction_acks_and_pushes_in_one_step(api: Api) -> None:
    api.push("in", "a")
    (message,) = api.pop("in")

    done = _commit(api, _push("out", "b"), {"type": "ack", **address(message)})

    assert done["success"] is True
    push, ack = done["results"]
    assert (push["index"], push["type"], push["transactionId"], push["queueName"]) == (0, "push", "b", "out")
    assert (ack["index"], ack["type"], ack["success"]) == (1, "ack", True)
    assert ids(api.pop("out")) == ["b"]
    assert api.pop("in") == []


def test_a_refused_part_refuses_the_whole(broker: TestBroker, api: Api) -> None:
    api.configure("in", leaseTime=1)
    api.push("in", "a")
    (message,) = api.pop("in")

    unknown = _commit(
        api,
        _push("out", "b"),
        {"type": "ack", **address(message), "transactionId": "nobody", "leaseId": None},
    )
    odd = _commit(api, _push("out", "b"), {"type": "dance"})
    broker.clock.advance(2)
    late = _commit(api, _push("out", "b"), {"type": "ack", **address(message)})
    ack = {**address(message), "leaseId": None}
    required = _commit(api, _push("out", "b"), {"type": "ack", **ack}, requiredLeases=[message["leaseId"]])

    assert (unknown["success"], unknown["error"]) == (False, "ACK operation failed: Message not found")
    assert (odd["success"], odd["error"]) == (False, "Unknown operation type: dance")
    assert str(late["error"]).startswith("ACK operation failed: Invalid or expired lease")
    assert required["error"] == "ACK operation failed: Invalid or expired lease"
    assert unknown["results"] == []
    assert api.pop("out") == []
    assert ids(api.pop("in")) == ["a"]


def test_three_acks_of_a_batch_of_three_release_it(api: Api) -> None:
    api.push("q", *"abc")
    messages = api.pop("q")

    done = _commit(api, *({"type": "ack", **address(message)} for message in messages))

    assert done["success"] is True
    assert api.pop("q") == []


def test_a_repeated_transaction_does_not_push_twice(api: Api) -> None:
    _commit(api, _push("q", "a"))

    again = _commit(api, _push("q", "a"))

    (result,) = again["results"]
    assert again["success"] is True
    assert (result["duplicate"], result["success"]) == (True, False)
    assert ids(api.pop("q")) == ["a"]


def test_a_flat_push_operation_is_taken_too(api: Api) -> None:
    _commit(api, {"type": "push", "queue": "q", "partition": "p", "data": {"x": 1}})

    (message,) = api.pop("q")
    assert (message["partition"], message["data"]) == ("p", {"x": 1})


def _file(api: Api, queue: str, *names: str, group: str = "", **options: object) -> None:
    api.configure(queue, retryLimit=0, **options)
    api.push(queue, *names)
    for message in api.pop(queue, **({"consumerGroup": group} if group else {})):
        api.ack({**message, "leaseId": ""}, "dlq", error=f"bad {message['transactionId']}")


def test_dead_letters_are_listed_newest_first_by_any_filter(broker: TestBroker, api: Api) -> None:
    _file(api, "q", "a", "b")
    broker.clock.advance(60)
    _file(api, "r", "c", group="g")

    everything = api.get("/api/v1/dlq").json()

    assert [m["transactionId"] for m in everything["messages"]] == ["c", "b", "a"]
    assert everything["total"] == 3
    assert ids(api.letters(queue="q", limit=1, offset=1)) == ["a"]
    assert ids(api.letters(consumerGroup="g")) == ["c"]
    assert ids(api.letters(queue="q", partition="Default")) == ["b", "a"]
    assert ids(api.letters(**{"from": everything["messages"][0]["failedAt"]})) == ["c"]
    assert api.letters(queue="none") == []


def test_a_dead_letter_goes_home_once(api: Api) -> None:
    _file(api, "q", "a")
    (letter,) = api.letters()

    moved = api.post(f"/api/v1/messages/{letter['partitionId']}/a/retry")
    gone = api.post(f"/api/v1/dlq/{letter['id']}/replay")

    assert moved.status_code == 200
    assert (moved.json()["result"], moved.json()["originalTransactionId"]) == ("moved", "a")
    assert gone.status_code == 404
    assert gone.json() == {"success": False, "result": "gone", "error": "Message not found"}
    (message,) = api.pop("q")
    assert (message["transactionId"], message["data"]) == (f"dlq:{letter['id']}", {"id": "a"})
    assert api.letters() == []


def test_a_dead_letter_can_go_elsewhere(api: Api) -> None:
    _file(api, "q", "a")
    (letter,) = api.letters()

    api.post(f"/api/v1/dlq/{letter['id']}/replay", {"queue": "repair", "partition": "p"})

    (message,) = api.pop("repair")
    assert (message["partition"], message["data"]) == ("p", {"id": "a"})


def test_a_dead_letter_stays_where_it_is_while_pushes_are_spooled(api: Api) -> None:
    _file(api, "q", "a")
    (letter,) = api.letters()
    api.post("/api/v1/system/maintenance", {"enabled": True})

    refused = api.post(f"/api/v1/dlq/{letter['id']}/replay")

    assert (refused.status_code, refused.json()["error"]) == (503, "Pushes are suspended by maintenance")
    assert len(api.letters()) == 1
    api.post("/api/v1/system/maintenance", {"enabled": False})
    assert api.post(f"/api/v1/dlq/{letter['id']}/replay").json()["result"] == "moved"
    assert ids(api.pop("q")) == [f"dlq:{letter['id']}"]


def test_dead_letters_can_be_thrown_away(api: Api) -> None:
    _file(api, "q", "a", "b")

    assert api.delete("/api/v1/dlq").status_code == 400
    assert api.delete("/api/v1/dlq", queue="q").json()["deleted"] == 2
    assert api.letters() == []


def test_waiting_too_long_files_or_drops(broker: TestBroker, api: Api) -> None:
    api.configure("kept", maxWaitTimeSeconds=5, deadLetterQueue=True)
    api.configure("lost", maxWaitTimeSeconds=5)
    api.push("kept", "a")
    api.push("lost", "b")

    broker.clock.advance(20)

    assert api.pop("kept") == api.pop("lost") == []
    assert ids(api.letters()) == ["a"]


def test_every_verdict_has_its_word(api: Api) -> None:
    api.configure("q", retryLimit=1)
    api.push("q", "a", "b", "c")
    a, b, c = api.pop("q", batch=3)

    words = [
        api.ack(a)["message"],
        api.ack(a | {"transactionId": "nobody"})["message"],
        api.ack(b, "what")["message"],
        api.ack(b, "failed")["message"],
        api.ack(c)["message"],
        api.ack(api.pop("q", batch=1)[0], "failed")["message"],
    ]

    assert words == [
        "acknowledged",
        "not_found",
        "unknown_status",
        "failed_retry",
        "invalid_lease",
        "failed_dlq",
    ]


def test_what_comes_again_after_a_partial_ack_says_so(api: Api) -> None:
    api.push("q", "a", "b", "c")
    first, second, _ = api.pop("q", batch=3)
    api.ack(first)
    api.ack(second, "failed")

    assert [(m["transactionId"], m["deliveryAttempt"]) for m in api.pop("q", batch=1)] == [("b", 2)]


@pytest.mark.parametrize("status", ["completed", "mixed"])
@pytest.mark.parametrize(("partitions", "acks"), [(2, 2_000), (2, 3), (9, 4)])
def test_very_many_acks_go_in_steps_and_are_answered_alike(
    broker: TestBroker,
    api: Api,
    status: str,
    partitions: int,
    acks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settled(queue: str) -> list[dict[str, Any]]:
        for name in ("a", "b", "c", "d", "e"):
            api.push(queue, f"{name}1", f"{name}2", partition=name)
        messages = sorted(
            api.pop(queue, partitions=5, consumerGroup="g"), key=lambda m: m["transactionId"][1]
        )
        words = [status if status == "completed" or n % 4 else "failed" for n in range(len(messages))]
        words = ["completed" if word == "mixed" else word for word in words]
        return [{**row, "queueName": ""} for row in api.ack_batch(messages, words, consumerGroup="g")]

    at_once = settled("one")
    monkeypatch.setattr(ack, "_PARTITIONS_AT_ONCE", partitions)
    monkeypatch.setattr(ack, "_ACKS_AT_ONCE", acks)

    steps: list[int] = []
    settling = ack.AckApi._settling

    def count(self: ack.AckApi, places: Sequence[int], *rest: Any) -> ack.Answering:
        steps.append(len(places))
        return settling(self, places, *rest)

    monkeypatch.setattr(ack.AckApi, "_settling", count)

    in_steps = settled("two")

    assert in_steps == at_once
    if partitions == 2:  # else completed ones go at once
        assert steps == ([4, 4, 2] if acks > 4 else [2] * 5)
    elif status == "mixed":
        assert steps == [4, 4, 2]
    assert [row["index"] for row in in_steps] == list(range(10))
    broker.crash_and_restart()
    again = [sorted(ids(api.pop(queue, partitions=5, consumerGroup="g"))) for queue in ("one", "two")]
    assert again[0] == again[1]
    assert bool(again[0]) == (status == "mixed")


def test_more_acks_of_one_partition_than_a_lease_can_have_are_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack, "_PARTITIONS_AT_ONCE", 2)
    monkeypatch.setattr(ack, "PARTITION_ACKS", 3)
    api.push("q", *"abcd")
    api.push("q", *"efgh", partition="other")
    messages = api.pop("q", batch=4)

    acks = [{"transactionId": one["transactionId"], "partitionId": one["partitionId"]} for one in messages]
    refused = api.post("/api/v1/ack/batch", {"acknowledgments": acks})

    assert refused.status_code == 413
    assert refused.json()["error"] == "4 acknowledgments of one partition in one request: at most 3"
    assert refused.json()["code"] == "batch_too_large"
    accepted = api.post("/api/v1/ack/batch", {"acknowledgments": acks[:3]}).json()
    assert [answer["success"] for answer in accepted] == [True] * 3


def test_acks_and_transactions_of_unknown_messages_are_answered_one_by_one(api: Api) -> None:
    api.post("/api/v1/configure", {"queue": "q", "options": {"dedupWindowSeconds": 0.001}})
    api.push("q", *(f"m{number}" for number in range(200)))
    time.sleep(0.01)
    for number in range(20):  # old ids expire in steps
        api.push("q", f"later {number}")
    home = api.pop("q")[0]["partitionId"]
    names = ["m5", "never", "m7", "later 3", "x"]
    acks = [{"transactionId": name, "partitionId": home, "consumerGroup": "g"} for name in names]

    failing = [{"type": "ack", **each} for each in acks]
    undone = api.post("/api/v1/transaction", {"operations": failing}).json()
    answers = api.post("/api/v1/ack/batch", {"acknowledgments": acks}).json()

    assert undone["success"] is False
    assert "Message not found" in undone["error"]
    assert [answer["success"] for answer in answers] == [True, False, True, True, False]
    known = [{"type": "ack", **each, "consumerGroup": "h"} for each in (acks[0], acks[2])]
    assert api.post("/api/v1/transaction", {"operations": known}).json()["success"] is True
