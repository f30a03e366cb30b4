"""Pops over many queues and renewals look only where there may be something, and miss nothing."""

from random import Random

import pytest

from holtmq.broker.partitioned.commands import popping
from holtmq.broker.partitioned.commands.admin import configure, delete_queue
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import AckRequest, Popped, PopRequest, PushItem, Waiter
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.waiting.wide_pops import matches
from holtmq.journal import MemoryJournal

QUEUES, NAMESPACES, TASKS, GROUPS = ("a", "b", "c", "d"), ("", "x", "y"), ("", "t"), ("g", "h")


def push(service: PartitionedService, queue: str, name: str, now: float = 0.0, partition: str = "p") -> None:
    service.push([PushItem(queue, partition, Body(name, b"1"))], now)
    service.journal.flush()


def ids(popped: Popped | None) -> list[str]:
    return [body.transaction_id for run in popped.runs for body in run.bodies] if popped is not None else []


class History:
    """Random commands on one service. ``now`` moves; every pop that comes back empty must be right."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now = 1_000.0
        self.service = PartitionedService(MemoryJournal())
        self.popped: list[Popped] = []
        self.waiters: list[Waiter] = []
        self.numbers = 0
        self.alarms: list[float] = []
        self.service.line.at = self._at
        self.due: list[tuple[float, int]] = []
        self.actions: dict[int, object] = {}

    def _at(self, at: float, action: object) -> None:
        self.numbers += 1
        self.due.append((at, self.numbers))
        self.actions[self.numbers] = action

    def step(self) -> None:
        self.dice.choice(
            [self.pushes, self.pops, self.acks, self.service.journal.flush] * 2
            + [self.pops_one, self.renews, self.waits, self.time_passes, self.changes, self.deletes]
        )()
        self.service.turn(self.now)
        for waiter in self.waiters:
            assert waiter.done or not self.claimable(waiter.request), "a pop waits for what is there"

    def pushes(self) -> None:
        self.numbers += 1
        item = PushItem(self.dice.choice(QUEUES), self.dice.choice("pq"), Body(f"i{self.numbers}", b"1"))
        self.service.push([item], self.now)

    def request(self) -> PopRequest:
        self.numbers += 1
        dice = self.dice
        return PopRequest(
            f"lease-{self.numbers}",
            namespace=dice.choice(NAMESPACES),
            task=dice.choice(TASKS),
            group=dice.choice(GROUPS),
            limit=dice.randint(1, 3),
            most_partitions=dice.randint(1, 3),
            auto_ack=dice.random() < 0.2,
        )

    def pops(self) -> None:
        request = self.request()
        popped = self.service.pop(request, self.now)
        if popped is None:
            assert not self.claimable(request), "something was there"
        else:
            self.popped.append(popped)

    def pops_one(self) -> None:
        queue = self.dice.choice(QUEUES)
        self.numbers += 1
        request = PopRequest(f"lease-{self.numbers}", queue, group=self.dice.choice(GROUPS), limit=2)
        popped = self.service.pop(request, self.now)
        if popped is not None:
            self.popped.append(popped)

    def waits(self) -> None:
        request = self.request()
        if self.service.pop(request, self.now) is None:
            self.waiters.append(Waiter(request, self.popped.append))
            self.service.wait(self.waiters[-1], self.now)

    def acks(self) -> None:
        if not self.popped:
            return
        popped = self.popped.pop(self.dice.randrange(len(self.popped)))
        status = self.dice.choice(list(AckStatus))
        requests = [
            AckRequest(
                run.queue.number,
                run.delivery.partition,
                popped.request.group,
                body.transaction_id,
                status,
                popped.request.lease_id,
            )
            for run in popped.runs
            for body in run.bodies[: self.dice.randint(1, 3)]
        ]
        self.service.ack(requests, self.now)

    def renews(self) -> None:
        if self.popped:
            popped = self.dice.choice(self.popped)
            lease_id = popped.request.lease_id
            mine = [
                group.leases.lease(partition, self.now)
                for queue in self.service.store.queues.values()
                for group in queue.groups.values()
                for partition in range(len(queue.partitions))
            ]
            held = [lease for lease in mine if lease is not None and lease.id == lease_id]
            assert self.service.extend(lease_id, 30.0, self.now).renewed == len(held)

    def time_passes(self) -> None:
        self.now += self.dice.choice((0.125, 1.0, 5.0, 31.0))  # exact in binary
        passed = sorted(entry for entry in self.due if entry[0] <= self.now)
        self.due = [entry for entry in self.due if entry[0] > self.now]
        for _, number in passed:
            self.actions.pop(number)()  # type: ignore[operator]

    def changes(self) -> None:
        options = {
            "lease_seconds": 5,
            "priority": self.dice.randint(0, 2),
            "delayed_processing": self.dice.choice((0, 0, 1)),
            "retry_delay_ms": self.dice.choice((None, 500)),
        }
        name, namespace = self.dice.choice(QUEUES), self.dice.choice(NAMESPACES)
        configure(self.service, name, namespace, self.dice.choice(TASKS), options, self.now)

    def deletes(self) -> None:
        if self.dice.random() < 0.2:
            delete_queue(self.service, self.dice.choice(QUEUES))

    def claimable(self, request: PopRequest) -> list[str]:
        """By looking everywhere."""
        found = []
        for queue in self.service.store.queues.values():
            if matches(request.namespace, request.task, queue):
                found += [
                    part for part in range(len(queue.partitions)) if self._visible(queue, request, part)
                ]
        return [str(part) for part in found]

    def _visible(self, queue: PartitionedQueue, request: PopRequest, partition: int) -> bool:
        group = queue.groups.get(request.group)
        return group is None or group.visible(partition, self.now, queue.config) is not None


@pytest.mark.parametrize("part", range(4))
def test_no_pop_over_many_queues_misses_what_is_there(part: int) -> None:
    for seed in range(part, 400, 4):
        history = History(seed)
        for _ in range(80):
            history.step()


@pytest.fixture
def service() -> PartitionedService:
    return PartitionedService(MemoryJournal())


def test_higher_priorities_come_first_and_equals_take_turns(service: PartitionedService) -> None:
    for name, priority in (("low", 0), ("high", 5), ("also-high", 5)):
        configure(service, name, "n", None, {"priority": priority}, 0)
        for number in range(2):
            push(service, name, f"{name}-{number}", partition=str(number))

    got = [ids(service.pop(PopRequest(f"l{n}", namespace="n"), 1)) for n in range(6)]

    assert got == [["high-0"], ["also-high-0"], ["high-1"], ["also-high-1"], ["low-0"], ["low-1"]]


def test_a_pop_over_many_queues_looks_at_those_with_messages(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        configure(service, f"q{number}", "n", None, {}, 0)
    for _ in range(2):  # the first pop joins them, which is an event of its own
        while service.pop(PopRequest("first", namespace="n", group="g"), 1) is not None:
            pass  # it joins them in steps
    looked: list[str] = []
    claim = PartitionedQueue.claim
    monkeypatch.setattr(
        PartitionedQueue,
        "claim",
        lambda queue, *a, **k: looked.append(queue.name) or claim(queue, *a, **k),  # type: ignore[func-returns-value]
    )

    push(service, "q77", "a", 2)
    popped = service.pop(PopRequest("second", namespace="n", group="g", limit=10, most_partitions=9), 3)

    assert (ids(popped), looked) == (["a"], ["q77"])


def test_a_renewal_looks_at_the_queues_the_lease_was_given_out_in(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in QUEUES:
        configure(service, name, "n" if name in "ab" else "m", None, {}, 0)
        push(service, name, f"in-{name}")
    service.pop(PopRequest("lease", namespace="n", limit=9, most_partitions=9), 1)
    looked: list[str] = []
    extend = PartitionedQueue.extend
    monkeypatch.setattr(
        PartitionedQueue,
        "extend",
        lambda queue, *a: looked.append(queue.name) or extend(queue, *a),  # type: ignore[func-returns-value]
    )

    renewed = service.extend("lease", 500, 2)
    unknown = service.extend("another", 500, 2)

    assert (renewed.renewed, renewed.known, renewed.expires_at) == (2, True, 502)
    assert (unknown.renewed, unknown.known) == (0, False)
    assert sorted(looked) == ["a", "b"]


def test_ended_leases_are_forgotten_and_live_ones_are_not(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "_FEW_HOMES", 8)
    service = PartitionedService(MemoryJournal())
    for number in range(50):
        push(service, "q", str(number), partition=str(number))
    held = service.pop(PopRequest("held", "q"), 1)
    for number in range(49):
        popped = service.pop(PopRequest(f"l{number}", "q"), 1)
        assert popped is not None
        queue, delivery = popped.runs[0].queue, popped.runs[0].delivery
        ack = AckRequest(
            queue.number, delivery.partition, popped.request.group, ids(popped)[0], AckStatus.COMPLETED
        )
        service.ack([ack], 1)

    assert held is not None
    assert len(service._popping._homes) < 20
    assert service.extend("held", 60, 2).renewed == 1
