"""Pushes that are not visible yet: their record is not durable, or their batch is not complete.

Owns: the order in which they become visible. No consumer gets a message that a crash could still lose, no
pop waits for the disk after its claim, and no reader sees a part of a batch that several records publish.
Must not touch: how a queue makes messages visible.
"""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from holtmq.broker.partitioned.events import Pushed
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.journal.interface import Journal, JournalFailed

Show = Callable[[PartitionedQueue, Pushed], None]


@dataclass(slots=True)
class _Stretch:
    """Durable messages behind a hidden one, up to ``end``."""

    first: int
    end: int
    created_us: int
    partitions: set[int]

    def as_push(self) -> Pushed:
        """A push that ends at the same offset and concerns the same partitions, each once."""
        partitions = array("I", self.partitions)
        return Pushed(self.end - len(partitions), self.created_us, partitions, array("Q"))


@dataclass(slots=True)
class _Hidden:
    """The end of a queue that is hidden: from the first offset of the oldest incomplete batch on."""

    queue: PartitionedQueue
    starts: dict[str, int] = field(default_factory=dict)  # owner of a batch -> its first offset here
    stretches: deque[_Stretch] = field(default_factory=deque)

    def keep(self, push: Pushed) -> None:
        """Keep a durable push until it may be shown."""
        end, partitions = push.first_offset + len(push.partitions), set(push.partitions)
        if self.stretches and push.first_offset not in self.starts.values():
            last = self.stretches[-1]
            last.end = end
            last.partitions |= partitions
        else:
            self.stretches.append(_Stretch(push.first_offset, end, push.created_us, partitions))


class PendingVisibility:
    """Calls ``show`` for each push, in order, when its record is durable and no batch hides it.

    Pushes that were hidden together are shown together, as one.
    """

    def __init__(self, journal: Journal, show: Show) -> None:
        self._journal = journal
        self._show = show
        self._waiting: deque[tuple[int, PartitionedQueue, Pushed] | tuple[int, str]] = deque()
        self._hidden: dict[int, _Hidden] = {}  # by number of the queue

    def add(self, queue: PartitionedQueue, event: Pushed) -> None:
        """Add a push whose record was just appended, or read at start-up, when all is durable."""
        self._wait((self._journal.end, queue, event))

    def hide(self, owner: str, queue: PartitionedQueue, offset: int) -> None:
        """Show nothing of this queue from an offset on, until ``reveal``; a second call changes nothing."""
        hidden = self._hidden.setdefault(queue.number, _Hidden(queue))
        hidden.starts.setdefault(owner, offset)
        queue.log.hidden_from = min(hidden.starts.values())

    def hide_restored(self, owner: str, queue: PartitionedQueue, offset: int) -> None:
        """``hide`` messages that a checkpoint contained."""
        self.hide(owner, queue, offset)
        log = queue.log
        hidden, end = self._hidden[queue.number], log.next_offset
        log.durable_end = min(log.durable_end, offset)
        starts = [*sorted(hidden.starts.values()), end]
        hidden.stretches = deque(
            _Stretch(first, stop, log.last_created_us, _touched(queue, first, stop))
            for first, stop in pairwise(starts)
            if first < stop
        )

    def reveal(self, owner: str) -> None:
        """All of the owner's batch is appended: show it once that is durable."""
        if any(owner in hidden.starts for hidden in self._hidden.values()):
            self._wait((self._journal.end, owner))

    def hidden_by(self, owner: str) -> dict[int, int]:
        """From which offset on the owner hides messages, by number of the queue."""
        return {
            number: hidden.starts[owner] for number, hidden in self._hidden.items() if owner in hidden.starts
        }

    def forget(self, queue: PartitionedQueue) -> None:
        """The queue was deleted."""
        self._hidden.pop(queue.number, None)

    def _wait(self, entry: tuple[int, PartitionedQueue, Pushed] | tuple[int, str]) -> None:
        journal = self._journal
        self._waiting.append(entry)
        if journal.durable == entry[0]:
            self._settle(None)
        else:
            journal.on_durable(self._settle)

    def _settle(self, failed: JournalFailed | None) -> None:
        waiting, durable = self._waiting, self._journal.durable
        while waiting and waiting[0][0] <= durable:
            entry = waiting.popleft()
            if len(entry) == 2:
                self._reveal(entry[1])
                continue
            _, queue, event = entry
            hidden_from = queue.log.hidden_from
            if hidden_from is None or event.first_offset < hidden_from:
                self._show(queue, event)
            elif queue.number in self._hidden:  # else it was deleted
                self._hidden[queue.number].keep(event)
        if failed is not None:
            waiting.clear()  # these never become durable

    def _reveal(self, owner: str) -> None:
        """Show the owner's messages in all queues at one moment, unless another batch still hides them."""
        shown: list[tuple[PartitionedQueue, Pushed]] = []
        for number, hidden in list(self._hidden.items()):
            if hidden.starts.pop(owner, None) is None:
                continue
            log = hidden.queue.log
            log.hidden_from = min(hidden.starts.values(), default=None)
            while hidden.stretches and (
                log.hidden_from is None or hidden.stretches[0].first < log.hidden_from
            ):
                shown.append((hidden.queue, hidden.stretches.popleft().as_push()))
            if not hidden.starts:
                del self._hidden[number]
        for queue, event in shown:
            self._show(queue, event)


def _touched(queue: PartitionedQueue, first: int, stop: int) -> set[int]:
    """The partitions with messages in a range."""
    return {
        index for _, _, _, partitions in queue.log.stretches(first, stop) for index in set(partitions)
    } & set(queue.indexes.values())
