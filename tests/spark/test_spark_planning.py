"""How much a batch reads and in which slices: properties that hold for any queues and limits."""

import time

from hypothesis import given
from hypothesis import strategies as st

from holtmq.spark.planning import Span, hold_back, plan_end, plan_end_by_bytes, plan_slices

names = st.sampled_from(["a", "b", "c", "d"])
offsets = st.dictionaries(names, st.integers(0, 50))


@given(offsets, offsets, st.none() | st.integers(0, 120))
def test_a_batch_never_goes_back_never_beyond_the_head_and_never_over_the_limit(
    start: dict[str, int], heads: dict[str, int], limit: int | None
) -> None:
    end = plan_end(start, heads, limit)

    taken = {queue: end[queue] - start.get(queue, 0) for queue in end}
    waiting = {queue: max(0, heads.get(queue, 0) - start.get(queue, 0)) for queue in end}
    assert all(0 <= taken[queue] <= waiting[queue] for queue in end)
    wanted = sum(waiting.values()) if limit is None else min(limit, sum(waiting.values()))
    assert sum(taken.values()) == wanted


@given(offsets, st.integers(1, 120))
def test_a_busy_queue_does_not_keep_the_others_out(heads: dict[str, int], limit: int) -> None:
    end = plan_end({}, heads, limit)

    fair = limit // max(1, len(heads))
    assert all(end[queue] >= min(heads[queue], fair) for queue in heads)


def test_limits_of_zero_one_exact_and_huge() -> None:
    heads = {"a": 3, "b": 4}

    assert plan_end({}, heads, 0) == {"a": 0, "b": 0}
    assert sum(plan_end({}, heads, 1).values()) == 1
    assert plan_end({}, heads, 7) == heads
    assert plan_end({}, heads, 1 << 60) == heads
    assert plan_end({"a": 3, "b": 4}, heads, 5) == heads


sizes = st.dictionaries(names, st.lists(st.integers(1, 40), max_size=12), min_size=1)


@given(sizes, st.integers(1, 200))
def test_bytes_are_a_limit_and_a_message_over_it_goes_alone(stored: dict[str, list[int]], most: int) -> None:
    def measure(queue: str, first: int, stop: int, limit: int) -> tuple[int, int]:
        size = 0
        for at in range(first, stop):
            if size + stored[queue][at] > limit:
                return at, size
            size += stored[queue][at]
        return stop, size

    heads = {queue: len(messages) for queue, messages in stored.items()}
    end = plan_end_by_bytes({}, heads, most, measure)

    size = sum(sum(stored[queue][: end[queue]]) for queue in stored)
    count = sum(end.values())
    assert size <= most or count == 1
    assert count > 0 or not any(heads.values())


@given(
    st.lists(st.tuples(names, st.integers(0, 60), st.integers(0, 60))), st.integers(1, 20), st.integers(1, 50)
)
def test_slices_cover_every_offset_once_and_none_is_too_large(
    given_spans: list[tuple[str, int, int]], at_least: int, most: int
) -> None:
    spans = [Span(name, min(a, b), max(a, b)) for name, a, b in given_spans]

    slices = plan_slices(spans, at_least, most)

    covered = sorted((s.key, offset) for s in slices for offset in range(s.first, s.stop))
    wanted = sorted((s.key, offset) for s in spans for offset in range(s.first, s.stop))
    assert covered == wanted
    assert all(0 < s.size <= most for s in slices)
    assert len(slices) >= min(at_least, len(wanted))


def test_a_trigger_waits_for_enough_or_for_long_enough() -> None:
    assert hold_back({"a": 0}, {"a": 4}, 5, waited=1, max_delay=10)
    assert not hold_back({"a": 0}, {"a": 5}, 5, waited=1, max_delay=10)
    assert not hold_back({"a": 0}, {"a": 4}, 5, waited=10, max_delay=10)


def test_planning_does_not_look_at_the_number_of_messages() -> None:
    began = time.thread_time()  # not the clock on the wall: others use this machine too
    for _ in range(100):
        plan_slices([Span("a#1", 0, 10**9)], 8, 250_000_000)
        plan_end({"a": 0}, {"a": 10**12}, 10**6)

    assert time.thread_time() - began < 1
