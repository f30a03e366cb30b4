"""A service on a disk that can crash, whose batches several records publish."""

from collections.abc import Generator

from holtmq.broker.partitioned.commands.staging_records import (
    Committed,
    StagedRow,
    Winner,
)
from holtmq.broker.partitioned.groups.joining import decide_seek
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.range_reads import describe
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.journal import FileJournal, JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk, Keep

NOW = 1_800_000_000.0
QUEUES = ("q", "r")
Steps = Generator[None, None, Committed]


class Site:
    """A service on a disk that can crash."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.now = NOW
        self.open()

    def open(self) -> None:
        options = JournalOptions(segment_bytes=2048)
        self.journal: FileJournal
        self.journal, found = open_journal("data", options, disk=self.disk)
        self.service = PartitionedService(self.journal, Settings(0, "all"))
        for kind, payload in found.checkpoint:
            self.service.store.fold(-1, kind, payload)
        for position, kind, payload in found.records:
            self.service.store.fold(position, kind, payload)
        self.service.store.recovered()

    def crash(self) -> None:
        self.disk.crash(Keep.NOTHING)
        self.open()

    def checkpoint(self) -> None:
        assert self.journal.checkpoint(*self.service.store.capture())
        self.journal.flush()

    def push(self, name: str, queue: str = "q", partition: str = "p0") -> None:
        self.service.push([PushItem(queue, partition, Body(name, b"1"))], self.now)

    def stage(self, writer: str, batch: int, parts: int = 5, rows: int = 2, attempt: int = 0) -> Winner:
        total = 0
        for part in range(parts):
            some = [
                StagedRow(QUEUES[(part + n) % 2], f"p{n % 3}", Body(f"{writer}{batch}.{part}.{n}", b"1"))
                for n in range(rows)
            ]
            total = self.service.staging.stage(writer, batch, 0, attempt, part, some, self.now)
        return Winner(0, attempt, total)

    def commit(self, writer: str, batch: int, winner: Winner) -> Steps:
        return self.service.staging.commit(writer, batch, [winner], self.now)

    def begin(self, writer: str = "w", pieces: int = 2) -> Steps:
        """Publish some pieces of a batch of five; all is durable."""
        steps = self.commit(writer, 1, self.stage(writer, 1))
        self.go_on(steps, pieces)
        return steps

    def go_on(self, steps: Steps, pieces: int) -> None:
        for _ in range(pieces):
            before = self.rows()
            while self.rows() == before:
                next(steps)
        self.journal.flush()

    def rows(self) -> int:
        return sum(queue.log.next_offset for queue in self.service.store.queues.values())

    def names(self, queue: str, start: int, stop: int) -> list[str]:
        store = self.service.store
        log = store.queues[queue].log
        return [store.body(log.position(at)).transaction_id for at in log.live_offsets(start, stop)]

    def in_ranges(self, queue: str = "q") -> list[str]:
        """What a reader of ranges is told about."""
        found = self.service.store.queues.get(queue)
        if found is None:
            return []
        info = describe(found)
        names = self.names(queue, info.first, info.next)
        assert info.live == len(names)
        return names

    def for_groups(self, queue: str = "q") -> list[str]:
        """What groups may claim."""
        found = self.service.store.queues.get(queue)
        return [] if found is None else self.names(queue, 0, found.log.durable_end)

    def pop(self, queue: str = "q") -> list[str]:
        """What a group gets that reads from the beginning, of all partitions."""
        found = self.service.store.queues[queue]
        if "g" not in found.groups:
            start = decide_seek(found, "g", None, offset=0)
            self.service.store.commit([(found.number, event) for event in start.events])
        claim = found.claim("g", "lease", 100, self.now, most_partitions=100, auto_ack=True)
        if claim.events:
            self.service.store.commit([(found.number, event) for event in claim.events])
        return sorted(
            name
            for delivery in claim.deliveries
            for offset in delivery.offsets
            for name in self.names(queue, offset, offset + 1)
        )


def finish(steps: Steps) -> Committed:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: Committed = end.value
            return done


def batch(writer: str = "w", number: int = 1, queue: str = "q", parts: int = 5, rows: int = 2) -> list[str]:
    """The ids that ``Site.stage`` stages for a queue."""
    return sorted(
        f"{writer}{number}.{part}.{n}"
        for part in range(parts)
        for n in range(rows)
        if QUEUES[(part + n) % 2] == queue
    )
