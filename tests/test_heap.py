"""Freed memory is kept for the next peak, and returned in steps. Garbage collections look at little."""

import subprocess
import sys
from typing import Final

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


_GROWING: Final = """
import gc
from holtmq import heap
from holtmq.heap import collect_in_portions

heap._LONG = SECONDS
looked_at = []
gc.callbacks.append(
    lambda phase, info: looked_at.append(sum(len(gc.get_objects(n)) for n in range(info["generation"] + 1)))
    if phase == "start" else None
)
collect_in_portions()
looked_at.clear()
held = [[number] for number in range(OBJECTS)]
print(max(looked_at), len(looked_at), gc.get_freeze_count())
"""


def _run(code: str) -> list[int]:
    """The numbers that a process of its own prints: the collector is one for all tests of this process."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return [int(number) for number in done.stdout.split()]


def _grow(objects: int, long: float) -> list[int]:
    return _run(_GROWING.replace("OBJECTS", str(objects)).replace("SECONDS", str(long)))


def test_each_garbage_collection_looks_at_few_objects_however_many_there_are() -> None:
    most, collections, frozen = _grow(1_000_000, long=0)

    assert most < 80_000
    assert collections > 50
    assert frozen > 900_000


def test_what_takes_little_time_is_looked_at_again_so_that_cycles_among_it_are_found() -> None:
    frozen = [_grow(objects, long=60)[2] for objects in (10_000, 300_000)]

    assert abs(frozen[1] - frozen[0]) < 10_000  # how many there are at the start varies


_GARBAGE: Final = """
import weakref
from holtmq.heap import collect_in_portions

class Node:
    pass

collect_in_portions()
held = [[number] for number in range(300_000)]
alive = []
for number in range(300_000):
    one, other = Node(), Node()
    one.other, other.other = other, one
    if number % 1_000 == 0:
        alive.append(weakref.ref(one))
print(len(alive), sum(one() is not None for one in alive))
"""


def test_cycles_are_collected_beside_very_many_objects() -> None:
    made, left = _run(_GARBAGE)

    assert left < made / 10


_LASTING: Final = """
import gc
from holtmq.heap import collect_in_portions, lasting

if IS_SERVED:
    collect_in_portions()
runs = []
before = gc.get_freeze_count()
with lasting():
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    held = [[number] for number in range(300_000)]
    inside = len(runs)
print(inside, gc.get_freeze_count() - before, int(gc.isenabled()))
"""


def test_what_is_recovered_is_neither_collected_nor_looked_at_again() -> None:
    collections, frozen, is_on = _run(_LASTING.replace("IS_SERVED", "True"))

    assert collections == 0
    assert frozen > 300_000
    assert is_on


def test_a_broker_within_another_program_leaves_its_collector_alone() -> None:
    collections, frozen, is_on = _run(_LASTING.replace("IS_SERVED", "False"))

    assert collections > 0
    assert frozen == 0
    assert is_on
