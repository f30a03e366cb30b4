"""Small commits whose answer comes from another process, without the writer thread.

Owns: which groups the event loop's thread sends itself, how long it polls for their answer, and handing them
to the writer thread after that. Must not touch: what is written.

A client that waits for each confirm waits for four wake-ups: of the loop, of the writer thread twice, of the
loop again. That takes 230 µs, where PostgreSQL needs 300 (bench/README.md, "Failover"). Here the loop does
not sleep, and serves its sockets between two looks for the answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from .interface import Later
from .writer import BegunCommit, Commit, Group, LogWriter

# A client on this machine that waits for each confirm publishes again within this time.
_NEXT_SECONDS: Final = 0.0002


class PolledCommits:
    """Used in the event loop's thread only, but for ``turn``."""

    def __init__(
        self,
        writer: LogWriter,
        turn: threading.Lock,
        later: Later,
        note: Callable[[Commit], None],
        collect: Callable[[], None],
        flush: Callable[[], None],
        hand_over: Callable[[BegunCommit | Group], None],
    ) -> None:
        self._writer = writer
        # Held by the thread that uses the writer. Neither waits for it: the loop leaves a group to the writer
        # thread, and the thread puts off a heartbeat.
        self._turn = turn
        self._later = later
        self._note = note  # a result, for ``collect``
        self._collect = collect
        self._flush = flush
        self._hand_over = hand_over
        self.count = 0  # commits that were reported without the writer thread
        self._begun: BegunCommit | None = None
        self._waiting: list[Group] = []
        self._polls_until = 0.0
        self._ended_at = 0.0
        self._expects_next = False

    def take(self, group: Group, is_alone: bool, last_seconds: float) -> bool:
        """Begin to commit this group, or keep it for when the one that is begun has ended.

        False: the writer thread must have it. ``is_alone``: every earlier group has been reported.
        ``last_seconds`` is what the last commit took: polling is of use only if this one takes no longer.
        """
        if self._begun is not None:
            self._waiting.append(group)
            return True
        return is_alone and last_seconds < self._writer.poll_seconds and self._begin([group])

    def leave_to_thread(self) -> None:
        """The writer thread waits for the answer, and gets the groups that came in the meantime."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._hand_over(begun)
            self._hand_over_waiting()

    def _begin(self, groups: Sequence[Group]) -> bool:
        if not self._turn.acquire(blocking=False):
            return False
        self._begun = self._writer.begin(groups)
        if self._begun is None:
            self._turn.release()
            return False
        now = monotonic()
        self._expects_next = now - self._ended_at < _NEXT_SECONDS
        self._polls_until = now + self._writer.poll_seconds
        self._later(0, self._poll)
        return True

    def _poll(self) -> None:
        """Look for the answer, once in each turn of the loop."""
        if self._begun is None:
            return
        try:
            commit = self._begun.poll()
        except Exception as exc:  # the writer is in an unknown state: its thread ends it
            self._begun = _Failed(exc)
            self.leave_to_thread()
            return
        if commit is not None:
            self._committed(commit)
        elif monotonic() < self._polls_until:
            os.sched_yield()  # to the server, if it waits for this processor
            self._later(0, self._poll)
        else:
            self.leave_to_thread()

    def _committed(self, commit: Commit) -> None:
        self.count += 1
        self._begun = None
        self._turn.release()
        self._note(commit)  # before the writer thread gets the next groups, and can note theirs
        groups, self._waiting = self._waiting, []
        if groups and not self._begin(groups):
            self._waiting = groups
            self._hand_over_waiting()
        self._ended_at = monotonic()
        self._collect()
        if self._expects_next and self._begun is None:
            self._flush()  # one client waits: its confirm need not wait for the node's next turn
            self._later(0, self._await_next)

    def _await_next(self) -> None:
        """Do not let the loop sleep while the client's next message is likely to arrive."""
        if self._begun is None and monotonic() - self._ended_at < _NEXT_SECONDS:
            os.sched_yield()
            self._later(0, self._await_next)

    def _hand_over_waiting(self) -> None:
        groups, self._waiting = self._waiting, []
        for group in groups:
            self._hand_over(group)


@dataclass(frozen=True, slots=True)
class _Failed:
    """In place of a commit of which nothing is known."""

    error: Exception

    def poll(self) -> Commit | None:
        return None

    def finish(self) -> Commit:
        raise self.error
