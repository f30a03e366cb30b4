"""A lake of queues: Parquet files ``queue=…/date=…/`` in a table that lists the live ones.

Modules: ``model`` (values and the interface of a table format), ``parquet_log``, ``delta``, ``iceberg`` with
``folder_catalog`` (the formats), ``storage`` and ``lock`` (files, one writer), ``ranges`` (what a batch takes
from the broker), ``writing``, ``compaction`` and ``writer`` (files written, merged, committed once),
``engines`` (Spark or threads), ``frames`` and ``relation`` (reading: lake and live queue as one).
"""

from holtmq.spark.lake.frames import Lake, table

__all__ = ["Lake", "table"]
