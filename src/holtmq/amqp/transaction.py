"""What a transactional channel has done since its last commit.

Owns: the publishes and settlements that wait for ``tx.commit``, their size limit, and the order in which a
commit applies them. Must not touch: frames; the channel sends replies and returns unroutable messages.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final, NamedTuple

from holtmq.broker.errors import Conflict
from holtmq.broker.figures.client_counts import ChannelMessages, ClientCounts
from holtmq.broker.flow import Flow, PublishOutcome
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.prepared_settlements import LATE, LETTER, Ending, PreparedSettlements
from holtmq.broker.publish.placings import Placing
from holtmq.broker.publish.prepared import Outdated, PreparedPublishes, Publish, Unpreparable
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import DECODED, SPECIAL, Route
from holtmq.broker.publish.taken_room import TakenRoom
from holtmq.broker.streams.claims import Claim, Verdicts, by_claim
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.dead_letter import letter_work
from holtmq.broker.work.leases import Lease, Ledger
from holtmq.broker.work.outcasts import Outcasts
from holtmq.broker.work.retaken import Retaken
from holtmq.broker.work.work_queue import WorkQueue

Settle = Callable[[list[Lease]], None]

# A commit is one journal record of at most a gibibyte. Half of that leaves room for what is not known in
# advance: headers of dead letters, and the encoding of bodies in streams.
_BYTES_MAX: Final = 512 << 20
STEP: Final = 3_000  # plain messages of a transaction that are routed and encoded at once: about 10 ms
_TRIES: Final = 3  # with a topology that changes meanwhile; then in one go
_RECORD_MAX: Final = 1_000 << 20  # a journal record may be a little larger
_SETTLED: Final = 0.1  # a settlement takes so much of the time of a publish, without a dead letter
_FREED: Final = 8  # messages, in the time in which one is encoded
_GROUPS_MAX: Final = 3_000
_TAKEN_ALONG: Final = 1_000  # earlier rejections that may take effect with a commit in one go
_RESTORED: Final = 3_000  # leases that a rollback restores at once: about 2 ms
_LOOKED_AT: Final = 20  # verdicts, in the time in which a message is encoded
_queue: Final = attrgetter("queue")
_holder: Final = attrgetter("holder")


class Committed(NamedTuple):
    """What a commit did."""

    journalled: bool  # in a record that may not be durable yet
    unrouted: list[tuple[Route, bytes, bytes]]  # mandatory messages
    is_partial: bool = False  # a full queue has refused a message
    wide: Sequence[tuple[Publish, Placing]] = ()  # messages that enter very many queues now, in steps


class Transaction:
    """The open transaction of a channel. Commit and rollback start a new one."""

    __slots__ = (
        "_acks",
        "_bytes",
        "_claims",
        "_committed",
        "_counts",
        "_flow",
        "_late",
        "_ledger",
        "_letter_work",
        "_letters",
        "_messages",
        "_publishes",
        "_refused",
        "_retaken",
        "_rewritten",
        "_settled",
        "_settlements",
        "_work",
    )

    def __init__(self, flow: Flow, ledger: Ledger, counts: ClientCounts, messages: ChannelMessages) -> None:
        self._flow = flow
        self._ledger = ledger
        self._counts = counts
        self._messages = messages
        self._publishes: list[Publish] = []
        self._committed: list[Publish] = []  # not freed yet
        self._settlements: list[tuple[Settle, list[Lease]]] = []
        self._settled: list[tuple[Settle, list[Lease]]] = []  # not freed yet
        self._bytes = 0  # of the publishes
        self._work = 0  # likewise, in messages that go to one queue
        self._rewritten = 0  # of messages that may be dead-lettered
        self._acks = 0
        self._refused: Counter[Queue] = Counter()  # settlements other than acks, by queue
        self._letter_work: Counter[Queue] = Counter()  # of these, should they be dead-lettered
        self._claims: set[Claim] = set()  # of consumer groups
        self._letters = 0  # likewise, of rejected messages
        self._late = 0  # settlements of deliveries that were taken back
        self._retaken = Retaken(flow)  # these, while a commit is prepared

    def publish(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes, mandatory: bool
    ) -> None:
        """Add a message; it is routed at commit."""
        self._bytes += len(header) + len(body)
        self._check(self._bytes)
        self._publishes.append((route, properties, header, body, mandatory))
        self._work += route.work + SPECIAL * len(properties.extra_keys)
        if not route.simple:
            self._work += len(header) // DECODED

    def settle(self, how: Settle, leases: list[Lease]) -> None:
        """Add a settlement. The leases end at commit; until then the client cannot settle them again."""
        self._settlements.append((how, leases))
        self._ledger.set_aside(leases)  # a checkpoint before the commit must still see them
        queues = set(map(_queue, leases))
        if any(queue.is_stream for queue in queues):
            self._settle_in_groups(leases, rejects=how == self._flow.reject)
        self._late += list(map(_holder, leases)).count(None)
        if how == self._flow.ack:
            self._acks += len(leases)
        else:  # a message that is not acked may be dead-lettered, which writes it again
            for queue, part in _by_queue(leases, queues).items():
                headers = [lease.message.header for lease in part]
                self._refused[queue] += len(part)
                self._letter_work[queue] += sum(map(letter_work, headers))
                self._rewritten += sum(map(len, headers)) + sum([len(lease.message.body) for lease in part])
            self._check(self._bytes)

    def _settle_in_groups(self, leases: list[Lease], rejects: bool) -> None:
        """Bound what a commit must decide at its one moment, 8 µs for each partition or dead letter."""
        claims = by_claim([lease.message for lease in leases], AckStatus.COMPLETED)
        self._claims.update(claims)
        for claim in claims:
            claim.is_awaited = True  # a consumer that is cancelled before the commit does not end it
        self._letters += sum(map(len, claims.values())) if rejects else 0
        if len(self._claims) + self._letters > _GROUPS_MAX:
            raise Conflict(
                f"transaction settles more than {_GROUPS_MAX} partitions and rejected messages of consumer "
                "groups; commit more often, or set a prefetch limit"
            )

    def commit(self) -> Committed:
        """Apply everything in one record, except messages that a full queue refuses."""
        flow = self._flow
        flow.turn()  # earlier changes are not part of this record
        flow.begin()
        assert flow.batch is not None
        flow.batch.awaits_placing = True
        unrouted: list[tuple[Route, bytes, bytes]] = []
        in_steps: list[Publish] = []
        dropped, is_partial = 0, False
        try:
            for publish in self._publishes:
                route, properties, header, body, mandatory = publish
                outcome = flow.publishing.publish(route, properties, header, body)
                if outcome is PublishOutcome.IN_STEPS:
                    in_steps.append(publish)
                elif outcome is PublishOutcome.UNROUTED:
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
        placings = [one.placing for one in flow.batch.accepted if one.placing is not None]
        wide = list(zip(in_steps, placings, strict=True))
        settlements = self._settlements
        self._start_anew()
        return Committed(self._settle_and_write(settlements), unrouted, is_partial, wide)

    def place(self, done: Committed) -> Generator[None, None, Committed]:
        """Place the messages for very many queues, in the order in which they were published.

        They are part of the transaction's record: after a crash they enter the queues that are left.
        """
        unrouted, is_partial = done.unrouted[:], done.is_partial
        for (route, _, header, body, mandatory), placing in done.wide:
            outcome = yield from self._flow.publishing.place(placing)
            if outcome is PublishOutcome.UNROUTED:
                if mandatory:
                    unrouted.append((route, header, body))
                else:
                    self._counts.dropped += 1
                    self._messages.dropped += 1
            elif outcome is PublishOutcome.REFUSED:
                is_partial = True
        return Committed(done.journalled, unrouted, is_partial)

    @property
    def publish_count(self) -> int:
        """Messages that wait for the commit."""
        return len(self._publishes)

    @property
    def settlement_count(self) -> int:
        """Deliveries whose settlement waits for it."""
        return self._acks + self._refused.total()

    @property
    def is_long(self) -> bool:
        """Whether to commit in steps."""
        if self._work + self._settling_time() > STEP:
            return True
        return any(claim.in_line or claim.waiting_rejections > _TAKEN_ALONG for claim in self._claims)

    def _settling_time(self) -> float:
        """How many publishes would take as long as the settlements."""
        return (
            self._acks * _SETTLED
            + self._late * LATE
            + sum(
                count * _SETTLED
                if queue.options.dead_letter_exchange is None
                else self._letter_work[queue] * LETTER
                for queue, count in self._refused.items()
            )
        )

    def commit_in_steps(self, is_over: Callable[[], bool]) -> Generator[None, None, Committed | None]:
        """``commit`` with other work between its steps; a message is an item, or several if it takes long.

        Messages and dead letters are encoded in steps. Then everything is written and applied at one moment.
        None: the channel was closed meanwhile (``is_over``), and nothing has happened.
        """
        flow = self._flow
        # What was settled before the transaction is written before it.
        in_line = [claim for claim in self._claims if claim.in_line]
        while flow.prepares is not None or in_line:
            if in_line and not in_line[-1].in_line:
                in_line.pop()
                continue
            yield
            if is_over():
                return None
        try:
            for _try in range(_TRIES):
                prepared = PreparedPublishes(flow)
                flow.prepares = prepared.room
                settling = PreparedSettlements(flow, prepared, self._retaken)
                try:
                    for _ in self._prepare(prepared, settling):
                        yield
                        if is_over():
                            return None
                    flow.turn()  # earlier changes are not part of this record
                    prepared.check()
                    settling.check()
                except Outdated:
                    continue
                except Unpreparable:
                    break
                self._counts.dropped += prepared.dropped
                self._messages.dropped += prepared.dropped
                flow.begin(prepared)
                journalled = self._settle_and_write([])
                self._messages.acked += self._acks
                self._committed, self._settled = self._publishes, self._settlements
                self._start_anew()
                return Committed(journalled, prepared.unrouted, prepared.is_partial, prepared.wide)
            flow.prepares = TakenRoom()  # the publishes of this commit look for room themselves
            return self.commit()
        finally:
            flow.prepares = None

    def _prepare(self, prepared: PreparedPublishes, settling: PreparedSettlements) -> Iterator[None]:
        yield from prepared.steps(self._publishes)
        self._check(prepared.size)
        yield from settling.prepare(self._endings())
        yield from _check_taken_along(settling.verdicts)
        yield from prepared.join()
        if prepared.size > _RECORD_MAX:
            raise Conflict(f"transaction with its dead letters is larger than {_RECORD_MAX}")
        yield from repeat(None, STEP)  # so that the rest has a step of its own

    def let_go(self) -> Iterator[None]:
        """Free the objects of a commit that was made in steps: all at once takes up to 40 ms."""
        publishes, self._committed = self._committed, []
        settled, self._settled = self._settled, []
        while len(publishes) > _FREED:
            del publishes[-_FREED:]
            yield
        while settled:
            leases = settled[-1][1]
            del leases[-_FREED:]
            if not leases:
                settled.pop()
            yield

    def _endings(self) -> Iterator[tuple[Ending, list[Lease]]]:
        flow = self._flow
        for how, leases in self._settlements:
            ending = (
                Ending.ACK if how == flow.ack else Ending.REJECT if how == flow.reject else Ending.RELEASE
            )
            yield ending, leases

    def _settle_and_write(self, settlements: list[tuple[Settle, list[Lease]]]) -> bool:
        """Settle these and write the batch."""
        flow = self._flow
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
        deque(self.rollback_in_steps(), maxlen=0)

    @property
    def is_long_to_roll_back(self) -> bool:
        """Whether to roll it back in steps."""
        return self.settlement_count + self.publish_count > _RESTORED

    def rollback_in_steps(self) -> Iterator[None]:
        """``rollback`` with other work between its steps; ``abandon`` may come meanwhile."""
        while self._settlements:
            some: list[Lease] = []
            while self._settlements and (room := _RESTORED - len(some)) > 0:
                leases = self._settlements[-1][1]
                some += leases[-room:]
                del leases[-room:]
                if not leases:
                    self._settlements.pop()
            self._ledger.restore(some)
            yield
        while self._publishes:
            del self._publishes[-_RESTORED:]
            yield
        self._retaken.give_back()
        self._start_anew()

    def abandon(self) -> list[Publish]:
        """Roll it back since the channel ends. The caller frees the publishes."""
        publishes = self._publishes
        self._retaken.give_back()
        self._start_anew()
        self._ledger.restore_to_end()
        return publishes

    def _start_anew(self) -> None:
        self._publishes, self._settlements = [], []
        self._bytes = self._rewritten = self._work = 0
        self._refused, self._letter_work = Counter(), Counter()
        for claim in self._claims:
            claim.is_awaited = False
        self._claims = set()
        self._acks = self._late = self._letters = 0
        self._retaken.keep()

    def _check(self, published: int) -> None:
        if published + self._rewritten > _BYTES_MAX:
            raise Conflict(f"transaction is larger than the max size {_BYTES_MAX}")


def _by_queue(leases: list[Lease], queues: set[Queue]) -> dict[Queue, list[Lease]]:
    if len(queues) == 1:
        return dict.fromkeys(queues, leases)
    parts: dict[Queue, list[Lease]] = {queue: [] for queue in queues}
    for lease in leases:
        parts[lease.queue].append(lease)
    return parts


def _check_taken_along(verdicts: Verdicts) -> Iterator[None]:
    """Refuse a commit with which too many earlier rejections take effect, since they all wait for it."""
    rejected = 0
    for claim, said in verdicts.items():
        for number, status in enumerate(claim.would_settle(said) if claim.files else ()):
            rejected += status is AckStatus.DEAD_LETTER
            if rejected > _GROUPS_MAX:
                raise Conflict(
                    f"transaction settles messages before and behind more than {_GROUPS_MAX} rejected ones "
                    "of a partition; settle those before them in a transaction of their own"
                )
            if not number % _LOOKED_AT:
                yield
