"""Spark loads this module by its name: ``format("pyspark_holtmq")`` needs no ``register`` call.

Owns: ``DefaultSource``, the name Spark's convention asks for. Everything else is in ``holtmq.spark``.
"""

from holtmq.spark.source import HoltDataSource


class DefaultSource(HoltDataSource):
    """The same data source, found by the module's name."""

    @classmethod
    def name(cls) -> str:
        return "pyspark_holtmq"
