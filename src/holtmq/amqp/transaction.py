"""What a transactional channel has done since its last commit.

Owns: the publishes and settlements that wait for ``tx.commit``, their size limit, and the order in which a
commit applies them. Must not touch: frames; the channel sends replies and returns unroutable messages.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import repeat
from typing import Final, NamedTuple

from holtmq.broker.errors import Conflict
from holtmq.broker.figures.client_counts import ChannelMessages, ClientCounts
from holtmq.broker.flow import Flow, PublishOutcome
from holtmq.broker.publish.prepared import Outdated, PreparedPublishes, Publish, Unpreparable
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import SPECIAL, Route
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Lease, Ledger
from holtmq.broker.work.outcasts import Outcasts
from holtmq.broker.work.work_queue import WorkQueue

Settle = Callable[[list[Lease]], None]

# A commit is one journal record of at most a gibibyte. Half of that leaves room for what is not known in
# advance: headers of dead letters, and the encoding of bodies in streams.
_BYTES_MAX: Final = 512 << 20
STEP: Final = 3_000  # plain messages of a transaction that are routed and encoded at once: about 10 ms
_DISCARDED: Final = 10  # objects that are deleted in the time of a publish
_VERY_MANY: Final = 5  # steps: then the moment of the commit takes as long as one
_TRIES: Final = 3  # with a topology that changes meanwhile; then in one go


class Committed(NamedTuple):
    """What a commit did."""

    journalled: bool  # in a record that may not be durable yet
    unrouted: list[tuple[Route, bytes, bytes]]  # mandatory messages
    is_partial: bool = False  # a full queue has refused a message
    leftovers: Iterable[None] = ()  # deletes what is no longer needed, in steps


class Transaction:
    """The open transaction of a channel. Commit and rollback start a new one."""

    __slots__ = (
        "_bytes",
        "_counts",
        "_flow",
        "_is_plain",
        "_ledger",
        "_messages",
        "_publishes",
        "_rewritten",
        "_settlements",
        "_work",
    )

    def __init__(self, flow: Flow, ledger: Ledger, counts: ClientCounts, messages: ChannelMessages) -> None:
        self._flow = flow
        self._ledger = ledger
        self._counts = counts
        self._messages = messages
        self._publishes: list[Publish] = []
        self._settlements: list[tuple[Settle, list[Lease]]] = []
        self._bytes = 0  # of the publishes
        self._work = 0  # likewise, in messages that go to one queue
        self._rewritten = 0  # of messages that may be dead-lettered
        self._is_plain = True  # only acks of work queues

    def publish(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes, mandatory: bool
    ) -> None:
        """Add a message; it is routed at commit."""
        self._bytes += len(header) + len(body)
        self._check(self._bytes)
        self._publishes.append((route, properties, header, body, mandatory))
        self._work += route.work + SPECIAL * len(properties.extra_keys)

    def settle(self, how: Settle, leases: list[Lease]) -> None:
        """Add a settlement. The leases end at commit; until then the client cannot settle them again."""
        self._settlements.append((how, leases))
        self._ledger.set_aside(leases)  # a checkpoint before the commit must still see them
        if how != self._flow.ack or any(lease.queue.is_stream for lease in leases):
            self._is_plain = False
        if how != self._flow.ack:  # a message that is not acked may be dead-lettered, which writes it again
            self._rewritten += sum([len(lease.message.header) + len(lease.message.body) for lease in leases])
            self._check(self._bytes)

    def commit(self) -> Committed:
        """Apply everything in one record, except messages that a full queue refuses."""
        flow = self._flow
        flow.turn()  # earlier changes are not part of this record
        flow.begin()
        unrouted: list[tuple[Route, bytes, bytes]] = []
        dropped, is_partial = 0, False
        try:
            for route, properties, header, body, mandatory in self._publishes:
                outcome = flow.publishing.publish(route, properties, header, body)
                if outcome is PublishOutcome.UNROUTED:
                    if mandatory:
                        unrouted.append((route, header, body))
                    else:
                        dropped += 1
                elif outcome is PublishOutcome.REFUSED:
                    is_partial = True
            # The size including all target queues, known only now; the last point to refuse.
            self._check(flow.batch_bytes)
        except BaseException:
            flow.abort()
            raise
        self._counts.dropped += dropped
        self._messages.dropped += dropped
        return Committed(self._settle_and_write(), unrouted, is_partial)

    @property
    def publish_count(self) -> int:
        """Messages that wait for the commit."""
        return len(self._publishes)

    @property
    def settlement_count(self) -> int:
        """Deliveries whose settlement waits for the commit."""
        return sum(len(leases) for _, leases in self._settlements)

    @property
    def is_long(self) -> bool:
        """Whether to commit in steps."""
        return self._is_plain and self._work > STEP

    def commit_in_steps(self, is_over: Callable[[], bool]) -> Generator[None, None, Committed | None]:
        """``commit`` with other work between its steps; a message is an item, or several if it takes long.

        Messages are encoded in steps. Then everything is written and applied at one moment. None: the channel
        was closed meanwhile (``is_over``), and nothing has happened.
        """
        flow = self._flow
        while flow.prepares:
            yield
            if is_over():
                return None
        flow.prepares = True
        try:
            for _try in range(_TRIES):
                prepared = PreparedPublishes(flow)
                try:
                    for _ in prepared.steps(self._publishes):
                        yield
                        if is_over():
                            return None
                    self._check(prepared.size)
                    if len(self._publishes) > _VERY_MANY * STEP:
                        yield from repeat(None, STEP)  # so that the rest has a step of its own
                        if is_over():
                            return None
                    flow.turn()  # earlier changes are not part of this record
                    prepared.check()
                except Outdated:
                    continue
                except Unpreparable:
                    break
                self._counts.dropped += prepared.dropped
                self._messages.dropped += prepared.dropped
                flow.begin(prepared)
                leftovers = _discard(self._publishes)
                return Committed(self._settle_and_write(), prepared.unrouted, leftovers=leftovers)
            return self.commit()
        finally:
            flow.prepares = False

    def _settle_and_write(self) -> bool:
        flow = self._flow
        settlements = self._settlements
        self._start_anew()
        settled: dict[int, Queue] = {}
        for _, leases in settlements:
            settled.update((lease.queue.id, lease.queue) for lease in leases)
        # What is being dead-lettered in steps goes on after the commit, which must not do all of it at once.
        earlier = [(queue, queue.outcasts) for queue in settled.values() if isinstance(queue, WorkQueue)]
        for queue, _ in earlier:
            queue.outcasts = Outcasts()
        try:
            for how, leases in settlements:
                how(leases)
                if how == flow.ack:
                    self._messages.acked += len(leases)
            journalled = flow.commit([queue for queue in settled.values() if not queue.deleted])
        finally:
            for queue, outcasts in earlier:
                outcasts.append(queue.outcasts)
                queue.outcasts = outcasts
        self._ledger.commit()
        return journalled

    def rollback(self) -> None:
        """Drop all publishes and settlements: the client holds its leases again."""
        settlements = self._settlements
        self._start_anew()
        for _, leases in settlements:
            self._ledger.restore(leases)

    def _start_anew(self) -> None:
        self._publishes, self._settlements = [], []
        self._bytes = self._rewritten = self._work = 0
        self._is_plain = True

    def _check(self, published: int) -> None:
        if published + self._rewritten > _BYTES_MAX:
            raise Conflict(f"transaction is larger than the max size {_BYTES_MAX}")


def _discard(publishes: list[Publish]) -> Iterator[None]:
    """Delete very many objects, some in each item: all at once take up to 40 ms."""
    while publishes:
        del publishes[-_DISCARDED:]
        yield
