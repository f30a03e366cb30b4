"""Ranges, staged batches and mirrored cursors over HTTP, as any program would use them."""

import io
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from threading import get_ident
from types import ModuleType
from typing import Any

import httpx
import pyarrow as pa
import pytest

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.broker.message import Message, make_address
from holtmq.broker.partitioned.commands import staging
from holtmq.broker.partitioned.log import range_reads
from holtmq.broker.partitioned.log.range_reads import Chosen
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.config import Config, Limits
from holtmq.config.settings import Journal
from holtmq.first_start import GUEST_HASH
from holtmq.http.arrow import ranges as ranges_door
from holtmq.http.arrow import staging as staging_door
from holtmq.http.arrow import stream
from holtmq.http.arrow.columns import decode_envelope
from holtmq.http.engine import stepwise
from holtmq.http.engine.open_streams import BUDGET_BYTES, OpenStreams
from holtmq.node import Node
from holtmq.testing import TestBroker
from holtmq.testing.views import raw_messages
from holtmq.wire.properties import Properties, decode_properties, encode_header, encode_properties

Push = Callable[..., None]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def http(broker: TestBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=60) as client:
        yield client


def push(http: httpx.Client, queue: str, count: int, *, first: int = 0, partitions: int = 2) -> None:
    items = [
        {"queue": queue, "partition": f"p{n % partitions}", "transactionId": f"t{n}", "payload": {"n": n}}
        for n in range(first, first + count)
    ]
    assert http.post("/api/v1/push", json={"items": items}).status_code == 201


def ranges(http: httpx.Client, **query: str) -> dict[str, dict[str, Any]]:
    answer = http.get("/api/v1/ranges", params=query)
    assert answer.status_code == 200, answer.text
    return {row["name"]: row for row in answer.json()["queues"]}


def table(answer: httpx.Response) -> pa.Table:
    assert answer.status_code == 200, answer.text
    return pa.ipc.open_stream(answer.content).read_all()


def rows(http: httpx.Client, queue: str, **query: Any) -> list[dict[str, Any]]:
    found = table(http.get(f"/api/v1/ranges/{queue}/rows", params=query))
    return list(found.to_pylist())


def arrow(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    data = pa.table(columns)
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    return sink.getvalue()


def pop(http: httpx.Client, queue: str, group: str, batch: int = 10) -> dict[str, Any]:
    answer = http.get(f"/api/v1/pop/queue/{queue}", params={"consumerGroup": group, "batch": batch})
    return dict(answer.json()) if answer.status_code == 200 else {"messages": []}


def ack(
    http: httpx.Client, popped: dict[str, Any], group: str, status: str, error: str | None = None
) -> None:
    acks = [
        {
            "transactionId": message["transactionId"],
            "partitionId": popped["partitionId"],
            "leaseId": popped["leaseId"],
            "status": status,
            "error": error,
        }
        for message in popped["messages"]
    ]
    body = {"acknowledgments": acks, "consumerGroup": group}
    answer = http.post("/api/v1/ack/batch", json=body)
    assert answer.status_code == 200, answer.text


def test_queues_are_found_by_name_pattern_namespace_and_task(http: httpx.Client) -> None:
    push(http, "shop.orders", 3)
    push(http, "shop.clicks", 2)
    push(http, "other", 1)

    assert ranges(http, names="other")["other"]["nextOffset"] == 1
    assert set(ranges(http, pattern=r"shop\..*")) == {"shop.orders", "shop.clicks"}
    assert set(ranges(http, namespace="shop", task="orders")) == {"shop.orders"}
    assert len(ranges(http)) == 3
    assert http.get("/api/v1/ranges", params={"names": "missing"}).status_code == 404
    assert http.get("/api/v1/ranges", params={"pattern": "("}).status_code == 400


def test_a_pattern_that_would_keep_python_busy_for_years_is_answered(http: httpx.Client) -> None:
    push(http, "a" * 60, 1)

    assert ranges(http, pattern="(a+)+b") == {}
    assert set(ranges(http, pattern="(a+)+")) == {"a" * 60}


def test_a_pattern_that_only_pcre_has_is_refused_by_its_name(http: httpx.Client) -> None:
    answer = http.get("/api/v1/ranges", params={"pattern": "(?!amq).*"})

    assert answer.status_code == 400
    assert "a negative lookahead, (?!...)" in answer.json()["error"]


def test_bytes_are_measured_exactly(http: httpx.Client) -> None:
    push(http, "q", 500)

    whole = ranges(http, names="q", bytes="true")["q"]["bytes"]
    fit = http.get("/api/v1/ranges/q/fit", params={"from": 0, "maxBytes": whole}).json()
    less = http.get("/api/v1/ranges/q/fit", params={"from": 0, "maxBytes": whole - 1}).json()
    none = http.get("/api/v1/ranges/q/fit", params={"from": 7, "maxBytes": 0}).json()

    assert fit == {"to": 500, "bytes": whole}
    assert less["to"] == 499
    assert none == {"to": 7, "bytes": 0}


def test_a_time_finds_its_offset(broker: TestBroker, http: httpx.Client) -> None:
    push(http, "q", 3)
    broker.clock.advance(60)
    at = round(broker.clock() * 1_000_000)
    push(http, "q", 2, first=3)

    def offset(us: int) -> int:
        answer = http.get("/api/v1/ranges/offsets", params={"names": "q", "us": us})
        return int(answer.json()["offsets"]["q"])

    assert (offset(0), offset(at - 1_000_000), offset(at + 1_000_000)) == (0, 3, 5)
    assert http.get("/api/v1/ranges/offsets", params={"names": "q"}).status_code == 400


def test_rows_of_a_range_have_every_column(http: httpx.Client) -> None:
    push(http, "q", 5)
    popped = pop(http, "q", "g", 1)

    found = rows(http, "q", **{"from": 0, "to": 2})

    assert [row["offset"] for row in found] == [0, 1]
    first = found[0]
    assert (first["queue"], first["partition"], first["transaction_id"]) == ("q", "p0", "t0")
    assert first["payload"] == b'{"n":0}'
    assert first["message_id"] == popped["messages"][0]["id"]
    assert first["headers"] is None
    assert first["exchange"] is None


def test_a_long_range_comes_in_many_batches_that_say_where_to_go_on(http: httpx.Client) -> None:
    for at in range(0, 20_000, 5_000):
        push(http, "q", 5_000, first=at)

    answer = http.get("/api/v1/ranges/q/rows", params={"columns": "offset"})
    big = http.get("/api/v1/ranges/q/rows", params={"columns": "offset,payload,transaction_id"})

    for response in (answer, big):
        reader = pa.ipc.open_stream(response.content)
        at, batches = 0, 0
        while True:
            try:
                batch, facts = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            offsets = batch.column("offset").to_pylist()
            assert offsets == list(range(at, at + len(offsets)))
            at, batches = int(facts[b"next"]), batches + 1
            assert facts[b"gone"] == b"0"
        assert at == 20_000
        assert batches > 2


def test_columns_are_chosen_and_ordered(http: httpx.Client) -> None:
    push(http, "q", 1)

    found = table(http.get("/api/v1/ranges/q/rows", params={"columns": "payload,offset"}))

    assert found.column_names == ["payload", "offset"]
    refusal = http.get("/api/v1/ranges/q/rows", params={"columns": "nonsense"})
    assert refusal.status_code == 400
    assert "nonsense" in refusal.json()["error"]


def test_rows_are_filtered_by_partition_and_time(broker: TestBroker, http: httpx.Client) -> None:
    push(http, "q", 4)
    broker.clock.advance(60)
    push(http, "q", 4, first=4)
    noon = rows(http, "q", **{"from": 4, "to": 5})[0]["created_at"].isoformat()

    assert [row["offset"] for row in rows(http, "q", partition="p1")] == [1, 3, 5, 7]
    assert [row["offset"] for row in rows(http, "q", fromTime=noon)] == [4, 5, 6, 7]
    assert [row["offset"] for row in rows(http, "q", toTime=noon)] == [0, 1, 2, 3]
    assert rows(http, "q", partition="nowhere") == []


def test_messages_that_retention_took_are_counted(broker: TestBroker, http: httpx.Client) -> None:
    push(http, "q", 100)
    broker.call(lambda node: _trim(node, "q", "p0", 30))

    answer = http.get("/api/v1/ranges/q/rows", params={"columns": "offset", "from": 0})
    reader = pa.ipc.open_stream(answer.content)
    *_, (_, facts) = _batches(reader)
    counted = http.post("/api/v1/ranges/q/counts", json={"bounds": [0, 20, 100]}).json()

    assert facts[b"gone"] == b"30"
    assert facts[b"next"] == b"100"
    assert counted["counts"] == [10, 60]
    assert counted["firstOffset"] == 1


def _batches(reader: Any) -> Iterator[tuple[Any, Any]]:
    while True:
        try:
            yield reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return


def _trim(node: Any, queue: str, partition: str, upto: int) -> None:
    from array import array

    from holtmq.broker.partitioned.events import Trimmed

    store = node.partitioned.store
    found = store.queues[queue]
    event = Trimmed(array("I", [found.indexes[partition]]), array("Q", [upto]))
    store.commit([(found.number, event)])


def test_a_queue_made_again_is_not_the_old_one(http: httpx.Client) -> None:
    push(http, "q", 2)
    number = ranges(http, names="q")["q"]["id"]
    assert http.delete("/api/v1/resources/queues/q").status_code < 300
    push(http, "q", 2)

    assert http.get("/api/v1/ranges/q/rows", params={"id": number}).status_code == 410


def test_without_pyarrow_the_answer_names_what_to_install(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    push(http, "q", 1)
    monkeypatch.setitem(sys.modules, "holtmq.http.arrow.stream", None)
    monkeypatch.delattr("holtmq.http.arrow.stream", raising=False)

    answer = http.get("/api/v1/ranges/q/rows")

    assert answer.status_code == 501
    assert "pip install 'holtmq[arrow]'" in answer.json()["error"]


def test_dead_letters_say_why_how_often_and_since_when(broker: TestBroker, http: httpx.Client) -> None:
    http.post("/api/v1/configure", json={"queue": "q", "options": {"retryLimit": 1}})
    push(http, "q", 1, partitions=1)
    ack(http, pop(http, "q", "g"), "g", "failed", "first words")
    broker.clock.advance(10)
    ack(http, pop(http, "q", "g"), "g", "failed", "last words")

    (letter,) = rows(http, "q$dlq")

    assert (letter["error"], letter["attempts"], letter["group"]) == ("last words", 2, "g")
    assert (letter["last_failed_at"] - letter["first_failed_at"]).total_seconds() == pytest.approx(
        10, abs=0.1
    )
    assert (letter["payload"], letter["offset"]) == (b'{"n":0}', 0)
    assert ranges(http, names="q$dlq")["q$dlq"]["messages"] == 1


def test_deliveries_tell_attempt_outcome_and_times(broker: TestBroker, http: httpx.Client) -> None:
    push(http, "q", 3, partitions=1)
    popped = pop(http, "q", "g")
    broker.clock.advance(2)
    ack(http, {**popped, "messages": popped["messages"][:1]}, "g", "failed", "boom")
    ack(http, pop(http, "q", "g"), "g", "completed")

    found = rows(http, "q$deliveries")

    assert [(row["offset"], row["outcome"], row["error"]) for row in found] == [
        (0, "failed", "boom"),
        (0, "acked", None),
        (1, "acked", None),
        (2, "acked", None),
    ]
    assert [row["attempt"] for row in found] == [1, 2, 2, 2]
    assert (found[0]["settled_at"] - found[0]["delivered_at"]).total_seconds() == pytest.approx(2, abs=0.1)


def test_a_deleted_message_is_in_no_range_and_its_delivery_names_it_no_more(http: httpx.Client) -> None:
    push(http, "q", 4, partitions=1)
    popped = pop(http, "q", "g")
    ack(http, popped, "g", "completed")
    where = popped["messages"][1]

    http.delete(f"/api/v1/messages/{where['partitionId']}/{where['transactionId']}")

    assert [row["offset"] for row in rows(http, "q")] == [0, 2, 3]
    assert [row["offset"] for row in rows(http, "q$deliveries")] == [0, None, 2, 3]
    assert ranges(http, names="q")["q"]["messages"] == 3


def test_a_timers_promised_id_is_in_its_row(broker: TestBroker, http: httpx.Client) -> None:
    timer = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": "MQ==", "delayMs": 1000, "txn": "t"}
    (promised,) = http.post("/api/v1/timers", json={"operations": [timer]}).json()["results"]
    push(http, "q", 1)
    broker.clock.advance(2)
    push(http, "q", 1, first=1)

    found = {row["transaction_id"]: row["message_id"] for row in rows(http, "q")}

    assert found["t"] == promised["messageId"]
    assert len(set(found.values())) == 3


def test_deliveries_survive_a_crash_and_a_checkpoint(broker: TestBroker, http: httpx.Client) -> None:
    push(http, "q", 4, partitions=1)
    ack(http, pop(http, "q", "g", 2), "g", "completed")
    before = rows(http, "q$deliveries", columns="offset,outcome,settled_at")
    broker.call(lambda node: node.journal.checkpoint(*_snapshot(node)))
    broker.restart()
    ack(http, pop(http, "q", "g", 2), "g", "completed")
    broker.crash_and_restart()

    after = rows(http, "q$deliveries", columns="offset,outcome,settled_at")

    assert after[:2] == before
    assert [row["offset"] for row in after] == [0, 1, 2, 3]


def _snapshot(node: Any) -> Any:
    from holtmq.broker.records.checkpoint import snapshot

    return snapshot(node.broker, node.partitioned.store)


def stage(http: httpx.Client, body: bytes, where: str = "w/0/0/0", **query: Any) -> httpx.Response:
    return http.put(f"/api/v1/staging/{where}", content=body, params={"queue": "out", **query})


def commit(http: httpx.Client, batch: int, *tasks: tuple[int, int, int], writer: str = "w") -> httpx.Response:
    body = {"tasks": [{"task": task, "attempt": attempt, "rows": rows} for task, attempt, rows in tasks]}
    return http.post(f"/api/v1/staging/{writer}/{batch}/commit", json=body)


def test_staged_rows_are_invisible_until_the_commit_and_appear_together(http: httpx.Client) -> None:
    assert stage(http, arrow(payload=['{"a":1}', '{"a":2}']), "w/0/0/5").json() == {"rows": 2}
    assert stage(http, arrow(payload=['{"a":3}']), "w/0/1/6").json() == {"rows": 1}
    assert http.get("/api/v1/ranges", params={"names": "out"}).status_code == 404

    done = commit(http, 0, (0, 5, 2), (1, 6, 1)).json()

    assert done == {"rows": 3, "duplicates": 0, "repeated": False}
    assert [row["payload"] for row in rows(http, "out")] == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_a_repeated_commit_changes_nothing_whatever_its_rows(broker: TestBroker, http: httpx.Client) -> None:
    stage(http, arrow(payload=["1"]), "w/3/0/0")
    commit(http, 3, (0, 0, 1))
    stage(http, arrow(payload=["2", "3"]), "w/3/0/1")

    repeated = commit(http, 3, (0, 1, 2))
    older = commit(http, 2, (0, 0, 9))

    assert repeated.json()["repeated"]
    assert older.json()["repeated"]
    assert broker.call(lambda node: node.partitioned.staging.staged()) == {}
    assert len(rows(http, "out")) == 1
    assert http.get("/api/v1/staging/w").json()["lastBatch"] == 3


def test_only_the_winning_attempt_is_published(http: httpx.Client) -> None:
    stage(http, arrow(payload=['"loser"']), "w/0/0/0")
    stage(http, arrow(payload=['"winner"']), "w/0/0/1")

    commit(http, 0, (0, 1, 1))

    assert [row["payload"] for row in rows(http, "out")] == [b'"winner"']


def test_a_part_sent_twice_counts_once(http: httpx.Client) -> None:
    stage(http, arrow(payload=["1"]), part=0)
    stage(http, arrow(payload=["1"]), part=0)
    stage(http, arrow(payload=["2"]), part=1)

    assert commit(http, 0, (0, 0, 2)).status_code == 200
    assert [row["payload"] for row in rows(http, "out")] == [b"1", b"2"]


def test_rows_that_are_not_all_there_are_refused(http: httpx.Client) -> None:
    stage(http, arrow(payload=["1"]))

    refusal = commit(http, 0, (0, 0, 2))

    assert refusal.status_code == 409
    assert "1 of them are here" in refusal.json()["error"]


def test_an_aborted_batch_is_forgotten(http: httpx.Client) -> None:
    stage(http, arrow(payload=["1"]))

    assert http.delete("/api/v1/staging/w/0").json() == {"dropped": True}
    assert commit(http, 0, (0, 0, 1)).status_code == 409


def test_a_part_with_too_many_rows_is_refused_and_nothing_of_it_is_staged(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_door, "ROWS_MAX", 2)

    assert stage(http, arrow(payload=["1", "2"]), queue="q").json() == {"rows": 2}
    refused = stage(http, arrow(payload=["1", "2", "3"]), where="w/0/0/1", queue="q")

    assert refused.status_code == 413
    assert refused.json()["error"] == "a part has at most 2 rows: stage the others as another part"
    commit = http.post("/api/v1/staging/w/0/commit", json={"tasks": [{"task": 0, "attempt": 1, "rows": 3}]})
    assert commit.status_code == 409


def test_a_writer_that_was_ended_stages_no_more_until_an_hour_has_passed(
    broker: TestBroker, http: httpx.Client
) -> None:
    stage(http, arrow(payload=["1"]), "w/0/0/0")
    stage(http, arrow(payload=["1"]), "w/1/0/0")
    stage(http, arrow(payload=["1"]), "other/0/0/0")

    assert http.delete("/api/v1/staging/w").json() == {"dropped": True}
    late = stage(http, arrow(payload=["1"]), "w/0/1/0")

    assert (late.status_code, late.json()["error"]) == (
        409,
        "writer w was aborted: nothing more is staged for it",
    )
    assert broker.call(lambda node: node.partitioned.staging.staged()) == {"other": 1}
    broker.clock.advance(2 * 3600)
    assert stage(http, arrow(payload=["1"]), "w/0/1/0").status_code == 200


def test_orphans_expire(broker: TestBroker, http: httpx.Client) -> None:
    stage(http, arrow(payload=["1"]), "dead/0/0/0")
    broker.clock.advance(2 * 3600)

    stage(http, arrow(payload=["1"]), "alive/0/0/0")

    assert broker.call(lambda node: node.partitioned.staging.staged()) == {"alive": 1}


def test_orphans_leave_with_a_checkpoint_when_nobody_stages_any_more() -> None:
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    config = Config(limits=limits, journal=Journal(checkpoint_bytes=64 << 10))
    with TestBroker(config=config) as broker, httpx.Client(base_url=broker.http_url, timeout=30) as http:
        stage(http, arrow(payload=["x" * 100_000]), "dead/0/0/0")
        broker.clock.advance(2 * 3600)

        broker.call(lambda node: node.checkpoint_if_due())

        assert broker.call(lambda node: node.partitioned.staging.staged()) == {}


def test_only_so_many_ended_writers_are_remembered_the_oldest_leave_first(
    broker: TestBroker, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "WRITERS_MAX", 2)
    for writer in ("a", "b", "a", "c"):
        http.delete(f"/api/v1/staging/{writer}")

    late = {writer: stage(http, arrow(payload=["1"]), f"{writer}/0/0/0").status_code for writer in "abc"}

    assert late == {"a": 409, "b": 200, "c": 409}


def test_staged_rows_and_commits_survive_crashes_and_checkpoints(
    broker: TestBroker, http: httpx.Client
) -> None:
    stage(http, arrow(payload=["1", "2"]), "w/0/0/0", part=0)
    broker.crash_and_restart()
    stage(http, arrow(payload=["3"]), "w/0/0/0", part=1)
    broker.call(lambda node: node.journal.checkpoint(*_snapshot(node)))
    broker.restart()

    assert commit(http, 0, (0, 0, 3)).json()["rows"] == 3
    broker.crash_and_restart()
    assert commit(http, 0, (0, 0, 3)).json()["repeated"]
    broker.call(lambda node: node.journal.checkpoint(*_snapshot(node)))
    broker.restart()
    assert commit(http, 0, (0, 0, 3)).json()["repeated"]
    assert [row["payload"] for row in rows(http, "out")] == [b"1", b"2", b"3"]


def test_every_column_of_the_sink_comes_back(http: httpx.Client) -> None:
    pairs = [("k", "v"), ("none", None)]
    headers = pa.array([pairs, None], pa.map_(pa.string(), pa.string()))
    body = arrow(
        payload=[b"\x00\xff", b'{"x": 1}'],
        queue=["a", None],
        partition=["p", None],
        transaction_id=["mine", None],
        headers=headers,
        routing_key=["k.e.y", None],
        priority=[7, None],
    )
    stage(http, body)
    commit(http, 0, (0, 0, 2))

    (first,) = rows(http, "a")
    (second,) = rows(http, "out")

    assert (first["payload"], first["partition"], first["transaction_id"]) == (b"\x00\xff", "p", "mine")
    assert (first["headers"], first["routing_key"], first["priority"]) == (pairs, "k.e.y", 7)
    assert (second["payload"], second["partition"]) == (b'{"x": 1}', "Default")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"nonsense", "not an Arrow IPC stream"),
        (arrow(body=["1"]), "payload is required"),
        (arrow(payload=["1", None]), "row 1 has no payload"),
        (arrow(payload=["1", "2"], priority=[255, 256]), "row 1 has the priority 256"),
        (arrow(payload=["1"], priority=[-1]), "row 0 has the priority -1"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused(http: httpx.Client, body: bytes, words: str) -> None:
    answer = stage(http, body)

    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_mirrored_group_shows_its_lag_and_may_move_both_ways(
    broker: TestBroker, http: httpx.Client
) -> None:
    push(http, "q", 10)

    def lag() -> int:
        return broker.call(
            lambda node: sum(n for _, n in node.partitioned.store.queues["q"].groups["spark"].lagging())
        )

    http.put("/api/v1/ranges/q/groups/spark", json={"offset": 7})
    assert lag() == 3
    push(http, "q", 2, first=10, partitions=20)
    assert lag() == 5
    http.put("/api/v1/ranges/q/groups/spark", json={"offset": 12})
    assert lag() == 0
    http.put("/api/v1/ranges/q/groups/spark", json={"offset": 2})
    assert lag() == 10
    broker.crash_and_restart()
    assert lag() == 10


def test_a_group_with_workers_cannot_be_mirrored(http: httpx.Client) -> None:
    push(http, "q", 2)
    pop(http, "q", "workers", 1)

    refusal = http.put("/api/v1/ranges/q/groups/workers", json={"offset": 2})

    assert refusal.status_code == 400
    assert "workers with leases" in refusal.json()["error"]
    assert http.put("/api/v1/ranges/q/groups/x", json={"offset": 99}).status_code == 400


def test_a_reader_that_does_not_read_makes_the_broker_wait_not_grow(
    broker: TestBroker, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(0, 40_000, 4_000):
        items = [{"queue": "q", "payload": {"n": n, "pad": "x" * 1000}} for n in range(at, at + 4_000)]
        assert http.post("/api/v1/push", json={"items": items}).status_code == 201
    made = 0
    step = range_reads.Pieces.__next__

    def counted(pieces: range_reads.Pieces) -> range_reads.Piece:
        nonlocal made
        piece = step(pieces)
        made += len(piece.offsets)
        return piece

    monkeypatch.setattr(range_reads.Pieces, "__next__", counted)

    with http.stream("GET", "/api/v1/ranges/q/rows") as answer:
        chunks = answer.iter_raw()
        next(chunks)
        settled, before = 0, -1
        while settled < 5:  # nothing more is made: what the sockets hold is all there is
            time.sleep(0.1)
            settled, before = (settled + 1 if made == before else 0), made
        halted = made
        rest = sum(len(chunk) for chunk in chunks)

    assert halted < 25_000
    assert made == 40_000
    assert rest > 20_000_000


def test_large_messages_after_small_ones_are_not_read_all_at_once(
    broker: TestBroker, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of what was read last says nothing about what comes next."""
    push(http, "q", 5_000)
    for n in range(40):
        items = [{"queue": "q", "partition": "p0", "payload": {"n": n, "pad": "x" * 50_000}}]
        assert http.post("/api/v1/push", json={"items": items}).status_code == 201
    broker.call(lambda node: _trim(node, "q", "p1", 2_480))
    monkeypatch.setattr(range_reads, "SPAN_BYTES", 200_000)

    reader = pa.ipc.open_stream(http.get("/api/v1/ranges/q/rows", params={"from": 0}).content)
    batches = list(_batches(reader))

    offsets = [offset for batch, _ in batches for offset in batch.column("offset").to_pylist()]
    kept = [n for n in range(5_000) if n % 2 == 0 or n // 2 >= 2_480]
    assert offsets == [*kept, *range(5_000, 5_040)]
    assert max(batch.nbytes for batch, _ in batches) < 600_000
    assert int(batches[-1][1][b"gone"]) == 2_480


def test_retention_of_completed_messages_waits_for_a_mirrored_reader(
    broker: TestBroker, http: httpx.Client
) -> None:
    options = {"retentionEnabled": True, "completedRetentionSeconds": 10}
    http.post("/api/v1/configure", json={"queue": "q", "options": options})
    push(http, "q", 10, partitions=1)
    http.put("/api/v1/ranges/q/groups/archive", json={"offset": 4})

    broker.clock.advance(1000)
    kept = ranges(http, names="q")["q"]["firstOffset"]
    http.put("/api/v1/ranges/q/groups/archive", json={"offset": 10})
    broker.clock.advance(1000)

    assert kept == 4
    assert ranges(http, names="q")["q"]["firstOffset"] == 10


def test_a_routing_key_that_is_no_text_is_spelled_out(broker: TestBroker, http: httpx.Client) -> None:
    def publish(node: Node) -> None:
        core = node.broker
        vhost = core.vhost("/")
        core.exchanges.declare(vhost, "all", "fanout", durable=True)
        core.declare_queue(vhost, "log", durable=True, arguments={"x-queue-type": "stream"})
        core.bind(vhost, "all", "log", "")
        for key in ("plain", "a\udcff"):  # the byte 0xFF, as names that are not UTF-8 are kept
            header = encode_header(1, encode_properties(Properties(delivery_mode=2)))
            route = core.resolve(vhost, "all", key, make_address("all", key))
            core.flow.publishing.publish(route, core.flow.publish_properties.of(header), header, b"1")
            core.flow.turn()

    broker.call(publish)

    found = table(http.get("/api/v1/ranges/log/rows", params={"from": 0, "to": 2}))
    found.validate(full=True)
    assert found["routing_key"].to_pylist() == ["plain", "a\\xff"]


def test_properties_that_are_no_text_are_spelled_out(broker: TestBroker, http: httpx.Client) -> None:
    odd = "a\udcff"  # the byte 0xFF, as names that are not UTF-8 are kept
    properties = Properties(
        content_type=odd, correlation_id=odd, type=odd, headers={odd: 1, "inner": {odd: [{odd: True}]}}
    )

    def publish(node: Node) -> None:
        core = node.broker
        core.declare_queue(core.vhost("/"), "log", durable=True, arguments={"x-queue-type": "stream"})
        header = encode_header(1, encode_properties(properties))
        route = core.resolve(core.vhost("/"), "", "log", make_address("", "log"))
        core.flow.publishing.publish(route, core.flow.publish_properties.of(header), header, b"1")
        core.flow.turn()

    broker.call(publish)

    found = table(http.get("/api/v1/ranges/log/rows", params={"from": 0, "to": 1}))
    found.validate(full=True)
    assert found["content_type"].to_pylist() == ["a\\xff"]
    headers = dict(found["headers"].to_pylist()[0])
    assert headers["a\\xff"] == "1"
    assert json.loads(headers["inner"]) == {"a\\xff": [{"a\\xff": True}]}
    assert dict(found["properties"].to_pylist()[0]) == {"correlation_id": "a\\xff", "type": "a\\xff"}


def test_nested_headers_are_json() -> None:
    headers = {
        "plain": "text",
        "number": 7,
        "flag": True,
        "none": None,
        "list": [1, "two", None, 0.5],
        "table": {"who": "ann", "deep": {"at": datetime(2026, 5, 1, tzinfo=UTC), "raw": b"\x01"}},
    }

    _, found, _ = decode_envelope(encode_properties(Properties(headers=headers)))  # type: ignore[arg-type]

    texts = dict(found or ())
    assert (texts["plain"], texts["number"], texts["flag"], texts["none"]) == ("text", "7", "true", None)
    assert json.loads(texts["list"] or "") == [1, "two", None, 0.5]
    assert json.loads(texts["table"] or "") == {
        "who": "ann",
        "deep": {"at": "2026-05-01T00:00:00+00:00", "raw": "\x01"},
    }


def test_many_readers_that_do_not_read_cost_no_more_than_the_budget(
    broker: TestBroker, http: httpx.Client
) -> None:
    push_wide(http, "q", 4_000)
    before = pa.total_allocated_bytes()

    def begin(node: Node) -> tuple[int, int, int]:
        """Sixty-four readers, each with the second piece on its way."""
        store = node.partitioned.store
        info = range_reads.find(store, "q")
        schema = stream.schema_of(info.relation, ())
        share = OpenStreams()
        largest, readers, columns = 0, [], 0
        for _ in range(64):
            share.count += 1
            reader = stream.stream(store, info, 0, info.next, schema, Chosen(), share.piece_bytes)
            next(reader)
            readers.append(reader)
        for reader in readers:
            largest = max(largest, *(len(next(reader)) for _ in range(6)))
            columns = max(columns, pa.total_allocated_bytes() - before)
        return largest, columns, len(readers)

    largest, columns, readers = broker.call(begin)

    assert readers * largest < 2 * BUDGET_BYTES
    assert columns < BUDGET_BYTES / readers, "readers that wait keep their columns"


def push_wide(http: httpx.Client, queue: str, count: int) -> None:
    for at in range(0, count, 1_000):
        items = [{"queue": queue, "payload": {"pad": "x" * 2000}} for _ in range(at, at + 1_000)]
        assert http.post("/api/v1/push", json={"items": items}).status_code == 201


def test_an_exchange_is_published_to_only_by_those_who_may_write_to_it(broker: TestBroker) -> None:
    def prepare(node: Node) -> None:
        node.broker.exchanges.declare(node.broker.vhost("/"), "mine", "fanout", durable=True)
        node.broker.access.put_user(User("ann", GUEST_HASH, ()))
        node.amqp.authenticator.remember("ann", "ann", GUEST_HASH)
        node.broker.access.set_permissions("ann", "/", Permissions("", "mine", ""))

    broker.call(prepare)
    with httpx.Client(base_url=broker.http_url, auth=("ann", "ann"), timeout=60) as http:
        mine = http.post("/api/v1/exchanges/mine/rows", content=arrow(payload=["x"]))
        other = http.post("/api/v1/exchanges/amq.fanout/rows", content=arrow(payload=["x"]))
        wrong = http.post("/api/v1/exchanges/mine/rows", content=arrow(payload=["x"], colour=["red"]))

    assert (mine.status_code, mine.json()["unrouted"]) == (200, 1)
    assert other.status_code == 403
    assert (wrong.status_code, "payload is required" in wrong.json()["error"]) == (400, True)


def test_rows_for_an_exchange_are_published_in_steps_in_their_order(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(stepwise, "STEP", 0.0)
    broker.call(lambda node: node.broker.declare_queue(node.broker.vhost("/"), "q", durable=True))
    payloads = [str(number) for number in range(7)]
    where = "/api/v1/exchanges/amq.default/rows?routingKey=q&ids=batch"
    with httpx.Client(base_url=broker.http_url, timeout=60) as http:
        done = http.post(where, content=arrow(payload=payloads))
        wrong = http.post(where, content=arrow(payload=[*payloads, None]))

    assert (done.status_code, done.json()["published"]) == (200, 7)
    assert (wrong.status_code, wrong.json()["error"]) == (400, "row 7 has no payload")
    found = broker.call(_messages)
    names = [decode_properties(message.header, 12).message_id for message in found]
    assert [message.body.decode() for message in found] == payloads
    assert names == [f"batch:{number}" for number in range(7)]


def _messages(node: Node) -> list[Message]:
    queue = node.broker.vhost("/").queue("q")
    assert isinstance(queue, WorkQueue)
    return raw_messages(node.broker, queue)


def test_arrow_is_imported_beside_the_event_loop(
    broker: TestBroker, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    load = ranges_door._import

    def note() -> ModuleType:
        threads.append(get_ident())
        return load()

    monkeypatch.setattr(ranges_door, "_import", note)
    item = {"queue": "q", "partition": "p", "payload": 1}
    http.post("/api/v1/push", json={"items": [item]}).raise_for_status()

    http.get("/api/v1/ranges/q/rows").raise_for_status()

    assert len(threads) == 1
    assert threads[0] != broker.call(lambda _: get_ident())
