"""A lane keeps its order and its counts however often messages leave memory and come back."""

import pytest
from core_support import Shelf, message, seqs

from holtmq.broker.message import TRANSIENT, Message
from holtmq.broker.work.spilling_fifo import Lane

pytestmark = pytest.mark.usefixtures("small_pages")


def fill(lane: Lane, shelf: Shelf, first: int, last: int, persistent: bool = True) -> list[Message]:
    """Push one by one, with a look at memory after each, as turns do."""
    pushed = []
    for seq in range(first, last + 1):
        pushed.append(message(seq, persistent=persistent, position=seq * 10 if persistent else 0))
        lane.push(pushed[-1])
        lane.spill(shelf, 0)
    return pushed


def take(lane: Lane, shelf: Shelf, count: int) -> list[Message]:
    """So many: a single call may give fewer, since it reads no more than a run."""
    return [found for _ in range(count) for found in lane.take(1, shelf)]


def test_a_deep_lane_keeps_a_handful_in_memory() -> None:
    lane, shelf = Lane(), Shelf()

    fill(lane, shelf, 1, 1000)

    assert len(lane) == 1000
    assert lane.in_memory <= 6 + 2


def test_messages_come_out_in_the_order_they_went_in_at_every_depth() -> None:
    for depth in range(1, 40):
        lane, shelf = Lane(), Shelf()
        fill(lane, shelf, 1, depth)

        taken: list[int] = []
        while len(lane):
            taken += seqs(lane.take(1 + depth % 5, shelf))

        assert taken == list(range(1, depth + 1))


def test_pushing_and_taking_in_turns_keeps_the_order() -> None:
    lane, shelf = Lane(), Shelf()
    taken: list[int] = []

    for start in range(0, 300, 30):
        fill(lane, shelf, start + 1, start + 30)
        taken += seqs(lane.take(17, shelf))
    while len(lane):
        taken += seqs(lane.take(7, shelf))

    assert taken == list(range(1, 301))


def test_a_returned_message_stands_before_what_was_paged_behind_it() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 30)
    taken = take(lane, shelf, 4)

    lane.restore(taken, shelf)

    assert seqs(take(lane, shelf, 5)) == [1, 2, 3, 4, 5]


def test_a_straggler_finds_its_place_behind_what_a_burst_of_returns_paged_out() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 30)
    out = take(lane, shelf, 20)
    straggler = out.pop(8)
    lane.restore(out, shelf)
    lane.spill(shelf, 0)

    lane.restore([straggler], shelf)

    assert [found.seq for run in lane.drain(shelf) for found in run] == list(range(1, 31))


def test_returns_in_any_order_end_in_arrival_order() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 40)
    out = take(lane, shelf, 25)

    for part in (out[20:], out[3:4], out[10:20:2], out[11:20:2], out[:3], out[4:10]):
        lane.restore(list(part), shelf)
        lane.spill(shelf, 0)

    assert [found.seq for run in lane.drain(shelf) for found in run] == list(range(1, 41))


def test_transient_messages_are_written_once_in_their_order_when_they_leave_memory() -> None:
    lane, shelf = Lane(), Shelf()

    fill(lane, shelf, 1, 50, persistent=False)

    assert shelf.written == sorted(set(shelf.written))
    assert [found.seq for run in lane.drain(shelf) for found in run] == list(range(1, 51))


def test_a_message_is_withdrawn_wherever_it_lies() -> None:
    lane, shelf = Lane(), Shelf()
    pushed = fill(lane, shelf, 1, 30)

    for at in (0, 12, 29):
        assert lane.withdraw(pushed[at])
        assert not lane.withdraw(pushed[at])

    assert len(lane) == 27
    assert [found.seq for run in lane.drain(shelf) for found in run] == [
        seq for seq in range(1, 31) if seq not in (1, 13, 30)
    ]


def test_a_message_that_was_read_back_is_still_the_one_to_withdraw() -> None:
    lane, shelf = Lane(), Shelf()
    pushed = fill(lane, shelf, 1, 30)
    lane.restore(take(lane, shelf, 10), shelf)
    lane.spill(shelf, 0)
    lane.peek(shelf)

    assert all(lane.withdraw(found) for found in pushed[:10])
    assert [found.seq for run in lane.drain(shelf) for found in run] == list(range(11, 31))


def test_withdrawing_what_somebody_took_does_not_search_a_deep_lane() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 2000)
    taken = take(lane, shelf, 10)
    shelf.reads = 0

    assert not any(lane.withdraw(found) for found in taken)

    assert shelf.reads == 0
    assert len(lane) == 1990


def test_a_run_of_withdrawn_positions_is_skipped_at_once() -> None:
    lane, shelf = Lane(), Shelf()
    pushed = fill(lane, shelf, 1, 60)
    for found in pushed[3:50]:
        assert lane.withdraw(found)

    assert [found.seq for run in lane.drain(shelf) for found in run] == [1, 2, 3, *range(51, 61)]


def test_a_lane_of_which_everything_was_withdrawn_is_empty_and_usable() -> None:
    lane, shelf = Lane(), Shelf()
    for found in fill(lane, shelf, 1, 30):
        lane.withdraw(found)

    assert len(lane) == 0
    assert lane.peek(shelf) is None
    fill(lane, shelf, 31, 33)
    assert seqs(lane.take(5, shelf)) == [31, 32, 33]


def test_positions_name_every_waiting_message_once_and_tag_the_transient() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 20)
    fill(lane, shelf, 21, 40, persistent=False)
    fill(lane, shelf, 41, 60)

    positions = [position for run in lane.positions() for position in run]

    persistent = [position for position in positions if position < TRANSIENT]
    assert persistent == [seq * 10 for seq in (*range(1, 21), *range(41, 61))]
    assert len(set(positions)) == len(positions)
    assert lane.mixed


def test_bodies_that_a_restart_forgets_are_counted_exactly_through_paging() -> None:
    lane, shelf = Lane(), Shelf()
    transient = fill(lane, shelf, 1, 20, persistent=False)
    fill(lane, shelf, 21, 40)
    take(lane, shelf, 5)
    lane.withdraw(transient[15])

    expected = sum(len(found.body) for at, found in enumerate(transient) if at >= 5 and at != 15)

    assert lane.transient_bytes() == expected


def test_a_failed_read_loses_no_position() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 30)
    lane.take(2, shelf)
    shelf.broken = True
    while lane.in_memory > 2:
        lane.ready.popleft()
    before = len(lane)
    with pytest.raises(OSError, match="the disk is gone"):
        lane.take(10, shelf)

    shelf.broken = False

    assert len(lane) == before
    assert len([found for run in lane.drain(shelf) for found in run]) == before


def test_large_bodies_are_read_back_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.RUN", 1000)
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.RUN_BYTES", 5_000)
    lane, shelf = Lane(), Shelf()
    for seq in range(1, 51):
        lane.push(message(seq, b"x" * 1000, position=seq))
    lane.spill(shelf, 50_000)

    most = 0
    while len(lane):
        lane.take(1, shelf)
        most = max(most, lane.in_memory)

    assert most <= 10


def test_a_few_large_messages_behind_a_deep_lane_do_not_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.TAIL_MAX", 100)
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.TAIL_MAX_BYTES", 5_000)
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 30)

    for seq in range(31, 51):
        lane.push(message(seq, b"x" * 1000, position=seq * 10))
        lane.spill(shelf, 0)

    assert sum(len(found.body) for found in lane.inbox) <= 5_000


def test_expiry_stops_at_the_first_message_that_lives() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 30)

    gone = lane.expired(lambda found: 5 if found.seq != 12 else 50, 10, shelf, 1000)

    assert seqs(gone) == list(range(1, 12))
    assert lane.next_deadline(lambda found: found.seq, shelf) == 12


def test_clearing_forgets_the_paged_too() -> None:
    lane, shelf = Lane(), Shelf()
    fill(lane, shelf, 1, 30, persistent=False)

    lane.clear()

    assert len(lane) == lane.transient_bytes() == 0
    assert [run for run in lane.positions() if run] == []
    fill(lane, shelf, 31, 32)
    assert seqs(lane.take(9, shelf)) == [31, 32]
