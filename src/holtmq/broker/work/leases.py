"""Which session holds which messages: one ledger per session (an AMQP channel), with two indexes.

Owns: live leases by number and by holder. A lease ends once: by ack, reject, release, or when its holder
goes away. Must not touch: clocks, files, wire names. Leases that expire are in ``timed_leases.py`` and
``partition_leases.py``.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from holtmq.broker.message import Message

if TYPE_CHECKING:
    from holtmq.broker.topology.destinations import Queue

_NOTE_MS: Final = 1_000
_NOTES_MAX: Final = 64
_holder: Final = attrgetter("holder")
REVOKED_MAX: Final = 100_000  # revoked leases remembered per session, for late acks


class Holder:
    """A holder of leases: a consumer, or a session's ``basic.get``.

    A lease has no start time, which would cost time in each delivery. Instead the holder notes about once a
    second which lease number is next.
    """

    __slots__ = ("__weakref__", "_notes", "held", "note_due_ms")

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}
        self.note_due_ms = 0  # before this time ``note_delivery`` has nothing to do
        self._notes: list[tuple[int, int]] = []  # (time, first lease number granted from then on)

    def note_delivery(self, now_ms: int, first: int) -> None:
        """Note that leases from number ``first`` on begin now. Callers may skip this before ``note_due_ms``:
        the call would take 2 % of a basic.get."""
        if now_ms < self.note_due_ms:
            return
        notes = self._notes
        notes.append((now_ms, first))
        self.note_due_ms = now_ms + _NOTE_MS
        if len(notes) > _NOTES_MAX:
            self.held_since_ms()  # drops notes about settled leases
            if len(notes) > _NOTES_MAX:
                del notes[1:-1:2]  # thin out the older notes

    def held_since_ms(self) -> int | None:
        """When the oldest lease began, up to a second early; None when there is none."""
        notes = self._notes
        if not self.held:
            notes.clear()
            self.note_due_ms = 0
            return None
        oldest = min(self.held) if len(self.held) < _NOTES_MAX else next(iter(self.held))
        past = 0
        while past + 1 < len(notes) and notes[past + 1][1] <= oldest:
            past += 1
        del notes[:past]
        return notes[0][0] if notes else None


class Lease(msgspec.Struct, gc=False, eq=False):
    """One message of one queue, leased to one holder; ``holder`` is None after the lease was revoked.

    Not tracked by the garbage collector, since every delivery creates one. Code that drops a session must
    end its leases (``Ledger.end_all``), which breaks the reference cycle of holder and lease.
    """

    number: int
    queue: "Queue"
    message: Message
    holder: Holder | None


class Ledger:
    """All leases of one session. Numbers rise from 1 and are never reused.

    One settlement, and both counts, take constant time; ``end_upto`` takes time proportional to the numbers
    it passes, each at most once; ``revoke`` to that holder's own leases.
    """

    __slots__ = ("_aside", "_floor", "_revoked", "by_number", "last")

    def __init__(self) -> None:
        self.by_number: dict[int, Lease] = {}
        self._aside: dict[int, Lease] = {}  # ended in an open transaction
        self.last = 0
        self._floor = 0  # end_upto has passed every number up to here
        self._revoked = 0

    def __len__(self) -> int:
        return len(self.by_number) - self._revoked

    def grant(self, queue: "Queue", message: Message, holder: Holder) -> Lease:
        """Lease one message. (Consumers inline this for batches.)"""
        self.last = number = self.last + 1
        lease = Lease(number, queue, message, holder)
        self.by_number[number] = holder.held[number] = lease
        return lease

    def end(self, number: int) -> Lease | None:
        """End one lease; None when there is no such lease."""
        lease = self.by_number.pop(number, None)
        if lease is not None:
            if lease.holder is None:
                self._revoked -= 1
            else:
                lease.holder.held.pop(number, None)  # not there after ``restore_to_end``
        return lease

    @property
    def revoked(self) -> int:
        """Revoked leases that may be settled late."""
        return self._revoked

    def forgot_revoked(self) -> None:
        """Count a revoked lease that the caller removed from ``by_number`` itself."""
        self._revoked -= 1

    def end_upto(self, number: int) -> list[Lease]:
        """End every lease up to and including ``number``, in order; 0 means all."""
        upto = min(number, self.last) or self.last
        by_number = self.by_number
        if upto - self._floor <= 4 * len(by_number):
            candidates = [n for n in range(self._floor + 1, upto + 1) if n in by_number]
        else:
            candidates = sorted(n for n in by_number if n <= upto)
        self._floor = max(self._floor, upto)
        take = by_number.pop
        ended = [take(n) for n in candidates]
        for lease in ended:
            if lease.holder is None:
                self._revoked -= 1
            else:
                del lease.holder.held[lease.number]
        return ended

    def revoke(self, holder: Holder, numbers: Iterable[int] | None = None) -> list[Lease]:
        """Revoke those of these leases that the holder has; None: all. A late ack of them is no error."""
        wanted = list(holder.held) if numbers is None else numbers
        leases = [lease for number in wanted if (lease := holder.held.pop(number, None)) is not None]
        for lease in leases:
            lease.holder = None
        self._revoked += len(leases)
        if self._revoked > REVOKED_MAX:
            self._forget_revoked(self._revoked - REVOKED_MAX)
        return leases

    def end_some(self, numbers: Iterable[int]) -> list[Lease]:
        """End those of these leases that have not ended; a late one (``holder`` is None) is among them."""
        return [lease for number in numbers if (lease := self.end(number)) is not None]

    def set_aside(self, leases: list[Lease]) -> None:
        """Keep leases that an open transaction has ended: they are outstanding until its commit."""
        self._aside.update((lease.number, lease) for lease in leases)

    def commit(self) -> None:
        """Forget the leases that were set aside: they have ended."""
        self._aside.clear()

    def outstanding(self) -> list[Lease]:
        """Every lease whose message is not in its queue; a checkpoint must keep those messages."""
        return [
            lease
            for leases in (self.by_number, self._aside)
            for lease in leases.values()
            if lease.holder is not None
        ]

    def restore(self, leases: list[Lease]) -> None:
        """Undo ``end``: a transaction that ended these leases was rolled back."""
        for lease in leases:
            self._aside.pop(lease.number, None)
            self.by_number[lease.number] = lease
            if lease.holder is None:
                self._revoked += 1
            else:
                lease.holder.held[lease.number] = lease
            self._floor = min(self._floor, lease.number - 1)

    def restore_to_end(self) -> None:
        """``restore`` all leases that were set aside, since the session ends; their holders are gone."""
        self._revoked += list(map(_holder, self._aside.values())).count(None)
        self.by_number.update(self._aside)
        self._aside = {}
        self._floor = 0

    def end_all(self) -> list[Lease]:
        """End every lease; return those that were not revoked."""
        leases = [lease for lease in self.by_number.values() if lease.holder is not None]
        for holder in {lease.holder for lease in leases}:
            assert holder is not None
            holder.held.clear()
        self.by_number.clear()
        self._revoked = 0
        return leases

    def _forget_revoked(self, count: int) -> None:
        oldest = [n for n, lease in self.by_number.items() if lease.holder is None][:count]
        for number in oldest:
            del self.by_number[number]
        self._revoked -= len(oldest)
