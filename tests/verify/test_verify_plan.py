"""The plan of a verification: every boundary has its turn, and a seed repeats it."""

from random import Random

from holtmq.verify.plan import LONGEST_ROUND, ending_of, segment_bytes_of
from holtmq.verify.record import make_body
from holtmq.verify.watched_disk import What
from holtmq.verify.workload import Watch


def endings(seed: int, rounds: int = 50) -> list[object]:
    random = Random(seed)
    return [ending_of(number, 0.5, random) for number in range(rounds)]


def test_fifty_rounds_end_at_every_boundary_after_promises_and_at_any_moment() -> None:
    random = Random(1)
    plan = [ending_of(number, 0.5, random) for number in range(50)]
    met = {(ending.boundary.what, ending.boundary.on) for ending in plan if ending.boundary is not None}

    assert met >= {(what, "") for what in (What.WRITING, What.WRITTEN, What.SYNCED, What.NAMES_SYNCED)}
    assert met >= {(What.WRITING, ".ckpt"), (What.RENAMED, ".ckpt"), (What.REPLACED, ""), (What.REMOVED, "")}
    assert any(ending.promises for ending in plan)
    assert any(ending.boundary is None and not ending.promises for ending in plan)
    assert all(0 < ending.seconds <= LONGEST_ROUND for ending in plan)


def test_a_seed_is_a_plan() -> None:
    assert endings(7) == endings(7) != endings(8)


def test_some_rounds_write_small_segments() -> None:
    assert {segment_bytes_of(number, 256 << 10) for number in range(6)} == {32 << 10, 256 << 10}


def test_a_first_delivery_behind_a_later_one_is_noticed_and_a_repeat_is_counted() -> None:
    watch = Watch()
    for name in ("p.1", "p.3", "p.1", "q.1", "p.2"):
        watch.receive("place", make_body(name, 0))

    assert watch.duplicates == 1
    assert watch.disordered == ["p.2"]
