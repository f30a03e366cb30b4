"""Scans the whole node for what needs attention, in steps, at most every two seconds.

Owns: the order of the scan, the current thresholds, the lags of groups (so many partitions per scan, in
turn). Must not touch: the rules, which are ``attention``'s.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.figures.rings import Ring
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.statistics import GroupCounts, Steps, count_group
from holtmq.broker.topology.parameters import THRESHOLDS
from holtmq.http.dashboard.attention import (
    GROWING_MINUTES,
    Finding,
    GroupLag,
    Holder,
    Thresholds,
    holders_of,
    of_group,
    of_node,
    of_queue,
    of_standbys,
    urgency,
)
from holtmq.http.dashboard.fresh import Fresh
from holtmq.http.dashboard.queue_table import QueueRow, QueueTables
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

_FRESH_SECONDS: Final = 2.0
_PARTITIONS_AT_ONCE: Final = 4_000  # per scan, over all groups: about 20 ms
_US: Final = 1_000_000
_LOOK_EVERY: Final = 32  # queues between two looks at the clock
_SHOWN_MOST: Final = 200
_COLLECTED_MOST: Final = 1_000  # sorted in about 1 ms


class Findings(NamedTuple):
    """The worst findings, and how many there are."""

    worst: list[Finding]
    total: int


class Watch:
    """The findings of one node, cached for two seconds."""

    def __init__(self, context: Context, queue_tables: QueueTables) -> None:
        self._context = context
        self._queue_tables = queue_tables
        self._findings = Fresh(self._look, context.clock, _FRESH_SECONDS)
        self._lags_refreshed = Fresh(self._refresh_lags, context.clock, _FRESH_SECONDS)
        self._lags: dict[tuple[str, str], GroupLag] = {}
        self._next_group = 0
        self._counting: _Counting | None = None

    async def findings(self) -> Findings:
        """What needs attention now, worst first."""
        return await self._findings.get()

    async def findings_of(self, row: QueueRow, holders: list[Holder], now: float) -> list[Finding]:
        """What needs attention about one queue, without a look at the others."""
        net = _net_by_minute(self.ring(row), now)
        return of_queue(row, holders, net, self.thresholds, now)

    async def refreshed_lags(self) -> Mapping[tuple[str, str], GroupLag]:
        """How far groups are behind, by queue and group; some of them were counted earlier."""
        return await self._lags_refreshed.get()

    @property
    def thresholds(self) -> Thresholds:
        """The current thresholds; what cannot be read (an import may have written it) is the default."""
        stored = self._context.broker.parameters.global_value(THRESHOLDS)
        if stored is not None:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(stored, type=Thresholds)
        return Thresholds()

    def change(self, thresholds: Thresholds) -> None:
        """Set the thresholds, also for later starts; the next ``findings`` scans again."""
        self._context.broker.parameter_changes.put_global(THRESHOLDS, msgspec.json.encode(thresholds))
        self._findings.expire()

    async def _look(self, now: float) -> Findings:
        context, stepwise, limits = self._context, Stepwise(), self.thresholds
        healthy, reason = context.health()
        found = _Worst()
        found.add(of_node(context.alarm(), healthy, reason))
        replica = context.replica()
        if replica is not None:
            found.add(of_standbys(replica.peers, limits, now))
        holders = await self.holders(now - limits.unacked_seconds)
        lags = await self.refreshed_lags()
        none: list[Holder] = []
        quiet_seconds = min(limits.unread_seconds, limits.oldest_seconds)
        for place, row in enumerate((await self._queue_tables.queues()).rows):
            held = holders.get((row.vhost, row.name), none) if holders else none
            if held or row.died_today or (row.ready and not _is_quiet(row, quiet_seconds, limits)):
                # A backlog that has grown by so many messages has at least so many.
                grown = row.ready >= limits.growing_messages
                if not (held or grown) and found.has_worse_than(row, limits, now):
                    found.count()
                else:
                    net = _net_by_minute(self.ring(row), now) if grown else []
                    found.add(of_queue(row, held, net, limits, now))
            if not place % _LOOK_EVERY:
                await stepwise.between()
        for lag in lags.values():
            found.add(of_group(lag, limits, now))
        return found.findings()

    async def holders(self, before: float) -> dict[tuple[str, str], list[Holder]]:
        """Consumers that have held a message since this time or longer, by vhost and queue."""
        stepwise = Stepwise()
        found: dict[tuple[str, str], list[Holder]] = {}
        for place, row in enumerate(self._context.clients.holding(int(before * 1000))):
            if row is not None:
                found.setdefault((row.queue.vhost, row.queue.name), []).extend(holders_of([row]))
            if not place % _LOOK_EVERY:
                await stepwise.between()
        return found

    def ring(self, row: QueueRow) -> Ring | None:
        """The counts of a queue over time; None when it was not used yet."""
        if row.kind == "stream":
            return self._context.sampler.partitioned.get(row.name)
        vhost = self._context.broker.vhosts.get(row.vhost)
        queue = vhost.queues.get(row.name) if vhost is not None else None
        return queue.figures.ring if queue is not None else None

    async def _refresh_lags(self, now: float) -> Mapping[tuple[str, str], GroupLag]:
        stepwise = Stepwise()
        groups = [
            (queue, group)
            for queue in list(self._context.service.store.queues.values())
            for group in list(queue.groups.values())
        ]
        known = {(queue.name, group.name) for queue, group in groups}
        self._lags = {key: lag for key, lag in self._lags.items() if key in known}
        left = _PARTITIONS_AT_ONCE
        for step in range(len(groups)):
            queue, group = groups[(self._next_group + step) % len(groups)]
            counting = self._counting
            if counting is None or counting.group is not group:
                counting = _Counting(group, count_group(queue, group, now))
            left -= 1  # a group without partitions costs something, too
            left = await counting.go_on(left, stepwise)
            counts = counting.result
            self._counting = None if counts is not None else counting
            if counts is not None:
                age = 0.0 if counts.oldest_us is None else max(0.0, (micros(now) - counts.oldest_us) / _US)
                self._lags[queue.name, group.name] = GroupLag(
                    queue=queue.name, group=group.name, messages=counts.lag, seconds=round(age, 1)
                )
            if left <= 0:
                finished = counts is not None
                self._next_group = (self._next_group + step + finished) % len(groups)
                break
        else:
            self._next_group = 0
        oldest: dict[str, float] = {}
        for lag in self._lags.values():
            if lag.messages:
                oldest[lag.queue] = max(lag.seconds, oldest.get(lag.queue, 0.0))
        self._queue_tables.oldest_unread = oldest
        return self._lags


class _Worst:
    """The worst findings and how many there are. What cannot be among the worst is only counted: on a large
    broker that lost its consumers, tens of thousands of queues need attention."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._dropped = 0
        self._last: tuple[int, str] | None = None  # since and name, once the worst are all bad

    def add(self, findings: list[Finding]) -> None:
        """Add findings."""
        self._found += findings
        if len(self._found) >= _COLLECTED_MOST:
            self._prune()

    def count(self) -> None:
        """Count one that is not among the worst."""
        self._dropped += 1

    def has_worse_than(self, row: QueueRow, limits: Thresholds, now: float) -> bool:
        """Whether all that can be found about this queue is that it has no reader, and that is not among the
        worst."""
        return (
            self._last is not None
            and row.kind != "stream"
            and not row.consumers
            and not row.paused
            and not row.died_today
            and row.oldest is not None
            and row.oldest >= limits.unread_seconds
            and (int(now * 1000) - int(row.oldest * 1000), row.name) > self._last
        )

    def findings(self) -> Findings:
        """The worst first."""
        self._prune()
        return Findings(self._found, len(self._found) + self._dropped)

    def _prune(self) -> None:
        self._found.sort(key=urgency)
        self._dropped += len(self._found[_SHOWN_MOST:])
        del self._found[_SHOWN_MOST:]
        last = self._found[-1] if len(self._found) == _SHOWN_MOST else None
        self._last = None
        if last is not None and last.severity == "bad" and last.since is not None:
            self._last = last.since, last.name


class _Counting:
    """A group that is being counted, over several scans if it is large."""

    def __init__(self, group: Group, steps: Steps[GroupCounts]) -> None:
        self.group = group
        self.result: GroupCounts | None = None
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


def _is_quiet(row: QueueRow, seconds: float, limits: Thresholds) -> bool:
    """Whether no rule can find anything about a queue's waiting messages: most queues of a large broker."""
    return (
        row.oldest is not None
        and row.oldest < seconds
        and row.ready < limits.growing_messages
        and not row.paused
    )


def _net_by_minute(ring: Ring | None, now: float) -> list[int]:
    if ring is None:
        return []
    return [came - acked for came, _, acked in ring.recent_minutes(int(now), GROWING_MINUTES)]
