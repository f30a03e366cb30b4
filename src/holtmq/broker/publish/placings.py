"""How a message that waits in the journal enters its queues: some at a time, if there are very many.

Owns: the steps, and the lines of messages that wait for an earlier one of the same exchange. Must not touch:
when a delay ends (``delays.py``), clocks.

Each step is one record: the message in some queues, the end of its wait, and the message again for the queues
that are left. After a crash it goes on with those. While a message of an exchange is placed in steps, later
ones to the same exchange wait behind it, so that none overtakes it on the way to a queue.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from holtmq.broker.message import unplaced
from holtmq.broker.publish.due_message import DueMessage, Origin
from holtmq.broker.publish.wide_publishes import between_steps
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import encode_delayed
from holtmq.broker.topology.queue_options import Overflow
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import RecordUnreadable

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.message import Message
    from holtmq.broker.publish.delays import Delays
    from holtmq.broker.publish.record_batch import Where
    from holtmq.broker.publish.wide_publishes import QueuesInParts
    from holtmq.broker.topology.destinations import Queue
    from holtmq.broker.topology.routing import RouteWalk

TRY_AGAIN_MS: Final = 1_000
_FOUND: Final = 15_000  # queues in one step: about 5 ms


class Placing:
    """A message, and how far it is."""

    __slots__ = ("accepted", "due", "found", "has_delays", "is_rest", "position", "walks", "wanted")

    def __init__(
        self,
        position: int,
        due: DueMessage,
        found: QueuesInParts,
        walks: list[RouteWalk[Queue]],
        *,
        is_rest: bool = False,
    ) -> None:
        self.position = position  # of its record, which changes with each step
        self.due = due
        self.found = found
        self.walks = walks  # complete when all queues are found
        self.is_rest = is_rest  # other queues have it already
        self.wanted = 0  # queues
        self.accepted = 0  # queues that did not refuse it
        self.has_delays = False  # an exchange on its way lets it wait


class Placings:
    """The messages of a node that are being placed."""

    def __init__(self, flow: Flow, delays: Delays) -> None:
        self._flow = flow
        self._delays = delays
        self._lines: dict[Where, deque[int]] = {}  # positions by exchange; the first is being placed
        self.positions: set[int] = set()  # of messages that are being placed, or wait in a line
        self._ends = False

    def has_line(self, where: Where) -> bool:
        """Whether messages of this exchange wait for one that is placed in steps."""
        return where in self._lines

    def line_up(self, where: Where, position: int) -> None:
        """Place a message in steps, behind those of the same exchange."""
        self.positions.add(position)
        line = self._lines.get(where)
        if line is not None:
            line.append(position)
            return
        self._lines[where] = deque([position])
        self._delays.in_steps(self._work_off(where))

    def place_now(self, position: int) -> None:
        """Place a message in all its queues, while there are no clients that wait for a turn."""
        placing = self._open(position)
        if placing is not None:
            for _ in self.in_steps(placing):
                self._flow.turn()

    def end(self) -> None:
        """Begin with no more messages of the lines: the node stops, and goes on with them when it starts."""
        self._ends = True

    def _work_off(self, where: Where) -> Iterator[None]:
        """Place the first of a line. The next one is a change of its own: others have their turn between."""
        position = self._lines[where][0]
        yield
        if self._ends:
            return
        try:
            placing = self._open(position)
            if placing is not None:
                yield from self.in_steps(placing)
                self._placed(placing)
        except Exception:
            self._go_on(where)
            raise
        self._go_on(where)

    def _go_on(self, where: Where) -> None:
        line = self._lines[where]
        self.positions.discard(line.popleft())
        if line:
            self._delays.in_steps(self._work_off(where))
        else:
            del self._lines[where]

    def _open(self, position: int) -> Placing | None:
        """Read a message; None if there is nothing to place."""
        if position not in self._delays.waiting or self._flow.journal.failed is not None:
            return None
        try:
            return self._delays.open(position)
        except RecordUnreadable as error:
            self._delays.unreadable(position, error)
            return None

    def _placed(self, placing: Placing) -> None:
        due = placing.due
        if due.origin is Origin.LETTER and (placing.accepted or placing.has_delays):
            self._flow.dead_lettering.placed(due.vhost, due.message)

    def in_steps(self, placing: Placing) -> Generator[None, None, None]:
        """Place a message in all its queues, unless it is cancelled meanwhile."""
        flow, found = self._flow, placing.found
        self.positions.add(placing.position)
        try:
            ids: list[int] = []
            while not found.looked_at:
                queues = found.find(len(ids) + _FOUND)
                ids += [queue.id for queue in queues[len(ids) :]]
                yield
            left = found.take(sys.maxsize)
            ids += [queue.id for queue in left[len(ids) :]]
            while placing.position in self._delays.waiting and flow.journal.failed is None:
                count = max(1, flow.per_turn.copies)
                some, left, ids = left[:count], left[count:], ids[count:]
                following = self.place(placing, [queue for queue in some if not queue.deleted], ids)
                del self._delays.waiting[placing.position]
                if not left:
                    return
                self.positions.discard(placing.position)
                self.positions.add(following)
                placing.position = following
                self._delays.stop(following)
                yield from between_steps(flow)
        except Exception:
            flow.abort()
            self._delays.schedule(placing.position, placing.due.is_kept, flow.now_ms + TRY_AGAIN_MS)
            raise
        finally:
            self.positions.discard(placing.position)

    def place(self, placing: Placing, queues: list[Queue], left: list[int]) -> int:
        """Place a message in these queues, and delay it for the full ones and for those that are left.

        Return the position of the last.
        """
        flow, due = self._flow, placing.due
        flow.begin()
        assert flow.batch is not None
        full = {} if due.may_be_refused else dict.fromkeys(one for one in queues if self.must_wait(one, due))
        for queue in full:
            self._wait(due, flow.now_ms, [queue.id], due.is_kept and queue.persisted)
        if left:
            self._wait(due, due.due_ms, left, due.is_kept)
        flow.seq += 1
        arrived = due.arrived(flow.seq, flow.now_ms)
        self._pass_exchanges(placing, arrived)
        placing.wanted += len(queues)
        if due.may_be_refused:
            placing.accepted += flow.publishing.enqueue(arrived, queues)[0]
        else:
            accepting = [queue for queue in queues if queue not in full]
            if flow.publishing.place_unconfirmed(due.vhost, accepting, arrived):
                placing.accepted += len(accepting)
        if due.is_kept:
            flow.batch.add(Kind.DELAY_ENDED, placing.position.to_bytes(8, "little"))
        positions = self._delays.commit()
        return positions[len(full)] if left else 0

    def _wait(self, due: DueMessage, due_ms: int, only: list[int], is_kept: bool) -> None:
        payload = encode_delayed(due.message, due.vhost.name, due.exchange, due_ms, only)
        self._delays.write(payload, is_kept, due_ms)

    def _pass_exchanges(self, placing: Placing, arrived: Message) -> None:
        """Do once what the exchanges on the way do: delay the message, keep it."""
        due, walks, placing.walks = placing.due, placing.walks, []
        for history in dict.fromkeys(history for walk in walks for history in walk.histories):
            history.keep(unplaced(arrived), due.properties.headers)
        delays = {delay.exchange.name: delay.delay_ms for walk in walks for delay in walk.delays}
        for exchange, delay_ms in delays.items():
            placing.has_delays = True
            self._delays.add(due.message, due.vhost.name, exchange, self._flow.now_ms + delay_ms)

    def must_wait(self, queue: Queue, due: DueMessage) -> bool:
        """Whether a full queue keeps a message waiting that it cannot refuse any more."""
        if due.origin is Origin.LETTER or not queue.refuses_when_full:
            return False
        if isinstance(queue, WorkQueue) and queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
            letters_to = queue.options.dead_letter_exchange
            if letters_to in self._flow.vhosts[queue.vhost].exchanges:
                return False  # it becomes a dead letter
        return self._flow.publishing.is_full(queue, len(due.message.body))
