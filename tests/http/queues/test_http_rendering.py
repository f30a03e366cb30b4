"""The shortened ways of writing ids and times agree with the plain ones."""

import json

from holtmq.broker.partitioned.events import IdsGiven, QueueConfigured
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.identifiers import message_id, partition_id, promised_id
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.partitioned.requests import PushItem, PushResult
from holtmq.http.engine.wire import iso_ms, iso_us
from holtmq.http.queues.rendering import push_results

CONFIGURED = QueueConfigured("q", "", "", QueueConfig(), 0)


def queues() -> dict[int, PartitionedQueue]:
    return {1: PartitionedQueue(1, CONFIGURED, lambda offset, position: None)}


def test_ids_of_a_run_are_those_of_single_messages() -> None:
    results = [
        PushResult(number, partition, offset, created_us, False)
        for number, partition, offset, created_us in [
            (1, 0, 0, 1_700_000_000_000_999),
            (1, 7, 1, 1_700_000_000_001_000),
            (1, 0, (1 << 40) + 5, 1_700_000_000_001_001),
            (20_000, 3, 2, 1_700_000_000_001_001),
        ]
    ]
    items = [PushItem(f"q{result.queue}", "p", Body("t", b"1")) for result in results]

    rows = json.loads(push_results(items, results, queues()))

    assert [row["message_id"] for row in rows] == [
        message_id(r.queue, r.offset, r.created_us) for r in results
    ]
    assert [row["partition_id"] for row in rows] == [partition_id(r.queue, r.partition) for r in results]
    assert [row["queueName"] for row in rows] == ["q1", "q1", "q1", "q20000"]


def test_a_push_over_a_page_of_offsets_and_any_names_stays_whole() -> None:
    name = 'q%d%b"\\'
    results = [
        PushResult(1, 0, offset, 1_700_000_000_000_990 + offset, offset == 4097)
        for offset in range(4090, 4100)
    ]
    trace = "0188d0c0-0000-7000-8000-000000000000"
    items = [
        PushItem(name, "p", Body("100 %b ü", b"1", trace if r.offset == 4099 else None)) for r in results
    ]

    rows = json.loads(push_results(items, results, queues()))

    assert [row["message_id"] for row in rows] == [message_id(1, r.offset, r.created_us) for r in results]
    assert [row["index"] for row in rows] == list(range(10))
    assert {row["queueName"] for row in rows} == {name}
    assert {row["transaction_id"] for row in rows} == {"100 %b ü"}
    assert [row["status"] for row in rows] == ["queued"] * 7 + ["duplicate"] + ["queued"] * 2
    assert [row["trace_id"] for row in rows] == [None] * 9 + [trace]


def test_a_duplicate_of_a_message_with_a_promised_id_is_answered_with_that_id() -> None:
    known = queues()
    promised = promised_id(1_700_000_000_000_000, 1 << 120 | 77)
    known[1].apply(IdsGiven(((5, promised),)))
    results = [PushResult(1, 0, offset, 1_700_000_000_000_100, True) for offset in (4, 5)]
    items = [PushItem("q", "p", Body("t", b"1"))] * 2

    rows = json.loads(push_results(items, results, known))

    assert [row["message_id"] for row in rows] == [message_id(1, 4, 1_700_000_000_000_100), promised]
    assert promised < rows[0]["message_id"]


def test_times_are_utc_with_all_their_digits() -> None:
    assert iso_us(1_767_323_045_000_007) == "2026-01-02T03:04:05.000007Z"
    assert iso_ms(1_767_323_045_123_999) == "2026-01-02T03:04:05.123Z"
    assert iso_us(0) == "1970-01-01T00:00:00.000000Z"
