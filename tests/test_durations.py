"""Histograms of durations: buckets, sums and quantiles."""

import pytest

from holtmq.durations import BOUNDS, Durations


def test_a_duration_counts_in_its_bucket_and_all_above() -> None:
    durations = Durations()
    for seconds in (0.0001, 0.0002, 0.03, 60.0):
        durations.add(seconds)

    below = dict(durations.cumulative())

    assert below[0.0001] == 1  # a bound belongs to its bucket
    assert below[0.00025] == below[0.025] == 2
    assert below[0.05] == below[BOUNDS[-1]] == 3
    assert below[float("inf")] == durations.count == 4
    assert durations.total == pytest.approx(60.0303)


def test_quantiles_are_bounds_of_buckets_and_never_above_the_longest() -> None:
    durations = Durations()
    assert durations.quantile(0.5) is None
    for _ in range(99):
        durations.add(0.002)
    durations.add(0.3)

    assert durations.quantile(0.5) == 0.0025
    assert durations.quantile(0.99) == 0.0025
    assert durations.quantile(1.0) == 0.3
