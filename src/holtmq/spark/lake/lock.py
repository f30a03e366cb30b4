"""One writer per lake: a lock that ends with its holder, and an epoch that fences off the previous holder.

Owns: the files below ``_holt/lock``. Must not touch: the table.

The holder is the newest file, named by its epoch. Only one job can create it; the holder rewrites it every
few seconds as a heartbeat. A job that finds a live holder is refused. A holder whose process must be visible
here and is not is replaced at once; any other, when its file has not changed for ``LEASE_SECONDS`` of our
own clock, so clocks need not agree. A holder that was only suspended sees its successor before it reports a
commit (``check``), and the successor advances the table's log first, so that the commit itself fails.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from holtmq.spark.errors import HoltSparkError
from holtmq.spark.lake.storage import Storage

LOCK: Final = "_holt/lock"
LEASE_SECONDS: Final = 45.0
_RENEW_SECONDS: Final = 10.0
_KEPT: Final = 8  # files of former holders


class LakeLocked(HoltSparkError):
    """Another job writes to the lake."""


class LockLost(HoltSparkError):
    """Another job took over the lake because this one's heartbeat stopped."""


class WriterLock:
    """Held from ``__enter__`` to ``__exit__``. ``inherited``: the previous holder did not release it."""

    def __init__(
        self,
        storage: Storage,
        job: str,
        *,
        lease: float = LEASE_SECONDS,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._storage = storage
        self._job = job
        self._lease = lease
        self._say = say
        self._me = {
            "id": uuid.uuid4().hex,
            "job": job,
            "host": socket.gethostname(),
            "place": _place(),
            "pid": os.getpid(),
            "process": _process_start(os.getpid()),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.epoch = 0
        self.inherited = False

    def __enter__(self) -> "WriterLock":
        newest = self._newest()
        if newest:
            holder = self._read(newest)
            if holder is not None and not holder.get("released"):
                self._wait_for(newest, holder)
                self.inherited = True
        self.epoch = newest + 1
        try:
            self._storage.create(_path(self.epoch), self._card())
        except FileExistsError:
            raise self._refusal(self._read(self.epoch) or {}) from None
        if not self._storage.local:
            time.sleep(1.0)  # on an object store the later of two writers wins: check which one it was
            found = self._read(self.epoch)
            if found is None or found["id"] != self._me["id"]:
                raise self._refusal(found or {})
        for old in range(self.epoch - _KEPT, 0, -1):
            if not self._storage.exists(_path(old)):
                break
            self._storage.delete(_path(old))
        self._thread = threading.Thread(target=self._renew, name="lake-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        # A successor has its own file: releasing ours cannot harm it.
        with suppress(OSError):
            self._storage.write(_path(self.epoch), self._card(released=True))

    def check(self) -> None:
        """Raise if another job has taken over the lake."""
        if self._storage.exists(_path(self.epoch + 1)):
            holder = self._read(self.epoch + 1) or {}
            raise LockLost(
                f"the lake {self._storage.root} was taken over by {_describe(holder)}, "
                f"because this job showed no sign of life for {self._lease:g} seconds"
            )

    def _newest(self) -> int:
        names = [name.partition(".")[0] for name in self._storage.names(LOCK) if not name.startswith(".")]
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _wait_for(self, epoch: int, holder: dict[str, object]) -> None:
        """Wait until the holder is known to be gone."""
        if self._me["place"] and holder.get("place") == self._me["place"]:
            if _process_start(int(str(holder["pid"]))) == holder["process"]:
                raise self._refusal(holder)
            return
        self._say(f"the lake is held by {_describe(holder)}: waiting {self._lease:g} s for a sign of life")
        deadline = time.monotonic() + self._lease
        while time.monotonic() < deadline:
            time.sleep(min(0.5, self._lease / 10))
            seen = self._read(epoch)
            if seen is not None and seen.get("released"):
                return
            if seen is not None and seen["beats"] != holder["beats"]:
                raise self._refusal(holder)

    def _refusal(self, holder: dict[str, object]) -> LakeLocked:
        return LakeLocked(
            f"the lake {self._storage.root} has a writer already: {_describe(holder)}. "
            "A lake has one writer at a time: stop that job, let it do this queue too (--queue a,b), "
            "or use another --lake"
        )

    def _renew(self) -> None:
        while not self._stop.wait(_RENEW_SECONDS):
            self._beats += 1
            with suppress(OSError):  # the next heartbeat may succeed; check() decides
                if not self._storage.exists(_path(self.epoch + 1)):
                    self._storage.write(_path(self.epoch), self._card())

    def _card(self, *, released: bool = False) -> bytes:
        return json.dumps({**self._me, "beats": self._beats, "released": released}).encode()

    def _read(self, epoch: int) -> dict[str, object] | None:
        try:
            return dict(json.loads(self._storage.read(_path(epoch))))
        except (FileNotFoundError, ValueError):
            return None


def _path(epoch: int) -> str:
    return f"{LOCK}/{epoch:012d}.json"


def _process_start(pid: int) -> str:
    """Distinguishes a process from a later one with the same pid; empty when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _place() -> str:
    """Where pids are comparable: this boot of this machine and this container; empty: unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _describe(holder: dict[str, object]) -> str:
    if not holder:
        return "another job, just started"
    return f"{holder['job']} on {holder['host']}, process {holder['pid']}, since {holder['since']}"
