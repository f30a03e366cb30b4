"""One Spark session and one broker for all Spark tests of a run.

A module that uses the session is marked ``xdist_group("spark")``: one worker owns it.
"""

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_support import QUICK, Shop

from holtmq.testing import TestBroker

# A short life: optimising code costs more than it brings (CPU time up to the first query falls from 16 to 9
# seconds). As a variable, since tests also start programs that start a JVM of their own.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and Path(__file__).parent in item.path.parents:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(480))
            if item.get_closest_marker("xdist_group") is None:
                raise pytest.UsageError(
                    f'{item.path.name} uses the Spark session: mark it xdist_group("spark")'
                )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    from holtmq.spark import session

    one = session("holtmq-tests", "local[2]", **QUICK)
    java = one.sparkContext._gateway.proc
    yield one
    if java.poll() is None:
        one.stop()
    else:  # killed: pyspark keeps the dead one for the next session of this process, unless told
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        SparkSession._activeSession = None


@pytest.fixture(scope="session")
def spark_broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as broker:
        yield broker


@pytest.fixture
def shop(spark_broker: TestBroker) -> Iterator[Shop]:
    one = Shop(spark_broker, f"t{next(_numbers)}")
    yield one
    one.http.close()
