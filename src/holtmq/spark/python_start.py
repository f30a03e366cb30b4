"""Makes Spark wait longer for a Python process to start: two minutes instead of ten seconds.

Owns: the patched class and its folder. Must not touch: Spark's installation.

Every streaming query starts a Python process that plans its batches. Spark 4 gives it ten seconds, a constant
in ``PythonWorkerFactory``: there is no setting, and on a busy machine the query fails. So the session puts
a copy of that class, with the number changed, ahead of Spark's own (docs/decisions/0028).
"""

import atexit
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

_CLASS: Final = "org/apache/spark/api/python/PythonWorkerFactory.class"
_LONG: Final = b"\x05"  # a constant of type long in a class file: this tag, then eight bytes
_SPARKS_OWN_MS: Final = 10_000
START_MS: Final = 120_000


def patient_class(folder: Path, limit_ms: int = START_MS) -> bool:
    """Write the class with another limit; False if this Spark's class is not the expected one."""
    for jar in _jars():
        with zipfile.ZipFile(jar) as archive:
            known = archive.read(_CLASS)
        before, after = (_LONG + ms.to_bytes(8, "big") for ms in (_SPARKS_OWN_MS, limit_ms))
        if known.count(before) != 1:
            return False
        target = folder / _CLASS
        target.parent.mkdir(parents=True)
        target.write_bytes(known.replace(before, after))
        return True
    return False


def class_path() -> str:
    """A folder for the front of the driver's class path, deleted at exit; empty: not possible."""
    folder = Path(tempfile.mkdtemp(prefix="holt-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder) if patient_class(folder) else ""


def _jars() -> list[Path]:
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return sorted((Path(home) / "jars").glob("spark-core_*.jar"))
