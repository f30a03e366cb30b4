"""HoltMQ as a Spark source and sink: ``spark.read / readStream / write / writeStream .format("holtmq")``.

Owns: the names a program needs: ``register``, ``session``, ``report_to``. Nothing here imports the broker:
executors have only the wheel, pyspark and pyarrow.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "holtmq"
_REPORTS = "spark.holtmq.reportsTo"


def register(
    spark: "SparkSession", url: str = "", database: str = "holt", pattern: str = "", **options: str
) -> "SparkSession":
    """Register ``format("holtmq")`` with a session, and return the session.

    ``format("pyspark_holtmq")`` works without this call: Spark finds that module by its name. With a ``url``
    every queue of that broker (or those whose name matches ``pattern``), its dead letters and its deliveries
    become tables: ``SELECT * FROM holt.orders``, ``holt.orders_dlq``, ``holt.orders_deliveries``. Call it
    again to see queues created later. ``options`` are those of the source.
    """
    from holtmq.spark.source import HoltDataSource

    _run_workers_with_this_python(spark)
    spark.dataSource.register(HoltDataSource)
    if url:
        from holtmq.spark.tables import create_tables

        create_tables(spark, url, database, pattern, **options)
    return spark


def _run_workers_with_this_python(spark: "SparkSession") -> None:
    """Local workers otherwise run the ``python3`` on PATH: without holtmq, if its venv is not activated."""
    context = getattr(spark, "_sc", None)  # a Spark Connect session has none
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def session(name: str = "holtmq", master: str = "local[*]", **settings: str) -> "SparkSession":
    """A Spark session set up to read and write HoltMQ; see ``holtmq.spark.spark_session``."""
    from holtmq.spark.spark_session import open_session

    return open_session(name, master, settings)


def report_to(spark: "SparkSession", url: str, **options: str) -> None:
    """Report the progress of every streaming query of a session to a broker; see ``holt pipeline list``."""
    from holtmq.spark.listening import ProgressListener

    if spark.conf.get(_REPORTS, "") == url:
        return  # several jobs may share a session
    spark.streams.addListener(ProgressListener(url, **options))
    spark.conf.set(_REPORTS, url)


__all__ = ["FORMAT", "register", "report_to", "session"]
