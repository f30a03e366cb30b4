"""Batches of an external writer (a Spark query): many tasks stage them, one commit publishes them, once.

Owns: the staged parts by (writer, batch, task, attempt), each writer's last committed batch, and the record
that publishes a batch as messages. A part's bodies are written to the journal when staged; memory holds eight
bytes per row. Must not touch: clocks, wire names, the rules of pushing.

A batch number at or below the writer's last committed one is a duplicate, whatever its rows. Spark repeats
only its newest batch, under the same number.

A batch of more than ``ATOMIC_ROWS`` rows is published in several records. Each lists the parts that remain,
so after the first one the batch cannot be aborted. The rest is published from these parts: by the same
request, by a repeated one (whatever it has staged), or by ``finish`` after a crash. No reader sees any of its
rows before the last record is durable; until then what others push to these queues is hidden, too.

Over 400 lines: staging, committing and folding change the same parts, and must agree about them.
"""

from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord, positions
from holtmq.broker.partitioned.commands.addressing import Addresses
from holtmq.broker.partitioned.commands.pushing import check_room, decide_push
from holtmq.broker.partitioned.commands.spool import Spool
from holtmq.broker.partitioned.commands.staging_records import (
    Attempt,
    Committed,
    Header,
    Key,
    PieceOfBatch,
    Place,
    Publication,
    PushesSuspended,
    Share,
    StagedPart,
    StagedRow,
    Winner,
    decode_header,
    decode_publication,
    decode_state,
    encode_record,
    state_record,
)
from holtmq.broker.partitioned.events import decode_all, encode
from holtmq.broker.partitioned.log.bodies import encode_body
from holtmq.broker.partitioned.log.message_log import from_bytes
from holtmq.broker.partitioned.store import Change, PartitionedStore
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import RecordUnreadable

ORPHAN_SECONDS: Final = 3600.0
WRITERS_MAX: Final = 100_000  # committed writers remembered; the one with the oldest commit is dropped first
ATOMIC_ROWS: Final = 12_000  # published by one record: about 10 ms, 25 ms if each has a new partition
PIECE_ROWS: Final = 12_000  # in each record of a larger batch
STEP_ROWS: Final = 4096  # in each step before the record is written
_TRIES: Final = 3


class Staging(StatePart):
    """All staged batches. One per node."""

    kinds = (int(Kind.STAGED), int(Kind.STAGE_COMMITTED), int(Kind.STAGING_STATE))

    def __init__(self, store: PartitionedStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool
        self._committed: dict[str, tuple[int, int]] = {}  # writer -> (last batch, µs)
        self._batches: dict[tuple[str, int], dict[Key, Attempt]] = {}
        self._ended: dict[str, float] = {}  # writer -> when it was ended
        self._begun: dict[str, tuple[int, list[Place]]] = {}  # writer -> partly published batch, and its rest
        self._committing: list[str] = []  # the writer of each commit in progress
        self._store.add_state_part(self)

    def stage(
        self,
        writer: str,
        batch: int,
        task: int,
        attempt: int,
        part: int,
        rows: Sequence[StagedRow],
        now: float,
    ) -> int:
        """Stage a part of an attempt's rows, replacing the same part; return the attempt's row count."""
        self.drop_orphans(now)
        if writer in self._ended:
            raise Conflict(f"writer {writer} was aborted: nothing more is staged for it")
        begun = self._begun.get(writer)
        if begun is not None and begun[0] == batch and (task, attempt, part) in begun[1]:
            raise Conflict(f"batch {batch} of writer {writer} is being published: its parts stay as they are")
        names: dict[str, int] = {}
        places: list[tuple[int, int, str]] = []
        records: list[StateRecord] = []
        queues, cipher = self._store.queues, self._store.cipher
        for row in rows:
            queue = queues.get(row.queue)
            sealed = cipher if queue is not None and queue.config.encryption_enabled else None
            records.append((Kind.PARTITIONED_BODY, encode_body(row.body, sealed)))
            places.append(
                (
                    names.setdefault(row.queue, len(names)),
                    names.setdefault(row.partition, len(names)),
                    row.body.transaction_id,
                )
            )
        header = Header(writer, batch, task, attempt, part, round(now * 1e6), list(names), places)
        self._store.commit_state([*records, (Kind.STAGED, encode_record(header))])
        return self._batches[writer, batch][task, attempt].rows

    def commit(
        self, writer: str, batch: int, winners: Sequence[Winner], now: float
    ) -> Generator[None, None, Committed]:
        """Publish the winners' rows, once. Nothing happens when the batch was committed before.

        Runs in steps: the expensive work is done first, ``STEP_ROWS`` at a time, and other tasks may run in
        between. The last step of each record checks everything again and writes it.
        """
        published = rows = duplicates = 0
        self._committing.append(writer)
        try:
            while not self._is_repeat(writer, batch):
                done = yield from self._publish_next(writer, batch, winners, now)
                if done is not None:
                    published, rows, duplicates = 1, rows + done.rows, duplicates + done.duplicates
                    if writer in self._begun:
                        yield
        finally:
            self._committing.remove(writer)
        return Committed(rows, duplicates, not published)

    def finish(self, now: float) -> Generator[None, None, None]:
        """Publish the rest of batches whose commit was interrupted by a crash or a disconnect."""
        for writer in [writer for writer in self._begun if writer not in self._committing]:
            while writer in self._begun and not self._spool.holds:
                yield from self._publish_next(writer, self._begun[writer][0], (), now)

    def _publish_next(
        self, writer: str, batch: int, winners: Sequence[Winner], now: float
    ) -> Generator[None, None, Committed | None]:
        """Publish the batch, or its next piece; None when another request published it first.

        A partly published batch is finished from its own parts, whatever the winners are now.
        """
        begun = self._begun.get(writer)
        if begun is None:
            parts = self._parts(writer, batch, winners)
        else:
            batch, rest = begun
            parts = self._rest(writer, batch, rest)
        piece = _first_piece(parts, begun is None)
        if begun is None and len(piece) < len(parts):
            yield from self._await_others(now)
            yield from self._check_room(writer, batch, parts)
        shares: dict[str, Share] = {}
        for place, part in piece.items():
            if self._overtaken(writer, batch, begun):
                return None
            if not self._is_staged(writer, batch, place, part):  # a checkpoint may have dropped it
                raise _changed(batch)
            try:
                self._gather(part, shares)
            except RecordUnreadable as error:
                if begun is None:
                    raise
                # The batch cannot be refused any more, and until it is complete all its rows are hidden, and
                # those that others push.
                self._store.damage.note("staged", "", writer, error)
            yield
        for name, share in shares.items():
            yield from self._address(name, share, now)
        tries = 1
        while stale := [name for name, share in shares.items() if not self._addressed(name, share)]:
            tries += 1
            for name in stale:
                for _ in self._address(name, shares[name], now):
                    if tries < _TRIES:  # if partitions keep being created, finish without yielding
                        yield
        if self._overtaken(writer, batch, begun):
            return None
        if self._spool.holds:
            raise PushesSuspended("Pushes are suspended by maintenance")
        if begun is None and self._parts(writer, batch, winners) != parts:
            raise _changed(batch)
        rest = [*parts][len(piece) :]
        if begun is None and rest and not self._is_alone():
            return None  # another one has begun meanwhile
        # The size limit is checked once: a partly published batch cannot be refused any more.
        return self._publish(writer, batch, shares, rest, now, limited=begun is None)

    def _await_others(self, now: float) -> Generator[None, None, None]:
        """Wait until no other batch is partly published: a second one would hide a part of the first."""
        while not self._is_alone():
            other = next(iter(self._begun))
            if other in self._committing:
                yield
            else:  # its request is gone
                yield from self._publish_next(other, self._begun[other][0], (), now)

    def _is_alone(self) -> bool:
        return not self._begun

    def _check_room(
        self, writer: str, batch: int, parts: Mapping[Place, StagedPart]
    ) -> Generator[None, None, None]:
        """Raise LimitReached if a queue is too small for all rows of a batch, duplicates or not."""
        store = self._store
        if not store.default_config.max_size and not any(q.config.max_size for q in store.queues.values()):
            return
        counts: Counter[str] = Counter()
        for place, part in parts.items():
            if not self._is_staged(writer, batch, place, part):
                raise _changed(batch)
            header = decode_header(store.journal.read(part.header, Kind.STAGED)[1])
            counts.update(header.names[row[0]] for row in header.rows)
            yield
        for name, rows in counts.items():
            check_room(store.queues.get(name) or store.draft(name, 0)[0], rows)

    def _overtaken(self, writer: str, batch: int, begun: tuple[int, list[Place]] | None) -> bool:
        return self._is_repeat(writer, batch) or self._begun.get(writer) != begun

    def _is_repeat(self, writer: str, batch: int) -> bool:
        last = self._committed.get(writer)
        if last is None or batch > last[0]:
            return False
        self.abort(writer, batch)  # what the repeat has staged will never be committed
        return True

    def _publish(
        self,
        writer: str,
        batch: int,
        shares: Mapping[str, Share],
        rest: list[Place],
        now: float,
        limited: bool,
    ) -> Committed:
        changes, order, duplicates = self._decide(shares, now, limited)
        is_piece = bool(rest) or writer in self._begun
        publication = (PieceOfBatch if is_piece else Publication)(
            writer,
            batch,
            round(now * 1e6),
            b"".join([encode(number, event) for number, event in changes]),
            order.tobytes(),
            rest,
        )
        self._store.commit_state([(Kind.STAGE_COMMITTED, encode_record(publication))])
        return Committed(len(order), duplicates, False)

    def abort(self, writer: str, batch: int) -> bool:
        """Drop what was staged; return whether there was anything. A partly published batch is kept."""
        if self._in_publication(writer, batch):
            return False
        return self._batches.pop((writer, batch), None) is not None

    def end(self, writer: str, now: float) -> bool:
        """Drop all that a writer has staged, and refuse what its running tasks stage from now on."""
        self._ended.pop(writer, None)  # keep the newest last: the oldest is dropped first
        self._ended[writer] = now
        if len(self._ended) > WRITERS_MAX:
            del self._ended[next(iter(self._ended))]
        gone = [key for key in self._batches if key[0] == writer and not self._in_publication(*key)]
        for key in gone:
            del self._batches[key]
        return bool(gone)

    def queues_of(self, writer: str, batch: int | None = None) -> set[str]:
        """The queues for which a writer has staged rows, in one batch or in all."""
        names: set[str] = set()
        for (of, number), attempts in self._batches.items():
            if of != writer or batch not in (None, number):
                continue
            for part in [part for attempt in attempts.values() for part in attempt.parts.values()]:
                header = decode_header(self._store.journal.read(part.header, Kind.STAGED)[1])
                names.update({header.names[row[0]] for row in header.rows})
        return names

    def _in_publication(self, writer: str, batch: int) -> bool:
        begun = self._begun.get(writer)
        return begun is not None and begun[0] == batch

    def last_batch(self, writer: str) -> int | None:
        last = self._committed.get(writer)
        return None if last is None else last[0]

    def staged(self) -> dict[str, int]:
        """The number of staged rows, by writer."""
        rows: dict[str, int] = {}
        for (writer, _), attempts in self._batches.items():
            rows[writer] = rows.get(writer, 0) + sum(attempt.rows for attempt in attempts.values())
        return rows

    def parts(self) -> Iterator[tuple[tuple[str, int], Place, StagedPart]]:
        """All staged parts: (writer, batch), (task, attempt, part) and the part."""
        for key, attempts in self._batches.items():
            for (task, attempt), staged in attempts.items():
                for number, part in staged.parts.items():
                    yield key, (task, attempt, number), part

    def _parts(self, writer: str, batch: int, winners: Iterable[Winner]) -> dict[Place, StagedPart]:
        """The winners' parts, in order of the tasks."""
        staged = self._batches.get((writer, batch), {})
        parts: dict[Place, StagedPart] = {}
        for winner in sorted(winners):
            found = staged.get((winner.task, winner.attempt))
            have = 0 if found is None else found.rows
            if have != winner.rows:
                raise Conflict(
                    f"task {winner.task} staged {winner.rows} rows for batch {batch} in attempt "
                    f"{winner.attempt}, and {have} of them are here: stage them again"
                )
            if found is not None:
                for number in sorted(found.parts):
                    parts[winner.task, winner.attempt, number] = found.parts[number]
        return parts

    def _rest(self, writer: str, batch: int, places: Iterable[Place]) -> dict[Place, StagedPart]:
        """What remains of a partly published batch, without the parts that a repair gave up."""
        staged = self._batches.get((writer, batch), {})
        parts: dict[Place, StagedPart] = {}
        for place in places:
            attempt = staged.get(place[:2])
            if attempt is not None and place[2] in attempt.parts:
                parts[place] = attempt.parts[place[2]]
        return parts

    def _is_staged(self, writer: str, batch: int, place: Place, part: StagedPart) -> bool:
        task, attempt, number = place
        found = self._batches.get((writer, batch), {}).get((task, attempt))
        return found is not None and found.parts.get(number) is part

    def _gather(self, part: StagedPart, shares: dict[str, Share]) -> None:
        """Add a part's rows to the share of each queue."""
        header = decode_header(self._store.journal.read(part.header, Kind.STAGED)[1])
        names = header.names
        wanted = {row[0] for row in header.rows}
        for queue in sorted(wanted):
            share = shares.setdefault(names[queue], Share())
            if len(wanted) == 1:
                share.items += [(names[partition], name) for _, partition, name in header.rows]
                share.positions += part.positions
                continue
            for position, (mine, partition, name) in zip(part.positions, header.rows, strict=True):
                if mine == queue:
                    share.items.append((names[partition], name))
                    share.positions.append(position)

    def _address(self, name: str, share: Share, now: float) -> Iterator[None]:
        queue = self._store.queues.get(name) or self._store.draft(name, now)[0]
        share.addresses = Addresses(queue)
        for at in range(0, len(share.items), STEP_ROWS):
            share.addresses.add(share.items[at : at + STEP_ROWS])
            yield

    def _addressed(self, name: str, share: Share) -> bool:
        return share.addresses is not None and share.addresses.holds(self._store.queues.get(name))

    def _decide(
        self, shares: Mapping[str, Share], now: float, limited: bool
    ) -> tuple[list[Change], "array[int]", int]:
        store = self._store
        changes: list[Change] = []
        order: array[int] = array("Q")
        duplicates = drafts = 0
        for name, share in shares.items():
            queue = store.queues.get(name)
            if queue is None:
                if limited:
                    store.check_new(name, drafts)
                queue, configured = store.draft(name, now, drafts)
                changes.append((queue.number, configured))
                drafts += 1
            decision = decide_push(queue, share.items, now, limited, ahead=share.addresses)
            duplicates += len(decision.duplicates)
            if decision.event is None:
                continue
            changes.append((queue.number, decision.event))
            if decision.duplicates:
                order.extend(p for at, p in enumerate(share.positions) if at not in decision.duplicates)
            else:
                order += share.positions
        return changes, order, duplicates

    def drop_orphans(self, now: float) -> None:
        """Drop batches that were not committed in time, so that their bodies can be removed."""
        oldest = round((now - ORPHAN_SECONDS) * 1e6)
        for key, attempts in list(self._batches.items()):
            staged = [part.staged_us for attempt in attempts.values() for part in attempt.parts.values()]
            newest = max(staged, default=0)  # a repair may have given up all parts
            if newest < oldest and not self._in_publication(*key):
                del self._batches[key]
        while self._ended and next(iter(self._ended.values())) < now - ORPHAN_SECONDS:
            del self._ended[next(iter(self._ended))]

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        if kind == Kind.STAGED:
            header = decode_header(payload)
            bodies, lost = self._store.loose_bodies.take_some(len(header.rows))
            part = StagedPart(position, array("Q", bodies), header.staged_us, lost)
            self._keep(header.writer, header.batch, header.task, header.attempt, header.part, part)
        elif kind == Kind.STAGE_COMMITTED:
            done = decode_publication(payload)
            self._store.apply_stored(
                decode_all(done.events),
                from_bytes("Q", done.positions),
                hidden_by=done.writer if done.hides else None,
            )
            if done.rest:
                self._begun[done.writer] = (done.batch, done.rest)
                self._keep_only(done.writer, done.batch, set(done.rest))
                return
            if self._begun.pop(done.writer, None) is not None:
                self._store.reveal(done.writer)
            self._committed.pop(done.writer, None)
            self._committed[done.writer] = (done.batch, done.at_us)
            if len(self._committed) > WRITERS_MAX:
                del self._committed[next(iter(self._committed))]
            for key in [key for key in self._batches if key[0] == done.writer and key[1] <= done.batch]:
                del self._batches[key]
        else:
            state = decode_state(payload)
            self._committed = state.committed
            for writer, batch, task, attempt, number, header_at, staged_us, positions_of in state.parts:
                part = StagedPart(header_at, from_bytes("Q", positions_of), staged_us)
                self._keep(writer, batch, task, attempt, number, part)
            self._begun = state.begun
            for writer, offsets in state.hidden.items():
                self._store.hide_restored(writer, offsets)

    def _keep_only(self, writer: str, batch: int, rest: set[Place]) -> None:
        """Drop the published parts, and the attempts that did not win."""
        attempts = self._batches.get((writer, batch), {})
        for (task, attempt), staged in list(attempts.items()):
            for part in [part for part in staged.parts if (task, attempt, part) not in rest]:
                del staged.parts[part]
            if not staged.parts:
                del attempts[task, attempt]

    def _keep(self, writer: str, batch: int, task: int, attempt: int, number: int, part: StagedPart) -> None:
        attempts = self._batches.setdefault((writer, batch), {})
        attempts.setdefault((task, attempt), Attempt()).parts[number] = part

    def capture(self) -> Captured:
        hidden = {writer: found for writer in self._begun if (found := self._store.hidden_by(writer))}
        parts = list(self.parts())
        live = chain(positions(part.header for _, _, part in parts), (part.positions for _, _, part in parts))
        return Captured(state_record(self._committed.copy(), parts, self._begun.copy(), hidden), live)


def _first_piece(parts: Mapping[Place, StagedPart], fresh: bool) -> dict[Place, StagedPart]:
    """The parts for the next record: all, or up to about ``PIECE_ROWS`` rows if the batch is too large."""
    if fresh and sum(len(part.positions) for part in parts.values()) <= ATOMIC_ROWS:
        return dict(parts)
    piece: dict[Place, StagedPart] = {}
    rows = 0
    for place, part in parts.items():
        rows += len(part.positions)
        if piece and rows > PIECE_ROWS:
            break
        piece[place] = part
    return piece


def _changed(batch: int) -> Conflict:
    return Conflict(f"batch {batch} was staged again while it was being committed: commit it again")
