"""Batches of an outside writer (a Spark query): staged by many, published by one commit, once.

Owns: the staged parts by (writer, batch, task, attempt), which batch each writer last committed, and the one
record that turns a batch into messages. A part's bodies are in the journal from the start; memory holds eight
bytes a row. Must not touch: clocks, wire names, the rules of pushing.

A batch number at or below the writer's last committed one has happened: the answer is "duplicate", whatever
its rows. Spark repeats only its newest batch, under the same number.
"""

from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.errors import Conflict, LimitReached
from holtmq.broker.partitioned.commands.addressing import Addresses
from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.commands.spool import Spool
from holtmq.broker.partitioned.events import decode_all, encode
from holtmq.broker.partitioned.log.bodies import Body, encode_body
from holtmq.broker.partitioned.log.message_log import from_bytes, to_bytes
from holtmq.broker.partitioned.store import Change, PartitionedStore, StatePart, StateRecord
from holtmq.broker.records.changes import Kind

ORPHAN_SECONDS: Final = 3600.0
WRITERS_MAX: Final = 100_000  # committed writers remembered; the longest silent is forgotten first
ROWS_MAX: Final = 1_000_000  # in one batch: the last step of a commit takes about 0.5 µs a row
STEP_ROWS: Final = 4096  # in each step before it
_TRIES: Final = 3


class StagedRow(NamedTuple):
    queue: str
    partition: str
    body: Body


class Winner(NamedTuple):
    """The attempt of a task whose rows count, and how many it staged."""

    task: int
    attempt: int
    rows: int


@dataclass(frozen=True, slots=True)
class Committed:
    rows: int
    duplicates: int  # rows a queue knew already by their transaction id
    repeated: bool  # the batch had been committed before; nothing happened now


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A part as recorded; names as a table, because rows repeat them."""

    writer: str
    batch: int
    task: int
    attempt: int
    part: int
    staged_us: int
    names: list[str]
    rows: list[tuple[int, int, str]]  # queue, partition (places in ``names``), transaction id


class _Publication(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    writer: str
    batch: int
    at_us: int
    events: bytes
    positions: bytes


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    committed: dict[str, tuple[int, int]]
    parts: list[tuple[str, int, int, int, int, int, int, bytes]]


@dataclass(slots=True)
class _Part:
    header: int  # journal position of its record
    positions: "array[int]"  # of its bodies
    staged_us: int


@dataclass(slots=True)
class _Attempt:
    parts: dict[int, _Part] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(len(part.positions) for part in self.parts.values())


@dataclass(slots=True)
class _Share:
    """What one queue gets of a batch: (partition, transaction id) of each row, and where its body is."""

    items: list[tuple[str, str]] = field(default_factory=list)
    positions: "array[int]" = field(default_factory=lambda: array("Q"))
    addresses: Addresses | None = None


_Key = tuple[int, int]  # task, attempt
_Place = tuple[int, int, int]  # task, attempt, part
_encode: Final = msgspec.msgpack.Encoder().encode
_header: Final = msgspec.msgpack.Decoder(_Header)
_publication: Final = msgspec.msgpack.Decoder(_Publication)
_state: Final = msgspec.msgpack.Decoder(_State)


class Staging(StatePart):
    """See the module. One per node."""

    kinds = (int(Kind.STAGED), int(Kind.STAGE_COMMITTED), int(Kind.STAGING_STATE))

    def __init__(self, store: PartitionedStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool
        self._committed: dict[str, tuple[int, int]] = {}  # writer -> (last batch, µs)
        self._batches: dict[tuple[str, int], dict[_Key, _Attempt]] = {}
        self._ended: dict[str, float] = {}  # writer -> when it was aborted for good
        self._store.add_state_part(self)

    # -- commands --------------------------------------------------------------------------------

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
        """Keep a part of an attempt's rows; the same part again replaces it. Returns the attempt's rows."""
        self.drop_orphans(now)
        if writer in self._ended:
            raise Conflict(f"writer {writer} was aborted: nothing more is staged for it")
        found = self._batches.get((writer, batch), {}).get((task, attempt))
        before = 0 if found is None else found.rows
        if before + len(rows) > ROWS_MAX:
            raise LimitReached(f"a batch may hold {ROWS_MAX} rows; lower maxOffsetsPerTrigger")
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
        header = _Header(writer, batch, task, attempt, part, round(now * 1e6), list(names), places)
        self._store.commit_state([*records, (Kind.STAGED, _encode(header))])
        return self._batches[writer, batch][task, attempt].rows

    def commit(
        self, writer: str, batch: int, winners: Sequence[Winner], now: float
    ) -> Generator[None, None, Committed]:
        """Publish the winners' rows as one record. Nothing happens when the batch was committed before.

        In steps: what costs most is done ahead, ``STEP_ROWS`` at a time, and others may run in between. The
        last step looks at everything once more, and does it.
        """
        if self._is_repeat(writer, batch):
            return Committed(0, 0, True)
        if sum(winner.rows for winner in winners) > ROWS_MAX:
            raise LimitReached(f"a batch may hold {ROWS_MAX} rows; lower maxOffsetsPerTrigger")
        parts = self._parts(writer, batch, winners)
        shares: dict[str, _Share] = {}
        for place, part in parts.items():
            if self._is_repeat(writer, batch):
                return Committed(0, 0, True)
            if not self._is_staged(writer, batch, place, part):  # a checkpoint may have let go of it
                raise _changed(batch)
            self._gather(part, shares)
            yield
        for name, share in shares.items():
            yield from self._address(name, share, now)
        tries = 1
        while stale := [name for name, share in shares.items() if not self._addressed(name, share)]:
            tries += 1
            for name in stale:
                for _ in self._address(name, shares[name], now):
                    if tries < _TRIES:  # somebody makes partitions all the time: then in one go
                        yield
        if self._is_repeat(writer, batch):
            return Committed(0, 0, True)
        if self._spool.holds:
            raise Conflict("Pushes are suspended by maintenance")
        if self._parts(writer, batch, winners) != parts:
            raise _changed(batch)
        return self._publish(writer, batch, shares, now)

    def _is_repeat(self, writer: str, batch: int) -> bool:
        last = self._committed.get(writer)
        if last is None or batch > last[0]:
            return False
        self.abort(writer, batch)  # what the repeat has staged nobody will ask for
        return True

    def _publish(self, writer: str, batch: int, shares: Mapping[str, _Share], now: float) -> Committed:
        changes, order, duplicates = self._decide(shares, now)
        publication = _Publication(
            writer,
            batch,
            round(now * 1e6),
            b"".join([encode(number, event) for number, event in changes]),
            to_bytes(order),
        )
        self._store.commit_state([(Kind.STAGE_COMMITTED, _encode(publication))])
        return Committed(len(order), duplicates, False)

    def abort(self, writer: str, batch: int) -> bool:
        """Forget what was staged; whether there was anything."""
        return self._batches.pop((writer, batch), None) is not None

    def end(self, writer: str, now: float) -> bool:
        """Forget all a writer has staged, and refuse what its tasks, not yet stopped, will stage late."""
        self._ended.pop(writer, None)  # the newest last: they leave in this order
        self._ended[writer] = now
        if len(self._ended) > WRITERS_MAX:
            del self._ended[next(iter(self._ended))]
        gone = [key for key in self._batches if key[0] == writer]
        for key in gone:
            del self._batches[key]
        return bool(gone)

    def last_batch(self, writer: str) -> int | None:
        last = self._committed.get(writer)
        return None if last is None else last[0]

    def staged(self) -> dict[str, int]:
        """How many rows wait for a commit, by writer."""
        rows: dict[str, int] = {}
        for (writer, _), attempts in self._batches.items():
            rows[writer] = rows.get(writer, 0) + sum(attempt.rows for attempt in attempts.values())
        return rows

    def parts(self) -> Iterator[tuple[tuple[str, int], _Place, _Part]]:
        """Everything staged and not committed: (writer, batch), (task, attempt, part) and where it is."""
        for key, attempts in self._batches.items():
            for (task, attempt), staged in attempts.items():
                for number, part in staged.parts.items():
                    yield key, (task, attempt, number), part

    # -- deciding --------------------------------------------------------------------------------

    def _parts(self, writer: str, batch: int, winners: Iterable[Winner]) -> dict[_Place, _Part]:
        """The parts that count, in order of the tasks."""
        staged = self._batches.get((writer, batch), {})
        parts: dict[_Place, _Part] = {}
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

    def _is_staged(self, writer: str, batch: int, place: _Place, part: _Part) -> bool:
        task, attempt, number = place
        found = self._batches.get((writer, batch), {}).get((task, attempt))
        return found is not None and found.parts.get(number) is part

    def _gather(self, part: _Part, shares: dict[str, _Share]) -> None:
        """Add a part's rows to what each queue gets."""
        header = _header.decode(self._store.journal.read(part.header)[1])
        names = header.names
        wanted = {row[0] for row in header.rows}
        for queue in sorted(wanted):
            share = shares.setdefault(names[queue], _Share())
            if len(wanted) == 1:
                share.items += [(names[partition], name) for _, partition, name in header.rows]
                share.positions += part.positions
                continue
            for position, (mine, partition, name) in zip(part.positions, header.rows, strict=True):
                if mine == queue:
                    share.items.append((names[partition], name))
                    share.positions.append(position)

    def _address(self, name: str, share: _Share, now: float) -> Iterator[None]:
        queue = self._store.queues.get(name) or self._store.draft(name, now)[0]
        share.addresses = Addresses(queue)
        for at in range(0, len(share.items), STEP_ROWS):
            share.addresses.add(share.items[at : at + STEP_ROWS])
            yield

    def _addressed(self, name: str, share: _Share) -> bool:
        return share.addresses is not None and share.addresses.holds(self._store.queues.get(name))

    def _decide(self, shares: Mapping[str, _Share], now: float) -> tuple[list[Change], "array[int]", int]:
        store = self._store
        changes: list[Change] = []
        order: array[int] = array("Q")
        duplicates = drafts = 0
        for name, share in shares.items():
            queue = store.queues.get(name)
            if queue is None:
                queue, configured = store.draft(name, now, drafts)
                changes.append((queue.number, configured))
                drafts += 1
            decision = decide_push(queue, share.items, now, ahead=share.addresses)
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
        """Forget what nobody has committed in time, so that its bodies need not be kept any more."""
        oldest = round((now - ORPHAN_SECONDS) * 1e6)
        for key, attempts in list(self._batches.items()):
            newest = max(part.staged_us for attempt in attempts.values() for part in attempt.parts.values())
            if newest < oldest:
                del self._batches[key]
        while self._ended and next(iter(self._ended.values())) < now - ORPHAN_SECONDS:
            del self._ended[next(iter(self._ended))]

    # -- the journal's side ----------------------------------------------------------------------

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        if kind == Kind.STAGED:
            header = _header.decode(payload)
            part = _Part(position, array("Q", self._store.loose_bodies()), header.staged_us)
            self._keep(header.writer, header.batch, header.task, header.attempt, header.part, part)
        elif kind == Kind.STAGE_COMMITTED:
            done = _publication.decode(payload)
            self._store.apply_stored(decode_all(done.events), from_bytes("Q", done.positions))
            self._committed.pop(done.writer, None)
            self._committed[done.writer] = (done.batch, done.at_us)
            if len(self._committed) > WRITERS_MAX:
                del self._committed[next(iter(self._committed))]
            for key in [key for key in self._batches if key[0] == done.writer and key[1] <= done.batch]:
                del self._batches[key]
        else:
            state = _state.decode(payload)
            self._committed = state.committed
            for writer, batch, task, attempt, number, header_at, staged_us, positions in state.parts:
                part = _Part(header_at, from_bytes("Q", positions), staged_us)
                self._keep(writer, batch, task, attempt, number, part)

    def _keep(self, writer: str, batch: int, task: int, attempt: int, number: int, part: _Part) -> None:
        attempts = self._batches.setdefault((writer, batch), {})
        attempts.setdefault((task, attempt), _Attempt()).parts[number] = part

    def dump(self) -> tuple[list[StateRecord], list["array[int]"]]:
        parts: list[tuple[str, int, int, int, int, int, int, bytes]] = []
        headers: array[int] = array("Q")
        kept = [headers]
        for (writer, batch), (task, attempt, number), part in self.parts():
            packed = to_bytes(part.positions)
            parts.append((writer, batch, task, attempt, number, part.header, part.staged_us, packed))
            headers.append(part.header)
            kept.append(part.positions)
        return [(int(Kind.STAGING_STATE), _encode(_State(self._committed, parts)))], kept


def _changed(batch: int) -> Conflict:
    return Conflict(f"batch {batch} was staged again while it was being committed: commit it again")
