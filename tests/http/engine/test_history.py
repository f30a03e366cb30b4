"""Counts per minute: summed over buckets, in steps."""

import asyncio

import pytest

from holtmq.broker.partitioned.counters import QueueCounters
from holtmq.http.engine import history as histories
from holtmq.http.engine import stepwise
from holtmq.http.engine.history import MINUTE_US, OTHERS, History, summed
from holtmq.http.engine.stepwise import Stepwise

MINUTES = 12
QUEUES = 5


@pytest.fixture
async def history() -> History:
    counters = QueueCounters()
    history = History(counters)
    for minute in range(1, MINUTES + 1):
        for number in range(QUEUES):
            counters.of(f"q{number}").push_messages += minute
        await history.read(minute * MINUTE_US)
    return history


async def pushed(history: History, since: int, upto: int, width: int) -> list[tuple[int, dict[str, int]]]:
    found = history.buckets(since * MINUTE_US, upto * MINUTE_US, width, Stepwise())
    return [
        (start // MINUTE_US, {name: row.push_messages for name, row in rows.items()})
        async for start, rows in found
    ]


async def test_buckets_begin_at_multiples_of_their_width_and_end_with_the_history(history: History) -> None:
    whole = await pushed(history, 4, 100, 5)
    one = await pushed(history, 3, 3, 1)
    none = await pushed(history, 50, 60, 1)

    assert [start for start, _ in whole] == [0, 5, 10]
    assert [rows["q0"] for _, rows in whole] == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8 + 9, 10 + 11 + 12]
    assert one == [(3, {f"q{number}": 3 for number in range(QUEUES)})]
    assert none == [(50, {})]
    assert history.minute(3 * MINUTE_US)["q1"].push_messages == 3


async def test_others_are_served_while_a_long_history_is_summed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise, "STEP", 0)
    served = 0

    async def serve() -> None:
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(serve())
    steps = Stepwise()
    async for start, rows in history.buckets(0, (MINUTES - 1) * MINUTE_US, MINUTES, steps):
        read, total = served, await summed(rows, steps)
        assert (start, total.push_messages) == (0, QUEUES * sum(range(MINUTES)))
        assert read >= QUEUES * (MINUTES - 1)
        assert served >= read + QUEUES
    others.cancel()


def test_only_queues_that_were_used_are_looked_at() -> None:
    counters = QueueCounters()
    for name in "abc":
        counters.of(name).push_messages += 1
    counters.take_used()
    assert len(list(counters.readings())) == 3

    counters.of("b").push_messages += 1
    counters.take_used()

    assert [name for name, _ in counters.readings()] == ["b"]


async def test_the_oldest_minutes_of_very_many_queues_keep_their_sum(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "_ROWS_MAX", 2 * QUEUES)
    monkeypatch.setattr(stepwise, "STEP", 0)
    before = await pushed(history, 1, MINUTES, 1)

    await asyncio.gather(*(history.read(MINUTES * MINUTE_US) for _ in range(3)))  # requests come together

    after = await pushed(history, 1, MINUTES, 1)
    assert [sum(rows.values()) for _, rows in after] == [sum(rows.values()) for _, rows in before]
    assert [set(rows) for _, rows in after[:-2]] == [{OTHERS}] * (MINUTES - 2)
    assert after[-2:] == before[-2:]
