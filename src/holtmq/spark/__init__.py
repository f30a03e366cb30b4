"""HoltMQ as a Spark source and sink: ``spark.read / readStream / write / writeStream .format("holtmq")``.

Owns: the two names a program needs, ``register`` and ``session``. Nothing here imports the broker: executors
have the wheel, pyspark and pyarrow, and no more.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "holtmq"


def register(
    spark: "SparkSession", url: str = "", database: str = "holt", pattern: str = "", **options: str
) -> "SparkSession":
    """Make ``format("holtmq")`` known to a session, and return the session.

    ``format("pyspark_holtmq")`` works without this call: Spark finds that module by its name. With a ``url``
    every queue of that broker (or those whose name matches ``pattern``), its dead letters and its deliveries
    become tables: ``SELECT * FROM holt.orders``, ``holt.orders_dlq``, ``holt.orders_deliveries``. Call it
    again to see queues that came later. ``options`` are the source's.
    """
    from holtmq.spark.source import HoltDataSource

    spark.dataSource.register(HoltDataSource)
    if url:
        from holtmq.spark.tables import create_tables

        create_tables(spark, url, database, pattern, **options)
    return spark


def session(name: str = "holtmq", master: str = "local[*]", **settings: str) -> "SparkSession":
    """A Spark session that is ready to read and write HoltMQ; see ``holtmq.spark.spark_session``."""
    from holtmq.spark.spark_session import open_session

    return open_session(name, master, settings)


__all__ = ["FORMAT", "register", "session"]
