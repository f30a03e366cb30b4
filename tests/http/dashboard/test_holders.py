"""Very many holders of a queue's messages are looked at in steps, and the oldest are found."""

import asyncio
from types import SimpleNamespace
from typing import cast

from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder
from holtmq.broker.work.other_holders import OtherHolders
from holtmq.http.dashboard.holders import held_since_ms, oldest_holders
from holtmq.http.engine.stepwise import Stepwise


class _Holder(Holder):
    def __init__(self, since: int | None) -> None:
        super().__init__()
        self.since = since

    def held_since_ms(self) -> int | None:
        return self.since


class _CountedSteps(Stepwise):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def between(self) -> None:
        self.count += 1


def _queue(sinces: list[int | None]) -> Queue:
    consumers = [_Holder(since) for since in sinces]
    return cast(Queue, SimpleNamespace(id=1, unacked=1, consumers=consumers))


def test_the_oldest_of_very_many_holders_are_found_in_steps() -> None:
    sinces: list[int | None] = [1_000_000 - number if number % 3 else None for number in range(5_000)]
    queue, steps = _queue(sinces), _CountedSteps()

    found = asyncio.run(oldest_holders(queue, OtherHolders(), steps))
    oldest = asyncio.run(held_since_ms(queue, OtherHolders(), steps))

    expected = sorted(since for since in sinces if since is not None)[:200]
    assert sorted(one.held_since_ms() or 0 for one in found) == expected
    assert oldest == expected[0]
    assert steps.count == 2 * 10


def test_few_holders_are_all_found_at_once() -> None:
    queue, steps = _queue([5, None, 3, 4]), _CountedSteps()

    found = asyncio.run(oldest_holders(queue, OtherHolders(), steps))

    assert sorted(one.held_since_ms() or 0 for one in found) == [3, 4, 5]
    assert asyncio.run(held_since_ms(queue, OtherHolders(), steps)) == 3
    assert steps.count == 0


def test_a_queue_without_holders_has_no_oldest() -> None:
    assert asyncio.run(held_since_ms(_queue([None]), OtherHolders(), Stepwise())) is None
