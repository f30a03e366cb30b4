"""Writes a DataFrame with any columns as data files of a table.

Owns: turning Spark's rows into staged files. Must not touch: which files are live. The archive does not use
this: its tasks write what they fetch.
"""

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from holtmq.spark.lake.model import DataFile
from holtmq.spark.lake.writing import Layout, aligned, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def stage_frame(frame: "DataFrame", layout: Layout, folder: str) -> list[DataFile]:
    """Write all rows below ``folder``; each Spark partition writes its own files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (aligned(batch, layout.schema) for batch in batches if batch.num_rows)
        done = pickle.dumps(write_rows(rows, layout, folder))
        yield pa.RecordBatch.from_pydict({"done": pa.array([done], pa.binary())})

    made = frame.mapInArrow(write, "done binary").collect()
    return [file for row in made for file in pickle.loads(bytes(row["done"]))]
