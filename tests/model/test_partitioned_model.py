"""Random commands on a partitioned queue against a model of plain lists, with restarts at any point."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holtmq.broker.errors import BrokerError
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.commands.retention import decide_retention
from holtmq.broker.partitioned.commands.transaction import AckOperation, PushOperation, decide_transaction
from holtmq.broker.partitioned.events import (
    NO_QUEUE,
    Event,
    GroupStarted,
    Pushed,
    QueueConfigured,
    Subscribed,
    SubscriptionsForgotten,
    decode_all,
    encode,
)
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckStatus, AckVerdict
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.groups.joining import (
    decide_group_deletion,
    decide_join,
    decide_seek,
    decide_subscription,
    forget_subscriptions,
)
from holtmq.broker.partitioned.groups.subscriptions import Scope, StartMode, StartRequest, Subscriptions
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.dedup import fingerprint
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig
from snapshots import restore, snapshot

pytestmark = pytest.mark.model

START = 1_000.0
WINDOW = 40.0
LEASE = 20.0
RETENTION = 90.0
PARTITIONS = ["a", "b"]
GROUPS = [QUEUE_MODE, "g1"]
# An item to push: a partition, and how many ids ago its id was used (None: a new one).
ITEMS = st.tuples(st.sampled_from(PARTITIONS), st.sampled_from([None, None, None, 0, 1, 3]))
STATUSES = list(AckStatus)
DONE, FAILED, DEAD = AckStatus.COMPLETED, AckStatus.FAILED, AckStatus.DEAD_LETTER
# What one call says, position by position (None: nothing). Whole batches are as likely as mixtures: left to
# chance, a budget is hardly ever spent and then cleared.
SAID = st.one_of(
    st.just([DONE] * 8),
    st.just([FAILED] * 8),
    st.just([DEAD, FAILED]),
    st.lists(st.sampled_from([*STATUSES, DONE, None]), min_size=1, max_size=8),
)
RARELY = st.integers(0, 5).map(lambda n: n == 0)


@dataclass
class HeldLease:
    id: str
    partition: str
    first: int
    end: int
    expires_at: float
    ended: bool = False


@dataclass
class ModelGroup:
    """What one group has done, by partition: how far it is, its budget, its lease, its dead letters."""

    start_us: int  # what is older never concerns it
    cursors: dict[str, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    leases: dict[str, HeldLease] = field(default_factory=dict)


@dataclass
class ModelPartition:
    ids: list[str] = field(default_factory=list)
    created_us: list[int] = field(default_factory=list)
    first: int = 0  # retention took what is below
    shown: int = 0  # how many came to sight: the rest is not durable yet


def tiny_fingerprint(partition: int, transaction_id: str) -> int:
    return (partition + sum(transaction_id.encode())) % 5


class PartitionedMachine(RuleBasedStateMachine):
    @initialize(
        collide=st.booleans(),
        retry_limit=st.sampled_from([0, 1, 2, 2]),
        gates=st.sampled_from([(None, None), (False, False), (True, None)]),
        retains=st.booleans(),
    )
    def a_queue(
        self, collide: bool, retry_limit: int, gates: tuple[bool | None, bool | None], retains: bool
    ) -> None:
        self.config = QueueConfig(
            lease_seconds=LEASE,
            retry_limit=retry_limit,
            dedup_window_seconds=WINDOW,
            dead_letter_queue=gates[0],
            dlq_after_max_retries=gates[1],
            retention_enabled=retains,
            retention_seconds=RETENTION,
        )
        # With five fingerprints nearly every push collides; a trimmed body cannot tell, so no trimming then.
        self.collides = collide
        self.print = tiny_fingerprint if collide else fingerprint
        self.now = START
        self.journal: list[tuple[bytes, list[int]]] = []
        self.hidden: list[Pushed] = []
        self.checkpoint: tuple[int, list[StateRecord]] | None = None
        self.stored: list[str] = []  # by offset
        self.configured = QueueConfigured("q", "", "", self.config, 0)
        self.queue = self.new_queue()
        self.subscriptions = Subscriptions()
        self.model = {name: ModelPartition() for name in PARTITIONS}
        self.groups: dict[str, ModelGroup] = {}
        self.letters: list[tuple[str, str, int, str]] = []
        self.given: list[tuple[str, HeldLease]] = []
        self.next_lease = 0
        self.ids: list[str] = []

    def named(self, wishes: list[tuple[str, int | None]]) -> list[tuple[str, str]]:
        items = []
        for partition, ago in wishes:
            if ago is None or ago >= len(self.ids):
                self.ids.append(f"t{len(self.ids)}")
                ago = 0
            items.append((partition, self.ids[-1 - ago]))
        return items

    def new_queue(self) -> PartitionedQueue:
        return PartitionedQueue(
            1, self.configured, self.read_id, fingerprint=self.print, max_dedup_entries=10_000
        )

    def read_id(self, offset: int, position: int) -> str | None:
        assert position == offset * 10
        return self.stored[offset]

    def commit(self, *events: Event) -> None:
        """What the broker does: one record per command, then apply."""
        record = b"".join(
            encode(NO_QUEUE if isinstance(e, Subscribed | SubscriptionsForgotten) else 1, e) for e in events
        )
        positions = [
            (event.first_offset + n) * 10
            for event in events
            if isinstance(event, Pushed)
            for n in range(len(event.partitions))
        ]
        self.journal.append((record, positions))
        self.hidden += [event for event in events if isinstance(event, Pushed)]
        for event in events:
            if isinstance(event, Subscribed | SubscriptionsForgotten):
                self.subscriptions.apply(event)
            else:
                self.queue.apply(event, positions if isinstance(event, Pushed) else ())  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.0, 3.0, 11.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(pushes=st.integers(1, 3))
    def the_disk_catches_up(self, pushes: int) -> None:
        for event in self.hidden[:pushes]:
            self.queue.show(event)
            for index in event.partitions:
                self.model[self.queue.partitions[index].name].shown += 1
        del self.hidden[:pushes]

    @rule(wishes=st.lists(ITEMS, min_size=1, max_size=8), synced=st.sampled_from([True, True, False]))
    def somebody_pushes(self, wishes: list[tuple[str, int | None]], synced: bool) -> None:
        items = self.named(wishes)
        decision = decide_push(self.queue, items, self.now)
        expected = self.expect_push(items)

        assert [place in decision.duplicates for place in range(len(items))] == expected
        assert [self.id_at(o, items, decision.offsets) for o in decision.offsets] == [t for _, t in items]
        if decision.event is not None:
            self.store(items, expected, decision.event)
            self.commit(decision.event)
            if synced:
                self.the_disk_catches_up(len(self.hidden))

    def id_at(self, offset: int, items: list[tuple[str, str]], offsets: list[int]) -> str:
        return self.stored[offset] if offset < len(self.stored) else items[offsets.index(offset)][1]

    def expect_push(self, items: list[tuple[str, str]]) -> list[bool]:
        """Which items are duplicates."""
        seen: set[tuple[str, str]] = set()
        for name, part in self.model.items():
            for one, created in zip(part.ids, part.created_us, strict=True):
                if created >= round(self.now * 1e6) - WINDOW * 1e6:
                    seen.add((name, one))
        duplicates = []
        for item in items:
            duplicates.append(item in seen)
            seen.add(item)
        return duplicates

    def store(self, items: list[tuple[str, str]], duplicates: list[bool], event: Pushed) -> None:
        fresh = [item for item, duplicate in zip(items, duplicates, strict=True) if not duplicate]
        assert event.first_offset == len(self.stored)
        assert len(event.partitions) == len(fresh)
        for n, (name, one) in enumerate(fresh):
            self.stored.append(one)
            self.model[name].ids.append(one)
            self.model[name].created_us.append(event.created_us + n)

    @rule(
        group=st.sampled_from(GROUPS),
        partition=st.sampled_from([None, None, None, *PARTITIONS]),
        batch=st.sampled_from([1, 2, 4, 8]),
        most=st.integers(1, 2),
        mode=st.sampled_from([StartMode.ALL, StartMode.NEW]),
        auto_ack=RARELY,
        said=st.one_of(st.none(), SAID),
    )
    def a_worker_pops(
        self,
        group: str,
        partition: str | None,
        batch: int,
        most: int,
        mode: StartMode,
        auto_ack: bool,
        said: list[AckStatus | None] | None,
    ) -> None:
        self.join(group, mode)
        lease_id = f"lease-{self.next_lease}"
        self.next_lease += 1
        claimable = {name for name in PARTITIONS if self.span(group, name) is not None}
        if partition is not None:
            claimable &= {partition}

        claim = self.queue.claim(
            group, lease_id, batch, self.now, partition=partition, most_partitions=most, auto_ack=auto_ack
        )

        assert claim.count <= batch
        assert len(claim.deliveries) <= most
        if claim.count < batch and len(claim.deliveries) < most:
            assert {delivery.name for delivery in claim.deliveries} == claimable
        left = batch
        for delivery in claim.deliveries:
            span = self.span(group, delivery.name)
            assert span is not None
            first, end = span[0], min(span[1], span[0] + left)
            part = self.model[delivery.name]
            assert [self.stored[o] for o in delivery.offsets] == part.ids[first:end]
            left -= end - first
            if auto_ack:
                self.groups[group].cursors[delivery.name] = end
                self.groups[group].retries.pop(delivery.name, None)
                assert delivery.lease is None
            else:
                lease = HeldLease(lease_id, delivery.name, first, end, self.now + LEASE)
                self.groups[group].leases[delivery.name] = lease
                self.given.append((group, lease))
                if first % 2:  # the ids handed over with the lease, or found by fingerprint: both must do
                    self.queue.delivered(delivery, part.ids[first:end])
        if claim.events:
            self.commit(*claim.events)
        elif said is not None and claim.deliveries:
            self.ack(*self.given[-1], said, with_lease=True)

    def join(self, group: str, mode: StartMode) -> None:
        scope = Scope("q")
        made = decide_subscription(
            self.subscriptions, self.queue, group, scope, StartRequest(mode), self.now, lookback=0
        )
        if made is not None:
            self.commit(made)
        started = decide_join(self.subscriptions, self.queue, group, made=made)
        if group not in self.groups:
            everything = max((us for part in self.model.values() for us in part.created_us), default=0)
            is_new = mode is StartMode.NEW and group != QUEUE_MODE
            assert isinstance(started, GroupStarted)
            self.groups[group] = ModelGroup(everything + 1 if is_new else 0)
        if started is not None:
            self.commit(started)

    def cursor(self, group: str, name: str) -> int:
        part, state = self.model[name], self.groups[group]
        start = sum(1 for us in part.created_us if us < state.start_us)
        return max(state.cursors.get(name, start), part.first)

    def span(self, group: str, name: str) -> tuple[int, int] | None:
        lease = self.groups[group].leases.get(name)
        if lease is not None and self.now < lease.expires_at:
            return None
        cursor, end = self.cursor(group, name), self.model[name].shown
        return (cursor, end) if cursor < end else None

    @precondition(lambda self: self.given)
    @rule(
        back=st.sampled_from([0, 0, 0, 1, 2]),
        said=SAID,
        with_lease=st.sampled_from([True, True, False]),
        live=st.sampled_from([True, True, True, False]),
    )
    def a_worker_acks(self, back: int, said: list[AckStatus | None], with_lease: bool, live: bool) -> None:
        given = [(g, lease) for g, lease in self.given if self.holds(g, lease)] if live else self.given
        if given:
            group, lease = given[max(0, len(given) - 1 - back)]
            self.ack(group, lease, said, with_lease)

    def ack(self, group: str, lease: HeldLease, wishes: list[AckStatus | None], with_lease: bool) -> None:
        positions = range(max(lease.first, self.model[lease.partition].first), lease.end)
        # An id that came back after its window names the younger message: not this test's matter.
        said = [
            (position, status)
            for position, status in zip(positions, wishes, strict=False)
            if status is not None and self.is_unique(lease.partition, position)
        ]
        if not said:
            return
        part = self.model[lease.partition]
        index = self.queue.indexes[lease.partition]
        lease_id = lease.id if with_lease else ""
        acks = [Ack(index, part.ids[p], status, lease_id, f"e{p}") for p, status in said]
        decision = decide_acks(self.queue, group, acks, self.now)
        live = self.groups[group].leases.get(lease.partition)
        held = live is lease and not lease.ended and self.now < lease.expires_at
        if with_lease and not held:
            repeats = [o for o in decision.outcomes if o.repeated]
            assert not decision.events
            assert repeats or all(o.verdict is AckVerdict.INVALID_LEASE for o in decision.outcomes)
            return
        expected = self.expect_ack(group, lease.partition, dict(said))
        assert [outcome.verdict for outcome in decision.outcomes] == [expected[p] for p, _ in said]
        if decision.events:
            self.commit(*decision.events)

    def is_unique(self, name: str, position: int) -> bool:
        return self.model[name].ids.count(self.model[name].ids[position]) == 1

    def expect_ack(self, group: str, name: str, said: dict[int, AckStatus]) -> dict[int, AckVerdict]:
        """Section 5, told position by position."""
        state, cursor = self.groups[group], self.cursor(group, name)
        lease = state.leases.get(name)
        live = lease if lease is not None and self.now < lease.expires_at else None
        verdicts: dict[int, AckVerdict] = {}
        for position in [p for p in said if p < cursor]:
            done = said.pop(position) is AckStatus.COMPLETED
            verdicts[position] = AckVerdict.ACKNOWLEDGED if done else AckVerdict.STALE
        if not said:
            return verdicts
        spent = state.retries.get(name, 0)
        completed = [p for p, status in said.items() if status is AckStatus.COMPLETED]
        bad = [p for p, status in said.items() if status is not AckStatus.COMPLETED]
        filed: list[int] = []
        if not bad:
            to = max(completed) + 1
            ends = live is not None and to >= live.end
            spent_after = 0 if ends else spent
        else:
            head, ends = min(bad), True
            exhausted = spent >= self.config.retry_limit
            if said[head] is AckStatus.RETRY or (said[head] is AckStatus.FAILED and not exhausted):
                to = max([p + 1 for p in completed if p < head], default=cursor)
                spent_after = spent + (said[head] is AckStatus.FAILED)
            else:
                filed, at, spent_after = [head], head + 1, 0
                while at <= max(said):
                    status = said.get(at)
                    if status is AckStatus.DEAD_LETTER or (status is AckStatus.FAILED and exhausted):
                        filed.append(at)
                    elif status is AckStatus.FAILED:
                        spent_after = spent
                        break
                    elif status is AckStatus.RETRY or (status is None and at > max(completed, default=-1)):
                        break
                    at += 1
                to = at
        state.cursors[name], state.retries[name] = to, spent_after
        if live is not None and ends:
            live.ended = True
            del state.leases[name]
        files = self.config.files_dead_letters
        if files:
            self.letters += [(group, name, p, f"e{p}") for p in filed]
        for position in said:
            if position >= to:
                verdicts[position] = AckVerdict.REDELIVERED
            elif position in filed:
                verdicts[position] = AckVerdict.FILED if files else AckVerdict.DROPPED
            else:
                verdicts[position] = AckVerdict.ACKNOWLEDGED
        return verdicts

    @precondition(lambda self: self.given)
    @rule(back=st.integers(0, 3), seconds=st.floats(1, 60))
    def a_worker_renews(self, back: int, seconds: float) -> None:
        _, lease = self.given[max(0, len(self.given) - 1 - back)]
        mine = [one for name, one in self.given if one.id == lease.id and self.holds(name, one)]
        extension = self.queue.extend(lease.id, seconds, self.now)

        assert extension.renewed == len(mine)
        for one in mine:
            one.expires_at = max(one.expires_at, self.now + seconds)

    def holds(self, group: str, lease: HeldLease) -> bool:
        state = self.groups.get(group)
        return (
            state is not None and state.leases.get(lease.partition) is lease and self.now < lease.expires_at
        )

    @precondition(lambda self: any(part.ids for part in self.model.values()))
    @rule(group=st.sampled_from(GROUPS), to_end=st.booleans(), ago=st.floats(0, 100), happens=RARELY)
    def an_operator_seeks(self, group: str, to_end: bool, ago: float, happens: bool) -> None:
        if not happens:
            return
        at_us = round((self.now - ago) * 1e6)
        self.commit(*decide_seek(self.queue, group, None if to_end else at_us).events)

        state = self.groups.setdefault(group, ModelGroup(0))
        state.leases.clear()
        state.retries.clear()
        for name, part in self.model.items():
            if name in self.queue.indexes:
                older = [us for us in part.created_us if to_end or us < at_us]
                state.cursors[name] = max(len(older), part.first)

    @precondition(lambda self: self.groups)
    @rule(group=st.sampled_from(GROUPS), happens=RARELY)
    def an_operator_deletes_a_group(self, group: str, happens: bool) -> None:
        if not happens:
            return
        event, _ = decide_group_deletion(self.queue, group)
        assert (event is None) == (group not in self.groups)
        if event is not None:
            self.commit(event, forget_subscriptions(group))
            del self.groups[group]
            self.given = [(name, lease) for name, lease in self.given if name != group]

    @precondition(lambda self: self.given)
    @rule(
        wishes=st.lists(ITEMS, min_size=1, max_size=3),
        back=st.integers(0, 1),
        spoil=st.booleans(),
    )
    def a_transaction(self, wishes: list[tuple[str, int | None]], back: int, spoil: bool) -> None:
        items = self.named(wishes)
        group, lease = self.given[max(0, len(self.given) - 1 - back)]
        part = self.model[lease.partition]
        first = max(lease.first, part.first)
        if (
            group not in self.groups
            or first >= lease.end
            or not self.is_unique(lease.partition, lease.end - 1)
        ):
            return
        index = self.queue.indexes[lease.partition]
        acks = [AckOperation(self.queue, group, Ack(index, part.ids[lease.end - 1], lease_id=lease.id))]
        if spoil:
            acks.append(AckOperation(self.queue, group, Ack(index, "nobody", lease_id=lease.id)))
        good = self.holds(group, lease) and not spoil and self.cursor(group, lease.partition) < lease.end
        before = snapshot(self.queue)
        try:
            decision = decide_transaction([PushOperation(self.queue, items)], acks, self.now)
        except BrokerError:
            assert not good
            assert snapshot(self.queue) == before
            return
        assert good
        expected = self.expect_push(items)
        assert [one.duplicate for one in decision.pushed] == expected
        self.expect_ack(group, lease.partition, {lease.end - 1: AckStatus.COMPLETED})
        for _, event in decision.events:
            if isinstance(event, Pushed):
                self.store(items, expected, event)
        self.commit(*[event for _, event in decision.events])

    @precondition(lambda self: not self.collides)
    @rule()
    def retention_runs(self) -> None:
        events = decide_retention(self.queue, self.now)
        if events:
            self.commit(*events)
        if self.config.retention_enabled:
            for name, part in self.model.items():
                old = [us for us in part.created_us if us < round(self.now * 1e6) - RETENTION * 1e6]
                for group, reader in self.groups.items():
                    if self.cursor(group, name) < len(old):  # its head goes, and what that has spent
                        reader.retries.pop(name, None)
                part.first = max(part.first, len(old))

    @rule()
    def a_checkpoint(self) -> None:
        self.checkpoint = (len(self.journal), snapshot(self.queue))

    @rule(whole=st.booleans())
    def a_crash_and_restart(self, whole: bool) -> None:
        durable = snapshot(self.queue)
        if whole or self.checkpoint is None:
            at, queue = 0, self.new_queue()
        else:
            at = self.checkpoint[0]
            queue = restore(
                self.checkpoint[1], self.read_id, fingerprint=self.print, max_dedup_entries=10_000
            )
        subscriptions = Subscriptions()
        for number, (record, positions) in enumerate(self.journal):
            for where, event in decode_all(record):
                if where == NO_QUEUE:
                    assert isinstance(event, Subscribed | SubscriptionsForgotten)
                    subscriptions.apply(event)
                elif number >= at:
                    queue.apply(event, positions if isinstance(event, Pushed) else ())  # type: ignore[arg-type]
                    if isinstance(event, Pushed):
                        queue.show(event)
        assert snapshot(queue) == durable
        assert list(subscriptions.records()) == list(self.subscriptions.records())
        self.queue, self.subscriptions = queue, subscriptions
        self.hidden.clear()
        for part in self.model.values():
            part.shown = len(part.ids)
        for state in self.groups.values():
            state.leases.clear()

    @invariant()
    def queue_and_model_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert set(self.queue.groups) == set(self.groups)
        for name, index in self.queue.indexes.items():
            part, where = self.model[name], self.queue.partitions[index]
            assert (where.first, where.end) == (part.first, len(part.ids))
            assert [self.stored[o] for o in where.offsets] == part.ids[part.first :]
            for group, state in self.groups.items():
                real = self.queue.groups[group]
                assert real.cursor(index) == self.cursor(group, name)
                assert real.leases.retries.get(index, 0) == state.retries.get(name, 0)
                lease, held = real.leases.lease(index, self.now), state.leases.get(name)
                assert (lease is None) == (held is None or self.now >= held.expires_at)
        letters = [
            (x.group, self.queue.partitions[x.partition].name, x.position, x.error) for x in self.dead()
        ]
        assert letters == self.letters

    def dead(self) -> list[DeadLetter]:
        return list(self.queue.dead_letters)


PartitionedMachine.TestCase.settings = settings(settings.get_profile("model"), stateful_step_count=60)
TestPartitionedQueue = PartitionedMachine.TestCase
