"""Lists with payloads end before they fill the memory, and can be gone on with."""

import json
from collections.abc import Sequence

import pytest
from http_support import Api

from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.http.engine import paging
from holtmq.http.queues import reads
from holtmq.testing import TestBroker


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MOST_BYTES", 5000)


def push_large(api: Api, count: int) -> None:
    items = [{"queue": "q", "payload": "x" * 1000, "transactionId": f"m{number}"} for number in range(count)]
    assert api.post("/api/v1/push", {"items": items}).status_code == 201


def pages(api: Api, path: str, rows: str) -> list[list[str]]:
    """Ask on with ``offset`` until everything was seen; the transactions page by page."""
    found: list[list[str]] = []
    seen = 0
    while True:
        answer = api.get(path, limit=100, offset=seen).json()
        if not answer[rows]:
            return found
        found.append([row.get("transactionId") or row["transaction_id"] for row in answer[rows]])
        seen += len(answer[rows])
        assert answer["pagination"].get("truncated", False) == (seen < answer["total"])


def test_a_list_of_messages_ends_at_the_bound_and_goes_on_by_offset(api: Api) -> None:
    push_large(api, 7)

    found = pages(api, "/api/v1/messages", "messages")

    # Every payload is in a row twice.
    assert found == [["m6", "m5", "m4"], ["m3", "m2", "m1"], ["m0"]]


def test_a_page_of_messages_is_what_is_kept_of_all_that_were_looked_at(api: Api) -> None:
    names = [f"m{number}" for number in range(12)]
    for number, name in enumerate(names):
        api.push("abc"[number % 3], name, payload=number)
    api.ack_batch(api.pop("a"))

    def listed(**asked: object) -> tuple[list[str], int]:
        answer = api.get("/api/v1/messages", **asked).json()
        return [row["transactionId"] for row in answer["messages"]], answer["total"]

    newest_first = listed(limit=100)[0]
    waiting = [name for name in newest_first if name not in names[::3]]
    assert sorted(newest_first) == sorted(names)
    assert listed(limit=5, offset=4) == (newest_first[4:9], 12)
    assert listed(limit=5, offset=1_000_000_000) == ([], 12)
    assert listed(limit=3, offset=2, status="pending") == (waiting[2:5], 8)
    assert listed(status="completed", limit=0) == ([], 4)


def test_a_list_of_dead_letters_ends_at_the_bound_and_goes_on_by_offset(api: Api) -> None:
    push_large(api, 4)
    api.ack_batch(api.pop("q"), "dlq")

    found = pages(api, "/api/v1/dlq", "messages")

    assert [len(page) for page in found] == [3, 1]
    assert sorted(id_ for page in found for id_ in page) == ["m0", "m1", "m2", "m3"]


def test_a_list_of_traces_ends_at_the_bound_and_goes_on_by_offset(api: Api) -> None:
    push_large(api, 7)
    for message in api.pop("q"):
        trace = {"partitionId": message["partitionId"], "transactionId": message["transactionId"], "data": 1}
        assert api.post("/api/v1/traces", {**trace, "traceNames": ["t"]}).status_code == 201

    found = pages(api, "/api/v1/traces/by-name/t", "traces")

    assert [len(page) for page in found] == [5, 2]


def traced(api: Api, count: int) -> str:
    """The path of a message's traces, after so many of about a thousand bytes were left with it."""
    api.push("q", "m")
    (message,) = api.pop("q")
    address = {"partitionId": message["partitionId"], "transactionId": "m"}
    for number in range(count):
        trace = {**address, "eventType": str(number), "data": "x" * 1000}
        assert api.post("/api/v1/traces", trace).status_code == 201
    return f"/api/v1/traces/{message['partitionId']}/m"


def test_a_message_s_traces_end_at_the_bound_and_go_on_by_offset(api: Api) -> None:
    path = traced(api, 7)

    first = api.get(path).json()
    second = api.get(path, offset=5).json()

    assert [row["event_type"] for row in first["traces"]] == ["0", "1", "2", "3", "4"]
    assert (first["total"], first["pagination"]) == (7, {"limit": 10_000, "offset": 0, "truncated": True})
    assert [row["event_type"] for row in second["traces"]] == ["5", "6"]
    assert (second["total"], second["pagination"]) == (7, {"limit": 10_000, "offset": 5})


def test_a_message_s_traces_are_listed_by_limit_and_offset_oldest_first(api: Api) -> None:
    path = traced(api, 4)

    page = api.get(path, limit=2, offset=1).json()

    assert [row["event_type"] for row in page["traces"]] == ["1", "2"]
    assert (page["total"], page["pagination"]) == (4, {"limit": 2, "offset": 1})


def test_a_trace_with_too_many_or_too_long_names_is_refused(api: Api) -> None:
    path = traced(api, 0)
    partition = path.split("/")[-2]
    trace = {"partitionId": partition, "transactionId": "m", "data": 1}
    most = [str(number) for number in range(100)]

    answers = [
        api.post("/api/v1/traces", {**trace, **more})
        for more in (
            {"traceNames": [*most, "one more"]},
            {"traceNames": ["x" * 1025]},
            {"traceNames": "x" * 1025},
            {"eventType": "x" * 1025},
            {"consumerGroup": "x" * 1025},
        )
    ]

    assert [answer.status_code for answer in answers] == [400] * 5
    assert answers[0].json()["error"] == "more than 100 traceNames"
    assert answers[1].json()["error"] == "a name is longer than 1024 characters"
    assert api.get(path).json()["total"] == 0
    assert api.post("/api/v1/traces", {**trace, "traceNames": most}).status_code == 201


def test_a_fetch_gives_each_entry_a_record_until_the_bound(api: Api) -> None:
    for name in "abcd":
        api.push("q", name, partition=name, payload="x" * 2000)
    entries = [{"queue": "q", "partition": name, "offset": 0} for name in "abcd"]

    def fetch(*asked: object) -> list[list[str]]:
        answer = api.post("/api/v1/fetch", {"entries": asked, "maxBytes": 1}).json()["entries"]
        assert all(entry["highWatermark"] == 1 and "error" not in entry for entry in answer)
        return [[record["transactionId"] for record in entry["records"]] for entry in answer]

    assert fetch(*entries) == [["a"], ["b"], ["c"], []]
    assert fetch(*entries[3:], *entries[:3]) == [["d"], ["a"], ["b"], []]


def test_a_fetch_reads_no_more_messages_than_it_may_give(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    bodies = PartitionedStore.bodies

    def counted(store: PartitionedStore, positions: Sequence[int]) -> list[Body]:
        read.append(len(positions))
        return bodies(store, positions)

    with TestBroker(durable=True) as broker:
        api = Api(broker.http_url)
        api.push("q", *[f"m{number}" for number in range(50)], payload="x" * 1000)
        monkeypatch.setattr(PartitionedStore, "bodies", counted)

        entry = {"queue": "q", "offset": 0, "maxBytes": 5000}
        (found,) = api.post("/api/v1/fetch", {"entries": [entry]}).json()["entries"]
        (rest,) = api.post("/api/v1/fetch", {"entries": [{**entry, "maxBytes": 1 << 20}]}).json()["entries"]
        api.http.close()

    assert [record["offset"] for record in found["records"]] == [0, 1, 2, 3]
    assert read[0] <= 6
    assert [record["offset"] for record in rest["records"]] == [*range(50)]


def test_one_call_looks_at_so_many_partitions_and_goes_on_by_next(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_MOST_LOOKED_AT", 5)
    monkeypatch.setattr(reads, "_LEAST_LOOKED_AT", 2)
    items = [{"queue": "q", "partition": f"p{number}", "payload": 1} for number in range(8)]
    api.post("/api/v1/push", {"items": items})

    def passes(**asked: object) -> list[tuple[list[str], str | None]]:
        entry: dict[str, object] = {"queue": "q", **asked}
        found: list[tuple[list[str], str | None]] = []
        while True:
            answer = api.post("/api/v1/partitions/changed", {"entries": [entry, entry]}).json()["entries"]
            second = answer[1]
            found.append(([row["name"] for row in second["partitions"]], second["next"]))
            if second["next"] is None:
                return found
            entry["after"] = second["next"]

    assert passes() == [(["p0", "p1"], "1"), (["p2", "p3"], "3"), (["p4", "p5"], "5"), (["p6", "p7"], None)]
    assert passes(limit=1)[:2] == [(["p0"], "0"), (["p1"], "1")]
    assert passes(since="2100-01-01T00:00:00Z") == [([], "1"), ([], "3"), ([], "5"), ([], None)]
    alone = api.post("/api/v1/partitions/changed", {"entries": [{"queue": "q"}]}).json()["entries"][0]
    assert ([row["name"] for row in alone["partitions"]], alone["next"]) == (
        ["p0", "p1", "p2", "p3", "p4"],
        "4",
    )


def test_a_page_of_partitions_may_begin_in_one_queue_and_end_in_another(api: Api) -> None:
    for queue in "abc":
        items = [{"queue": queue, "partition": f"{queue}{number}", "payload": 1} for number in range(3)]
        api.post("/api/v1/push", {"items": items})
    everything = [f"{queue}{number}" for queue in "cba" for number in range(3)]  # the newest queue first

    for limit in (1, 2, 4, 100):
        for offset in (0, 1, 3, 4, 8, 9):
            page = api.get("/api/v1/resources/partitions", limit=limit, offset=offset).json()
            assert [row["name"] for row in page["partitions"]] == everything[offset : offset + limit]
            assert [row["queue"] for row in page["partitions"]] == [
                name[0] for name in everything[offset : offset + limit]
            ]
            assert page["total"] == 9


def test_what_groups_lag_behind_on_is_a_list_in_pages(api: Api) -> None:
    api.post("/api/v1/push", {"items": [{"queue": "q", "partition": name, "payload": 1} for name in "abc"]})
    for group in "gh":
        api.pop("q", consumerGroup=group, batch=1)

    def page(**asked: int) -> list[tuple[str, str]]:
        rows = api.get("/api/v1/consumer-groups/lagging", minLagSeconds=0, **asked).json()
        return [(row["consumer_group"], row["partition_name"]) for row in rows]

    everything = page()
    assert sorted(everything) == [(group, name) for group in "gh" for name in "abc"]
    assert [page(limit=2, offset=at) for at in (0, 2, 4, 6)] == [
        everything[:2],
        everything[2:4],
        everything[4:],
        [],
    ]


def test_a_row_larger_than_the_bound_is_listed_alone(api: Api) -> None:
    items = [{"queue": "q", "payload": "x" * 9000, "transactionId": id_} for id_ in "ab"]
    api.post("/api/v1/push", {"items": items})

    assert pages(api, "/api/v1/messages", "messages") == [["b"], ["a"]]


def test_rows_beyond_the_bound_are_refused_before_anything_is_written(api: Api) -> None:
    for key in "abc":
        api.http.put(f"/api/v1/kv/ns/{key}", json={"value": "x" * 1000, "forever": True})
    put = {"op": "put", "ns": "ns", "key": "new", "value": 1, "forever": True}
    few = {"op": "getPrefix", "ns": "ns", "prefix": "a"}
    many = {"op": "getMany", "ns": "ns", "keys": ["a", "b", "c"]}

    within = api.post("/api/v1/kv", {"operations": [few, many]})
    beyond = api.post("/api/v1/kv", {"operations": [put, many, many]})
    in_a_transaction = api.post("/api/v1/transaction", {"operations": [], "kv": [put, many, many]})

    assert (within.status_code, len(within.json()["results"][1]["rows"])) == (200, 3)
    assert (beyond.status_code, beyond.json()["reason"]) == (413, "answer")
    assert in_a_transaction.status_code == 413
    assert api.get("/api/v1/kv/ns/new").json()["found"] is False


def test_state_beyond_the_bound_is_refused_with_what_is_right(api: Api) -> None:
    api.push("q", "m")
    (message,) = api.pop("q")
    query = {"name": "n", "source_queue": "q", "config_hash": "h"}
    query_id = api.post("/streams/v1/queries", query).json()["query_id"]
    here = {"query_id": query_id, "partition_id": message["partitionId"]}
    ops = [
        {"type": "upsert", "key": f"{kind}{n}", "value": {"windowEnd": n, "x": "x" * 1000}}
        for kind in "ab"
        for n in range(4)
    ]
    assert api.post("/streams/v1/cycle", {**here, "state_ops": ops}).json()["success"] is True

    def read(**asked: object) -> tuple[int, list[str]]:
        answer = api.post("/streams/v1/state/get", {**here, **asked})
        return answer.status_code, [row["key"] for row in answer.json().get("rows", ())]

    refused = api.post("/streams/v1/state/get", here)
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    size = sum(len(json.dumps(op["value"], separators=(",", ":"))) + 2 for op in ops)
    assert refused.json()["error"] == (
        f"the 8 rows asked for have {size} bytes, more than 5000: ask for fewer, by keys or key_prefix"
    )
    assert read(keys=[op["key"] for op in ops]) == (413, [])
    assert read(key_prefix="a") == (200, ["a0", "a1", "a2", "a3"])
    assert read(keys=["b3", "a0"]) == (200, ["a0", "b3"])
    assert read(ripe_at_or_before=1) == (200, ["a0", "a1", "b0", "b1"])
