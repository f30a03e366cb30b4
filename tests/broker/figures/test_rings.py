"""A ring against a model that keeps every count for ever."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.figures.rings import MINUTES, RATE_SECONDS, SECONDS, Ring

steps = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50), st.integers(0, 50)), max_size=40)


@given(steps)
def test_a_ring_shows_what_was_counted_and_nothing_older(steps: list[tuple[int, int, int]]) -> None:
    start = now = 1_000_000
    ring = Ring((7, 9), start)
    totals = [7, 9]
    by_second: list[Counter[int]] = [Counter(), Counter()]

    for wait, first, second in steps:
        now += wait
        for series, added in enumerate((first, second)):
            totals[series] += added
            by_second[series][now] += added
        ring.record(now, totals)

    for series in (0, 1):
        counts = by_second[series]
        assert ring.by_second(now)[series] == [counts[at] for at in range(now - SECONDS + 1, now)]
        minutes = [
            sum(counts[m * 60 + s] for s in range(60)) for m in range(now // 60 - MINUTES + 1, now // 60 + 1)
        ]
        assert ring.by_minute(now)[series] == minutes
        rate = sum(counts[now - back] for back in range(1, RATE_SECONDS + 1)) / RATE_SECONDS
        assert ring.rates(now)[series] == rate


def test_a_total_that_falls_counts_nothing() -> None:
    ring = Ring((10,), 100)

    ring.record(101, (3,))
    ring.record(102, (5,))

    assert ring.by_second(103) == [[0] * (SECONDS - 2) + [2]]


def test_an_idle_ring_is_empty_after_all_the_time_that_it_spans() -> None:
    ring = Ring((0,), 0)
    ring.record(1, (5,))

    assert not ring.is_idle(60 * (MINUTES - 1))
    assert ring.is_idle(60 * MINUTES)


def test_the_last_complete_minutes_end_before_the_present_one() -> None:
    ring = Ring((0, 0), 0)
    ring.record(30, (4, 1))
    ring.record(90, (6, 2))
    ring.record(125, (100, 50))

    assert ring.recent_minutes(125, 2) == [(4, 1), (2, 1)]
