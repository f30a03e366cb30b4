"""Stored messages as Arrow columns, computed with numpy over a whole piece instead of message by message.

Owns: where each field lies in a body's record (``bodies.py`` defines the layout), building the columns.
Must not touch: queues, sockets. Imported on demand: pyarrow and numpy are optional (``holtmq[spark]``).
A loop over ``decode_body`` took about 6 µs a message, this takes about 1 (bench/spark.py).
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holtmq.broker.partitioned.log.bodies import Cipher, decode_body
from holtmq.broker.partitioned.log.range_reads import Piece
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.streams.envelopes import readable, to_body
from holtmq.journal.interface import Run
from holtmq.journal.spans import numbers_at, spans
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import Properties, decode_properties

Ints = npt.NDArray[np.int64]

MAP: Final = pa.map_(pa.string(), pa.string())
TIME: Final = pa.timestamp("us", "UTC")
_HEAD: Final = 7  # flags, lengths of transaction id, trace id and producer
_METADATA: Final = 9  # lengths of exchange, routing key and properties; priority
_SEALED, _FROM_AMQP = 1, 2
_QUOTE, _BRACE, _DOLLAR = b'"{$'
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_MAPS_MAX: Final = 4096
_PLAIN: Final = (
    "content_encoding",
    "delivery_mode",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)

_Pairs = list[tuple[str, str | None]]
Decoded = tuple[str | None, _Pairs | None, _Pairs]


class MessageColumns:
    """Columns of one piece, built on demand. ``maps`` caches decoded properties: publishers repeat them."""

    def __init__(
        self,
        queue: PartitionedQueue,
        piece: Piece,
        cipher: Cipher | None,
        maps: dict[bytes, Decoded],
        name: str = "",
    ) -> None:
        self._queue = queue
        self._name = name or queue.name
        self._piece = piece
        self._cipher = cipher
        self._maps = maps
        self._rows = len(piece.offsets)
        if piece.runs:
            self._find_fields(piece.runs)

    def column(self, name: str) -> pa.Array:
        """One column of the message relation."""
        return _MAKERS[name](self)

    def _find_fields(self, runs: Sequence[Run]) -> None:
        self._blob, start, self._end = spans(runs)
        raw = self._raw = np.frombuffer(self._blob, np.uint8)
        self._start = start
        self._flags = raw[start]
        self._name_at = start + _HEAD
        self._trace_at = self._name_at + self._u16(start + 1)
        producer_at = self._trace_at + self._u16(start + 3)
        self._producer_at = producer_at
        after = producer_at + self._u16(start + 5)
        self._amqp: npt.NDArray[np.bool_] = (self._flags & _FROM_AMQP) != 0
        self._any_amqp = bool(self._amqp.any())
        self._payload_at = after
        if self._any_amqp:
            at = np.where(
                self._amqp, after, start
            )  # without AMQP metadata any readable place; it is not used
            one = self._amqp.astype(np.int64)
            self._exchange_at = after + _METADATA * one
            self._key_at = self._exchange_at + self._u16(at) * one
            self._header_at = self._key_at + self._u16(at + 2) * one
            sized = self._u16(at + 4) + (self._u16(at + 6) << 16)
            self._payload_at = self._header_at + sized * one
            self._priority_at = np.where(self._amqp, at + 8, start)

    def _u16(self, at: Ints) -> Ints:
        # A last record without AMQP metadata may end before this position: stay inside the buffer.
        return numbers_at(self._blob, "<u2", np.minimum(at, len(self._raw) - 2))

    def _gather(
        self, kind: pa.DataType, begin: Ints, end: Ints, valid: npt.NDArray[np.bool_] | None
    ) -> pa.Array:
        """The spans as one array: an array over the records alternates span and gap; take every second."""
        bounds = np.empty(2 * self._rows, np.int32)
        bounds[0::2], bounds[1::2] = begin, end
        both = pa.Array.from_buffers(
            kind, 2 * self._rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._blob)]
        )
        places = np.arange(0, 2 * self._rows - 1, 2)
        return both.take(pa.array(places, mask=None if valid is None else ~valid))

    def _queue_name(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._name, pa.string()), self._rows)

    def _partition(self) -> pa.Array:
        indexes = np.frombuffer(self._piece.partitions, np.uint32)
        used, places = _distinct(indexes)
        names = pa.array([self._queue.partitions[index].name for index in used.tolist()], pa.string())
        return names.take(pa.array(places))

    def _offset(self) -> pa.Array:
        return pa.array(self._offsets())

    def _offsets(self) -> Ints:
        offsets = self._piece.offsets
        if isinstance(offsets, range):
            return np.arange(offsets.start, offsets.stop, dtype=np.int64)
        return np.frombuffer(offsets, np.uint64).astype(np.int64)

    def _created_at(self) -> pa.Array:
        return pa.array(np.frombuffer(self._piece.created, np.uint64).astype(np.int64)).cast(TIME)

    def _message_id(self) -> pa.Array:
        """``identifiers.message_id`` for all rows at once."""
        created = np.frombuffer(self._piece.created, np.uint64).astype(np.int64)
        offsets = self._offsets()
        text = np.empty((self._rows, 36), np.uint8)
        queue = 0x8000 | self._queue.number & 0x3FFF
        text[:] = np.frombuffer(b"00000000-0000-7000-%04x-000000000000" % queue, np.uint8)
        _hex_into(text, created // 1000, (*range(8), *range(9, 13)))
        _hex_into(text, created % 1000, (15, 16, 17))
        _hex_into(text, offsets, tuple(range(24, 36)))
        given = self._queue.given_ids
        if given:
            for row, offset in enumerate(offsets.tolist()):
                if (promised := given.get(offset)) is not None:
                    text[row] = np.frombuffer(promised.encode(), np.uint8)
        bounds = np.arange(0, 36 * self._rows + 1, 36, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), self._rows, [None, pa.py_buffer(bounds), pa.py_buffer(text.reshape(-1))]
        )

    def _transaction_id(self) -> pa.Array:
        return self._gather(pa.string(), self._name_at, self._trace_at, None)

    def _trace_id(self) -> pa.Array:
        valid = self._producer_at > self._trace_at
        if not valid.any():
            return pa.nulls(self._rows, pa.string())
        return self._gather(pa.string(), self._trace_at, self._producer_at, valid)

    def _payload(self) -> pa.Array:
        first = self._raw[np.minimum(self._payload_at, len(self._raw) - 1)]
        odd = (self._flags & _SEALED) != 0
        if self._any_amqp:
            third = self._raw[np.minimum(self._payload_at + 2, len(self._raw) - 1)]
            odd |= self._amqp & ((first == _QUOTE) | ((first == _BRACE) & (third == _DOLLAR)))
        if not odd.any():
            return self._gather(pa.binary(), self._payload_at, self._end, None)
        places = zip(self._start.tolist(), self._end.tolist(), strict=True)
        return pa.array([self._one_payload(self._blob[a:b]) for a, b in places], pa.binary())

    def _one_payload(self, record: bytes) -> bytes:
        body = decode_body(record, self._cipher)
        # A message from an exchange is stored in a JSON form; return its original body.
        return to_body(body.payload) if body.metadata is not None else body.payload

    def _exchange(self) -> pa.Array:
        if not self._any_amqp:
            return pa.nulls(self._rows, pa.string())
        return self._gather(pa.string(), self._exchange_at, self._key_at, self._amqp)

    def _routing_key(self) -> pa.Array:
        if not self._any_amqp:
            return pa.nulls(self._rows, pa.string())
        keys = self._gather(pa.binary(), self._key_at, self._header_at, self._amqp)
        try:
            return keys.cast(pa.string())
        except pa.ArrowInvalid:  # AMQP lets a key be any bytes
            shown = [
                None if key is None else key.decode("utf-8", "backslashreplace") for key in keys.to_pylist()
            ]
            return pa.array(shown, pa.string())

    def _priority(self) -> pa.Array:
        if not self._any_amqp:
            return pa.nulls(self._rows, pa.int32())
        return pa.array(self._raw[self._priority_at].astype(np.int32), mask=~self._amqp)

    def _content_type(self) -> pa.Array:
        return self._from_properties(0, pa.string())

    def _headers(self) -> pa.Array:
        return self._from_properties(1, MAP)

    def _properties(self) -> pa.Array:
        return self._from_properties(2, MAP)

    def _from_properties(self, which: int, kind: pa.DataType) -> pa.Array:
        if not self._any_amqp:
            return pa.nulls(self._rows, kind)
        blob = self._blob
        spans = zip(self._amqp.tolist(), self._header_at.tolist(), self._payload_at.tolist(), strict=True)
        return pa.array([self._decoded(blob[a:b])[which] if amqp else None for amqp, a, b in spans], kind)

    def _decoded(self, header: bytes) -> Decoded:
        found = self._maps.get(header)
        if found is None:
            if len(self._maps) >= _MAPS_MAX:
                self._maps.clear()
            found = self._maps[header] = decode_envelope(header)
        return found


_MAKERS: Final[dict[str, Callable[[MessageColumns], pa.Array]]] = {
    "queue": MessageColumns._queue_name,
    "partition": MessageColumns._partition,
    "offset": MessageColumns._offset,
    "message_id": MessageColumns._message_id,
    "transaction_id": MessageColumns._transaction_id,
    "trace_id": MessageColumns._trace_id,
    "created_at": MessageColumns._created_at,
    "headers": MessageColumns._headers,
    "payload": MessageColumns._payload,
    "exchange": MessageColumns._exchange,
    "routing_key": MessageColumns._routing_key,
    "content_type": MessageColumns._content_type,
    "priority": MessageColumns._priority,
    "properties": MessageColumns._properties,
}
NEED_NO_RECORD: Final = frozenset({"queue", "partition", "offset", "message_id", "created_at"})


def decode_envelope(header: bytes) -> Decoded:
    """Content type, headers and other properties, decoded from property bytes; values as text."""
    try:
        properties = decode_properties(header) if header else Properties()
    except CodecError:
        return None, None, []  # malformed, and no rule had to decode them; the payload is still good
    headers: _Pairs | None = None
    if properties.headers is not None:
        headers = [
            (readable(key), None if value is None else text_of(value))
            for key, value in properties.headers.items()
        ]
    plain = [(name, getattr(properties, name)) for name in _PLAIN]
    content_type = properties.content_type
    shown: _Pairs = [(name, text_of(value)) for name, value in plain if value is not None]
    return None if content_type is None else readable(content_type), headers, shown


def text_of(value: object) -> str:
    """A header's value as text: strings unchanged, times in ISO, all others (tables too) as JSON."""
    plain = _json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _json_value(value: object) -> object:
    if isinstance(value, dict):
        return {readable(str(key)): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    if isinstance(value, str):
        return readable(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, float) and math.isfinite(value):
        return value
    isoformat = getattr(value, "isoformat", None)
    # JSON has no NaN, and a decimal would lose digits as a number.
    return str(isoformat()) if isoformat is not None else str(value)


def _distinct(indexes: npt.NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """The distinct indexes, and for each input its position among them."""
    most = int(indexes.max()) + 1
    if most > 4 * len(indexes):
        some, places = np.unique(indexes, return_inverse=True)
        return some.astype(np.int64), places
    # Count instead of sorting while the range of indexes is small.
    used = np.flatnonzero(np.bincount(indexes, minlength=most))
    place_of = np.empty(most, np.int64)
    place_of[used] = np.arange(len(used))
    return used, place_of[indexes]


def _hex_into(text: npt.NDArray[np.uint8], numbers: Ints, columns: Sequence[int]) -> None:
    low, high = int(numbers.min()), int(numbers.max())
    for place, column in enumerate(reversed(columns)):
        shift = 4 * place
        # Numbers of one piece mostly differ in their last digits only: the other digits are constant.
        same = low >> shift == high >> shift
        text[:, column] = _HEX[low >> shift & 15] if same else _HEX[numbers >> shift & 15]
