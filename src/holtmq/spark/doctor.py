"""``holt pipeline doctor``: checks one by one what a Spark job needs.

Owns: the checks and the advice for each. Must not touch: anything; it only reads.
"""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from holtmq.spark.errors import BrokerRefused, BrokerUnreachable, HoltSparkError

_PACKAGES: Final = (("pyspark", ">=4.2,<5"), ("pyarrow", ">=15"), ("pandas", ">=2.2,<3"))
_FORMATS: Final = (("deltalake", ">=1.6,<2", "delta"), ("pyiceberg", ">=0.12,<0.13", "iceberg"))


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    good: bool
    text: str


def examine(
    url: str,
    token: str = "",
    tls_ca: str = "",
    *,
    user: str = "",
    password: str = "",
    start_spark: bool = False,
) -> Iterator[Finding]:
    """Every finding, as soon as it is known."""
    yield _python()
    yield _java()
    for package, wanted in _PACKAGES:
        yield _package(package, wanted)
    for package, wanted, extra in _FORMATS:
        yield _optional(package, wanted, extra)
    yield from _broker(url, token, tls_ca, user, password)
    if start_spark:
        yield _guarded("Spark", _spark)


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        "Python", good, f"{sys.version.split()[0]}" + ("" if good else ": 3.11 or newer is needed")
    )


def _java() -> Finding:
    java = shutil.which("java")
    if java is None:
        return Finding(
            "Java", False, "not found: install a JDK of version 17 or 21, or set JAVA_HOME and PATH"
        )
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=10).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", False, f"{java} does not run: {error}")
    found = re.search(r'version "(\d+)', said)
    version = int(found[1]) if found else 0
    good = version >= 17
    return Finding("Java", good, f"{version} at {java}" + ("" if good else ": Spark 4 needs 17 or newer"))


def _package(name: str, wanted: str, extra: str = "spark") -> Finding:
    """Check the package's metadata and that it can be found: importing pyspark takes seconds."""
    try:
        version = importlib.metadata.version(name)
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"its files are not there, though {version} is recorded")
    except (importlib.metadata.PackageNotFoundError, ImportError) as error:
        return Finding(name, False, f"missing ({error}): pip install 'holtmq[{extra}]'")
    have = _numbers(version)
    low, _, high = wanted.partition(",")
    good = have >= _numbers(low) and (not high or have < _numbers(high))
    return Finding(name, good, version + ("" if good else f": {wanted} is needed"))


def _optional(name: str, wanted: str, extra: str) -> Finding:
    """A package that only some lakes need: it may be missing."""
    found = _package(name, wanted, extra)
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, True, f"not installed; {extra} lakes need pip install 'holtmq[{extra}]'")
    return found


def _numbers(version: str) -> list[int]:
    """Major and minor number, as far as present."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def _broker(url: str, token: str, tls_ca: str, user: str, password: str) -> Iterator[Finding]:
    try:
        from holtmq.spark.client import BrokerClient
        from holtmq.spark.options import Connection
    except ImportError as error:
        yield Finding("Broker", False, f"not tried: {error}")
        return
    connection = Connection(
        url, token, timeout=3, retry_seconds=1, tls_ca=tls_ca, user=user, password=password
    )
    with BrokerClient(connection) as broker:
        try:
            broker.call("GET", "/api/v1/ranges", {"pattern": "-"})
            yield Finding("Broker", True, url)
        except BrokerUnreachable as error:
            yield Finding("Broker", False, f"{error}: start it with holt serve, or give --url")
            return
        except BrokerRefused as refusal:
            yield Finding("Broker", refusal.status < 500, url)
            advice = "give --user and --password, or a --token with the role read-only or more"
            yield Finding("May read", False, f"{refusal.text}: {advice}")
            return
        yield Finding("May read", True, "queues can be read")
        yield _guarded("May write", lambda: _write(broker))
        yield _guarded("Arrow on the broker", lambda: _arrow(broker))


def _write(broker: object) -> str:
    from holtmq.spark.client import BrokerClient

    assert isinstance(broker, BrokerClient)
    broker.abort("holt-doctor", 0)
    return "queues can be written"


def _arrow(broker: object) -> str:
    from holtmq.spark.client import BrokerClient

    assert isinstance(broker, BrokerClient)
    try:
        broker.stage("holt-doctor", 0, 0, 0, 0, b"", {})
    except BrokerRefused as refusal:
        if refusal.status == 501:
            raise
    return "rows are served"


def _spark() -> str:
    from holtmq.spark.spark_session import open_session

    spark = open_session("holt doctor", "local[1]", {})
    try:
        rows = spark.range(3).mapInArrow(lambda batches: batches, "id long").count()
        return f"{spark.version} runs, with Python workers" if rows == 3 else "counts wrongly"
    finally:
        spark.stop()


def _guarded(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, check())
    except (HoltSparkError, OSError, RuntimeError, ImportError) as error:
        return Finding(what, False, str(error))


def as_json(findings: list[Finding]) -> str:
    return json.dumps([{"what": one.what, "good": one.good, "text": one.text} for one in findings])
