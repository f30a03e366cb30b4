"""Two brokers with one history, one of which never takes the short way for clean acks: they stay the same.

Owns: the history, and the comparison of answers, journal, state and delivery log. Must not touch: clocks and
disks.
"""

from collections.abc import Callable
from random import Random

import pytest

from holtmq.broker.partitioned.commands import admin
from holtmq.broker.partitioned.commands.clean_acks import CleanRun
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, Group
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import OptionValue
from holtmq.broker.partitioned.requests import Popped, PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal import MemoryJournal
from snapshots import snapshot

HISTORIES, STEPS = 80, 120
CONFLATES = "conflates"
GROUPS = (QUEUE_MODE, "g", CONFLATES)


class Twins:
    """``services[0]`` takes the short way where it can, ``services[1]`` never does."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now = 1000.0
        self.numbers = 0
        self.clean = 0  # how often the short way was taken
        self.journals = (MemoryJournal(), MemoryJournal())
        self.services = tuple(PartitionedService(journal) for journal in self.journals)
        self.popped: list[Popped] = []
        options: dict[str, OptionValue] = {
            "lease_seconds": 5,
            "retry_limit": self.dice.choice((0, 1, 3)),
            "dedup_window_seconds": self.dice.choice((0, 0, 3600)),  # without one, ids repeat under a lease
            "retry_delay_ms": self.dice.choice((None, 500)),
            "retention_enabled": True,
            "completed_retention_seconds": self.dice.choice((0, 3)),
            "retention_seconds": self.dice.choice((0, 20)),
        }
        for service in self.services:
            admin.configure(service, "q", None, None, options, self.now)

    @property
    def queues(self) -> tuple[PartitionedQueue, ...]:
        return tuple(service.store.queues["q"] for service in self.services)

    def push(self) -> None:
        items: list[PushItem] = []
        for _ in range(self.dice.randint(1, 6)):
            self.numbers += 1
            number = self.dice.randint(1, self.numbers) if self.dice.random() < 0.3 else self.numbers
            items.append(PushItem("q", self.dice.choice("xy"), Body(f"t{number}", b"1")))
        for service in self.services:
            service.push(items, self.now)
            service.journal.flush()

    def pop(self) -> None:
        self.numbers += 1
        group = self.dice.choice(GROUPS)
        request = PopRequest(
            f"l{self.numbers}",
            "q",
            self.dice.choice(("", "", "x")),
            group=group,
            limit=self.dice.randint(1, 8),
            most_partitions=self.dice.randint(1, 2),
            conflates=group == CONFLATES,
        )
        one, other = (service.pop(request, self.now) for service in self.services)
        assert handed_out(one) == handed_out(other)
        if one is not None:
            self.popped.append(one)

    def ack(self) -> None:
        group, lease_id, chosen = self.some_messages()
        runs: list[CleanRun] = []
        ids: list[str] = []
        for partition, name in chosen:
            if not runs or runs[-1].partition != partition:
                ids = []
                runs.append(CleanRun(partition, lease_id, ids))
            ids.append(name)
        acks = [Ack(partition, name, AckStatus.COMPLETED, lease_id) for partition, name in chosen]
        number = self.queues[0].number

        clean = self.services[0].settle_clean(number, group, runs, self.now)
        if clean is None:
            short_way = self.services[0].settle(number, group, acks, self.now)[1]
        else:
            self.clean += 1
            both = zip(runs, clean[1], strict=True)
            short_way = [outcome for run, outcome in both for _ in run.transaction_ids]
        long_way: list[AckOutcome] = self.services[1].settle(number, group, acks, self.now)[1]

        assert short_way == long_way

    def nack(self) -> None:
        group, lease_id, chosen = self.some_messages()
        statuses = tuple(AckStatus)
        acks = [Ack(partition, name, self.dice.choice(statuses), lease_id) for partition, name in chosen]
        number = self.queues[0].number
        one, other = (service.settle(number, group, acks, self.now)[1] for service in self.services)
        assert one == other

    def some_messages(self) -> tuple[str, str, list[tuple[int, str]]]:
        """Group, lease and messages of one of the last pops: all, some, out of order, twice."""
        dice = self.dice
        if not self.popped:
            return QUEUE_MODE, "nobody's", [(0, "t1")]
        popped = dice.choice(self.popped[-6:])
        chosen: list[tuple[int, str]] = []
        for run in popped.runs:
            names = [body.transaction_id for body in run.bodies]
            ways = (
                names,
                names,
                names[: dice.randint(1, len(names))],
                names[::-1],
                names[-1:],
                [dice.choice(names) for _ in range(dice.randint(1, len(names) + 1))],
            )
            chosen += [(run.delivery.partition, name) for name in dice.choice(ways)]
        if dice.random() < 0.1:
            dice.shuffle(chosen)
        lease_id = popped.request.lease_id if dice.random() < 0.9 else "another"
        return popped.request.group, lease_id, chosen

    def time_passes(self) -> None:
        self.now += self.dice.choice((0.25, 1, 6))

    def delete(self) -> None:
        log = self.queues[0].log
        live = list(log.live_offsets(0, log.next_offset))
        if live:
            offset = self.dice.choice(live)
            name = self.services[0].store.read_transaction_id(offset, log.position(offset))
            partition = log.partition(offset)
            for service, queue in zip(self.services, self.queues, strict=True):
                admin.delete_message(service, queue, partition, str(name))

    def seek(self) -> None:
        group, to = self.dice.choice(GROUPS), self.dice.choice((None, 0))
        if self.queues[0].indexes:
            for service in self.services:
                admin.seek(service, group, "q", to, None)

    def retain(self) -> None:
        for service in self.services:
            service.retain(self.now)

    def renew(self) -> None:
        if self.popped:
            lease_id = self.dice.choice(self.popped[-6:]).request.lease_id
            one, other = (service.extend(lease_id, 4.0, self.now) for service in self.services)
            assert one == other


COMMANDS: list[Callable[[Twins], None]] = [
    *[Twins.push] * 3,
    *[Twins.pop] * 4,
    *[Twins.ack] * 8,
    *[Twins.nack] * 2,
    Twins.time_passes,
    Twins.delete,
    Twins.seek,
    Twins.retain,
    Twins.renew,
]


def handed_out(popped: Popped | None) -> list[tuple[int, list[str], int]]:
    return [
        (run.delivery.partition, [body.transaction_id for body in run.bodies], run.delivery.attempt)
        for run in (popped.runs if popped is not None else ())
    ]


def compare(twins: Twins) -> None:
    one, other = twins.queues
    assert twins.journals[0]._records == twins.journals[1]._records
    assert snapshot(one) == snapshot(other)
    assert one.deliveries.capture(()).state() == other.deliveries.capture(()).state()
    assert (one.progress, one._woken) == (other.progress, other._woken)
    for name, group in one.groups.items():
        assert live(group) == live(other.groups[name])


def live(group: Group) -> tuple[object, ...]:
    """What no restart survives. Not what a lease only makes when it is asked: it must do without."""
    leases = [
        (lease.id, lease.partition, lease.first, lease.end, lease.expires_at, lease.attempt, lease.conflated)
        for lease in group.leases.live(float("-inf"))
    ]
    return leases, group.leases.attempts, group._releases, list(group.ready._line), group.ready._due


@pytest.mark.parametrize("part", range(4))
def test_nothing_tells_the_short_way_from_the_long_one(part: int) -> None:
    taken = 0
    for seed in range(part, HISTORIES, 4):
        twins = Twins(seed)
        for number in range(STEPS):
            try:
                twins.dice.choice(COMMANDS)(twins)
                compare(twins)
            except AssertionError as broken:
                raise AssertionError(f"history {seed}, step {number}: {broken}") from broken
        taken += twins.clean

    assert taken > 50
