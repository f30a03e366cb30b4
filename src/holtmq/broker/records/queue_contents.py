"""Copies of the contents of work queues, for a checkpoint.

Owns: what is copied, and how it is encoded later. Must not touch: a queue after it is copied: the
checkpoint's thread encodes while the queues change. So everything in here is a number, a message (which
never changes), or a copy. Which copies are up to date is in ``queue_copies.py``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain, islice
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.message import Message
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.fifo_contents import FifoContents
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.spilling_fifo import NOTHING_ASIDE
from holtmq.broker.work.work_queue import WorkQueue

_CHUNK: Final = 16_384  # positions in one array: to sort it takes the interpreter for 4 ms
_encode: Final = msgspec.msgpack.Encoder().encode
_ONE: Final = Struct("<Q").pack  # as an array on a little-endian machine, in a third of the time
_NO_RETURNS: Final[dict[int, int]] = {}


class QueueState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The contents of one work queue, in a checkpoint."""

    id: int
    size: int
    expiring: bool
    delivered_upto: int
    levels: dict[int, bytes]
    returned: dict[int, int]


class _Contents(NamedTuple):
    """The contents of one queue, but for leased messages. ``queue`` itself is used for what never changes."""

    queue: WorkQueue
    size: int
    expiring: bool
    delivered_upto: int
    returned: dict[int, int]
    levels: dict[int, FifoContents]
    outstanding: list[Message]  # neither in the queue's store nor leased


class QueueContents:
    """Copies queues with ``copy``; ``live`` and ``states`` may be called in another thread.

    To copy takes 0.4 µs for a queue whose messages are all ready and in memory, or all paged out, as after
    a restart: its numbers and messages go to the end of lists, without an object of its own that the garbage
    collector would look at.
    """

    __slots__ = (
        "_by_priority",
        "_messages",
        "_numbers",
        "_others",
        "_paged",
        "_paged_numbers",
        "_runs",
        "_simple",
        "outdated",
    )

    def __init__(self) -> None:
        self.outdated: Set[Queue] = frozenset()  # queues whose copies in here do not count
        self._others: list[_Contents] = []
        self._simple: list[WorkQueue] = []
        self._numbers: list[int] = []  # four for each of these
        self._messages: list[Message] = []
        self._paged: list[WorkQueue] = []
        self._paged_numbers: list[int] = []  # likewise
        self._runs: list[array[int]] = []  # one for each of these
        self._by_priority = _PriorityQueues()

    def copy(self, queues: Iterable[Queue]) -> None:
        """Copy these queues as they are now; streams have no contents of their own."""
        simple, numbers, messages = self._simple, self._numbers, self._messages
        paged, paged_numbers, runs = self._paged, self._paged_numbers, self._runs
        by_priority = self._by_priority
        for queue in queues:
            if not isinstance(queue, WorkQueue):
                continue
            fifo = queue.fifo
            if queue.returned or queue.held_back or queue.outcasts.count:
                self._others.append(_contents(queue))
            elif fifo is None:
                if not by_priority.copy(queue):
                    self._others.append(_contents(queue))
            elif fifo.aside is not NOTHING_ASIDE:
                self._others.append(_contents(queue))
            elif fifo.inbox is not (ready := fifo.ready):
                run = fifo.only_run()
                if run is None or queue.unacked:
                    self._others.append(_contents(queue))
                else:
                    paged.append(queue)
                    paged_numbers += (queue.bytes, queue.expiring, queue.delivered_upto, len(run))
                    runs.append(run)
            elif (count := len(ready)) or queue.unacked:
                simple.append(queue)
                numbers += (queue.bytes, queue.expiring, queue.delivered_upto, count)
                if count == 1:  # like most, in half the time
                    messages.append(ready[0])
                else:
                    messages += ready
            # Else it is empty, like most of very many queues: a restart begins with an empty one.

    def live(self) -> Iterator[array[int]]:
        """The positions of all messages, in any order."""
        outdated = self.outdated
        others = [contents for contents in self._others if contents.queue not in outdated]
        ready = (message.position for message in self._ready() if message.position and message.persistent)
        outstanding = chain.from_iterable(contents.outstanding for contents in others)
        held = (message.position for message in outstanding if message.position)
        paged = chain.from_iterable(
            run[:count]
            for queue, run, count in zip(self._paged, self._runs, self._paged_numbers[3::4], strict=True)
            if queue not in outdated
        )
        yield from arrays(chain(ready, held, paged))
        for contents in chain(others, self._by_priority.contents(outdated)):
            for fifo in contents.levels.values():
                yield from fifo.positions()

    def _ready(self) -> Iterator[Message]:
        if not self.outdated:
            yield from self._messages
            return
        messages = iter(self._messages)
        for queue, count in zip(self._simple, self._numbers[3::4], strict=True):
            some = list(islice(messages, count))
            if queue not in self.outdated:
                yield from some

    def states(self, leased: Mapping[Queue, list[Message]]) -> Iterator[bytes]:
        """The encoded states of the queues that survive a restart, with their leased messages."""
        outdated = self.outdated
        for contents in self._others:
            if contents.queue.persisted and contents.queue not in outdated:
                yield _encode(_state(contents, leased.get(contents.queue, [])))
        for contents in self._by_priority.contents(outdated):
            if contents.queue.persisted:
                yield _encode(_state(contents, leased.get(contents.queue, [])))
        numbers = iter(self._paged_numbers)
        for queue, run, size, expiring, upto, count in zip(
            self._paged, self._runs, numbers, numbers, numbers, numbers, strict=True
        ):
            if queue.persisted and queue not in outdated:
                levels = {0: run[:count].tobytes()}
                yield _encode(QueueState(queue.id, size, bool(expiring), upto, levels, _NO_RETURNS))
        messages, numbers = iter(self._messages), iter(self._numbers)
        for queue, size, expiring, upto, count in zip(
            self._simple, numbers, numbers, numbers, numbers, strict=True
        ):
            ready = list(islice(messages, count))
            if not queue.persisted or queue in outdated:
                continue
            if queue in leased:
                fifo = FifoContents(NOTHING_ASIDE, ready, [], frozenset(), 0, [])
                contents = _Contents(queue, size, bool(expiring), upto, _NO_RETURNS, {0: fifo}, [])
                yield _encode(_state(contents, leased[queue]))
            else:
                yield _encode(_simple_state(queue, size, bool(expiring), upto, ready))


class _PriorityQueues:
    """Queues with priorities of which each level is all in memory or all paged out, copied in 1 µs."""

    __slots__ = ("_messages", "_numbers", "_queues", "_runs")

    def __init__(self) -> None:
        self._queues: list[WorkQueue] = []
        self._numbers: list[int] = []  # four for each queue, and for each of its levels: which, and how many
        self._messages: list[Message] = []
        self._runs: list[array[int]] = []

    def copy(self, queue: WorkQueue) -> bool:
        """Copy this queue, or do nothing if it is not one of these."""
        store = queue.store
        assert isinstance(store, Levels)
        messages, runs, numbers = self._messages, self._runs, self._numbers
        before = len(messages), len(runs), len(numbers)
        numbers += (queue.bytes, queue.expiring, queue.delivered_upto, len(store.fifos))
        for level, fifo in store.fifos.items():
            if fifo.aside is not NOTHING_ASIDE:
                break
            if fifo.inbox is (ready := fifo.ready):
                messages += ready
                numbers += (level, len(ready))
            elif run := fifo.only_run():
                runs.append(run)
                numbers += (level, -len(run))
            else:
                break
        else:
            if queue.unacked or len(messages) > before[0] or len(runs) > before[1]:
                self._queues.append(queue)
            else:  # a restart begins with an empty one
                del numbers[before[2] :]
            return True
        del messages[before[0] :], runs[before[1] :], numbers[before[2] :]
        return False

    def contents(self, outdated: Set[Queue]) -> Iterator[_Contents]:
        """The copies, but for those of ``outdated`` queues."""
        messages, runs, numbers = iter(self._messages), iter(self._runs), iter(self._numbers)
        for queue in self._queues:
            size, expiring, upto, count = islice(numbers, 4)
            levels: dict[int, FifoContents] = {}
            for _ in range(count):
                level, length = next(numbers), next(numbers)
                paged = [(next(runs), -length)] if length < 0 else []
                ready = list(islice(messages, max(length, 0)))
                levels[level] = FifoContents(NOTHING_ASIDE, ready, paged, frozenset(), 0, [])
            if queue not in outdated:
                yield _Contents(queue, size, bool(expiring), upto, _NO_RETURNS, levels, [])


def outstanding(queue: WorkQueue) -> list[Message]:
    """The messages of a queue that are neither in its store nor leased."""
    held_back = [message for batch in queue.held_back.values() for message in batch]
    # Not written yet; some (``reject-publish-dlx``) were never in the queue.
    return held_back + [message for _, message in queue.outcasts if message.position]


def _contents(queue: WorkQueue) -> _Contents:
    store = queue.store
    fifos = store.fifos if isinstance(store, Levels) else {0: store}
    return _Contents(
        queue,
        queue.bytes,
        queue.expiring,
        queue.delivered_upto,
        queue.returned.copy(),
        {level: fifo.contents() for level, fifo in fifos.items()},
        outstanding(queue),
    )


def _state(contents: _Contents, leased: list[Message]) -> QueueState:
    """What a restart needs of a queue."""
    store = contents.queue.store
    size, expiring = contents.size, contents.expiring
    out_by_level: dict[int, list[int]] = {level: [] for level in contents.levels}
    for message in chain(leased, contents.outstanding):
        expiring = expiring or message.expires_ms > 0
        if message.persistent:
            size += len(message.body)
            level = store.level_of(message.priority) if isinstance(store, Levels) else 0
            out_by_level.setdefault(level, []).append(message.position)
    levels: dict[int, bytes] = {}
    for level, out in out_by_level.items():
        fifo = contents.levels.get(level)
        runs = [] if fifo is None else list(fifo.positions())
        size -= 0 if fifo is None else fifo.transient_bytes()
        levels[level] = b"".join([run.tobytes() for run in _with_out(runs, out)])
    return QueueState(contents.queue.id, size, expiring, contents.delivered_upto, levels, contents.returned)


def _simple_state(queue: WorkQueue, size: int, expiring: bool, upto: int, ready: list[Message]) -> QueueState:
    """``_state`` of a queue whose messages are all ready and in memory, in a quarter of the time."""
    positions = [message.position for message in ready if message.position and message.persistent]
    if len(positions) < len(ready):
        size -= sum([len(message.body) for message in ready if not message.persistent])
    packed = _ONE(positions[0]) if len(positions) == 1 else array("Q", positions).tobytes()
    return QueueState(queue.id, size, expiring, upto, {0: packed}, _NO_RETURNS)


def _with_out(runs: list[array[int]], out: list[int]) -> list[array[int]]:
    """Merge outstanding positions: ahead of the ready ones, or among those that were returned earlier."""
    out.sort()
    merged: list[array[int]] = []
    for run in runs:
        if out and run:
            here = bisect_left(out, run[-1])
            if here:
                merged.append(array("Q", sorted([*out[:here], *run])))
                out = out[here:]
                continue
        merged.append(run)
    merged.append(array("Q", out))
    return merged


def arrays(positions: Iterator[int]) -> Iterator[array[int]]:
    """Positions in arrays that are not too long."""
    while some := array("Q", islice(positions, _CHUNK)):
        yield some
