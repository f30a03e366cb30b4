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

from .interface import Defer, Later
from .polled_commits import PolledCommits
from .writer import BegunCommit, Commit, Group, LogWriter

# A seal costs two writes. A client that waits for each confirm makes it needless with its next commit, so the
# log is sealed when none follows soon, and now and then between commits that follow each other.
_SEAL_AFTER: Final = 0.002
_SEAL_EVERY: Final = 0.1


class WriterThread:
    """Passes groups to the writer. The loop's thread takes the results with ``next_result``."""

    __slots__ = ("_handed", "_polled", "_results", "_seconds", "_thread", "_unreported", "_writer")

    def __init__(self) -> None:
        self._results: deque[Commit | BaseException] = deque()
        self._handed: SimpleQueue[Group | BegunCommit | None] = SimpleQueue()
        self._polled: PolledCommits | None = None
        self._unreported = 0  # groups handed over whose result was not taken yet
        self._seconds = 0.0  # of the last commit
        self._writer: LogWriter | None = None
        self._thread: threading.Thread | None = None

    @property
    def stalled(self) -> str:
        """Why the writer waits, or ""."""
        return "" if self._writer is None else self._writer.stalled

    @property
    def polled_commits(self) -> int:
        """How many commits were reported without the thread."""
        return 0 if self._polled is None else self._polled.count

    def next_result(self) -> Commit | BaseException | None:
        """The oldest result that was not taken yet."""
        if not self._results:
            return None
        result = self._results.popleft()
        if isinstance(result, Commit):
            self._unreported -= result.groups
            self._seconds = result.seconds
        return result

    def start(
        self,
        writer: LogWriter,
        notify: Defer | None,
        later: Later | None,
        collect: Callable[[], None],
        flush: Callable[[], None],
    ) -> None:
        """With ``notify``, start a thread; it calls ``notify(collect)`` when there are results.

        ``flush`` sends what the callbacks that ``collect`` has run have to say to clients.
        """
        self._writer = writer
        if notify is None:
            return
        writer.waits = True

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: close() collects what is left
                notify(collect)

        turn = threading.Lock()
        if later is not None and writer.poll_seconds:
            self._polled = PolledCommits(
                writer, turn, later, self._results.append, collect, flush, self._handed.put
            )
        self._thread = threading.Thread(
            target=_run_writer,
            args=(writer, self._handed, self._results, wake, turn),
            name="holt-journal-writer",
            daemon=True,
        )
        self._thread.start()

    def hand_over(self, group: Group) -> None:
        """Pass a group to the writer; without a thread it waits for ``commit_here``."""
        self._unreported += 1
        if self._thread is None:
            return
        if self._polled is None or not self._polled.take(group, self._unreported == 1, self._seconds):
            self._handed.put(group)

    def commit_here(self, groups: Sequence[Group]) -> bool:
        """Write these in the caller's thread; False if there is a writer thread, or nothing to write."""
        if self._thread is not None or self._writer is None or not groups:
            return False
        try:
            self._results.append(self._writer.commit(groups))
            self._writer.seal()
        except Exception as exc:
            self._results.append(exc)
            self._writer.abandon()
        return True

    def finish(self, *, failed: bool) -> None:
        """Write what was handed over and, unless something failed, mark a clean end."""
        if self._polled is not None:
            self._polled.leave_to_thread()
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
                self._results.append(exc)


def _run_writer(
    writer: LogWriter,
    handed: SimpleQueue[Group | BegunCommit | None],
    results: deque[Commit | BaseException],
    wake: Callable[[], None],
    turn: threading.Lock,
) -> None:
    """The writer thread: take all waiting groups, commit, report; until None arrives or a call fails.

    ``turn`` comes with a commit that was begun. While groups wait here, none is begun elsewhere.
    """
    stop, is_sealed = False, True  # it was sealed when it was opened
    sealed_at = monotonic()
    while not stop:
        groups: list[Group] = []
        try:
            item = handed.get(timeout=writer.idle_seconds if is_sealed else _SEAL_AFTER)
        except Empty:
            try:
                if is_sealed:
                    if turn.acquire(blocking=False):
                        writer.idle()
                        turn.release()  # not after an error: nothing must be begun then
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
            if not isinstance(item, Group):
                stop = item is None
                break
            groups.append(item)
            try:
                item = handed.get_nowait()
            except Empty:
                break
        try:
            if item is not None and not isinstance(item, Group):
                results.append(item.finish())
                turn.release()
                wake()
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
