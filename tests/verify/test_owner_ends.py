"""Which ends of an owner are without need, and the sum of several reports."""

from __future__ import annotations

import pytest

from holtmq.verify.replica.ends import ENDS, End, why_ended
from holtmq.verify.replica.faults import Fault
from holtmq.verify.replica.report import ReplicaReport

BEFORE = [("two", 10.0), ("one", 20.0), ("one", 30.0)]  # "one" owns the log, and has reconnected once
AFTER = [*BEFORE, ("two", 40.0), ("two", 50.0)]


@pytest.mark.parametrize(
    ("fault", "was_killed", "ended_at", "knows_successor", "owners", "end"),
    [
        (Fault.KILL, True, 35.0, False, AFTER, End.KILLED),
        (Fault.BLIP, True, 35.0, False, AFTER, End.KILLED),  # the check kills each owner in the end
        (Fault.SWITCHOVER, False, 35.0, False, AFTER, End.ASKED),
        (Fault.FREEZE, False, 41.0, True, AFTER, End.REPLACED),
        (Fault.FREEZE, False, 39.0, True, AFTER, End.NEEDLESS),
        (Fault.BLIP, False, 41.0, True, AFTER, End.REPLACED),
        (Fault.BLIP, False, 41.0, False, AFTER, End.NEEDLESS),  # it had given up, and ended slowly
        (Fault.BLIP, False, 39.0, True, AFTER, End.NEEDLESS),
        (Fault.BLIP, False, 39.0, False, BEFORE, End.NEEDLESS),
    ],
)
def test_an_owner_that_ends_before_it_was_replaced_ends_without_need(
    fault: Fault,
    was_killed: bool,
    ended_at: float,
    knows_successor: bool,
    owners: list[tuple[str, float]],
    end: End,
) -> None:
    assert why_ended(fault, was_killed, ended_at, knows_successor, owners, "two") is end


def test_ends_without_need_break_a_promise_and_are_counted_by_fault() -> None:
    report = ReplicaReport(seed=1)
    for fault, end in ((Fault.BLIP, End.NEEDLESS), (Fault.BLIP, End.REPLACED), (Fault.CUT, End.REPLACED)):
        report.add_end(fault, end, is_expected=end is ENDS.get(fault))

    assert (report.needless_ends, report.replaced) == ({Fault.BLIP: 1}, {Fault.BLIP: 1})
    assert not report.passed


def test_the_longest_takeover_is_known_by_its_fault() -> None:
    first, second = [ReplicaReport(seed=1) for _ in range(2)]
    for report, fault, seconds in (
        (first, "a", 1.0),
        (first, "a", 3.0),
        (second, "a", 2.0),
        (second, "b", 1.0),
    ):
        report.add_takeover(fault, seconds)

    first.add(second)

    assert first.takeover_seconds == [1.0, 3.0, 2.0, 1.0]
    assert first.longest_takeovers == {"a": 3.0, "b": 1.0}


def test_parts_of_a_verification_are_added_up() -> None:
    first = ReplicaReport(seed=1, rounds=2, faults={"a": 1, "b": 1}, lost=1, examples=["x"], seconds=1.0)
    first.add(ReplicaReport(seed=1, rounds=3, faults={"b": 3}, confirmed=5, examples=["y"], seconds=2.0))

    assert first == ReplicaReport(
        seed=1,
        rounds=5,
        faults={"a": 1, "b": 4},
        lost=1,
        confirmed=5,
        examples=["x", "y"],
        seconds=3.0,
    )
