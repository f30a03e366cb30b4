"""Scans the whole node for what needs attention, in steps, at most every two seconds.

Owns: the order of the scan, the current thresholds, the lags of groups (so many partitions per scan, in
turn). Must not touch: the rules, which are ``attention``'s.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.figures.rings import Ring
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.log.dedup_budget import shortened_us
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import count_lag
from holtmq.broker.partitioned.steps import Steps
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.attention import (
    GROWING_MINUTES,
    Finding,
    GroupLag,
    of_certificates,
    of_damage,
    of_dedup,
    of_group,
    of_node,
    of_query,
    of_queue,
    of_shovel,
    of_standbys,
    of_timers,
    urgency,
)
from holtmq.http.dashboard.fresh import Fresh
from holtmq.http.dashboard.holders import held_since_ms, oldest_holders
from holtmq.http.dashboard.queue_columns import QueueRow, StreamColumns, WorkColumns, is_shown
from holtmq.http.dashboard.thresholds import Thresholds, store_thresholds, stored_thresholds
from holtmq.http.engine.clients import HolderRow
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

_FRESH_SECONDS: Final = 2.0
_PARTITIONS_AT_ONCE: Final = 4_000  # per scan, over all groups: about 20 ms
_US: Final = 1_000_000
_LOOK_EVERY: Final = 32  # queues between two looks at the clock
_TWO_MINUTES: Final = 120  # the last complete minute began at most so long ago
_SHOWN_MOST: Final = 200
_COLLECTED_MOST: Final = 1_000  # sorted in about 1 ms


class Findings(NamedTuple):
    """The worst findings, how many there are, and what the scan counted on its way."""

    worst: list[Finding]
    total: int
    queues: int  # of both kinds
    stored: int  # messages in partitioned queues


class Watch:
    """The findings of one node, cached for two seconds."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._findings = Fresh(self._look, context.clock, _FRESH_SECONDS)
        self._lags_refreshed = Fresh(self._refresh_lags, context.clock, _FRESH_SECONDS)
        self._lags: dict[tuple[str, str], GroupLag] = {}
        self._oldest_unread: dict[str, float] = {}  # seconds by stream, over its groups, at the last count
        self._next_group = 0
        self._counting: _Counting | None = None

    async def findings(self) -> Findings:
        """What needs attention now, worst first."""
        return await self._findings.get()

    async def findings_of(self, row: QueueRow, holders: list[HolderRow], now: float) -> list[Finding]:
        """What needs attention about one queue, without a look at the others."""
        net = _net_by_minute(self.ring(row), now)
        return of_queue(row, holders, net, self.thresholds, now)

    async def refreshed_lags(self) -> Mapping[tuple[str, str], GroupLag]:
        """How far groups are behind, by queue and group; some of them were counted earlier."""
        return await self._lags_refreshed.get()

    @property
    def thresholds(self) -> Thresholds:
        """The current thresholds."""
        return stored_thresholds(self._context.broker)

    def change(self, thresholds: Thresholds) -> None:
        """Set the thresholds, also for later starts; the next ``findings`` scans again."""
        store_thresholds(self._context.broker, thresholds)
        self._findings.expire()

    async def _look(self, now: float) -> Findings:
        context, limits = self._context, self.thresholds
        healthy, reason = context.health()
        found = _Worst()
        found.add(of_node(context.alarm(), context.alarm_since(), healthy, reason))
        damage = context.broker.flow.damage
        found.add(of_damage(len(damage), damage.since_ms))
        found.add(of_certificates(context.certificates(), limits, now))
        for row in context.shovels.rows():
            found.add(of_shovel(row))
        for late in context.service.firing.late():
            found.add(of_timers(late))
        for kept in context.pipelines.all():
            found.add(of_query(kept, limits, now))
        replica = context.replica()
        if replica is not None:
            found.add(of_standbys(replica.peers, limits, now))
        lags = await self.refreshed_lags()
        queues = await self._look_at_work_queues(found, limits, now)
        stored = await self._look_at_streams(found, limits, now)
        stepwise = Stepwise()
        for lag in list(lags.values()):
            await stepwise.between()
            found.add(of_group(lag, limits, now))
        return found.findings(queues + len(context.service.store.queues), stored)

    async def _look_at_work_queues(self, found: "_Worst", limits: Thresholds, now: float) -> int:
        """Add what needs attention about them; return how many there are. Most need none: these are
        recognised without making a row, and so are those that are at most the 200th worst."""
        columns, stepwise, count = WorkColumns(self._context, now), Stepwise(), 0
        unread_ms = int((now - limits.unread_seconds) * 1000)
        oldest_ms = int((now - limits.oldest_seconds) * 1000)
        unacked_ms = int((now - limits.unacked_seconds) * 1000)
        growing, arrived, none = limits.growing_messages, columns.arrived_ms, list[HolderRow]()
        others = self._context.broker.other_holders
        stuck, unread, late = _Candidates(), _Candidates(), _Candidates()
        for vhost in list(self._context.broker.vhosts.values()):
            for place, queue in enumerate(list(vhost.queues.values())):
                if not place % _LOOK_EVERY:
                    await stepwise.between()
                if not is_shown(queue):
                    continue
                count += 1
                ready, figures = len(queue.store), queue.figures
                held_ms = await held_since_ms(queue, others, stepwise) if queue.unacked else None
                is_stuck = held_ms is not None and held_ms <= unacked_ms
                # A backlog that has grown by so many messages has at least so many.
                net = _net_by_minute(figures.ring, now) if ready >= growing else []
                if figures.dead_letters is not None or queue.paused is not None or net:
                    holders = await self.holders_of(queue) if is_stuck else none
                    found.add(of_queue(columns.row(queue), holders, net, limits, now))
                    continue
                arrived_ms = arrived(queue) if ready else None
                if not ready:
                    waits = False
                elif queue.consumers:
                    waits = arrived_ms is not None and arrived_ms <= oldest_ms
                else:
                    waits = arrived_ms is None or arrived_ms <= unread_ms
                if is_stuck:
                    stuck.add(held_ms, queue, 1 + waits)
                elif waits and (queue.consumers or columns.holds_dead_letters(queue)):
                    late.add(arrived_ms, queue, 1)
                elif waits:
                    unread.add(arrived_ms, queue, 1)
        for candidates in (stuck, unread, late):
            for queue in candidates.worst():
                holders = await self.holders_of(queue) if candidates is stuck else none
                found.add(of_queue(columns.row(queue), holders, [], limits, now))
                await stepwise.between()
            found.dropped += candidates.dropped
        return count

    async def _look_at_streams(self, found: "_Worst", limits: Thresholds, now: float) -> int:
        """Add what needs attention about partitioned queues; return how many messages they store."""
        columns, stepwise, stored = self.stream_columns(now), Stepwise(), 0
        vhost = self._context.broker.vhosts.get(DEFAULT_VHOST)
        for stream in list(self._context.service.store.queues.values()):
            stored += stream.log.live
            row = columns.row(stream)
            net = _net_by_minute(self.ring(row), now) if row.ready >= limits.growing_messages else []
            amqp = vhost.queues.get(stream.name) if vhost is not None else None
            held = await self._stuck_holders(amqp, limits, now) if amqp is not None else []
            found.add(of_queue(row, held, net, limits, now))
            window_us = stream.config.dedup_window_us
            span_us = shortened_us(stream.dedup, micros(now), window_us)
            found.add(of_dedup(stream.name, window_us / _US, None if span_us is None else span_us / _US))
            await stepwise.between()
        return stored

    def stream_columns(self, now: float) -> StreamColumns:
        """The columns of partitioned queues, with their oldest unread messages as last counted."""
        return StreamColumns(self._context, now, self._oldest_unread)

    async def _stuck_holders(self, queue: Queue, limits: Thresholds, now: float) -> list[HolderRow]:
        """Those that hold messages of a queue, if one of them has had one for too long."""
        since = await held_since_ms(queue, self._context.broker.other_holders, Stepwise())
        if since is None or now - since / 1000 < limits.unacked_seconds:
            return []
        return await self.holders_of(queue)

    async def holders_of(self, queue: Queue) -> list[HolderRow]:
        """Those that hold messages of a queue; of very many, those that have had one for the longest time."""
        others = self._context.broker.other_holders
        return self._context.clients.holders(await oldest_holders(queue, others, Stepwise()))

    def ring(self, row: QueueRow) -> Ring | None:
        """The counts of a queue over time; None when it was not used yet."""
        if row.kind == "stream":
            return self._context.sampler.partitioned.get(row.name)
        vhost = self._context.broker.vhosts.get(row.vhost)
        queue = vhost.queues.get(row.name) if vhost is not None else None
        return queue.figures.ring if queue is not None else None

    async def _refresh_lags(self, now: float) -> Mapping[tuple[str, str], GroupLag]:
        stepwise, groups = Stepwise(), list[tuple[PartitionedQueue, Group]]()
        known: dict[tuple[str, str], GroupLag] = {}
        for queue in list(self._context.service.store.queues.values()):
            await stepwise.between()
            for group in queue.groups.values():
                groups.append((queue, group))
                lag_before = self._lags.get((queue.name, group.name))
                if lag_before is not None:
                    known[queue.name, group.name] = lag_before
        self._lags = known
        left = _PARTITIONS_AT_ONCE
        for step in range(len(groups)):
            queue, group = groups[(self._next_group + step) % len(groups)]
            counting = self._counting
            if counting is None or counting.group is not group:
                counting = _Counting(group, count_lag(queue, group))
            left -= 1  # a group without partitions costs something, too
            left = await counting.go_on(left, stepwise)
            counts = counting.result
            self._counting = None if counts is not None else counting
            if counts is not None:
                lag, oldest_us = counts
                age = 0.0 if oldest_us is None else max(0.0, (micros(now) - oldest_us) / _US)
                self._lags[queue.name, group.name] = GroupLag(
                    queue=queue.name, group=group.name, messages=lag, seconds=round(age, 1)
                )
            if left <= 0:
                finished = counts is not None
                self._next_group = (self._next_group + step + finished) % len(groups)
                break
        else:
            self._next_group = 0
        oldest: dict[str, float] = {}
        for one in list(self._lags.values()):
            await stepwise.between()
            if one.messages:
                oldest[one.queue] = max(one.seconds, oldest.get(one.queue, 0.0))
        self._oldest_unread = oldest
        return self._lags


class _Worst:
    """The worst findings and how many there are. What cannot be among the worst is only counted: on a large
    broker that lost its consumers, tens of thousands of queues need attention."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self.dropped = 0

    def add(self, findings: list[Finding]) -> None:
        """Add findings."""
        self._found += findings
        if len(self._found) >= _COLLECTED_MOST:
            self._found.sort(key=urgency)
            self.dropped += len(self._found) - _SHOWN_MOST
            del self._found[_SHOWN_MOST:]

    def findings(self, queues: int, stored: int) -> Findings:
        """The worst first."""
        self._found.sort(key=urgency)
        return Findings(self._found[:_SHOWN_MOST], len(self._found) + self.dropped, queues, stored)


class _Candidates:
    """Queues with one kind of finding, of which only the longest-lasting can be among the worst."""

    def __init__(self) -> None:
        self._queues: list[tuple[float, str, str, int, WorkQueue]] = []
        self.dropped = 0  # findings

    def add(self, since_ms: int | None, queue: WorkQueue, findings: int) -> None:
        """Add a queue with so many findings."""
        since = math.inf if since_ms is None else since_ms
        self._queues.append((since, queue.name, queue.vhost, findings, queue))
        if len(self._queues) >= _COLLECTED_MOST:
            self.worst()

    def worst(self) -> list[WorkQueue]:
        """Those that may be among the worst; the others are dropped."""
        self._queues.sort()
        self.dropped += sum(findings for *_, findings, _ in self._queues[_SHOWN_MOST:])
        del self._queues[_SHOWN_MOST:]
        return [queue for *_, queue in self._queues]


class _Counting:
    """A group that is being counted, over several scans if it is large."""

    def __init__(self, group: Group, steps: Steps[tuple[int, int | None]]) -> None:
        self.group = group
        self.result: tuple[int, int | None] | None = None  # of ``count_lag``
        self._steps = steps

    async def go_on(self, most: int, stepwise: Stepwise) -> int:
        """Count up to ``most`` partitions more, at least one; return what is left of them."""
        while True:
            for _ in range(_LOOK_EVERY):
                try:
                    next(self._steps)
                except StopIteration as end:
                    self.result = end.value
                    return most
                most -= 1
                if most <= 0:
                    return 0
            await stepwise.between()


def _net_by_minute(ring: Ring | None, now: float) -> list[int]:
    """Messages in minus out, by minute; nothing for a queue that cannot have grown in each of them."""
    if ring is None or now - ring.counted_at > _TWO_MINUTES:
        return []
    return [came - acked for came, _, acked in ring.recent_minutes(int(now), GROWING_MINUTES)]
