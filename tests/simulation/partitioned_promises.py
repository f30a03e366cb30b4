"""What workers on partitioned queues were promised, and the judgement of every answer and every recovery.

Owns: the model's present state, the states before it that a crash may bring back, the live leases. Must not
touch: what workers do, the rules (the model's), the world's life and death.

Every command is one record of the journal, so what a crash leaves has to be the state after some command, and
after no earlier one than the last that was answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.requests import Popped, PopRequest
from holtmq.journal import JournalFailed
from simulation.partitioned_model import Lease, State
from simulation.partitioned_view import (
    View,
    bodies_on_disk,
    difference,
    expected,
    observed,
    payload_of,
)
from simulation.promises import BrokenRule
from simulation.world import World

T = TypeVar("T")

_REMEMBERED: Final = 8  # leases that may still be acked, most of them long over
LATE: Final = 0.002  # a deadline is met in the millisecond after it


class PartitionedPromises:
    """The states that a crash may bring back, and the checks against them."""

    def __init__(self, world: World, state: State) -> None:
        self._world = world
        self.state = state
        self.leases: list[Lease] = []  # the newest, ended ones too
        self._made: dict[
            tuple[str, str, str, str], Lease
        ] = {}  # all leases, by id, queue, group and partition
        self.kept = 0  # promises received
        self.aborted: set[tuple[str, int]] = (
            set()
        )  # (writer, batch): their rows may come back, and count no more
        self.originals: dict[
            str, str
        ] = {}  # a replayed message has an id of its own, and its letter's payload
        self._version = 0
        self._durable = 0  # newest version that was reported as durable
        self._versions = {0: state.copy()}
        self._checked = self._read_back = (-1, -1, -1)  # version, end of the log, changes to its files

    def check_pop(
        self, request: PopRequest, popped: Popped | None, claimable: Mapping[str, tuple[int, int]]
    ) -> None:
        """Next in order, as much as asked for, not leased to another client, and all that is there."""
        runs = popped.runs if popped is not None else []
        left = request.limit
        after = self.state.copy() if request.auto_ack else self.state
        for run in runs:
            delivery, span = run.delivery, claimable.get(run.delivery.name)
            names = tuple(body.transaction_id for body in run.bodies)
            ids = self.state.queues[request.queue].partitions[delivery.name].ids
            if span is None or names != ids[span[0] : min(span[1], span[0] + left)]:
                raise BrokenRule(f"{request} got {names} of {delivery.name}, claimable was {claimable}")
            if any(body.payload != self.payload_of(body.transaction_id) for body in run.bodies):
                raise BrokenRule(f"{request} got a body that was not pushed: {names}")
            left -= len(names)
            end = span[0] + len(names)
            if request.auto_ack:
                after.settle_at_delivery(request.queue, request.group, delivery.name, end)
            else:
                where = request.lease_id, request.queue, request.group, delivery.name
                expires_at = self._world.now + self.state.queues[request.queue].options.lease
                made = self._made[where] = Lease(*where, span[0], end, expires_at)
                self.leases.append(made)
        self._forget_old_leases()
        if left > 0 and len(runs) < request.most_partitions and len(runs) < len(claimable):
            raise BrokenRule(f"{request} got {[run.delivery.name for run in runs]} of {claimable}")
        if request.auto_ack and runs:
            self.becomes(after)

    def claimable(self, request: PopRequest, now: float) -> dict[str, tuple[int, int]]:
        """What a pop may take now, by partition: nothing that a crash could take back."""
        queue, group = request.queue, request.group
        durable = self.durable.queues[queue].partitions
        held = {
            lease.partition
            for lease in self.leases
            if lease.queue == queue and lease.group == group and self.is_live(lease, now)
        }
        found: dict[str, tuple[int, int]] = {}
        for name in [request.partition] if request.partition else durable:
            span = self.state.span(queue, group, name, micros(now))
            if name in durable and name not in held and span is not None:
                end = min(span[1], len(durable[name].ids))
                if span[0] < end:
                    found[name] = (span[0], end)
        return found

    def command(self, run: Callable[[], T]) -> T | None:
        """The answer; None when the journal refused, and then nothing may have happened."""
        before = self.observed() if self._world.failed else None
        try:
            return run()
        except JournalFailed:
            if before is None:
                raise
            self.is_unchanged(before, "a command that the journal refused")
            return None

    def is_unchanged(self, before: View, what: str) -> None:
        if self.observed() != before:
            raise BrokenRule(f"{what} changed the partitioned queues")

    def becomes(self, state: State, *, answered: bool = True) -> None:
        """A command has been written. It is promised when the journal says so, as at the edge."""
        self.state = state
        self._version += 1
        self._versions[self._version] = state.copy()
        if answered:
            self._world.journal.on_durable(partial(self._promised, self._version))

    def _promised(self, version: int, failed: JournalFailed | None) -> None:
        if failed is None:
            self.kept += 1
            self._durable = max(self._durable, version)
            for old in [number for number in self._versions if number < self._durable]:
                del self._versions[old]

    def died(self) -> None:
        """Which leases outlive the broker is known when it is back."""
        self.leases = []

    def recovered(self) -> str:
        """Find the command after which the world stopped."""
        found = self.observed()
        self._world.digest.update(repr(found).encode())
        for version in sorted(self._versions, reverse=True):
            if self._expected(self._versions[version]) == found:
                # Recovery makes durable what it brings back, so from now on this has to stay.
                self.state = self._versions[version].copy()
                self._version = self._durable = version
                self._versions = {version: self.state.copy()}
                return self._find_leases() or self._damage()
        promised = self._expected(self._versions[self._durable])
        return f"the partitioned queues are not as promised: {difference(promised, found)}"

    def _find_leases(self) -> str:
        """Those of the broker, each of which somebody had got. What ended them may be lost."""
        for queue in self._world.partitioned.store.queues.values():
            for group in queue.groups.values():
                for lease in group.leases.live(self._world.now):
                    name = queue.partitions[lease.partition].name
                    known = self._made.get((lease.id, queue.name, group.name, name))
                    if known is None or not lease.first < lease.end <= known.end:
                        return f"a lease that was never made: {lease}, known {known}"
                    kept = replace(known, first=lease.first, end=lease.end, expires_at=lease.expires_at)
                    self.leases.append(replace(kept, ended=False))
        return ""

    def check(self) -> None:
        """The broker holds what the model says. Without a new record and a new promise nothing can differ."""
        moment = (self._version, self._world.journal.end, self._world.disk.rearranged)
        if moment == self._checked:
            return
        self._checked = moment
        found, wanted = self.observed(), self._expected(self.state)
        if found != wanted:
            raise BrokenRule(f"partitioned queues: {difference(wanted, found)}")

    @property
    def durable(self) -> State:
        """The newest state that is known to be on the disk."""
        return self._versions[self._durable]

    def read_all_back(self) -> None:
        """Every message is on the disk as it was pushed."""
        moment = (self._version, self._world.journal.durable, self._world.disk.rearranged)
        if moment == self._read_back:
            return
        self._read_back = moment
        damage = self._damage()
        if damage:
            raise BrokenRule(damage)

    def _damage(self) -> str:
        queues, wrong = self.state.queues, []
        for where, name, body in bodies_on_disk(self._world, queues, self.aborted):
            if body.transaction_id != name or body.payload != self.payload_of(name):
                wrong.append(f"{where} {name}")
        return f"bodies are not what was pushed: {wrong}" if wrong else ""

    @property
    def spool_holds(self) -> bool:
        """Whether a push queues up behind those that wait for the end of maintenance, publishes too."""
        return self.state.spooling or len(self._world.partitioned.spool) > 0

    def payload_of(self, name: str) -> bytes:
        """What was pushed under this id."""
        return payload_of(self.originals.get(name, name))

    def observed(self) -> View:
        """What the broker holds."""
        return observed(self._world, self.state.queues, self.aborted)

    def _expected(self, state: State) -> View:
        return expected(state, self.aborted)

    def _forget_old_leases(self) -> None:
        old = len(self.leases) - _REMEMBERED
        before = self._world.now - LATE
        self.leases = [
            lease for at, lease in enumerate(self.leases) if at >= old or self.is_live(lease, before)
        ]

    def is_live(self, lease: Lease, now: float | None = None) -> bool:
        """Whether the lease holds its partition."""
        return not lease.ended and (self._world.now if now is None else now) < lease.expires_at

    def is_named(self, lease: Lease, position: int) -> bool:
        """Whether its id names this message alone, and it is still there."""
        part = self.state.queues[lease.queue].partitions[lease.partition]
        return part.first <= position and part.ids.count(part.ids[position]) == 1
