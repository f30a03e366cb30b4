"""How a task's rows are cut into requests."""

import pyarrow as pa
import pytest

from holtmq.spark.sink import PART_ROWS, parts


def batch(rows: int, width: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"payload": ["x" * width] * rows})


@pytest.mark.parametrize(
    "batches",
    [
        [batch(3 * PART_ROWS + 1)],
        [batch(7)] * 5000,
        [batch(0), batch(1), batch(0)],
        [batch(50, 40_000), batch(PART_ROWS), batch(1, 3 << 20), batch(10)],
        [],
    ],
)
def test_no_request_has_too_many_rows_or_bytes_and_every_row_is_in_one(batches: list[pa.RecordBatch]) -> None:
    most = 1 << 20

    requests = list(parts(batches, most))

    for part in requests:
        rows = sum(piece.num_rows for piece in part)
        assert 0 < rows <= PART_ROWS
        assert rows == 1 or sum(piece.nbytes for piece in part) <= 1.1 * most
    staged = [row for part in requests for piece in part for row in piece.column("payload").to_pylist()]
    assert staged == [row for one in batches for row in one.column("payload").to_pylist()]


def test_small_batches_travel_together() -> None:
    assert len(list(parts([batch(10)] * 100, 1 << 20))) == 1
