"""Where the tasks of a batch run: on Spark's executors, or in threads of this process.

Owns: the distribution of tasks. Must not touch: what a task does. A task is a function of one value and may
run more than once; only the returned results count.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs tasks. ``width`` is how many run at the same time."""

    width: int

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]: ...


class ThreadEngine:
    """Threads, without a JVM. Fetching, encoding and compressing release the GIL."""

    def __init__(self, width: int) -> None:
        self.width = width

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        with ThreadPoolExecutor(self.width, "lake") as pool:
            return list(pool.map(work, items))


class SparkEngine:
    """One Spark task per item. Rows stay out of the JVM: a task fetches, encodes and writes."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark
        self.width = spark_width(spark)

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        kept = list(items)

        def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    done = pickle.dumps((place, work(kept[place])))
                    yield pa.RecordBatch.from_pydict({"done": pa.array([done], pa.binary())})

        count = len(kept)
        rows = self._spark.range(0, count, 1, count).mapInArrow(tasks, "done binary").collect()
        results = dict(pickle.loads(bytes(row["done"])) for row in rows)
        return [results[place] for place in range(count)]


def spark_width(spark: "SparkSession") -> int:
    """How many tasks the session runs at the same time, also without a SparkContext (Connect)."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # pyspark's own error for an attribute that Connect does not have
        return max(1, int(spark.conf.get("spark.default.parallelism", "4") or 4))
