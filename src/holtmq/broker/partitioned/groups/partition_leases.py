"""One group's progress and leases in each partition of a queue.

Owns: the group's cursors, retry counts, holds, delivery marks and recorded leases (durable), and its live
leases. A restart ends those that were not recorded, and their messages are redelivered from the cursor. At
most one lease per partition. Must not touch: clocks, files, sockets, wire names. Time comes in as ``now``.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holtmq.broker.partitioned.groups.further import Further

UNSET: Final = (1 << 64) - 1  # no cursor yet: the group's start applies
FOR_EVER: Final = 10 * 365 * 86_400.0  # seconds of a lease that ends with its holder, and so with the node


class RecordedLease(NamedTuple):
    """A lease in the journal. Its first position is the group's cursor."""

    partition: int
    id: str
    end: int
    expires_us: int
    lent_us: int
    conflated: bool


class PartitionLease(msgspec.Struct, gc=False, eq=False):
    """Positions ``first`` to ``end - 1`` of one partition, delivered to one worker.

    ``ids`` are the ids of the messages delivered first, in order, at ``positions``; empty once one was
    deleted, and after a restart (``ids_unread``) until the queue has read them.
    """

    id: str  # chosen by the caller: one pop may lease several partitions under one id
    partition: int
    first: int  # the lowest position not settled yet
    end: int
    expires_at: float
    attempt: int  # how often the head has been delivered, from 1
    conflated: bool = False  # only the last position was delivered, on behalf of all
    lent_at: float = 0.0
    ids_unread: bool = False
    ids: Sequence[str] = ()
    positions: Sequence[int] = ()
    further: Further | None = None  # its holder takes more messages under the same lease
    # Built on demand; not needed for an ack of exactly the delivered messages.
    _known: dict[str, int] | None = None
    _repeated: dict[str, list[int]] | None = None

    @property
    def size(self) -> int:
        return 1 if self.conflated else self.end - self.first

    @property
    def has_clock(self) -> bool:
        """Whether it ends at a time, and not with its holder."""
        return self.expires_at - self.lent_at < FOR_EVER / 2  # the sum was rounded

    def delivered(self, transaction_ids: Sequence[str], positions: Sequence[int]) -> None:
        """Note the messages that were delivered under this lease."""
        self.ids, self.positions, self.ids_unread = transaction_ids, positions, False

    @property
    def transactions(self) -> Mapping[str, int]:
        """The position of each delivered id."""
        return self._known if self._known is not None else self._look_through()

    @property
    def repeated(self) -> Mapping[str, Sequence[int]]:
        """All positions, ascending, of repeated ids, which occur outside the dedup window."""
        if self._known is None:
            self._look_through()
        return self._repeated or {}

    def _look_through(self) -> dict[str, int]:
        known = self._known = dict(zip(self.ids, self.positions, strict=True))
        if len(known) < len(self.ids):
            places: dict[str, list[int]] = {}
            for transaction_id, position in zip(self.ids, self.positions, strict=True):
                places.setdefault(transaction_id, []).append(position)
            self._repeated = {name: where for name, where in places.items() if len(where) > 1}
        return known

    def mentioned(self, transaction_id: str, cursor: int, before: int) -> int | None:
        """The position that an ack refers to, after ``before`` others of the same call for the same id."""
        if places := self.repeated.get(transaction_id):
            waiting = [position for position in places if position >= cursor] or places
            return waiting[min(before, len(waiting) - 1)]
        return self.transactions.get(transaction_id)

    def deleted(self, position: int) -> None:
        """Remove the deleted message at this position."""
        if self.ids_unread:
            return  # it will not be among those that are read
        known = self._look_through() if self._known is None else self._known
        self.ids = self.positions = ()
        for transaction_id, places in (self._repeated or {}).items():
            if position in places:
                places.remove(position)
                if not places:
                    del known[transaction_id]
                return
        for transaction_id, held in known.items():
            if held == position:
                del known[transaction_id]
                return


class PartitionLeases:
    """One group over all partitions, in columns: 24 bytes per partition, objects only for live leases."""

    __slots__ = (
        "_by_id",
        "_live",
        "attempts",
        "consumed",
        "cursors",
        "holds",
        "marks",
        "recorded",
        "retries",
        "settled_at",
        "unmarked",
    )

    def __init__(self) -> None:
        self.cursors: array[int] = array("Q")  # first position not settled; UNSET when never set
        self.consumed: array[int] = array("Q")  # positions settled, counted again after a seek
        self.settled_at: array[int] = array("Q")  # µs of the last settlement
        self.retries: dict[int, int] = {}
        self.holds: dict[int, int] = {}  # partition -> µs before which a nacked head is not redelivered
        self.attempts: dict[int, int] = {}  # partition -> how often its head has been delivered
        self.marks: dict[int, tuple[int, int]] = {}  # partition -> journalled (attempts, end of positions)
        self.unmarked: dict[int, int] = {}  # partition -> end of deliveries and renewals not journalled yet
        # By partition. It may have expired, or another may have followed it.
        self.recorded: dict[int, RecordedLease] = {}
        self._live: dict[int, PartitionLease] = {}
        self._by_id: dict[str, list[int]] = {}

    def cursor(self, partition: int) -> int | None:
        """The group's own cursor; None when it has none in this partition."""
        if partition >= len(self.cursors) or self.cursors[partition] == UNSET:
            return None
        return self.cursors[partition]

    def settle(self, partition: int, old: int, new: int, retry_count: int, hold_us: int, at_us: int) -> None:
        """Move the cursor from ``old`` to ``new``."""
        if partition >= len(self.cursors):
            self.grow(partition)
        self.cursors[partition] = new
        self.settled_at[partition] = at_us
        if new > old:
            self.consumed[partition] += new - old
            if self.marks:
                self._settle_mark(partition, new)
            if self.recorded and (recorded := self.recorded.get(partition)) and new >= recorded.end:
                del self.recorded[partition]
            lease = self._live.get(partition)
            if lease is not None and new < lease.end:
                self.attempts[partition] = 1  # the rest has been delivered too
            elif partition in self.marks:
                self.attempts[partition] = self.marks[partition][0]
            else:
                self.attempts.pop(partition, None)
                self.unmarked.pop(partition, None)
        if retry_count or self.retries:
            _put(self.retries, partition, retry_count)
        if hold_us or self.holds:
            _put(self.holds, partition, hold_us)

    def seek(self, partition: int, position: int) -> None:
        """Set the cursor to any position; a lease on this partition ends."""
        self.grow(partition)
        self.cursors[partition] = position
        self.end(partition)
        self.recorded.pop(partition, None)
        self.retries.pop(partition, None)
        self.holds.pop(partition, None)
        self.forget_attempts(partition)

    def seek_all(self, positions: "array[int]") -> None:
        """Set the cursor in every partition, UNSET where it has none; every lease ends."""
        self.grow(len(positions) - 1)
        self.cursors[: len(positions)] = positions
        self.retries, self.holds, self.attempts, self.marks, self.unmarked = {}, {}, {}, {}, {}
        self._live, self._by_id, self.recorded = {}, {}, {}

    def columns(self) -> list[dict[Any, Any]]:
        """What is kept by partition or by lease and takes long to free."""
        counted = (self.retries, self.holds, self.attempts, self.marks, self.unmarked)
        return [*counted, self._live, self._by_id, self.recorded]

    def reached(self, partition: int, end: int) -> None:
        """Messages up to ``end`` are delivered; an earlier holder may have had more."""
        before = self.unmarked.get(partition, 0)
        self.unmarked[partition] = end if end > before else before

    def mark(self, partition: int, attempt: int, end: int) -> None:
        """Note that messages up to ``end`` were delivered, the head for the ``attempt``-th time."""
        before = self.marks.get(partition)
        if before is not None and before[1] > end:
            end = before[1]  # an earlier holder has had more
        self.marks[partition] = (attempt, end)
        self.attempts[partition] = attempt

    def forget_attempts(self, partition: int) -> None:
        """Reset the delivery count: the partition's next message has not been delivered."""
        self.attempts.pop(partition, None)
        self.marks.pop(partition, None)
        self.unmarked.pop(partition, None)

    def with_history(self, partitions: Mapping[int, object]) -> set[int]:
        """Those whose next message was delivered or has failed before."""
        known = (self.attempts, self.retries, self.holds)
        if len(partitions) < sum(map(len, known)):
            return {one for one in partitions if any(one in counted for counted in known)}
        return {one for counted in known for one in counted if one in partitions}

    def deleted_head(self, partition: int, head: int) -> None:
        """The partition's next message is this one now: it was delivered with the deleted one, or never."""
        mark = self.marks.pop(partition, None)
        if mark is not None and head < mark[1]:
            self.marks[partition] = (1, mark[1])
        if partition in self.marks or head < self.unmarked.get(partition, 0):
            self.attempts[partition] = 1
        else:
            self.forget_attempts(partition)

    def _settle_mark(self, partition: int, new: int) -> None:
        mark = self.marks.get(partition)
        if mark is not None and new < mark[1]:
            self.marks[partition] = (1, mark[1])
        elif mark is not None:
            del self.marks[partition]

    def grow(self, partition: int) -> None:
        missing = partition + 1 - len(self.cursors)
        if missing > 0:
            self.cursors.extend([UNSET] * missing)
            self.consumed.frombytes(bytes(8 * missing))
            self.settled_at.frombytes(bytes(8 * missing))

    def lend(
        self, partition: int, lease_id: str, first: int, end: int, expires_at: float, now: float = 0.0
    ) -> PartitionLease:
        """Lease positions; the caller has checked that the partition has no live lease."""
        self.end(partition)  # an expired lease may still be there
        attempt = self.attempts.get(partition, 0) + 1
        self.attempts[partition] = attempt
        self.reached(partition, end)
        lease = PartitionLease(lease_id, partition, first, end, expires_at, attempt, lent_at=now)
        self._live[partition] = lease
        self._by_id.setdefault(lease_id, []).append(partition)
        return lease

    def restore(self, lease: RecordedLease, first: int, end: int) -> None:
        """After a restart: the lease is live again, on these positions."""
        self.end(lease.partition)
        self._live[lease.partition] = PartitionLease(
            lease.id,
            lease.partition,
            first,
            end,
            lease.expires_us / 1e6,
            self.attempts.get(lease.partition, 1),
            lease.conflated,
            lease.lent_us / 1e6,
            ids_unread=True,
        )
        self._by_id.setdefault(lease.id, []).append(lease.partition)

    def lease(self, partition: int, now: float) -> PartitionLease | None:
        """The unexpired lease on a partition."""
        lease = self._live.get(partition)
        return lease if lease is not None and now < lease.expires_at else None

    def held(self, partition: int) -> PartitionLease | None:
        """The lease on a partition, expired or not."""
        return self._live.get(partition)

    def shrink(self, partition: int, cursor: int) -> bool:
        """Partial ack: keep the lease on the rest. True when nothing was left and the lease ended."""
        lease = self._live.get(partition)
        if lease is None:
            return False
        if cursor >= lease.end:
            self.end(partition)
            return True
        lease.first = max(lease.first, cursor)
        return False

    def end(self, partition: int) -> PartitionLease | None:
        """Remove the lease, whatever the reason: ack, release, expiry, seek."""
        lease = self._live.pop(partition, None)
        if lease is not None:
            held = self._by_id[lease.id]
            held.remove(partition)
            if not held:
                del self._by_id[lease.id]
        return lease

    def to_record(self, partitions: Iterable[int]) -> Iterator[RecordedLease]:
        """Their leases, except for those that end with their holder."""
        for partition in partitions:
            lease = self._live.get(partition)
            if lease is not None and lease.has_clock:
                yield RecordedLease(
                    partition,
                    lease.id,
                    lease.end,
                    round(lease.expires_at * 1e6),
                    round(lease.lent_at * 1e6),
                    lease.conflated,
                )

    def release(self, partition: int) -> None:
        """The recorded lease has ended without a settlement; that was no attempt."""
        recorded = self.recorded.pop(partition, None)
        if recorded is not None and self.has(partition, recorded.id):
            self.give_back(partition)

    def give_back(self, partition: int) -> None:
        """End a lease whose messages reached no consumer: it does not count as an attempt."""
        self.end(partition)
        attempt = self.attempts.get(partition, 0) - 1
        if attempt > 0:
            self.attempts[partition] = attempt
        else:
            self.attempts.pop(partition, None)
            self.unmarked.pop(partition, None)

    def extend(self, lease_id: str, until: float, now: float) -> tuple[list[PartitionLease], bool]:
        """Renew every unexpired lease with this id, never shortening one; (renewed, is the id known)."""
        held = self._by_id.get(lease_id, ())
        renewed = [self._live[partition] for partition in held if now < self._live[partition].expires_at]
        for lease in renewed:
            lease.expires_at = max(lease.expires_at, until)
            self.reached(lease.partition, lease.end)
        return renewed, bool(held)

    def knows(self, lease_id: str) -> bool:
        return lease_id in self._by_id

    def has(self, partition: int, lease_id: str) -> bool:
        """Whether this partition is held under this id, expired or not."""
        return partition in self._by_id.get(lease_id, ())

    def live(self, now: float) -> Iterator[PartitionLease]:
        return (lease for lease in self._live.values() if now < lease.expires_at)


def _put(sparse: dict[int, int], key: int, value: int) -> None:
    if value:
        sparse[key] = value
    else:
        sparse.pop(key, None)
