"""Partitioned queues told a second time, in plain lists: what every command must do.

Owns: the expected state and the rules as the API's contract words them, position by position. Must not touch:
the broker's code for the same rules; a shared mistake would be invisible.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from holtmq.broker.partitioned.groups.acknowledgment import AckStatus, AckVerdict
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.groups.subscriptions import StartMode

US: Final = 1_000_000
Letter = tuple[str, str, int, int, str]  # group, partition, position, retries spent, error
Row = tuple[str, str, str]  # queue, partition, transaction id
PartKey = tuple[str, int, int, int, int]  # writer, batch, task, attempt, part


@dataclass(frozen=True, slots=True)
class Options:
    """What one simulated queue was told; seconds."""

    lease: int
    retry_limit: int
    dedup_window: int
    retry_delay_ms: int = 0
    delay: float = 0.0
    retention: int = 0


@dataclass(frozen=True, slots=True)
class Partition:
    """Everything ever stored, by position; retention took what is below ``first``."""

    ids: tuple[str, ...] = ()
    created_us: tuple[int, ...] = ()
    first: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """How far a group is in one partition."""

    cursor: int
    retries: int = 0
    hold_us: int = 0


@dataclass(slots=True)
class Group:
    start_us: int  # what is older never concerns it
    places: dict[str, Place] = field(default_factory=dict)


@dataclass(slots=True)
class Queue:
    options: Options
    partitions: dict[str, Partition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    letters: tuple[Letter, ...] = ()
    last_us: int = 0

    def copy(self) -> "Queue":
        groups = {name: Group(group.start_us, dict(group.places)) for name, group in self.groups.items()}
        return Queue(self.options, dict(self.partitions), groups, self.letters, self.last_us)

    def place(self, group: str, partition: str) -> Place:
        """Where the group stands, by its own progress or by its start."""
        part, reader = self.partitions[partition], self.groups[group]
        place = reader.places.get(partition)
        if place is None:
            place = Place(sum(us < reader.start_us for us in part.created_us))
        return place if place.cursor >= part.first else Place(part.first)  # what its head has spent is gone


@dataclass(slots=True)
class Lease:
    """What one pop took from one partition. It outlives a restart if it had been recorded."""

    id: str
    queue: str
    group: str
    partition: str
    first: int
    end: int
    expires_at: float
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Timer:
    """A message that waits for its time."""

    partition: str
    id: str
    due_us: int
    message_id: str


@dataclass(slots=True)
class State:
    """All that is durable. Copies share what does not change."""

    queues: dict[str, Queue]
    # What a group asked for first, by (group, queue): a start, or None for the very beginning.
    subscriptions: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    staged: dict[PartKey, tuple[Row, ...]] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)  # writer -> last batch
    timers: dict[tuple[str, str], Timer] = field(default_factory=dict)  # by queue and key
    spool: tuple[Row, ...] = ()
    spooling: bool = False

    def copy(self) -> "State":
        return State(
            {name: q.copy() for name, q in self.queues.items()},
            dict(self.subscriptions),
            dict(self.staged),
            dict(self.committed),
            dict(self.timers),
            self.spool,
            self.spooling,
        )

    def take_in(
        self, queue: str, items: list[tuple[str, str]], now_us: int, *, spooled: bool
    ) -> list[bool] | None:
        """A push from outside: which were duplicates, or None when it went to the spool."""
        if spooled:
            self.spool += tuple((queue, *item) for item in items)
            return None
        return self.push(queue, items, now_us)

    def push(
        self,
        queue: str,
        items: list[tuple[str, str]],
        now_us: int,
        *,
        apart: bool = False,
        window_end_us: int = 0,
    ) -> list[bool]:
        """Store what is new; which of the items were duplicates. ``apart``: from a full millisecond on."""
        q = self.queues[queue]
        oldest_us = (window_end_us or now_us) - q.options.dedup_window * US
        next_us = max(now_us, q.last_us + 1)
        if apart:
            next_us += -next_us % 1000
        duplicates: list[bool] = []
        for name, one in items:
            part = q.partitions.get(name, Partition())
            known = any(
                mine == one and us >= oldest_us for mine, us in zip(part.ids, part.created_us, strict=True)
            )
            duplicates.append(known)
            if not known:
                q.partitions[name] = Partition((*part.ids, one), (*part.created_us, next_us), part.first)
                q.last_us, next_us = next_us, next_us + 1
        for name, _ in items:
            q.partitions.setdefault(name, Partition())
        return duplicates

    def push_rows(
        self, rows: Iterable[Row], now_us: int, *, apart: bool = False, window_end_us: int = 0
    ) -> int:
        """Store rows of any queues, those of each queue in their order; how many were duplicates."""
        by_queue: dict[str, list[tuple[str, str]]] = {}
        for queue, partition, one in rows:
            by_queue.setdefault(queue, []).append((partition, one))
        return sum(
            sum(self.push(queue, items, now_us, apart=apart, window_end_us=window_end_us))
            for queue, items in by_queue.items()
        )

    def commit(
        self,
        writer: str,
        batch: int,
        winners: Iterable[tuple[int, int]],
        now_us: int,
        window_end_us: int = 0,
    ) -> tuple[int, int]:
        """Publish what the winning (task, attempt) staged, task by task; rows stored, and duplicates."""
        rows: list[Row] = []
        for task, attempt in sorted(winners):
            parts = [key for key in self.staged if key[:4] == (writer, batch, task, attempt)]
            rows += [row for key in sorted(parts) for row in self.staged[key]]
        duplicates = self.push_rows(rows, now_us, window_end_us=window_end_us)
        self.committed[writer] = batch
        self.staged = {k: rows for k, rows in self.staged.items() if k[0] != writer or k[1] > batch}
        return len(rows) - duplicates, duplicates

    def drain(self, now_us: int) -> None:
        """Maintenance is over: everything that waits reaches its queue, in order."""
        rows, self.spool = self.spool, ()
        self.push_rows(rows, now_us)

    def fire(self, keys: Iterable[tuple[str, str]], now_us: int) -> None:
        """These timers are due, and become messages in the order of their ids."""
        due = sorted(((key, self.timers.pop(key)) for key in keys), key=lambda one: one[1].message_id)
        self.push_rows([(key[0], timer.partition, timer.id) for key, timer in due], now_us, apart=True)

    def replay(self, queue: str, place: int, one: str, now_us: int) -> bool:
        """A dead letter becomes a message again, under the id ``one``; whether that id was known."""
        q = self.queues[queue]
        letter = q.letters[place]
        q.letters = q.letters[:place] + q.letters[place + 1 :]
        return self.push(queue, [(letter[1], one)], now_us)[0]

    def subscribe(self, queue: str, group: str, mode: StartMode, now_us: int) -> bool:
        """The first pop of a group leaves a record; whether this was it."""
        if group == QUEUE_MODE or (group, queue) in self.subscriptions:
            return False
        self.subscriptions[group, queue] = mode.value, 0 if mode is StartMode.ALL else now_us
        return True

    def join(self, queue: str, group: str, just_subscribed: bool) -> bool:
        """Give the group its start on this queue; whether it had none."""
        q = self.queues[queue]
        if group in q.groups:
            return False
        mode, start_us = self.subscriptions.get((group, queue), (StartMode.ALL.value, 0))
        if mode == StartMode.NEW.value:
            # Whatever the clock did: exactly what is pushed after the record was made.
            start_us = q.last_us + 1 if just_subscribed else min(start_us, q.last_us + 1)
        q.groups[group] = Group(start_us)
        return True

    def span(self, queue: str, group: str, partition: str, now_us: int) -> tuple[int, int] | None:
        """The positions that may be handed out, leases aside."""
        q = self.queues[queue]
        if group not in q.groups:
            return None
        part, place = q.partitions[partition], q.place(group, partition)
        if place.hold_us > now_us:
            return None
        end = len(part.ids)
        if q.options.delay:
            end = sum(us <= now_us - round(q.options.delay * US) for us in part.created_us)
        return (place.cursor, end) if place.cursor < end else None

    def settle_at_delivery(self, queue: str, group: str, partition: str, end: int) -> None:
        """Auto-ack: the cursor moves with the hand-out."""
        self.queues[queue].groups[group].places[partition] = Place(end)

    def ack(
        self, lease: Lease, said: dict[int, AckStatus], live: Lease | None, now_us: int
    ) -> dict[int, AckVerdict]:
        """Section 5 of the contract, for one partition and group; ``live`` is the lease that holds it."""
        q = self.queues[lease.queue]
        place = q.place(lease.group, lease.partition)
        verdicts: dict[int, AckVerdict] = {}
        for position in [p for p in said if p < place.cursor]:
            done = said[position] is AckStatus.COMPLETED
            verdicts[position] = AckVerdict.ACKNOWLEDGED if done else AckVerdict.STALE
        said = {p: status for p, status in said.items() if p >= place.cursor}
        if not said:
            return verdicts
        to, spent, failed, filed, ends = _settled(said, place, q.options.retry_limit)
        if ends is None:
            ends = live is not None and to >= live.end
            spent = 0 if ends else spent
        hold_us = now_us + q.options.retry_delay_ms * 1000 if failed and q.options.retry_delay_ms else 0
        q.groups[lease.group].places[lease.partition] = Place(to, spent, hold_us)
        q.letters += tuple((lease.group, lease.partition, p, place.retries, f"e{p}") for p in filed)
        if live is not None:
            live.first = max(live.first, to)
            live.ended = live.ended or ends
        for position in said:
            verdicts[position] = (
                AckVerdict.REDELIVERED
                if position >= to
                else AckVerdict.FILED
                if position in filed
                else AckVerdict.ACKNOWLEDGED
            )
        return verdicts

    def retain(self, queue: str, now_us: int, durable: "State") -> bool:
        """Let go of what is too old, read or not, and on the disk; whether there was any."""
        q = self.queues[queue]
        changed = False
        for name, part in q.partitions.items() if q.options.retention else ():
            old = sum(us < now_us - q.options.retention * US for us in part.created_us)
            old = min(old, len(durable.queues[queue].partitions.get(name, Partition()).ids))
            if old > part.first:
                q.partitions[name] = replace(part, first=old)
                changed = True
        return changed


def _settled(
    said: dict[int, AckStatus], place: Place, limit: int
) -> tuple[int, int, bool, list[int], bool | None]:
    """Cursor, budget spent, did the head fail, what is filed, does the lease end (None: it depends)."""
    bad = [p for p, status in said.items() if status is not AckStatus.COMPLETED]
    completed = [p for p, status in said.items() if status is AckStatus.COMPLETED]
    if not bad:
        return max(completed) + 1, place.retries, False, [], None
    head, exhausted = min(bad), place.retries >= limit
    if said[head] is AckStatus.RETRY or (said[head] is AckStatus.FAILED and not exhausted):
        failed = said[head] is AckStatus.FAILED
        to = max([p + 1 for p in completed if p < head], default=place.cursor)
        return to, place.retries + failed, failed, [], True
    filed, at, spent = [head], head + 1, 0
    while at <= max(said):
        status = said.get(at)
        if status is AckStatus.DEAD_LETTER or (status is AckStatus.FAILED and exhausted):
            filed.append(at)
        elif status is AckStatus.FAILED:
            spent = place.retries
            break
        elif status is AckStatus.RETRY or (status is None and at > max(completed, default=-1)):
            break
        at += 1
    return at, spent, False, filed, True
