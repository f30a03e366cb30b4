"""Where backups are kept: a folder, or a bucket.

Owns: writing, reading and listing objects by name, durable when the call returns. Must not touch: what they
contain.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PIECE: Final = 1 << 20
_TEMPORARY: Final = ".part"
_METADATA: Final = "://169.254.169.254/"  # where a virtual machine asks its cloud for credentials


class BackupError(Exception):
    """A backup or a restore cannot be done; the text says why."""


class Store(Protocol):
    """Objects by name; names contain slashes."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object; it is there whole, or not at all."""
        ...

    def get(self, name: str) -> Iterator[bytes]:
        """The bytes of an object, piece by piece. Raises BackupError when it is missing."""
        ...

    def size(self, name: str) -> int | None:
        """The size of an object; None when there is none."""
        ...

    def list(self, under: str) -> list[str]:
        """The names of all objects under this one."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Keep other writers out, where that is possible. Raises BackupError when there is one."""
        ...


def open_store(place: str, *, must_exist: bool = False) -> Store:
    """The store at a folder's path, or at an address such as ``s3://bucket/path``."""
    if "://" not in place:
        return FolderStore(Path(place), must_exist=must_exist)
    try:
        from obstore.store import from_url
    except ImportError:
        raise BackupError(
            f"{place}: buckets need the extra `backup`: pip install 'holtmq[backup]'. A folder needs nothing"
        ) from None
    try:
        return BucketStore(from_url(place), place)
    except Exception as error:
        raise BackupError(f"{place}: {_first_line(error)}") from None


class FolderStore:
    """A folder of this machine."""

    def __init__(self, folder: Path, *, must_exist: bool = False) -> None:
        if must_exist and not folder.is_dir():
            raise BackupError(f"there is no folder {folder}")
        self._folder = folder

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write it under another name first, then sync and rename."""
        path = self._folder / name
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise BackupError(f"{path} cannot be written: {error.strerror}") from None
        finally:
            with suppress(OSError):
                temporary.unlink()

    def get(self, name: str) -> Iterator[bytes]:
        """The bytes of a file."""
        try:
            with (self._folder / name).open("rb") as file:
                while piece := file.read(_PIECE):
                    yield piece
        except OSError as error:
            raise BackupError(f"{self._folder / name} cannot be read: {error.strerror}") from None

    def size(self, name: str) -> int | None:
        """The size of a file."""
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return None

    def list(self, under: str) -> list[str]:
        """The files in a folder."""
        try:
            found = sorted(os.listdir(self._folder / under))
        except OSError:
            return []
        return [f"{under}/{name}" for name in found if not name.endswith(_TEMPORARY)]

    def delete(self, name: str) -> None:
        """Delete a file."""
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder; the lock ends with the process. Some file systems have no locks."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise BackupError(f"{self._folder} cannot be written: {error.strerror}") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(
                    f"another `holt backup` writes to {self._folder}: wait for its end"
                ) from None
            except OSError:
                pass
            yield
        finally:
            os.close(fd)


class BucketStore:
    """A bucket, through obstore. An upload is visible only when it is complete."""

    def __init__(self, store: "ObjectStore", place: str) -> None:
        import obstore

        self._obstore = obstore
        self._store = store
        self._place = place

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Upload, in parts if it is large."""
        try:
            self._obstore.put(self._store, name, iter(pieces))
        except BackupError:
            raise
        except Exception as error:
            raise self._error(name, "written", error) from None

    def get(self, name: str) -> Iterator[bytes]:
        """Download."""
        try:
            for piece in self._obstore.get(self._store, name).stream(min_chunk_size=_PIECE):
                yield bytes(piece)
        except Exception as error:
            raise self._error(name, "read", error) from None

    def size(self, name: str) -> int | None:
        """The size of an object."""
        try:
            return int(self._obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._error(name, "found", error) from None

    def list(self, under: str) -> list[str]:
        """The objects under a name."""
        try:
            pages = self._obstore.list(self._store, prefix=under)
            return sorted(str(found["path"]) for page in pages for found in page)
        except Exception as error:
            raise self._error(under, "listed", error) from None

    def delete(self, name: str) -> None:
        """Delete an object."""
        try:
            self._obstore.delete(self._store, name)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._error(name, "deleted", error) from None

    def alone(self) -> AbstractContextManager[None]:
        """Nothing: a bucket has no locks."""
        return nullcontext()

    def _error(self, name: str, what: str, error: Exception) -> BackupError:
        reason = _first_line(error)
        if _METADATA in reason:
            reason = f"neither the environment nor this machine's cloud has credentials for it ({reason})"
        return BackupError(f"{self._place}: {name} cannot be {what}: {reason}")


def sync_folder(folder: Path) -> None:
    """Make renames within a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
