"""Freed memory is kept for the next peak, and returned in steps when there is none."""

from holtmq.heap import FreedMemory

MIB = 1 << 20
HELD = 30  # samples, one a second


def test_memory_that_a_peak_left_is_returned_in_steps() -> None:
    kept: list[int] = []
    freed = FreedMemory(256 * MIB, kept.append)
    freed.sample(250 * MIB)

    for _ in range(HELD):
        freed.sample(0)
    assert kept == []

    for _ in range(10):
        freed.sample(0)
    assert kept == [size * MIB for size in (218, 186, 154, 122, 90, 64)]


def test_memory_is_kept_while_queues_stay_filled() -> None:
    kept: list[int] = []
    freed = FreedMemory(256 * MIB, kept.append)

    for used in (100, 250, 230, 250, 220, 250):
        freed.sample(used * MIB)

    assert kept == []


def test_memory_is_kept_for_a_backlog_that_comes_back() -> None:
    kept: list[int] = []
    freed = FreedMemory(256 * MIB, kept.append)

    for _ in range(4):
        for used in (250, *([0] * HELD)):
            freed.sample(used * MIB)

    assert kept == []


def test_little_memory_is_never_returned() -> None:
    kept: list[int] = []
    freed = FreedMemory(256 * MIB, kept.append)

    for used in (60, *([0] * 2 * HELD), 50, *([0] * 2 * HELD)):
        freed.sample(used * MIB)

    assert kept == []
