"""Runs the writer: in a thread of its own, or in the caller's thread when there is no event loop.

Owns: the thread, passing groups to it and results back. Must not touch: what is written, and how results are
handled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

from .interface import Defer
from .writer import Commit, Group, LogWriter

# A seal costs two writes. A client that waits for each confirm makes it needless with its next commit, so the
# log is sealed when none follows soon, and now and then between commits that follow each other.
_SEAL_AFTER: Final = 0.002
_SEAL_EVERY: Final = 0.1


class WriterThread:
    """Passes groups to the writer. The loop's thread takes ``results``, oldest first."""

    __slots__ = ("_handed", "_thread", "_writer", "results")

    def __init__(self) -> None:
        self.results: deque[Commit | BaseException] = deque()
        self._handed: SimpleQueue[Group | None] = SimpleQueue()
        self._writer: LogWriter | None = None
        self._thread: threading.Thread | None = None

    @property
    def stalled(self) -> str:
        """Why the writer waits, or ""."""
        return "" if self._writer is None else self._writer.stalled

    def start(self, writer: LogWriter, notify: Defer | None, collect: Callable[[], None]) -> None:
        """With ``notify``, start a thread; it calls ``notify(collect)`` when there are results."""
        self._writer = writer
        if notify is None:
            return
        writer.waits = True

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: close() collects what is left
                notify(collect)

        self._thread = threading.Thread(
            target=_run_writer,
            args=(writer, self._handed, self.results, wake),
            name="holt-journal-writer",
            daemon=True,
        )
        self._thread.start()

    def hand_over(self, group: Group) -> None:
        """Pass a group to the writer thread; without a thread it waits for ``commit_here``."""
        if self._thread is not None:
            self._handed.put(group)

    def commit_here(self, groups: Sequence[Group]) -> bool:
        """Write these in the caller's thread; False if there is a writer thread, or nothing to write."""
        if self._thread is not None or self._writer is None or not groups:
            return False
        try:
            self.results.append(self._writer.commit(groups))
            self._writer.seal()
        except Exception as exc:
            self.results.append(exc)
            self._writer.abandon()
        return True

    def finish(self, *, failed: bool) -> None:
        """Write what was handed over and, unless something failed, mark a clean end."""
        if self._writer is not None:
            self._writer.closing()
        if self._thread is not None:
            if self._writer is not None:
                self._writer.stop_waiting.set()
            self._handed.put(None)
            self._thread.join()
        elif not failed and self._writer is not None:
            try:
                self._writer.finish()
            except OSError as exc:
                self.results.append(exc)


def _run_writer(
    writer: LogWriter,
    handed: SimpleQueue[Group | None],
    results: deque[Commit | BaseException],
    wake: Callable[[], None],
) -> None:
    """The writer thread: take all waiting groups, commit, report; until None arrives or a call fails."""
    stop, is_sealed = False, True  # it was sealed when it was opened
    sealed_at = monotonic()
    while not stop:
        groups: list[Group] = []
        try:
            item = handed.get(timeout=writer.idle_seconds if is_sealed else _SEAL_AFTER)
        except Empty:
            try:
                if is_sealed:
                    writer.idle()
                else:
                    writer.seal()
                    is_sealed, sealed_at = True, monotonic()
            except BaseException as exc:
                results.append(exc)
                writer.abandon()
                wake()
                return
            continue
        while True:
            if item is None:
                stop = True
                break
            groups.append(item)
            try:
                item = handed.get_nowait()
            except Empty:
                break
        try:
            if groups:
                is_sealed = False
                results.append(writer.commit(groups))
                wake()
            if stop:
                writer.finish()
            elif monotonic() - sealed_at >= _SEAL_EVERY:
                writer.seal()
                is_sealed, sealed_at = True, monotonic()
        except BaseException as exc:
            # A retry after a failed fsync can succeed although data is lost, so the thread ends here.
            results.append(exc)
            writer.abandon()
            wake()
            return
