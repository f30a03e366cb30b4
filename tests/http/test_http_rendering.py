"""The shortened ways of writing ids and times agree with the plain ones."""

import json

from holtmq.broker.identifiers import message_id, partition_id
from holtmq.broker.partitioned_bodies import Body
from holtmq.broker.partitioned_requests import PushItem, PushResult
from holtmq.http.rendering import push_results
from holtmq.http.wire import iso_ms, iso_us


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

    rows = json.loads(push_results(items, results))

    assert [row["message_id"] for row in rows] == [
        message_id(r.queue, r.offset, r.created_us) for r in results
    ]
    assert [row["partition_id"] for row in rows] == [partition_id(r.queue, r.partition) for r in results]
    assert [row["queueName"] for row in rows] == ["q1", "q1", "q1", "q20000"]


def test_times_are_utc_with_all_their_digits() -> None:
    assert iso_us(1_767_323_045_000_007) == "2026-01-02T03:04:05.000007Z"
    assert iso_ms(1_767_323_045_123_999) == "2026-01-02T03:04:05.123Z"
    assert iso_us(0) == "1970-01-01T00:00:00.000000Z"
