"""Backups over HTTP: the journal's files as they were at one moment, while the broker goes on.

Owns: the open backups, how long they stay open, and reading them in pieces. Must not touch: what the files
contain, where they are stored; ``holt backup`` does that.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from holtmq.broker.errors import NotFound
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import ADMINISTER, Call, Endpoint, Reply, Stream
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.tar import TAR_END, tar_header, tar_padding
from holtmq.journal.backup_format import SavedFile, backup_name, manifest_of, manifest_path, object_path
from holtmq.journal.file_journal import FileJournal
from holtmq.journal.file_set import FileSet

_IDLE_SECONDS: Final = 60.0
_MOST: Final = 4
_PIECE: Final = 256 << 10
_CHECKPOINT_POLL: Final = 0.02
_PATH: Final = "/api/v1/operator/backups"
_encode: Final = msgspec.json.Encoder().encode


class _Open:
    """One backup; it is closed when no file of it was read for a while."""

    def __init__(self, files: FileSet) -> None:
        self.files = files
        self.timer: asyncio.TimerHandle | None = None
        self.readers = 0


class Backups:
    """The open backups of a node."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def add(self, files: FileSet) -> str:
        """Keep these files open; return a name for them."""
        name = secrets.token_hex(8)
        self._open[name] = _Open(files)
        self.touch(name)
        return name

    @property
    def is_full(self) -> bool:
        return len(self._open) >= _MOST

    def find(self, name: str) -> _Open:
        """The backup of this name. Raises NotFound."""
        found = self._open.get(name)
        if found is None:
            raise NotFound(f"no backup '{name}': it has ended, or was idle for {_IDLE_SECONDS:.0f} seconds")
        return found

    def touch(self, name: str) -> None:
        """Start the time after which it is closed anew."""
        found = self._open.get(name)
        if found is not None:
            if found.timer is not None:
                found.timer.cancel()
            loop = asyncio.get_running_loop()
            found.timer = loop.call_later(_IDLE_SECONDS, self.end, name)

    def end(self, name: str) -> None:
        """Close the files, unless one is being read; then its reader closes them."""
        found = self._open.pop(name, None)
        if found is not None:
            if found.timer is not None:
                found.timer.cancel()
            if not found.readers:
                found.files.close()

    def is_open(self, backup: _Open) -> bool:
        """Whether it has not ended."""
        return backup in self._open.values()


def _backups(context: Context) -> Backups:
    found = context.kept.get(Backups)
    if not isinstance(found, Backups):
        found = context.kept[Backups] = Backups()
    return found


async def open_files(call: Call) -> FileSet:
    """The journal's files as of now; the caller closes them."""
    journal = call.context.journal
    if not isinstance(journal, FileJournal):
        raise Refusal(409, "this broker keeps its journal in memory: there is nothing to back up")
    if _backups(call.context).is_full:
        raise Refusal(409, f"{_MOST} backups are running: wait for one of them")
    call.broker.flow.turn()  # what was acknowledged so far is part of it
    await call.durable()
    while (open_all := journal.hold_files()) is None:
        await asyncio.sleep(_CHECKPOINT_POLL)
    opening = asyncio.ensure_future(asyncio.to_thread(open_all))
    opening.add_done_callback(lambda _: journal.release_files())
    try:
        return await asyncio.shield(opening)
    except OSError as error:
        raise Refusal(503, f"the journal's files cannot be opened: {error.strerror}") from None
    except asyncio.CancelledError:  # the client is gone
        opening.add_done_callback(_close)
        raise


async def begin(call: Call) -> Reply:
    files = await open_files(call)
    name = _backups(call.context).add(files)
    return Reply(
        201,
        {
            "id": name,
            "created": int(call.now * 1000),
            "position": files.end,
            "last_base": files.last_base,
            "checkpoint": files.checkpoint,
            "epoch": files.epoch,
            "files": [
                {"name": file.name, "size": file.size, "identity": file.identity} for file in files.files
            ],
        },
    )


def _close(opened: "asyncio.Future[FileSet]") -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


async def read_file(call: Call) -> object:
    backups, name = _backups(call.context), call.path["name"]
    backup = backups.find(call.path["id"])
    if name not in {file.name for file in backup.files.files}:
        raise NotFound(f"no file '{name}' in this backup")
    backups.touch(call.path["id"])
    pieces = _pieces(backups, call.path["id"], backup, name, call.query.number("offset", 0))
    return Stream(pieces, "application/octet-stream")


async def _pieces(
    backups: Backups, key: str, backup: _Open, name: str, offset: int
) -> AsyncGenerator[bytes, None]:
    backup.readers += 1
    try:
        while piece := await asyncio.to_thread(backup.files.read, name, _PIECE, offset):
            yield piece
            offset += len(piece)
            backups.touch(key)
    finally:
        backup.readers -= 1
        if not backup.readers and not backups.is_open(backup):
            backup.files.close()


async def download(call: Call) -> object:
    """A whole backup as one archive, which ``holt restore`` reads."""
    files = await open_files(call)
    backups, name = _backups(call.context), backup_name(call.now)
    key = backups.add(files)
    pieces = _archive(backups, key, backups.find(key), name, int(call.now * 1000))
    headers = {"content-disposition": f'attachment; filename="holt-backup-{name}.tar"'}
    return Stream(pieces, "application/x-tar", headers)


async def _archive(
    backups: Backups, key: str, backup: _Open, name: str, created_ms: int
) -> AsyncGenerator[bytes, None]:
    saved: list[SavedFile] = []
    seconds = created_ms // 1000
    files = backup.files
    backup.readers += 1  # the files stay open when the client reads slowly
    try:
        for file in files.files:
            yield tar_header(object_path(file.identity), file.size, seconds)
            digest, offset = hashlib.sha256(), 0
            while piece := await asyncio.to_thread(_read_and_hash, files, file.name, offset, digest):
                offset += len(piece)
                yield piece
            yield tar_padding(file.size)
            saved.append(SavedFile(file.name, file.size, file.identity, digest.hexdigest()))
        manifest = _encode(manifest_of(files, name, created_ms, saved))
        yield tar_header(manifest_path(name), len(manifest), seconds) + manifest + tar_padding(len(manifest))
        yield TAR_END
    finally:
        backup.readers -= 1
        backups.end(key)
        files.close()


def _read_and_hash(files: FileSet, name: str, offset: int, digest: "hashlib._Hash") -> bytes:
    piece = files.read(name, _PIECE, offset)
    digest.update(piece)
    return piece


async def end(call: Call) -> object:
    backups = _backups(call.context)
    backups.find(call.path["id"])
    backups.end(call.path["id"])
    return {"ended": True}


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        f"{_PATH}/archive",
        ADMINISTER,
        "operator",
        "A whole backup as one tar archive",
        download,
        statuses=(200, 409, 503),
    ),
    Endpoint(
        "POST",
        _PATH,
        ADMINISTER,
        "operator",
        "Begin a backup of the journal",
        begin,
        statuses=(201, 409, 503),
    ),
    Endpoint(
        "GET",
        f"{_PATH}/{{id}}/files/{{name}}",
        ADMINISTER,
        "operator",
        "One file of a backup",
        read_file,
        query=("offset",),
        statuses=(200, 404),
    ),
    Endpoint("DELETE", f"{_PATH}/{{id}}", ADMINISTER, "operator", "End a backup", end, statuses=(200, 404)),
)
