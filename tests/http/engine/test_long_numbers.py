"""Numbers of more digits than Python converts: they are wrong, and no error of ours."""

import pytest
from http_support import Api

LONG = "9" * 5_000
ACK = {"transactionId": "a", "partitionId": "w" + LONG}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_job_with_a_very_long_number_does_not_exist(api: Api, method: str) -> None:
    assert api.http.request(method, f"/api/v1/operator/jobs/{LONG}").status_code == 404


def test_a_work_queue_with_a_very_long_number_does_not_exist(api: Api) -> None:
    acked = api.post("/api/v1/ack", ACK)
    batch = api.post("/api/v1/ack/batch", {"acknowledgments": [ACK]})
    transaction = api.post("/api/v1/transaction", {"operations": [{"type": "ack", **ACK}]})

    assert [answer.status_code for answer in (acked, batch, transaction)] == [200, 200, 200]
    assert [acked.json()[0]["success"], batch.json()[0]["success"], transaction.json()["success"]] == [
        False
    ] * 3


@pytest.mark.parametrize("path", ["overview", "queues"])
def test_samples_of_a_very_long_time_are_refused(api: Api, path: str) -> None:
    for prefix in ("msg_rates", "lengths"):
        asked = {f"{prefix}_age": LONG, f"{prefix}_incr": "5"}

        assert api.get(f"/api/{path}", **asked).status_code == 400


def test_a_filter_with_a_very_long_index_finds_nothing(api: Api) -> None:
    api.push("q", "a")
    api.ack(api.pop("q")[0], "dlq")

    found = api.get("/api/v1/operator/dead-letters", filter=f"json.id[{LONG}]=1")

    assert (found.status_code, found.json()["total"]) == (200, 0)


@pytest.mark.parametrize("path", ["user-limits/guest/max-connections", "vhost-limits/%2F/max-queues"])
@pytest.mark.parametrize("number", [2**70, -(2**70)])
def test_a_limit_beyond_what_is_stored_is_refused_and_changes_nothing(
    api: Api, path: str, number: int
) -> None:
    """It was answered with 500, was in force, and no checkpoint could be written any more."""
    assert api.http.put(f"/api/{path}", json={"value": number}).status_code == 400
    assert api.get(f"/api/{path.partition('/')[0]}").json() == []
    assert api.http.put(f"/api/{path}", json={"value": 2**63 - 1}).status_code == 204
