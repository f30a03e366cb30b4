"""Files of a lake: in a local folder, or at an address that pyarrow can open (s3, gs, abfs, hdfs).

Owns: the few operations a lake needs, with and without a JVM. Must not touch: what the files mean.

A local folder gives two guarantees the log needs: ``create`` succeeds for one caller only, and data is on
disk when ``create``, ``write`` and ``settled`` return. Object stores give the second by themselves; for the
first ``create`` checks before it writes, and the writer lock keeps two writers apart.
"""

import os
import posixpath
import uuid
from contextlib import suppress
from typing import Final

import pyarrow.fs as pafs

from holtmq.spark.errors import InvalidOption

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}


class Storage:
    """Paths are relative to ``root``, with slashes."""

    def __init__(self, root: str) -> None:
        self.root = qualified(root)
        self.local = self.root.startswith("file://")
        self._fs, self._base = open_address(self.root)

    def full(self, path: str) -> str:
        """The address of a file: for other programs, and for tasks on other machines."""
        return posixpath.join(self.root, path)

    def exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._at(path)).type != pafs.FileType.NotFound)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; empty when it does not exist."""
        chosen = pafs.FileSelector(self._at(folder), allow_not_found=True)
        return sorted(entry.base_name for entry in self._fs.get_file_info(chosen))

    def walk(self, folder: str, suffix: str) -> list[tuple[str, int]]:
        """Files below a folder with their sizes; paths are relative to it."""
        base = self._at(folder)
        chosen = pafs.FileSelector(base, allow_not_found=True, recursive=True)
        return sorted(
            (posixpath.relpath(entry.path, base), entry.size)
            for entry in self._fs.get_file_info(chosen)
            if entry.type == pafs.FileType.File and entry.path.endswith(suffix)
        )

    def read(self, path: str) -> bytes:
        """The whole file. FileNotFoundError when there is none."""
        with self._fs.open_input_stream(self._at(path)) as stream:
            return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        """Write a small file atomically."""
        if not self.local:
            self._put(path, data)
            return
        hidden = self._hidden(path, data)
        os.replace(hidden, self._at(path))
        _sync_folder(posixpath.dirname(self._at(path)))

    def create(self, path: str, data: bytes) -> None:
        """As ``write``, for a file that must be new. FileExistsError when it exists."""
        if not self.local:
            if self.exists(path):
                raise FileExistsError(path)
            self._put(path, data)
            return
        hidden = self._hidden(path, data)
        try:
            os.link(hidden, self._at(path))
        finally:
            os.unlink(hidden)
        _sync_folder(posixpath.dirname(self._at(path)))

    def move(self, old: str, new: str) -> None:
        target = self._at(new)
        self._fs.create_dir(posixpath.dirname(target), recursive=True)
        self._fs.move(self._at(old), target)

    def settled(self, paths: list[str]) -> None:
        """Wait until the names of these files are on disk; their content was synced when written."""
        if self.local:
            folders = {posixpath.dirname(self._at(path)) for path in paths}
            for folder in {*folders, *(posixpath.dirname(folder) for folder in folders)}:
                _sync_folder(folder)

    def delete(self, path: str) -> None:
        """Delete a file or a whole folder; do nothing when it does not exist."""
        with suppress(FileNotFoundError):
            if self._fs.get_file_info(self._at(path)).type == pafs.FileType.Directory:
                self._fs.delete_dir(self._at(path))
            else:
                self._fs.delete_file(self._at(path))

    def _at(self, path: str) -> str:
        return posixpath.join(self._base, path) if path else self._base

    def _put(self, path: str, data: bytes) -> None:
        with self._fs.open_output_stream(self._at(path)) as stream:
            stream.write(data)

    def _hidden(self, path: str, data: bytes) -> str:
        folder = posixpath.dirname(self._at(path))
        os.makedirs(folder, exist_ok=True)
        hidden = posixpath.join(folder, f".{uuid.uuid4().hex}")
        with open(hidden, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return hidden


def qualified(root: str) -> str:
    """A folder or address as an address without a trailing slash."""
    scheme, mark, rest = root.partition("://")
    if not mark:
        path = root.removeprefix("file:")
        return "file://" + os.path.abspath(path)
    if scheme == "file":
        return "file://" + os.path.abspath(rest)
    return root.rstrip("/")


def open_address(address: str) -> tuple[pafs.FileSystem, str]:
    """The file system of an address, and the path in it. A % in a name is taken literally."""
    scheme, _, rest = address.partition("://")
    if scheme == "file":
        return pafs.LocalFileSystem(), rest
    try:
        # Only the bucket goes through the URI: a queue's name in the path may contain any character.
        bucket, _, path = rest.partition("/")
        system, base = pafs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{bucket}")
    except (ValueError, OSError) as error:
        raise InvalidOption(f"the lake {address} cannot be opened: {error}") from None
    return system, posixpath.join(base, path) if path else base


def sync_file(path: str) -> None:
    """Sync a local file's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: str) -> None:
    with suppress(FileNotFoundError):
        sync_file(folder)
