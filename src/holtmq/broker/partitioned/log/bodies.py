"""The body of a partitioned message: its journal record, its form in memory, and a cache of the newest.

Owns: the record's layout, encryption (AES-256-GCM) for queues that enable it, the bounded cache. Must not
touch: queues, clocks. The payload is the client's JSON and is delivered unchanged.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.errors import BrokerError

ID_MAX: Final = 0xFFFF  # bytes of a transaction id, and of a producer's name
_HEAD: Final = Struct("<BHHH")  # flags, lengths of transaction id, trace id and producer
_METADATA: Final = Struct("<HHIB")  # lengths of exchange, routing key and headers; priority
_SEALED, _FROM_AMQP = 1, 2
_NONCE: Final = 12
_COST: Final = 400  # approximate bytes per entry beside its payload
_pack: Final = _HEAD.pack


class UnreadableBody(BrokerError):
    """The body is encrypted and the key is missing or wrong."""


class AmqpMetadata(NamedTuple):
    """The AMQP metadata kept for a message that came through an exchange."""

    exchange: str
    routing_key: str
    header: bytes  # the content header's property bytes, unchanged
    priority: int = 0


class Body(msgspec.Struct, gc=False, eq=False):
    """One message's content. ``rendered`` belongs to the edge: the wire form, made once for all groups.

    A struct because one is created per message: it takes a third of the time of a Python class, and the
    garbage collector skips the many that are in the cache.
    """

    transaction_id: str
    payload: bytes
    trace_id: str | None = None
    producer: str | None = None
    metadata: AmqpMetadata | None = None
    rendered: bytes | None = None


class Cipher:
    """Encrypts payloads. The transaction id is authenticated with them, so bodies cannot be swapped."""

    __slots__ = ("_key", "_mismatch", "_random")

    def __init__(self, key: bytes, random: Callable[[int], bytes]) -> None:
        # Slow to load, and a node without a key does not need them.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._key = AESGCM(key)
        self._mismatch = InvalidTag
        self._random = random

    def seal(self, payload: bytes, transaction_id: bytes) -> bytes:
        nonce = self._random(_NONCE)
        return nonce + self._key.encrypt(nonce, payload, transaction_id)

    def open(self, sealed: bytes, transaction_id: bytes) -> bytes:
        try:
            return self._key.decrypt(sealed[:_NONCE], sealed[_NONCE:], transaction_id)
        except self._mismatch:
            raise UnreadableBody("the message was sealed with another key") from None


def encode_bodies(bodies: Sequence[Body], cipher: Cipher | None = None) -> list[bytes]:
    """The journal records; encrypted when a cipher is given."""
    if cipher is not None:
        return [encode_body(body, cipher) for body in bodies]
    if bodies and bodies[0].metadata is not None:
        return _encode_published(bodies)
    return [
        _pack(0, len(name := body.transaction_id.encode()), 0, 0) + name + body.payload
        if body.metadata is None and body.trace_id is None and body.producer is None
        else encode_body(body)
        for body in bodies
    ]


def encode_body(body: Body, cipher: Cipher | None = None) -> bytes:
    """The journal record; encrypted when a cipher is given."""
    name = body.transaction_id.encode()
    payload = body.payload
    trace = (body.trace_id or "").encode()
    producer = (body.producer or "").encode()
    flags, metadata = 0, b""
    if body.metadata is not None:
        flags |= _FROM_AMQP
        metadata = _encode_metadata(body.metadata)
    if cipher is not None:
        flags |= _SEALED
        payload = cipher.seal(payload, name)
    return b"".join(
        (_pack(flags, len(name), len(trace), len(producer)), name, trace, producer, metadata, payload)
    )


def _encode_published(bodies: Sequence[Body]) -> list[bytes]:
    """Consecutive AMQP messages mostly share one ``AmqpMetadata``, or its names; these are encoded once."""
    records: list[bytes] = []
    known: AmqpMetadata | None = None
    exchange = key = packed = names = b""
    exchange_name = key_name = ""
    head, size = _pack(_FROM_AMQP, 0, 0, 0), 0
    for body in bodies:
        metadata = body.metadata
        if metadata is None or body.trace_id is not None or body.producer is not None:
            records.append(encode_body(body))
            continue
        if metadata is not known:
            known = metadata
            if metadata.exchange is not exchange_name or metadata.routing_key is not key_name:
                exchange_name, key_name = metadata.exchange, metadata.routing_key
                exchange, key = _encode_names(metadata)
                names = exchange + key
            header = metadata.header
            lengths = _METADATA.pack(len(exchange), len(key), len(header), metadata.priority)
            packed = b"".join((lengths, names, header))
        name = body.transaction_id.encode()
        if len(name) != size:
            size = len(name)
            head = _pack(_FROM_AMQP, size, 0, 0)
        records.append(b"".join((head, name, packed, body.payload)))
    return records


def _encode_names(metadata: AmqpMetadata) -> tuple[bytes, bytes]:
    # Publishers may send any bytes as a routing key.
    return metadata.exchange.encode(), metadata.routing_key.encode("utf-8", "surrogateescape")


def _encode_metadata(metadata: AmqpMetadata) -> bytes:
    exchange, key = _encode_names(metadata)
    header = metadata.header
    lengths = _METADATA.pack(len(exchange), len(key), len(header), metadata.priority)
    return b"".join((lengths, exchange, key, header))


def decode_body(record: bytes, cipher: Cipher | None) -> Body:
    """The inverse of ``encode_body``."""
    flags, name_size, trace_size, producer_size = _HEAD.unpack_from(record)
    at = _HEAD.size + name_size
    name = record[_HEAD.size : at]
    trace = record[at : at + trace_size].decode() if trace_size else None
    at += trace_size
    producer = record[at : at + producer_size].decode() if producer_size else None
    at += producer_size
    metadata: AmqpMetadata | None = None
    if flags & _FROM_AMQP:
        exchange_size, key_size, header_size, _ = _METADATA.unpack_from(record, at)
        end = at + _METADATA.size + exchange_size + key_size + header_size
        metadata = _decode_metadata(record[at:end])
        at = end
    payload = record[at:]
    if flags & _SEALED:
        if cipher is None:
            raise UnreadableBody("the message is sealed and this node has no queue.encryption_key")
        payload = cipher.open(payload, name)
    return Body(name.decode(), payload, trace, producer, metadata)


@lru_cache(64)
def _decode_metadata(packed: bytes) -> AmqpMetadata:
    """Cached, because consecutive messages mostly share them."""
    exchange_size, key_size, _, priority = _METADATA.unpack_from(packed)
    key_at = _METADATA.size + exchange_size
    return AmqpMetadata(
        packed[_METADATA.size : key_at].decode(),
        packed[key_at : key_at + key_size].decode("utf-8", "surrogateescape"),
        packed[key_at + key_size :],
        priority,
    )


def transaction_id_of(record: bytes) -> str:
    """The transaction id of a record; needs no key."""
    size: int = _HEAD.unpack_from(record)[1]
    return record[_HEAD.size : _HEAD.size + size].decode()


class BodyCache:
    """The newest bodies by journal position, bounded in bytes; the oldest push is evicted first."""

    __slots__ = ("_bodies", "_limit", "_runs", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bodies: dict[int, Body] = {}
        self._runs: deque[tuple[Sequence[int], int]] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, position: int) -> Body | None:
        return self._bodies.get(position)

    def get_all(self, positions: Sequence[int]) -> list[Body | None]:
        return [*map(self._bodies.get, positions)]

    def add(self, positions: Sequence[int], bodies: Sequence[Body]) -> None:
        # Twice the payload: the edge may store its wire form in ``rendered``.
        size = sum([_COST + 2 * len(body.payload) for body in bodies])
        if size > self._limit:
            return
        self._bodies.update(zip(positions, bodies, strict=True))
        self._runs.append((positions, size))
        self.size += size
        while self.size > self._limit:
            gone, freed = self._runs.popleft()
            self.size -= freed
            for position in gone:
                self._bodies.pop(position, None)
