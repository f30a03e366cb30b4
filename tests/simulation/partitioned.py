"""Workers on partitioned queues in a simulated history.

Owns: what these workers do, and what each command should answer. Must not touch: the rules (the model's),
what was promised (``PartitionedPromises``), the world's life and death.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from holtmq.broker.errors import BrokerError
from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart, transact
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus, AckVerdict
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, micros
from holtmq.broker.partitioned.groups.subscriptions import StartMode, StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue_config import OptionValue
from holtmq.broker.partitioned.requests import (
    AckRequest,
    Popped,
    PopRequest,
    PushItem,
    PushResult,
    Waiter,
)
from simulation.other_ways_in import OtherWaysIn
from simulation.partitioned_model import Lease, Options, Queue, State
from simulation.partitioned_promises import LATE, PartitionedPromises
from simulation.partitioned_view import payload_of
from simulation.promises import Action, BrokenRule
from simulation.world import World

_ORDERS, _EVENTS = "orders", "events"
_QUEUES: Final = {
    _ORDERS: Options(lease=2, retry_limit=1, dedup_window=3, retention=4),
    _EVENTS: Options(lease=3, retry_limit=2, dedup_window=3600, retry_delay_ms=400, delay=0.25, retention=2),
}
_PARTITIONS: Final = ("a", "b")
_GROUPS: Final = (QUEUE_MODE, "early", "late")
_MODES: Final = {"late": StartMode.NEW}
_STATUSES: Final = tuple(AckStatus)


class PartitionedQueues:
    """Workers of the history, a ``SimulatedClients``."""

    def __init__(self, world: World) -> None:
        self._world = world
        model = State({name: Queue(options) for name, options in _QUEUES.items()})
        self._promises = PartitionedPromises(world, model)
        self._waiters: list[Waiter] = []
        self._numbers = 0
        self._others = OtherWaysIn(world, self._promises, _PARTITIONS)

    @property
    def confirmed(self) -> int:
        """Commands that were answered."""
        return self._promises.kept

    @property
    def actions(self) -> Mapping[Action, int]:
        """What may happen next, and how often."""
        return {
            self._pushes: 14,
            self._pops: 22,
            self._acks: 28,
            self._gives_up_messages: 6,
            self._transacts: 14,
            self._renews: 2,
            self._gives_up_waiting: 2,
            self._retains: 8,
            **self._others.actions,
        }

    def _pushes(self) -> None:
        queue, items = self._some_items(4)
        with_bodies = [_item(queue, *item) for item in items]
        after = self._promises.state.copy()
        duplicates = after.take_in(queue, items, self._now_us, spooled=self._promises.spool_holds)

        answer = self._promises.command(lambda: (self._world.partitioned.push(with_bodies, self._world.now),))
        if answer is not None:
            _check_duplicates(answer[0], duplicates, f"push {items}")
            self._promises.becomes(after)

    def _pops(self) -> None:
        """Pop; with nothing there, perhaps wait."""
        if self._world.failed:
            return
        dice = self._world.random
        queue, group = dice.choice(list(_QUEUES)), dice.choice(_GROUPS)
        if group == "late" and dice.random() < 0.7:
            return  # a group that starts with what is new should come after something is there
        mode = _MODES.get(group, StartMode.ALL)
        self._numbers += 1
        request = PopRequest(
            f"lease-{self._numbers}",
            queue,
            dice.choice(("", "", "", *self._promises.state.queues[queue].partitions)),
            group=group,
            limit=dice.choice((1, 2, 4)),
            most_partitions=dice.choice((1, 2)),
            auto_ack=dice.random() < 0.1,
            start=StartRequest(mode),
        )
        if request.partition:
            # A pop of one partition leaves a record for that partition alone; here groups read whole queues.
            if group not in self._promises.state.queues[queue].groups:
                return
            request = PopRequest(
                request.lease_id,
                queue,
                request.partition,
                group=group,
                limit=request.limit,
                start=StartRequest(mode, explicit=False),
            )
        self._joins(queue, group, mode)
        before = self._promises.claimable(request, self._world.now)
        popped = self._world.partitioned.pop(request, self._world.now)
        self._promises.check_pop(request, popped, before)
        if popped is None and not request.auto_ack and dice.random() < 0.5:
            self._waits(request)

    def _joins(self, queue: str, group: str, mode: StartMode) -> None:
        """The pop is about to leave up to two records; a crash may come between them."""
        subscribed = self._promises.state.subscribe(queue, group, mode, self._now_us)
        if subscribed:
            self._promises.becomes(self._promises.state.copy(), answered=False)
        if self._promises.state.join(queue, group, subscribed):
            self._promises.becomes(self._promises.state.copy(), answered=False)

    def _waits(self, request: PopRequest) -> None:
        waiter = Waiter(request, partial(self._served, request))
        self._waiters.append(waiter)
        self._world.partitioned.wait(waiter, self._world.now)

    def _served(self, request: PopRequest, popped: Popped) -> None:
        self._waiters = [waiter for waiter in self._waiters if waiter.request is not request]
        self._promises.check_pop(request, popped, self._promises.claimable(request, self._world.now))

    def _gives_up_waiting(self) -> None:
        if self._waiters:
            waiter = self._waiters.pop(self._world.random.randrange(len(self._waiters)))
            self._world.partitioned.withdraw(waiter)

    def _acks(self) -> None:
        """Say something about what one lease covers: all done, all failed, or a mixture."""
        lease = self._some_lease()
        if lease is None:
            self._pops()
            return
        dice = self._world.random
        positions = self._named(lease)
        choice = dice.random()
        if choice < 0.45:
            said = dict.fromkeys(positions, AckStatus.COMPLETED)
        elif choice < 0.6:
            said = dict.fromkeys(positions, AckStatus.FAILED)
        else:
            said = {
                p: dice.choice((AckStatus.COMPLETED, *_STATUSES)) for p in positions if dice.random() < 0.8
            }
        self._ack(lease, said)

    def _gives_up_messages(self) -> None:
        """File all that a lease covers as dead letters, so that there are some that outlive their message."""
        lease = self._some_lease()
        if lease is not None:
            self._ack(lease, dict.fromkeys(self._named(lease), AckStatus.DEAD_LETTER))

    def _named(self, lease: Lease) -> list[int]:
        return [p for p in range(lease.first, lease.end) if self._promises.is_named(lease, p)]

    def _ack(self, lease: Lease, said: dict[int, AckStatus]) -> None:
        if not said:
            return
        queue = self._world.partitioned.store.queues[lease.queue]
        ids = self._promises.state.queues[lease.queue].partitions[lease.partition].ids
        requests = [
            AckRequest(
                queue.number, queue.indexes[lease.partition], lease.group, ids[p], status, lease.id, f"e{p}"
            )
            for p, status in said.items()
        ]
        after, held = self._promises.state.copy(), self._promises.is_live(lease)
        first = lease.first
        wanted = list(after.ack(lease, said, lease, self._now_us).items()) if held else []

        answers = self._promises.command(lambda: self._world.partitioned.ack(requests, self._world.now))
        if answers is None:
            lease.first, lease.ended = first, lease.ended and not held
            return
        verdicts = [answer.outcome.verdict for answer in answers]
        if held:
            if verdicts != [dict(wanted)[p] for p in said]:
                raise BrokenRule(f"acks {said} of {lease}: {verdicts}, expected {dict(wanted)}")
            self._promises.becomes(after)
        elif not all(a.outcome.repeated or a.outcome.verdict is AckVerdict.INVALID_LEASE for a in answers):
            raise BrokenRule(f"acks {said} under a lease that is over: {verdicts}")

    def _transacts(self) -> None:
        """Ack the whole of a lease and push somewhere, together; sometimes with a part that is refused."""
        lease = self._some_lease()
        if lease is None:
            self._pops()
            return
        if not self._promises.is_named(lease, lease.end - 1):
            return
        queue, items = self._some_items(3)
        source = self._world.partitioned.store.queues[lease.queue]
        ids = self._promises.state.queues[lease.queue].partitions[lease.partition].ids
        spoilt = self._world.random.random() < 0.2
        acks = [
            AckRequest(
                source.number,
                source.indexes[lease.partition],
                lease.group,
                one,
                AckStatus.COMPLETED,
                lease.id,
            )
            for one in [ids[lease.end - 1], *(["nobody"] if spoilt else [])]
        ]
        place = self._promises.state.queues[lease.queue].place(lease.group, lease.partition)
        good = self._promises.is_live(lease) and not spoilt and place.cursor < lease.end
        after, first = self._promises.state.copy(), lease.first
        if good:
            after.ack(lease, {lease.end - 1: AckStatus.COMPLETED}, lease, self._now_us)
        duplicates = after.take_in(queue, items, self._now_us, spooled=self._promises.spool_holds)
        before = self._promises.observed()
        part = PartitionedPart([_item(queue, *item) for item in items], acks, self._world.now)
        try:
            done = self._promises.command(lambda: transact(self._world.partitioned, part))
        except BrokerError as refusal:
            if good:
                raise BrokenRule(f"a transaction under {lease} was refused: {refusal}") from None
            self._promises.is_unchanged(before, "a refused transaction")
            return
        if done is None:
            if good:
                lease.first, lease.ended = first, False
            return
        if not good:
            raise BrokenRule(f"a transaction under {lease} should have been refused")
        _check_duplicates(part.results, duplicates, f"transaction pushed {items}")
        self._promises.becomes(after)
        self._world.may_lose_power()

    def _renews(self) -> None:
        lease = self._some_lease()
        if lease is None:
            return
        mine = [one for one in self._promises.leases if one.id == lease.id and self._promises.is_live(one)]
        extension = self._world.partitioned.extend(lease.id, 2.0, self._world.now)
        if extension.renewed != len(mine):
            raise BrokenRule(f"{extension} of {lease}, expected {len(mine)}")
        for one in mine:
            one.expires_at = max(one.expires_at, self._world.now + 2.0)

    def _retains(self) -> None:
        """One record for each queue: a crash may come between two of them."""
        store, durable, after = (
            self._world.partitioned.store,
            self._promises.durable,
            self._promises.state.copy(),
        )
        names = [queue.name for queue in store.aging.values() if queue.name in after.queues]
        if self._promises.command(lambda: self._world.partitioned.retain(self._world.now)) is None:
            return
        for name in names:
            if after.retain(name, self._now_us, durable):
                self._promises.becomes(after.copy(), answered=False)

    def prepare(self) -> None:
        """The queues, with their options."""
        for name, options in _QUEUES.items():
            if name not in self._world.partitioned.store.queues:
                configure(self._world.partitioned, name, None, None, _config(options), self._world.now)

    def turned(self) -> None:
        """Timers that were due have fired, and no pop waits while messages are there."""
        self._others.turned()
        for waiter in self._waiters:
            claimable = self._promises.claimable(waiter.request, self._world.now - LATE)
            if claimable and not self._world.failed:
                raise BrokenRule(f"{waiter.request} waits while there is {claimable}")

    def flushed(self) -> None:
        """Promises come through the journal's own callback."""

    def died(self) -> None:
        """Waiting is over."""
        self._promises.died()
        self._waiters.clear()
        self._others.died()

    def recovered(self) -> str:
        """Find the command after which the world stopped."""
        return self._promises.recovered()

    def check(self) -> None:
        """The broker holds what the model says."""
        self._promises.check()

    def read_all_back(self) -> None:
        """Every message is on the disk as it was pushed."""
        self._promises.read_all_back()

    @property
    def _now_us(self) -> int:
        return micros(self._world.now)

    def _some_items(self, most: int) -> tuple[str, list[tuple[str, str]]]:
        """A queue, and what to push there: new ids, and some that have been used before."""
        dice = self._world.random
        items: list[tuple[str, str]] = []
        for _ in range(dice.randint(1, most)):
            if not self._numbers or dice.random() < 0.7:
                self._numbers += 1
            items.append((dice.choice(_PARTITIONS), f"t{self._numbers - dice.choice((0, 0, 0, 1))}"))
        return dice.choice(list(_QUEUES)), items

    def _some_lease(self) -> Lease | None:
        dice = self._world.random
        live = [lease for lease in self._promises.leases if self._promises.is_live(lease)]
        chosen = live if live and dice.random() < 0.8 else self._promises.leases
        return dice.choice(chosen) if chosen else None


def _item(queue: str, partition: str, name: str) -> PushItem:
    return PushItem(queue, partition, Body(name, payload_of(name)))


def _check_duplicates(results: list[PushResult] | None, expected: list[bool] | None, what: str) -> None:
    """``None``: in the spool, and not known yet."""
    found = None if results is None else [result.duplicate for result in results]
    if found != expected:
        raise BrokenRule(f"{what}: duplicates {found}, expected {expected}")


def _config(options: Options) -> dict[str, OptionValue]:
    return {
        "lease_seconds": options.lease,
        "retry_limit": options.retry_limit,
        "dedup_window_seconds": options.dedup_window,
        "retry_delay_ms": options.retry_delay_ms or None,
        "delayed_processing": options.delay,
        "retention_enabled": bool(options.retention),
        "retention_seconds": options.retention,
    }
