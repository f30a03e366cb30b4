"""A Spark session with working defaults.

Owns: the settings without which a Python source fails silently or is slow. Must not touch: the environment of
other programs; the caller's settings take precedence.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS_PATH: Final = "spark.driver.extraClassPath"


def open_session(name: str, master: str, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """The session, with ``format("holtmq")`` registered. Underscores in setting names stand for dots.

    With ``sc://host:15002`` as master it connects to a Spark Connect server.
    """
    # Otherwise workers run the "python3" on PATH, and die silently if it has no pyarrow. On a standalone
    # cluster the same environment is at the same path; elsewhere it comes in an image or archive.
    if master.startswith(("local", "spark://")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from holtmq.spark import register
    from holtmq.spark.python_start import class_path

    if master.startswith("sc://"):
        return register(_connected(master, _dotted(settings or {})))
    builder = SparkSession.builder.master(master).appName(name)
    chosen = {**_defaults(master), **_dotted(settings or {})}
    if SparkSession.getActiveSession() is None and (patient := class_path()):
        theirs = chosen.get(_CLASS_PATH)
        chosen[_CLASS_PATH] = os.pathsep.join([patient, theirs]) if theirs else patient
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    if master.startswith("local"):
        spark.sparkContext.setLogLevel("ERROR")
    return register(spark)


def _connected(address: str, settings: Mapping[str, str]) -> "SparkSession":
    """A session on a Spark Connect server. Server settings are fixed; session settings can be given."""
    from pyspark.sql import SparkSession

    spark: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    for key, value in {"spark.sql.session.timeZone": "UTC", **settings}.items():
        spark.conf.set(key, value)
    return spark


def _defaults(master: str) -> dict[str, str]:
    common = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.metricsEnabled": "true",
        # ``transformWithState`` needs it; an existing query keeps the provider it started with.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # The second of two limits on the start of a Python process; the first one is in ``python_start``.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    if not master.startswith("local"):
        return common
    return common | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # The default of 200 costs seconds per batch on one machine.
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }


def _dotted(settings: Mapping[str, str]) -> dict[str, str]:
    return {key if "." in key else key.replace("_", "."): str(value) for key, value in settings.items()}
