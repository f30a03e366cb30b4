"""State of stream processors: their queries, and JSON rows by (query, partition, key).

Owns: registration and its conflicts, and the rows; both are durable. Must not touch: queues (``run_cycle``
commits state, pushes and ack together), clocks, the meaning of values except a window's end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord, portions
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.records.changes import Kind


class StateOp(NamedTuple):
    """Put a row's JSON value, or delete the row with None."""

    key: str
    value: bytes | None


class Row(NamedTuple):
    key: str
    value: bytes
    updated_us: int


class QueryPut(msgspec.Struct, tag="query", array_like=True, forbid_unknown_fields=True, frozen=True):
    """A query as registered; ``wipes`` deletes its existing rows."""

    id: str
    name: str
    source: str
    sink: str
    config_hash: str
    wipes: bool = False


class StatePut(msgspec.Struct, tag="state", array_like=True, forbid_unknown_fields=True, frozen=True):
    query: str
    partition: str
    ops: list[tuple[str, bytes | None, int]]


class ConfigMismatch(Conflict):
    """The query is registered with another configuration."""

    def __init__(self, query: QueryPut) -> None:
        super().__init__(f"config_hash mismatch: query {query.name} is registered with another configuration")
        self.query = query


@dataclass(frozen=True, slots=True)
class Registration:
    query: QueryPut
    fresh: bool
    reset: bool


class _Window(msgspec.Struct):
    """The one field of a row's value that rows can be filtered by."""

    window_end: float | None = msgspec.field(default=None, name="windowEnd")


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[QueryPut | StatePut]] = msgspec.msgpack.Decoder(QueryPut | StatePut)
_window: Final = msgspec.json.Decoder(_Window)


class StreamStates(StatePart):
    """All queries of the node and their rows."""

    kinds = (int(Kind.STREAM),)

    def __init__(self, store: PartitionedStore) -> None:
        self._store = store
        self._queries: dict[str, QueryPut] = {}  # by name
        self._names: dict[str, str] = {}  # id -> name
        self._rows: dict[str, dict[str, dict[str, Row]]] = {}  # query id -> partition id -> key
        store.add_state_part(self)

    def knows(self, query_id: str) -> bool:
        return query_id in self._names

    def register(
        self, name: str, source: str, sink: str, config_hash: str, reset: bool, new_id: str
    ) -> Registration:
        """Register a query or attach to it; a changed configuration needs ``reset``, else ConfigMismatch."""
        known = self._queries.get(name)
        if known is None:
            query = QueryPut(new_id, name, source, sink, config_hash)
            self._store.commit_state([(Kind.STREAM, _encode(query))])
            return Registration(query, fresh=True, reset=False)
        if known.config_hash == config_hash:
            return Registration(known, fresh=False, reset=False)
        if not reset:
            raise ConfigMismatch(known)
        query = QueryPut(known.id, name, source, sink, config_hash, True)
        self._store.commit_state([(Kind.STREAM, _encode(query))])
        return Registration(query, fresh=False, reset=True)

    def rows(
        self, query_id: str, partition_id: str, keys: Sequence[str], prefix: str, ripe_ms: float | None
    ) -> list[Row]:
        """Rows with these keys (or all) and this prefix, sorted by key; ``ripe_ms``: only ended windows."""
        mine = self._rows.get(query_id, {}).get(partition_id, {})
        found = [mine[key] for key in dict.fromkeys(keys) if key in mine] if keys else list(mine.values())
        return sorted(
            row
            for row in found
            if row.key.startswith(prefix) and (ripe_ms is None or _ended_by(row.value, ripe_ms))
        )

    def change(
        self, query_id: str, partition_id: str, ops: Sequence[StateOp], now: float
    ) -> list[StateRecord]:
        """The record of a cycle's state operations; the cycle commits it."""
        if not ops:
            return []
        at_us = micros(now)
        put = StatePut(query_id, partition_id, [(op.key, op.value, at_us) for op in ops])
        return [(int(Kind.STREAM), _encode(put))]

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        change = _decoder.decode(payload)
        if isinstance(change, QueryPut):
            self._queries[change.name] = change
            self._names[change.id] = change.name
            if change.wipes:
                self._rows.pop(change.id, None)
            return
        rows = self._rows.setdefault(change.query, {}).setdefault(change.partition, {})
        for key, value, updated_us in change.ops:
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = Row(key, value, updated_us)

    def capture(self) -> Captured:
        rows = [
            (query, partition, list(rows.values()))
            for query, partitions in self._rows.items()
            for partition, rows in partitions.items()
        ]
        return Captured(_records(list(self._queries.values()), rows))


def _records(queries: list[QueryPut], rows: list[tuple[str, str, list[Row]]]) -> Iterator[StateRecord]:
    for query in queries:
        yield int(Kind.STREAM), _encode(query)
    for query_id, partition, found in rows:
        for some in portions(found):
            put = StatePut(query_id, partition, [(row.key, row.value, row.updated_us) for row in some])
            yield int(Kind.STREAM), _encode(put)


def _ended_by(value: bytes, ripe_ms: float) -> bool:
    try:
        end = _window.decode(value).window_end
    except msgspec.MsgspecError:
        return False
    return end is not None and end <= ripe_ms
