"""Locks and semaphores: each permit is a keyed row that expires.

Owns: which slot a holder gets, and that tokens only increase. Must not touch: how rows are stored, clocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from holtmq.broker.partitioned.extras.keyed import KeyedRows, KeyOp, Row, Verb

NAMESPACE: Final = "queen-locks"


class Permit(msgspec.Struct):
    """The value of a permit's row."""

    owner: str
    since: int  # µs


@dataclass(frozen=True, slots=True)
class Held:
    slot: int
    owner: str
    token: int
    since_us: int
    expires_us: int
    renewed_us: int


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """``held`` is the caller's permit, if any; ``holders`` are the permits held before the call."""

    held: Held | None
    holders: list[Held]
    already: bool = False


class LockPermits:
    """Acquires, renews and releases permits."""

    def __init__(self, rows: KeyedRows) -> None:
        self._rows = rows

    def holders(self, name: str, limit: int, now_us: int) -> list[Held]:
        return list(self._held(name, limit, now_us))

    def acquire(self, name: str, owner: str, limit: int, ttl_us: int, now_us: int) -> LockAnswer:
        """Take a permit, or return the one the owner has: a repeated call takes no second permit."""
        holders = list(self._held(name, limit, now_us))
        for held in holders:
            if held.owner == owner:
                return LockAnswer(held, holders, already=True)
        taken = {held.slot for held in holders}
        free = next((slot for slot in range(limit) if slot not in taken), None)
        if free is None:
            return LockAnswer(None, holders)
        return LockAnswer(self._put(name, free, owner, now_us, ttl_us, now_us), holders)

    def renew(
        self, name: str, token: int, owner: str | None, slot: int | None, ttl_us: int, now_us: int
    ) -> LockAnswer:
        """Extend a permit and change its token; the ``owner`` may repeat the call with the old token."""
        holders = list(self._held(name, _MOST, now_us))
        for held in holders:
            if slot in (None, held.slot) and (held.token == token or (owner and held.owner == owner)):
                return LockAnswer(
                    self._put(name, held.slot, held.owner, held.since_us, ttl_us, now_us), holders
                )
        return LockAnswer(None, holders)

    def release(self, name: str, token: int, slot: int | None, now_us: int) -> bool:
        for held in self._held(name, _MOST, now_us):
            if held.token == token and slot in (None, held.slot):
                op = KeyOp(Verb.DELETE, NAMESPACE, row_key(name, held.slot))
                self._rows.commit(self._rows.decide([op], now_us))
                return True
        return False

    def _held(self, name: str, limit: int, now_us: int) -> Iterator[Held]:
        op = KeyOp(Verb.GET_PREFIX, NAMESPACE, prefix=f"{name}#", limit=_MOST)
        for row in self._rows.decide([op], now_us).results[0].rows:
            slot = row.key[len(name) + 1 :]
            if slot.isdigit() and int(slot) < limit:
                yield _held_from(row, int(slot))

    def _put(self, name: str, slot: int, owner: str, since_us: int, ttl_us: int, now_us: int) -> Held:
        value = msgspec.json.encode(Permit(owner, since_us))
        op = KeyOp(Verb.PUT, NAMESPACE, row_key(name, slot), value, ttl_us)
        decision = self._rows.decide([op], now_us)
        self._rows.commit(decision)
        row = decision.results[0].row
        assert row is not None
        return _held_from(row, slot)


_MOST: Final = 1024


def row_key(name: str, slot: int) -> str:
    return f"{name}#{slot}"


def _held_from(row: Row, slot: int) -> Held:
    permit = msgspec.json.decode(row.value, type=Permit)
    return Held(slot, permit.owner, row.version, permit.since, row.expires_us, row.updated_us)
