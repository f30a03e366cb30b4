"""A consumer group on one queue: its progress, what it may claim next, and its recent ack answers.

Owns: the group's start, its leases and its line of ready partitions, and the visibility rules (delay,
window, hold) that decide what is claimable. Must not touch: other groups, durable decisions (acks are
decided elsewhere and applied here), clocks.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from holtmq.broker.partitioned.groups.acknowledgment import Answers
from holtmq.broker.partitioned.groups.further import Further, Looks
from holtmq.broker.partitioned.groups.partition_leases import (
    UNSET,
    PartitionLease,
    PartitionLeases,
    RecordedLease,
)
from holtmq.broker.partitioned.log.message_log import NO_PARTITION, MessageLog, Partition
from holtmq.broker.partitioned.queue_config import US, QueueConfig
from holtmq.broker.partitioned.waiting.ready_partitions import ReadyPartitions

QUEUE_MODE: Final = "__QUEUE_MODE__"  # the group of consumers that name none
LOOKS: Final = 1_000  # partitions at which a pop looks at once: 2 ms if they wait for the end of a window
_DEADLINES_AT_ONCE: Final = 5_000
RELEASES_MAX: Final = 4096  # answers kept for clients that repeat the ack that released their lease


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The messages of one partition that one claim returned."""

    partition: int
    name: str
    lease: PartitionLease | None  # None: auto-acked
    first: int  # position of the first message
    offsets: "array[int]"  # queue-wide offset of each message, in order
    attempt: int
    holes: tuple[int, ...] = ()  # positions in between whose message was deleted
    continues: bool = False  # under the lease of earlier deliveries

    @property
    def end(self) -> int:
        return self.first + len(self.offsets) + len(self.holes)

    @property
    def positions(self) -> Sequence[int]:
        """The position of each message, in order."""
        span = range(self.first, self.end)
        if not self.holes:
            return span
        holes = set(self.holes)  # after bulk deletions there may be thousands of holes
        return [position for position in span if position not in holes]

    def shortened(self, count: int) -> "Delivery":
        """Only the first ``count`` messages; the lease, if any, ends after them."""
        if count >= len(self.offsets):
            return self
        end = self.positions[count - 1] + 1
        if self.lease is not None:
            self.lease.end = end
            if self.lease.further is not None:
                self.lease.further.note(self.partition)
        holes = tuple(hole for hole in self.holes if hole < end)
        return replace(self, offsets=self.offsets[:count], holes=holes)


def micros(now: float) -> int:
    """Seconds to whole microseconds; rounded, so that at a deadline the result is not one too low."""
    return round(now * US)


class Group:
    """State of one group. The partitions and the log belong to the queue and are only read here."""

    __slots__ = (
        "_log",
        "_partitions",
        "_releases",
        "_start_offset",
        "conflates",
        "leases",
        "lined_up",
        "name",
        "number",
        "partition_starts",
        "ready",
        "start_us",
    )

    def __init__(self, name: str, number: int, partitions: Sequence[Partition], log: MessageLog) -> None:
        self.name = name
        self.number = number
        self.conflates = False
        self.start_us: int | None = None  # None: it has popped only single partitions
        self.partition_starts: dict[str, int] = {}
        self.leases = PartitionLeases()
        self.ready = ReadyPartitions()
        self.lined_up = False  # the line is built at the first "any partition" claim
        self._partitions = partitions
        self._log = log
        self._start_offset: int | None = None
        self._releases: OrderedDict[tuple[str, int], Answers] = OrderedDict()

    def start(self, start_us: int, partition: str | None) -> None:
        if partition is not None:
            self.partition_starts[partition] = start_us
            return
        self.start_us = start_us
        self._start_offset = None
        self.lined_up = False  # other partitions may be claimable now

    def cursor(self, partition: int) -> int | None:
        """The first position this group has not settled; None when it does not read this partition."""
        own = self.leases.cursor(partition)
        if own is None:
            own = self._start_position(partition)
            if own is None:
                return None
        return max(own, self._partitions[partition].first)

    def lag(self, partition: int) -> int:
        cursor = self.cursor(partition)
        return 0 if cursor is None else self._partitions[partition].count(cursor)

    def members(self) -> int:
        """The number of partitions where the group has its own cursor."""
        return len(self.leases.cursors) - self.leases.cursors.count(UNSET)

    def _start_position(self, partition: int) -> int | None:
        where = self._partitions[partition]
        if self.partition_starts:
            exact = self.partition_starts.get(where.name)
            if exact is not None:
                # A start after the newest message: everything stored is older.
                future = exact > self._log.last_created_us
                return where.end if future else where.position_of(self._log.offset_at(exact))
        if self.start_us is None:
            return None
        if self.start_us == 0:
            return where.first
        if self._start_offset is None:
            if self.start_us > self._log.last_created_us:
                return where.end
            self._start_offset = self._log.offset_at(self.start_us)
        return where.position_of(self._start_offset)

    def claim(
        self,
        partition: int,
        lease_id: str,
        limit: int,
        now: float,
        ttl: float,
        config: QueueConfig,
        further: Further | None = None,
    ) -> Delivery | None:
        """Claim the next visible messages of one partition; a blank ``lease_id`` creates no lease.

        With ``further`` the holder may take more messages under the lease: see ``claim_any``.
        """
        span = self.visible(partition, now, config)
        if span is None or limit <= 0:
            return None
        first, end = span
        where = self._partitions[partition]
        oldest = first
        if self.conflates:
            first = end - 1
            limit = 1
        offsets, holes, end = where.stored_from(first, end, limit)
        if not lease_id:
            return Delivery(partition, where.name, None, first, offsets, 1, holes)
        lease = self.leases.lend(partition, lease_id, oldest, end, now + ttl, now)
        lease.conflated = self.conflates
        if not self.conflates:
            lease.further = further
        self.ready.wake_at(partition, lease.expires_at)
        return Delivery(partition, where.name, lease, first, offsets, lease.attempt, holes)

    def _claim_more(
        self, partition: int, limit: int, now: float, config: QueueConfig, further: Further
    ) -> Delivery | None:
        """Claim the messages that follow those under the holder's lease; None also if it has ended."""
        leases, where = self.leases, self._partitions[partition]
        lease = leases.lease(partition, now)
        if lease is None or lease.further is not further:
            return None
        span = self._visible_from(max(lease.end, where.first), partition, now, config)
        if span is None:
            return None
        first, end = span
        delivered_before = leases.marks.get(partition, (0, 0))[1]
        if first < delivered_before:
            end = where.live_end(min(end, delivered_before))
        offsets, holes, end = where.stored_from(first, end, limit)
        lease.end = end
        leases.reached(partition, end)
        attempt = 2 if first < delivered_before else 1
        return Delivery(partition, where.name, lease, first, offsets, attempt, holes, continues=True)

    def claim_any(
        self,
        lease_id: str,
        limit: int,
        most: int,
        now: float,
        ttl: float,
        config: QueueConfig,
        looks: Looks,
        further: Further | None = None,
    ) -> list[Delivery]:
        """Claim up to ``most`` partitions and ``limit`` messages in total, in the order of the line.

        With ``further``, if the line is empty: more messages of the partitions that it has leased already.
        If no ``looks`` are left, there may be messages in partitions that it has not looked at.
        """
        self.advance(now)
        if not self.lined_up:
            self.line_up()
        deliveries: list[Delivery] = []
        while limit > 0 and len(deliveries) < most and looks.left > 0:
            partition = self.ready.take()
            if partition is not None:
                delivery = self.claim(partition, lease_id, limit, now, ttl, config, further)
            elif passed := self.advance(now):  # of very many leases that have expired, the next ones
                looks.left -= passed
                continue
            elif further is not None and (partition := further.take()) is not None:
                delivery = self._claim_more(partition, limit, now, config, further)
            else:
                break
            if delivery is not None:
                deliveries.append(delivery)
                limit -= len(delivery.offsets)
            looks.left -= 1
        if further is not None:  # not before: a claim has each partition once
            for delivery in deliveries:
                if delivery.end < self._partitions[delivery.partition].end:
                    further.note(delivery.partition)
        return deliveries

    def visible(self, partition: int, now: float, config: QueueConfig) -> tuple[int, int] | None:
        """The claimable span of a partition, or None; plans the next check if only time is missing.

        Its first and last position hold messages; some in between may have been deleted.
        """
        if self.leases.lease(partition, now) is not None:
            return None
        first = self.cursor(partition)
        return None if first is None else self._visible_from(first, partition, now, config)

    def _visible_from(
        self, first: int, partition: int, now: float, config: QueueConfig
    ) -> tuple[int, int] | None:
        where = self._partitions[partition]
        if first >= where.end:
            return None
        now_us, end, durable_end = micros(now), where.end, self._log.durable_end
        if where.offsets[-1] >= durable_end:
            end = where.position_of(durable_end)
            if first >= end:
                return None
        if where.holes is not None:
            first, end = where.live_from(first), where.live_end(end)
            if first >= end:
                return None
        hold_us = self.leases.holds.get(partition, 0)
        if hold_us > now_us:
            self._look_again(partition, hold_us)
            return None
        if config.window_buffer:
            quiet_us = self._log.created_us(where.offsets[-1]) + config.window_us
            if quiet_us > now_us:
                self._look_again(partition, quiet_us)
                return None
        if config.delayed_processing:
            end = min(end, where.position_of(self._log.offset_at(now_us - config.delay_us + 1)))
            if end <= first:
                head_us = self._log.created_us(where.offsets[first - where.first])
                self._look_again(partition, head_us + config.delay_us)
                return None
            end = where.live_end(end)
        return first, end

    def _look_again(self, partition: int, at_us: int) -> None:
        self.ready.wake_at(partition, at_us / US)

    def seek_all(self, offset: int) -> None:
        """Set the cursor of every partition to its first message at or after this offset; all leases end."""
        own = self.leases.cursors
        positions = array(
            "Q", [where.first + bisect_left(where.offsets, offset) for where in self._partitions]
        )
        if NO_PARTITION in self._partitions:
            for index, where in enumerate(self._partitions):
                if where is NO_PARTITION:
                    positions[index] = own[index] if index < len(own) else UNSET
        self.leases.seek_all(positions)
        self.lined_up = False

    def line_up(self) -> None:
        """Rebuild the line: once per group and restart, and when the rules change."""
        self.lined_up = True
        unread = self._unread()
        held = {lease.partition: lease for lease in self.leases.live(float("-inf"))}
        if held:
            for partition in unread:
                if (lease := held.get(partition)) is not None and lease.further is not None:
                    lease.further.note(partition)
            unread = [partition for partition in unread if partition not in held]
        self.ready.rebuild(unread, {partition: lease.expires_at for partition, lease in held.items()})

    def _unread(self) -> list[int]:
        """The partitions with messages behind the cursor; there may be 100,000."""
        partitions = self._partitions
        if self.partition_starts or self.start_us:
            cursors = map(self.cursor, range(len(partitions)))
            return [
                index
                for index, (where, cursor) in enumerate(zip(partitions, cursors, strict=True))
                if cursor is not None and cursor < where.end
            ]
        # The same without a call for each partition: where the group has no cursor it reads all or nothing.
        reads_all = self.start_us == 0
        own = self.leases.cursors
        found = [
            index
            for index, (where, cursor) in enumerate(zip(partitions, own, strict=False))
            if where.offsets and (reads_all if cursor == UNSET else cursor < where.first + len(where.offsets))
        ]
        if reads_all:
            found += [index for index in range(len(own), len(partitions)) if partitions[index].offsets]
        return found

    def offer(self, partitions: Iterable[int]) -> None:
        """These partitions may have become claimable. One that is leased joins the line when that ends; its
        holder may get further messages."""
        if not self.lined_up:
            return
        offer, held = self.ready.offer, self.leases.held
        for partition in partitions:
            lease = held(partition)
            if lease is None:
                offer(partition)
            elif lease.further is not None:
                lease.further.note(partition)

    def record(self, lease: RecordedLease) -> None:
        """Note that a lease is in the journal; while that is read after a restart, the lease begins here."""
        leases, where = self.leases, self._partitions[lease.partition]
        leases.recorded[lease.partition] = lease
        held = leases.held(lease.partition)
        if held is not None and held.id == lease.id:
            held.expires_at = max(held.expires_at, lease.expires_us / US)  # renewed
            return
        first = self.cursor(lease.partition) or where.first
        end = where.live_end(min(lease.end, where.end))
        if where.count(first, max(first, end)):
            leases.restore(lease, first, end)
            self.ready.wake_at(lease.partition, lease.expires_us / US)

    def advance(self, now: float) -> int:
        """Process deadlines that have passed, of very many some: expired leases end, delays and windows
        elapse. Returns how many."""
        passed = self.ready.due(now, _DEADLINES_AT_ONCE)
        for partition in passed:
            lease = self.leases.lease(partition, now)
            if lease is not None:  # renewed, or there are further messages
                self.ready.wake_at(partition, lease.expires_at)
                if lease.further is not None:
                    lease.further.note(partition)
                continue
            self.leases.end(partition)
            self.offer((partition,))
        return len(passed)

    def remember_release(self, lease_id: str, partition: int, answers: Answers) -> None:
        self._releases[lease_id, partition] = answers
        if len(self._releases) > RELEASES_MAX:
            self._releases.popitem(last=False)  # a plain dict finds its first entry slowly

    def released_answers(self, lease_id: str, partition: int) -> Answers | None:
        """The answers to the ack that released this lease, for a client that did not receive them."""
        return self._releases.get((lease_id, partition))

    def lagging(self) -> Iterator[tuple[int, int]]:
        """(partition, lag) of every partition with a lag."""
        for partition in range(len(self._partitions)):
            lag = self.lag(partition)
            if lag:
                yield partition, lag
