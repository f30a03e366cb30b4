"""Levels: higher first, first-in-first-out within a level, paged or not."""

import pytest
from core_support import Shelf, message, seqs

from holtmq.broker.message import Message
from holtmq.broker.work.priority_levels import Levels

pytestmark = pytest.mark.usefixtures("small_pages")


def push(levels: Levels, shelf: Shelf, *pairs: tuple[int, int]) -> list[Message]:
    """Messages as (seq, priority)."""
    pushed = [shelf.keep(message(seq, priority=priority, position=seq * 10)) for seq, priority in pairs]
    for found in pushed:
        levels.push(found)
        levels.spill(shelf, 0)
    return pushed


def test_a_higher_level_goes_first_and_a_level_keeps_its_order() -> None:
    levels, shelf = Levels(10), Shelf()

    push(levels, shelf, (1, 0), (2, 5), (3, 0), (4, 9), (5, 5))

    assert seqs(levels.take(10, shelf)) == [4, 2, 5, 1, 3]


def test_a_priority_above_the_top_counts_as_the_top() -> None:
    levels, shelf = Levels(3), Shelf()

    push(levels, shelf, (1, 3), (2, 200), (3, 3))

    assert seqs(levels.take(10, shelf)) == [1, 2, 3]
    assert sorted(levels.fifos) == [3]


def test_a_level_is_made_when_first_used() -> None:
    levels, shelf = Levels(255), Shelf()

    assert levels.fifos == {}
    push(levels, shelf, (1, 7))
    assert list(levels.fifos) == [7]


def test_deep_levels_come_out_by_priority_then_arrival() -> None:
    levels, shelf = Levels(4), Shelf()
    pairs = [(seq, seq * 7 % 5) for seq in range(1, 200)]

    push(levels, shelf, *pairs)

    expected = [seq for seq, priority in sorted(pairs, key=lambda pair: (-pair[1], pair[0]))]
    assert [found.seq for run in levels.drain(shelf) for found in run] == expected


def test_the_oldest_of_the_lowest_occupied_level_is_shed_first() -> None:
    levels, shelf = Levels(5), Shelf()
    push(levels, shelf, (1, 5), (2, 1), (3, 3), (4, 1))

    shed = [levels.shed(shelf) for _ in range(5)]

    assert [found.seq if found else None for found in shed] == [2, 4, 3, 1, None]


def test_a_returned_message_goes_back_to_its_place_in_its_level() -> None:
    levels, shelf = Levels(5), Shelf()
    push(levels, shelf, *[(seq, seq % 2) for seq in range(1, 41)])
    out = [found for _ in range(12) for found in levels.take(1, shelf)]

    levels.restore(sorted(out, key=lambda found: found.seq), shelf)

    assert seqs(levels.take(3, shelf)) == [1, 3, 5]


def test_a_message_expires_at_any_level() -> None:
    levels, shelf = Levels(5), Shelf()
    push(levels, shelf, (1, 0), (2, 5), (3, 2))

    gone = levels.expired(lambda found: 0 if found.seq == 2 else 5, 10, shelf, 100)

    assert sorted(seqs(gone)) == [1, 3]
    assert len(levels) == 1


def test_the_next_deadline_is_the_earliest_of_all_heads() -> None:
    levels, shelf = Levels(5), Shelf()
    push(levels, shelf, (1, 0), (2, 5), (3, 2))

    assert levels.next_deadline(lambda found: {1: 30, 2: 0, 3: 20}[found.seq], shelf) == 20


def test_a_withdrawn_message_is_found_by_its_level() -> None:
    levels, shelf = Levels(5), Shelf()
    pushed = push(levels, shelf, *[(seq, seq % 3) for seq in range(1, 31)])

    assert all(levels.withdraw(found) for found in pushed[::2])
    assert not levels.withdraw(pushed[0])
    assert len(levels) == 15


def test_a_small_level_stays_in_memory_beside_a_deep_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.HEAD_MAX_BYTES", 400)
    levels, shelf = Levels(5), Shelf()
    push(levels, shelf, *[(seq, 0) for seq in range(1, 200)])
    total = sum(len(found.body) for found in shelf.stored.values())

    for seq in range(200, 204):
        levels.push(shelf.keep(message(seq, priority=5, position=seq * 10)))
    levels.spill(shelf, total)

    assert levels.fifos[5].in_memory == 4


def test_a_level_of_large_messages_leaves_memory_although_the_queue_is_small_on_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.HEAD_MAX_BYTES", 400)
    levels, shelf = Levels(5), Shelf()
    push(levels, shelf, *[(seq, 0) for seq in range(1, 200)])

    for seq in range(200, 205):
        levels.push(shelf.keep(message(seq, b"x" * 1000, priority=5, position=seq * 10)))
    levels.spill(shelf, 6_000)

    assert levels.fifos[5].in_memory < 5
