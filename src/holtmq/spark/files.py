"""Files of a lake, wherever it lies: local, HDFS, S3, whatever Spark's Hadoop layer reaches.

Owns: the few operations a lake needs. Must not touch: what the files mean.
"""

import posixpath
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files:
    """Paths are relative to ``root``, with slashes."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        self._path = jvm.org.apache.hadoop.fs.Path
        self._jvm = jvm
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        top = self._path(root)
        self._fs = top.getFileSystem(conf)
        # The local file system keeps a checksum beside every file; a lake is for others to read too.
        self._fs.setWriteChecksum(False)
        self.root = str(self._fs.makeQualified(top).toString()).rstrip("/")

    def full(self, path: str) -> str:
        return posixpath.join(self.root, path)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(self.full(path))))

    def names(self, folder: str) -> list[str]:
        """What is directly in a folder; nothing when there is none."""
        where = self._path(self.full(folder))
        if not self._fs.exists(where):
            return []
        return sorted(str(entry.getPath().getName()) for entry in self._fs.listStatus(where))

    def walk(self, folder: str, suffix: str) -> list[tuple[str, int]]:
        """Files below a folder with their sizes; paths are relative to it."""
        where = self._path(self.full(folder))
        if not self._fs.exists(where):
            return []
        base = str(self._fs.makeQualified(where).toString()).rstrip("/") + "/"
        found = []
        entries = self._fs.listFiles(where, True)
        while entries.hasNext():
            entry = entries.next()
            # As a Path writes itself: toUri would encode what Spark already has in a directory's name.
            path = str(entry.getPath().toString()).removeprefix(base)
            if path.endswith(suffix):
                found.append((path, int(entry.getLen())))
        return sorted(found)

    def read(self, path: str) -> str:
        stream = self._fs.open(self._path(self.full(path)))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Put a small file in place: whole, or not there."""
        hidden = posixpath.join(posixpath.dirname(path), f".{uuid.uuid4().hex}")
        stream = self._fs.create(self._path(self.full(hidden)), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(hidden, path)

    def move(self, old: str, new: str) -> None:
        target = self._path(self.full(new))
        self._fs.mkdirs(target.getParent())
        if not self._fs.rename(self._path(self.full(old)), target):
            raise OSError(f"cannot move {self.full(old)} to {self.full(new)}")

    def delete(self, path: str) -> None:
        """A file or a whole folder; nothing when it is not there."""
        self._fs.delete(self._path(self.full(path)), True)
