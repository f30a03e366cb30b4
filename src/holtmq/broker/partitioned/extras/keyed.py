"""JSON rows by (namespace, key), with versions and expiry, stored in the same journal as messages.

Owns: the operations, their conditions, expiry. A call's operations see each other and take effect together;
if a ``required`` one fails, none does. Must not touch: clocks, wire names, the meaning of values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import merge
from itertools import chain
from math import inf
from typing import Final

import msgspec

from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord, portions
from holtmq.broker.partitioned.extras.sorted_keys import SortedKeys
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.records.changes import Kind

FOREVER: Final = 0
ROWS_MAX: Final = 5_000  # that the prefixes of one call return: about 25 ms with their answer
_LOOKED_AT_MAX: Final = 10_000  # rows that one call looks at for them, with those that have expired
_SWEPT_MAX: Final = 1_000  # expired rows that one call removes


# namespace, key, value (None: removed), version, expires us, updated us
Write = tuple[str, str, bytes | None, int, int, int]


class Verb(Enum):
    GET = "get"
    GET_MANY = "getMany"
    GET_PREFIX = "getPrefix"
    PUT = "put"
    PUT_IF_ABSENT = "putIfAbsent"
    DELETE = "delete"
    INCR = "incr"
    CHECK = "check"


class Row(msgspec.Struct, frozen=True, gc=False):
    """Not tracked by the garbage collector: it refers to nothing that refers back, and there may be many."""

    key: str
    value: bytes
    version: int
    expires_us: int  # FOREVER: never
    updated_us: int


@dataclass(frozen=True, slots=True)
class KeyOp:
    """One operation, already validated by the edge."""

    verb: Verb
    namespace: str
    key: str = ""
    value: bytes = b"null"
    ttl_us: int = FOREVER
    expect: int | None = None
    required: bool = False
    delta: int | float = 1
    low: int | float | None = None
    high: int | float | None = None
    keys: tuple[str, ...] = ()
    prefix: str = ""
    after: str = ""
    limit: int = 100


@dataclass(slots=True)
class KeyResult:
    """The result of one operation. ``row`` is the row afterwards, or the existing one if it was refused."""

    verb: Verb
    key: str
    row: Row | None = None
    applied: bool = False
    reason: str | None = None
    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    truncated: bool = False
    looked_upto: str = ""  # of a truncated prefix: the key after which to continue


@dataclass(slots=True)
class KeyDecision:
    """``failed`` is the index of a required operation that failed; then nothing must be written."""

    results: list[KeyResult]
    writes: list[Write]
    failed: int | None = None

    @property
    def state_records(self) -> list[StateRecord]:
        return [(int(Kind.KEYED), _encode(self.writes))] if self.writes else []


_encode: Final = msgspec.msgpack.Encoder().encode
_writes: Final = msgspec.msgpack.Decoder(list[Write])
_number: Final = msgspec.json.Decoder(int | float)


class KeyedRows(StatePart):
    """All rows of the node."""

    kinds = (int(Kind.KEYED),)

    def __init__(self, store: PartitionedStore) -> None:
        self._store = store
        self._rows: dict[str, dict[str, Row]] = {}
        self._sorted: dict[str, SortedKeys[str]] = {}  # the keys of each namespace
        self._expiries: SortedKeys[tuple[int, str, str]] = SortedKeys()
        self._version = 0
        store.add_state_part(self)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def get(self, namespace: str, key: str, now_us: int) -> Row | None:
        """A row that has not expired."""
        row = self._rows.get(namespace, {}).get(key)
        return row if row is not None and _lives(row, now_us) else None

    def keys(self, namespace: str, prefix: str, after: str) -> Iterator[str]:
        """Keys with a prefix, in order, after a given key; with those that have expired lately."""
        keys = self._sorted.get(namespace)
        if keys is None:
            return
        for key in keys.starting(prefix) if prefix > after else keys.behind(after):
            if not key.startswith(prefix):
                return
            yield key

    def commit(self, decision: KeyDecision) -> None:
        if decision.writes:
            self._store.commit_state(decision.state_records)

    def decide(self, ops: Sequence[KeyOp], now_us: int) -> KeyDecision:
        """Decide a call; the caller writes ``state_records``, alone or as part of a larger commit."""
        self._sweep(now_us)
        call = _Call(self, now_us, self._version)
        for place, op in enumerate(ops):
            result = call.run(op)
            call.decision.results.append(result)
            writes = op.verb not in (Verb.GET, Verb.GET_MANY, Verb.GET_PREFIX)
            if writes and op.required and not result.applied:
                call.decision.failed = place
                call.decision.writes.clear()
                break
        return call.decision

    def _sweep(self, now_us: int) -> None:
        """Remove rows that have expired. Of very many only some: ``get`` hides the others."""
        for _ in range(_SWEPT_MAX):
            due = self._expiries.first
            if due is None or due[0] > now_us:
                return
            self._remove(due[1], due[2])

    def _remove(self, namespace: str, key: str) -> None:
        rows = self._rows.get(namespace, {})
        row = rows.pop(key, None)
        if row is None:
            return
        self._sorted[namespace].discard(key)
        if row.expires_us != FOREVER:
            self._expiries.discard((row.expires_us, namespace, key))
        if not rows:
            del self._rows[namespace], self._sorted[namespace]

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        for namespace, key, value, version, expires_us, updated_us in _writes.decode(payload):
            self._version = max(self._version, version)
            if value is None:
                self._remove(namespace, key)
                continue
            rows = self._rows.get(namespace)
            if rows is None:
                rows, self._sorted[namespace] = self._rows.setdefault(namespace, {}), SortedKeys()
            before = rows.get(key)
            if before is None:
                self._sorted[namespace].add(key)
            elif before.expires_us != FOREVER:
                self._expiries.discard((before.expires_us, namespace, key))
            rows[key] = Row(key, value, version, expires_us, updated_us)
            if expires_us != FOREVER:
                self._expiries.add((expires_us, namespace, key))

    def capture(self) -> Captured:
        rows = [(namespace, list(keys.values())) for namespace, keys in self._rows.items()]
        # The newest version must not be reused even if its row is gone: a lock token would be valid twice.
        newest = ("", "", None, self._version, FOREVER, 0)
        return Captured(
            (int(Kind.KEYED), _encode(some)) for some in portions(chain(_writes_of(rows), [newest]))
        )


def _writes_of(rows: list[tuple[str, list[Row]]]) -> Iterator[Write]:
    for namespace, found in rows:
        for row in found:
            yield namespace, row.key, row.value, row.version, row.expires_us, row.updated_us


class _Call:
    """The operations of one call, as changes over the stored rows."""

    def __init__(self, rows: KeyedRows, now_us: int, version: int) -> None:
        self._rows = rows
        self._now_us = now_us
        self._version = version
        self._changed: dict[tuple[str, str], Row | None] = {}
        self._rows_left = ROWS_MAX
        self._looks_left = _LOOKED_AT_MAX
        self.decision = KeyDecision([], [])

    def run(self, op: KeyOp) -> KeyResult:
        match op.verb:
            case Verb.GET:
                return KeyResult(op.verb, op.key, self._get(op.namespace, op.key))
            case Verb.GET_MANY:
                return self._get_many(op)
            case Verb.GET_PREFIX:
                return self._get_prefix(op)
            case Verb.INCR:
                return self._incr(op)
            case _:
                return self._conditional(op)

    def _get(self, namespace: str, key: str) -> Row | None:
        if (namespace, key) in self._changed:
            return self._changed[namespace, key]
        return self._rows.get(namespace, key, self._now_us)

    def _get_many(self, op: KeyOp) -> KeyResult:
        result = KeyResult(op.verb, "")
        for key in dict.fromkeys(op.keys):
            row = self._get(op.namespace, key)
            if row is None:
                result.missing.append(key)
            else:
                result.rows.append(row)
        return result

    def _get_prefix(self, op: KeyOp) -> KeyResult:
        changed = [key for namespace, key in self._changed if namespace == op.namespace]
        fresh = sorted(key for key in changed if key.startswith(op.prefix) and key > op.after)
        result = KeyResult(op.verb, "")
        last = ""
        limit = max(1, min(op.limit, self._rows_left))  # one at least, so that a client that continues ends
        for key in merge(self._rows.keys(op.namespace, op.prefix, op.after), fresh):
            if key == last:
                continue
            row = self._get(op.namespace, key)
            if (row is not None and len(result.rows) == limit) or (self._looks_left <= 0 and last):
                result.truncated, result.looked_upto = True, last
                break
            last = key
            self._looks_left -= 1
            if row is not None:
                result.rows.append(row)
        self._rows_left -= len(result.rows)
        return result

    def _conditional(self, op: KeyOp) -> KeyResult:
        row = self._get(op.namespace, op.key)
        reason: str | None = None
        if op.verb is Verb.PUT_IF_ABSENT or op.expect == 0:
            reason = "exists" if row is not None else None
        elif op.expect is not None:
            reason = "absent" if row is None else "version" if row.version != op.expect else None
        elif op.verb is Verb.DELETE and row is None:
            reason = "absent"
        if reason is not None:
            return KeyResult(op.verb, op.key, row, False, reason)
        if op.verb is Verb.CHECK:
            return KeyResult(op.verb, op.key, row, True)
        if op.verb is Verb.DELETE:
            if row is None:  # expected to be absent, and it is
                return KeyResult(op.verb, op.key, None, False, "absent")
            return KeyResult(op.verb, op.key, self._write(op, None, FOREVER), True)
        expires_us = FOREVER if op.ttl_us == FOREVER else self._now_us + op.ttl_us
        return KeyResult(op.verb, op.key, self._write(op, op.value, expires_us), True)

    def _incr(self, op: KeyOp) -> KeyResult:
        row = self._get(op.namespace, op.key)
        value: int | float = 0
        # Increments do not extend a counter's expiry: its window ends when it was first set to end.
        expires_us = FOREVER if op.ttl_us == FOREVER else self._now_us + op.ttl_us
        if row is not None:
            expires_us = row.expires_us
            try:
                value = _number.decode(row.value)
            except msgspec.MsgspecError:
                return KeyResult(op.verb, op.key, row, False, "type")
        try:
            value += op.delta
            encoded = msgspec.json.encode(value)
        except (OverflowError, ValueError):  # no float is as large; more digits than Python writes
            return KeyResult(op.verb, op.key, row, False, "limit")
        too_high = op.high is not None and value > op.high
        too_low = op.low is not None and value < op.low
        if too_high or too_low or abs(value) == inf:
            return KeyResult(op.verb, op.key, row, False, "limit")
        return KeyResult(op.verb, op.key, self._write(op, encoded, expires_us), True)

    def _write(self, op: KeyOp, value: bytes | None, expires_us: int) -> Row | None:
        self._version += 1
        self.decision.writes.append((op.namespace, op.key, value, self._version, expires_us, self._now_us))
        row = None if value is None else Row(op.key, value, self._version, expires_us, self._now_us)
        self._changed[op.namespace, op.key] = row
        return row


def _lives(row: Row, now_us: int) -> bool:
    return row.expires_us == FOREVER or row.expires_us > now_us
