"""Ephemeral queues: partitions of messages in memory only, which are lost when the process ends.

Owns: what can be done with one: push, pop, settle. Nothing here is journalled. Must not touch: clocks, wire
names. Time is passed in as ``now``. What a call costs depends on the messages it is about, not on those that
are there; a call about very many is a generator that yields between steps, in which others may run.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.extras.ephemeral_state import COST, EphemeralState
from holtmq.broker.partitioned.extras.ephemeral_values import (
    NAMELESS,
    EphemeralConfig,
    Gauges,
    Handed,
)
from holtmq.broker.partitioned.extras.ephemeral_waiting import Place
from holtmq.broker.partitioned.steps import Steps, finish

_LOOKED_AT: Final = 100  # new partitions that a group looks at in one step


class EphemeralQueue:
    """One queue. Message numbers restart with each ``incarnation``; those of an earlier one are invalid."""

    def __init__(self, name: str, config: EphemeralConfig) -> None:
        self.name = name
        self.declared = False
        self.incarnation = secrets.token_hex(6)
        self._is_named = False  # a group with a name has read
        self._state = EphemeralState(name, config)

    @property
    def config(self) -> EphemeralConfig:
        return self._state.config

    @config.setter
    def config(self, config: EphemeralConfig) -> None:
        self._state.config = config

    @property
    def length(self) -> int:
        return self._state.length

    @property
    def size(self) -> int:
        return self._state.size

    @property
    def dropped(self) -> int:
        return self._state.dropped

    @property
    def unused(self) -> bool:
        """Whether it can be dropped: not declared, empty, no waiting pop and no named group."""
        return not (self.declared or self._state.length or self._is_named or self._state.waiting)

    def push(self, partition: str, payloads: list[bytes], now: float) -> None:
        """Store messages; refuse them all if they exceed the bound and the queue does not drop old ones."""
        finish(self.pushing(partition, payloads, now))

    def pushing(self, partition: str, payloads: list[bytes], now: float) -> Steps[None]:
        """The same in steps. The messages are stored in the last one."""
        state = self._state
        more = sum([len(payload) for payload in payloads]) + COST * len(payloads)
        while state.is_full(len(payloads), more):
            yield from state.tidying(now)
            if state.is_full(len(payloads), more) and not state.config.drops_oldest:
                raise LimitReached(f"ephemeral queue {self.name} is full")
            if not state.length:
                break
            while state.length and state.is_full(len(payloads), more):
                state.drop_oldest()
                yield
        where = state.partition(partition)
        state.store(where, payloads, now)
        while state.length and state.is_full(0, 0):
            state.drop_oldest()
        state.rest(where)
        state.waiting.wake_groups(None)
        state.waiting.wake_groups(partition)

    def pop(self, group: str, partition: str | None, limit: int, auto_ack: bool, now: float) -> list[Handed]:
        """The next messages for a group, partition by partition; redeliveries come first."""
        return finish(self.popping(group, partition, limit, auto_ack, now))

    def popping(
        self, group: str, partition: str | None, limit: int, auto_ack: bool, now: float
    ) -> Steps[list[Handed]]:
        """The same in steps. What it has found is delivered, so run it to its end."""
        state, found = self._state, list[Handed]()
        self._is_named = self._is_named or group != NAMELESS
        yield from state.tidying(now)
        if partition is not None:
            where = state.partition(partition)
            state.take(where, state.reader(where, group), limit, auto_ack, now, found)
            state.rest(where)
            yield from state.trimming()
            return found
        reading = state.group(group)
        more = state.look(group, reading, min(limit, _LOOKED_AT), now)
        while len(found) < limit:
            if not reading.line:
                if not more:
                    break
                more = state.look(group, reading, min(limit - len(found), _LOOKED_AT), now)
                yield
                continue
            name, reader = next(iter(reading.line.items()))
            if name not in state.partitions or state.partitions[name].readers.get(group) is not reader:
                break  # the queue was deleted meanwhile
            state.take(state.partitions[name], reader, limit - len(found), auto_ack, now, found)
            if name in reading.line:
                reading.line.move_to_end(name)  # a partition that is always filled must not hold up others
            yield
        yield from state.trimming()
        return found

    def settle(self, group: str, acks: Iterable[tuple[str, int, bool]], now: float) -> list[str]:
        """Settle (partition, number, completed) items: ``acked``, ``redelivered`` or ``unknown`` for each.

        Unknown: the group does not hold the message, because it was settled before or its lease expired.
        """
        return finish(self.settling(group, acks, now))

    def settling(self, group: str, acks: Iterable[tuple[str, int, bool]], now: float) -> Steps[list[str]]:
        """The same in steps."""
        state = self._state
        yield from state.tidying(now)
        outcomes: list[str] = []
        for partition, number, completed in acks:
            where = state.partitions.get(partition)
            reader = None if where is None else where.readers.get(group)
            held = None if reader is None else reader.held.get(number)
            if where is None or reader is None or held is None or held.lease is None:
                outcomes.append("unknown")
            else:
                state.unlease(held.lease, number)
                is_back = state.end(where, reader, number, completed, now)
                outcomes.append("redelivered" if is_back else "acked")
            yield
        yield from state.trimming()
        return outcomes

    def reset(self) -> int:
        """Delete all messages; return how many. Groups continue with the next push."""
        return finish(self.resetting())

    def resetting(self) -> Steps[int]:
        """The same in steps. Messages that are pushed meanwhile stay."""
        state = self._state
        gone, before = 0, state.order
        for name in list(state.partitions):
            where = state.partitions.get(name)
            if where is None:
                continue
            for reader in list(where.readers.values()):
                for number in list(reader.held):
                    if number in reader.held and reader.held[number].message.order < before:
                        lease = where.release(reader, number).lease
                        if lease is not None:
                            state.unlease(lease, number)
                        yield
                reader.again = sorted([number for number in reader.again if number in reader.held])
                where.settle(reader)
            while state.is_here(where) and where.messages and where.oldest.order < before:
                state.forget(where)
                gone += 1
                yield
            state.rest(where)
            yield
        return gone

    def gauges(self, now: float) -> Steps[Gauges]:
        """Its figures, in steps."""
        state = self._state
        yield from state.tidying(now)
        groups = {group: [state.length, 0] for group in state.groups}
        for name in list(state.partitions):
            where = state.partitions.get(name)
            for group, reader in list(where.readers.items()) if where is not None else ():
                assert where is not None
                figures = groups.setdefault(group, [0, 0])
                figures[0] += where.unread(reader) + len(reader.again)
                figures[0] -= len(where.messages) if group in state.groups else 0
                figures[1] += len(reader.held) - len(reader.again)
            yield
        rows = {group: (max(0, waiting), out) for group, (waiting, out) in groups.items()}
        return Gauges(state.length, state.size, len(state.partitions), state.dropped, rows)

    def wait(self, group: str, partition: str | None, wake: Callable[[], None]) -> Place:
        """A pop that found nothing waits; ``leave`` must follow."""
        place = self._state.waiting.add(group, partition, wake)
        if partition is not None:
            self._state.idle.pop(partition, None)
        if self._state.has(group, partition):  # it came in the last steps of the pop
            self._state.waiting.wake(partition, group)
        self._state.plan()
        return place

    def leave(self, place: Place) -> None:
        """A pop waits no more. If it left something, the next one is woken."""
        self._state.waiting.remove(place)
        partition, group, _ = place
        if self._state.has(group, partition):
            self._state.waiting.wake(partition, group)
        if partition is not None and (where := self._state.partitions.get(partition)) is not None:
            self._state.rest(where)

    def discarding(self) -> Iterator[None]:
        """The queue was deleted: free what it has, in steps. Pops that wait see an empty one."""
        return self._state.discarding()

    def due(self) -> float | None:
        """When the next lease or window ends."""
        return self._state.due()

    def tidying(self, now: float) -> Steps[None]:
        """Redeliver messages whose lease expired, open windows that are over, remove messages that aged."""
        return self._state.tidying(now)

    def watch(self, alarm: Callable[[float], object]) -> None:
        """Call this with the time at which ``tidying`` is due, while pops wait."""
        self._state.alarm = alarm

    def plan(self) -> None:
        """Call the alarm, if there is something to wait for."""
        self._state.plan()
