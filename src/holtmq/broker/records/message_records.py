"""Encoding of the records about messages: settled, delivered, returned, delayed.

Owns: their layout. Must not touch: state; ``flow.py`` writes them, ``recovery.py`` reads them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from holtmq.broker.message import Message, decode_message, encode_message

_SETTLED: Final = struct.Struct("<IQ")  # queue id, bytes; positions follow as u64
_MARK: Final = struct.Struct("<IQ")  # queue id, seq
_RETURNED: Final = struct.Struct("<IQI")  # queue id, seq, count
_DELAYED: Final = struct.Struct("<QHH")  # due ms, length of vhost, length of exchange


def encode_delayed(
    message: Message, vhost: str, exchange: str, due_ms: int, only: Sequence[int] = ()
) -> bytes:
    """Payload of DELAYED: the message, its due time, the exchange it goes to, or ``only`` these queues."""
    where = vhost.encode(), exchange.encode()
    ids = struct.pack(f">{len(only)}I", *only)
    return b"".join((_DELAYED.pack(due_ms, *map(len, where)), *where, encode_message(message, ids)))


def encode_mark(queue_id: int, seq: int) -> bytes:
    """Payload of DELIVERED."""
    return _MARK.pack(queue_id, seq)


def encode_returned(rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Payload of RETURNED: one (queue id, seq, count) per message."""
    return b"".join([_RETURNED.pack(*row) for row in rows])


def decode_delayed(payload: bytes) -> tuple[int, str, str, Message, tuple[int, ...]]:
    """Due time, vhost, exchange, message and queue ids (none: all that the exchange leads to) of DELAYED."""
    due_ms, vhost_size, exchange_size = _DELAYED.unpack_from(payload)
    at = _DELAYED.size + vhost_size
    end = at + exchange_size
    message, ids = decode_message(payload[end:], 0)
    only = struct.unpack(f">{len(ids) // 4}I", ids)
    return due_ms, payload[_DELAYED.size : at].decode(), payload[at:end].decode(), message, only


def encode_settled(queue_id: int, size: int, positions: Sequence[int]) -> bytes:
    """Payload of SETTLED and PURGED."""
    return _SETTLED.pack(queue_id, size) + array("Q", positions).tobytes()


def decode_settled(payload: bytes) -> tuple[int, int, array[int]]:
    """Queue id, bytes and positions."""
    queue_id, size = _SETTLED.unpack_from(payload)
    positions = array("Q")
    positions.frombytes(payload[_SETTLED.size :])
    return queue_id, size, positions


def decode_mark(payload: bytes) -> tuple[int, int]:
    """Queue id and seq of a DELIVERED record."""
    queue_id, seq = _MARK.unpack(payload)
    return queue_id, seq


def decode_returned(payload: bytes) -> Iterable[tuple[int, int, int]]:
    """The (queue id, seq, count) rows of a RETURNED record."""
    return _RETURNED.iter_unpack(payload)
