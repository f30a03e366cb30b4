"""Which consumers and other holders have had messages of a queue for long. There may be 100,000 of them.

Owns: looking at them in steps. Must not touch: rows; ``client_listing.py`` makes them.
"""

from heapq import nsmallest
from operator import itemgetter
from typing import Final

from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder
from holtmq.broker.work.other_holders import OtherHolders
from holtmq.http.engine.stepwise import Stepwise

_AT_ONCE: Final = 500  # less than a millisecond
_SHOWN_MOST: Final = 200


async def held_since_ms(queue: Queue, others: OtherHolders, stepwise: Stepwise) -> int | None:
    """When the oldest unacknowledged message of this queue was handed out; None: there is none."""
    oldest: int | None = None
    for some in _parts(queue, others) if queue.unacked else ():
        found = [since for one in some if (since := one.held_since_ms()) is not None]
        if found:
            oldest = min(found) if oldest is None else min(oldest, *found)
        if len(some) == _AT_ONCE:
            await stepwise.between()
    return oldest


async def oldest_holders(queue: Queue, others: OtherHolders, stepwise: Stepwise) -> list[Holder]:
    """Those that hold messages of a queue; of very many, those that have had one for the longest time."""
    oldest: list[tuple[int, Holder]] = []
    for some in _parts(queue, others):
        oldest += [(since, one) for one in some if (since := one.held_since_ms()) is not None]
        if len(oldest) > _SHOWN_MOST:
            oldest = nsmallest(_SHOWN_MOST, oldest, key=itemgetter(0))
        if len(some) == _AT_ONCE:
            await stepwise.between()
    return [holder for _, holder in oldest]


def _parts(queue: Queue, others: OtherHolders) -> list[list[Holder]]:
    holders: list[Holder] = [one for one in queue.consumers if isinstance(one, Holder)]
    holders += others.of(queue.id)
    return [holders[start : start + _AT_ONCE] for start in range(0, len(holders), _AT_ONCE)]
