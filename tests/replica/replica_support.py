"""Owners and standbys without a broker: the journal alone, folded into a list.

Owns: opening replicated journals in a test's own thread. Must not touch: verdicts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from uuid import uuid4

from holtmq.journal import JournalOptions
from holtmq.journal.disk import Disk
from holtmq.journal.replica.opening import ReplicaOptions, ReplicatedOpening
from holtmq.journal.replica.session import Session
from holtmq.journal.replica.store import LogStore
from holtmq.journal.replica.view import StoppedWaiting

SMALL = JournalOptions(segment_bytes=4096)
PATIENCE = 120.0  # reached only by a test that would fail anyhow
SILENCE = 0.5  # takeover_after, where an owner that lives and is silent shall be replaced


class Loop:
    """An event loop that runs one callback at a time, when the test says so."""

    def __init__(self) -> None:
        self._due: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.soon = self._due.put  # from any thread

    def later(self, _: float, action: Callable[[], None]) -> None:
        self.soon(action)

    def step(self) -> None:
        """Run the oldest callback; wait a little if there is none."""
        with suppress(Empty):
            self._due.get(timeout=0.1)()

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, what
            self.step()


class Member:
    """One node of a log. Without an event loop every commit runs in ``flush``."""

    def __init__(
        self,
        replica: ReplicaOptions,
        folder: Path | str = "",
        disk: Disk | None = None,
        loop: Loop | None = None,
    ) -> None:
        soon, later = (None, None) if loop is None else (loop.soon, loop.later)
        self.opening = ReplicatedOpening(
            folder, SMALL, replica, disk=disk, defer=soon, notify=soon, later=later
        )
        self.journal = self.opening.journal
        self.checkpoint: list[tuple[int, bytes]] = []
        self.payloads: list[bytes] = []
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def own(self) -> Member:
        """Fold until the log is ours."""
        self.checkpoint = list(self.opening.recovery.checkpoint)
        self.payloads = [payload for _, _, payload in self.opening.recovery.records]
        return self

    def follow(self) -> Member:
        """The same in a thread: this one stands by."""
        self._thread = threading.Thread(target=self._follow, name="standby", daemon=True)
        self._thread.start()
        return self

    def _follow(self) -> None:
        try:
            self.checkpoint += self.opening.recovery.checkpoint
            for _, _, payload in self.opening.recovery.records:
                self.payloads.append(payload)
        except StoppedWaiting:
            pass
        except BaseException as error:
            self.error = error

    def owns(self) -> Member:
        """Wait until the thread has taken over."""
        assert self._thread is not None
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the standby did not take over"
        if self.error is not None:
            raise self.error
        return self

    def write(self, *payloads: bytes) -> list[int]:
        """Append and commit."""
        positions = [self.journal.append(20, payload) for payload in payloads]
        self.journal.flush()
        return positions

    def crash(self) -> None:
        """End without a word; the session in PostgreSQL goes with it."""
        self.opening.abandon()

    def end(self) -> None:
        """Whatever state it is in."""
        self.opening.stop()
        if self._thread is not None:
            self._thread.join(PATIENCE)
        self.opening.abandon()


@contextmanager
def log_of(url: str, name: str) -> Iterator[LogStore]:
    """The log as another session sees it."""
    store = LogStore(Session(url, 10.0, "test"), name)
    store.open(create=False)
    try:
        yield store
    finally:
        store.session.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def new_log(url: str, **changes: object) -> ReplicaOptions:
    """A log that no other test uses. An owner that is merely slow is not replaced: see ``SILENCE``."""
    options = ReplicaOptions(url, name=uuid4().hex, node="one", takeover_after=60.0)
    return replace(options, **changes)  # type: ignore[arg-type]
