"""One simulated machine: a disk, a broker on it, and a clock that the schedule moves.

Owns: opening, turning, flushing, dying: what a node does, without threads and sockets. Must not touch:
clients and what they expect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from random import Random
from typing import Any, Final

from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.records.checkpoint import Snapshot
from holtmq.broker.records.queue_copies import QueueCopies
from holtmq.broker.records.recovery import recover
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work.leases import Ledger
from holtmq.journal import FileJournal, JournalFailed, JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk, Keep
from holtmq.journal.interface import JournalStats
from queue_copies_checked import differences
from simulation.disk_reads import DiskReads
from simulation.promises import BrokenRule

# Small, so that a short history fills, checkpoints and compacts many segments.
_SEGMENT_BYTES: Final = 1_024
_CHECKPOINT_BYTES: Final = 2_048
_COMPACT_BELOW: Final = (0.25, 0.6, 0.95)  # as a broker does it, up to rewriting whatever has lost a message


def _short_turns(*dead_letters: int) -> tuple[TurnLimits, ...]:
    return tuple(
        TurnLimits(queues=queues, dead_letters=some, expired=expired, copies=copies, returned=returned)
        for queues in (0, 1, 3, 2_500)
        for some in dead_letters
        for expired in (0, 1, 4, 1_000)
        for copies in (0, 1, 2, _USUAL.copies)
        for returned in (0, 1, 2, 3_000)
    )


_USUAL: Final = TurnLimits()
# Of a history. Turns may be so short that little work needs several of them, with crashes and clients in
# between. Each limit is short by itself, and dead letters most of all: messages that have left their queue
# wait, and are found there by a checkpoint.
_TURNS: Final = ((), (), _short_turns(0, 1, 150), _short_turns(0, 0, 0, 0, 1))
# Of a history: how likely a transaction is the last thing that is written before the power fails.
_CUT_WHILE_WRITING: Final = (0.0, 0.2, 0.4)
_START_MS: Final = 1_700_000_000_000


@dataclass(slots=True)
class Work:
    """What the journals of one history have done to their segments."""

    checkpoints: int = 0
    compactions: int = 0
    deletions: int = 0

    def add(self, stats: JournalStats) -> None:
        """The journal these belong to has ended."""
        self.checkpoints += stats.checkpoints
        self.compactions += stats.compactions
        self.deletions += stats.deleted_segments


class World:
    """A machine. It has a broker from ``open`` to ``die``, and again after the next ``open``."""

    def __init__(self, seed: int, trace: Callable[[str], None]) -> None:
        self.random = Random(seed)
        self.disk = FakeDisk(seed)
        self.reads = DiskReads(self.disk)
        self.digest = blake2b(digest_size=8)
        self.now_ms = _START_MS
        self.step = 0
        self.done = Work()
        self._compact_below = self.random.choice(_COMPACT_BELOW)
        self._turns = self.random.choice(_TURNS)
        self._cut_while_writing = self.random.choice(_CUT_WHILE_WRITING)
        self.journal: FileJournal
        self.broker: Broker
        self.partitioned: PartitionedService
        self._sessions: set[Ledger] = set()  # also those whose client has left before its commit was complete
        self._trace = trace
        self._writes_later = False
        self._before: QueueCopies | None = None  # of a checkpoint whose moment has not come
        self._copying: tuple[Snapshot, int] | None = None  # a checkpoint that is not copied yet; its position
        self._unwritten: Callable[[], None] | None = None  # one that was copied and is to be written

    @property
    def now(self) -> float:
        """The same moment in seconds."""
        return self.now_ms / 1000

    @property
    def failed(self) -> bool:
        """Whether the journal takes nothing more."""
        return self.journal.failed is not None

    def say(self, line: str) -> None:
        """One line of the history."""
        self.digest.update(line.encode())
        self._trace(f"{self.step:4} {line}")

    def opens(self, prepare: Callable[[], None]) -> bool:
        """Recover; False when the disk failed on the way."""
        try:
            self.journal, recovery = open_journal(
                "simulated",
                JournalOptions(segment_bytes=_SEGMENT_BYTES, compact_below=self._compact_below),
                disk=self.disk,
                clock=lambda: self.now,
            )
            self.journal._checkpointer._background = self._background  # type: ignore[method-assign]
            self.broker = Broker(self.journal)
            self.partitioned = PartitionedService(self.journal, Settings(lookback=0))
            streams = self.broker.attach(self.partitioned)
            self.partitioned.line.at = lambda at, action: self.broker.flow.at(ceil(at * 1000), action)
            self.broker.flow.now_ms = self.now_ms
            recover(self.broker, recovery, self.partitioned.store)
        except (JournalFailed, OSError):
            return False
        if not self.broker.vhosts:
            self.broker.put_vhost("/")
            self.broker.access.put_user(User("guest", "", ()))
            self.broker.access.set_permissions("guest", "/", FULL_ACCESS)
        if self._turns:
            self.broker.vhost("/").widest = 1  # a message for two queues is placed in steps
        streams.follow()
        self.broker.flow.delays.finish_transactions()
        self.partitioned.plan_timed()
        prepare()
        self.journal.flush()
        return not self.failed

    def die(self, keep: Keep) -> None:
        """The process ends; of what was not synced, ``keep`` stays."""
        # Leases are invisible to the garbage collector, and each refers to its holder and back. Unless
        # they are ended, the whole dropped broker stays in memory.
        self._before = self._copying = self._unwritten = None
        for session in self._sessions:
            session.commit()
            session.end_all()
        self._sessions.clear()
        if self.journal.failed is not None:
            # It is raised at every append, and refers to the frames it went through, with leases in them.
            self.journal.failed.__traceback__ = None
        self.done.add(self.journal.stats())
        self.disk.crash(keep)

    def stop(self) -> None:
        """End in good order."""
        self.broker.flow.per_turn = TurnLimits()
        self.broker.complete()
        self._copy(None)
        self._write_checkpoint()
        self.journal.close()
        self.die(Keep.EVERYTHING)

    def turn(self) -> None:
        """Finish the round of reads, or some of the work that it left."""
        self._sessions.update(self.broker.sessions)
        if self.random.random() < 0.3:
            self._write_checkpoint()
        self._copy(self.random.choice((0, 1)))
        if self._before is not None and self._before.copy_some(self.random.choice((1, 1, 2))):
            self._take()
        if self._turns:
            self.broker.flow.per_turn = self.random.choice(self._turns)
        self.broker.flow.turn()
        self.partitioned.turn(self.now)

    def may_lose_power(self) -> None:
        """Perhaps the power fails while the transaction that was appended last is written."""
        if self.random.random() < self._cut_while_writing:
            self.disk.cut_power_after(self.random.choice((0, 0, 1)))

    def let_time_pass(self, ms: int) -> None:
        """Move the clock, and do what has fallen due."""
        self.now_ms += ms
        self.broker.flow.now_ms = self.now_ms
        self.broker.flow.tick()

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether the journal has grown enough for one."""
        return not self.failed and self.journal.bytes_since_checkpoint >= _CHECKPOINT_BYTES

    def checkpoint(self) -> None:
        """Make a checkpoint. Its parts are copied and written now, or while the broker goes on."""
        if self._before is None:
            self._before = QueueCopies(self.broker)
            if self.random.random() < 0.5:
                self._take()

    def _take(self) -> None:
        """This is the moment of the checkpoint."""
        queues, self._before = self._before, None
        assert queues is not None
        self.broker.flow.turn()  # as the node does: what is settled is in the log before the moment
        if self.failed or (position := self.journal.begin_checkpoint()) is None:
            queues.give_up()
            return
        self._copying = Snapshot(self.broker, self.partitioned.store, queues), position
        self._check(queues)
        if self.random.random() < 0.5:
            self._copy(None)
            if self.random.random() < 0.5:
                self._write_checkpoint()

    def _check(self, queues: QueueCopies) -> None:
        """What was copied before the moment must be as it is at the moment."""
        for line in differences(self.broker, queues):
            raise BrokenRule(f"a copy of a queue is not up to date: {line}")

    def _copy(self, most: int | None) -> None:
        """Copy so many partitioned queues of the checkpoint."""
        if self._copying is None:
            return
        taken, position = self._copying
        if taken.capture_more(most):
            self._copying = None
            self._writes_later = True
            self.journal.checkpoint(taken.records(), taken.live(), position)
            self._writes_later = False

    def _background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """As the journal's thread for checkpoints: it may be late."""
        if self._writes_later:
            self._unwritten = lambda: then(work())
        else:
            then(work())

    def _write_checkpoint(self) -> None:
        """On a disk without faults that has to succeed, with all it gives back."""
        write, self._unwritten = self._unwritten, None
        if write is None:
            return
        well = not self.disk.expects_faults
        before = self.journal.stats().checkpoint_failures
        write()
        if well and self.journal.stats().checkpoint_failures > before:
            raise BrokenRule("a checkpoint was incomplete, and the disk had no fault")
