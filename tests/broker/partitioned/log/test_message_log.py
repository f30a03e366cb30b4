"""The columns of a queue: rows by offset, search by time, holes, checkpoints; and the names made of them."""

from array import array

import pytest

from holtmq.broker.partitioned.log.identifiers import (
    dead_letter_id,
    dead_letter_of,
    message_id,
    offset_of,
    partition_id,
    partition_of,
)
from holtmq.broker.partitioned.log.message_log import CHUNK_ROWS, GONE, LogState, MessageLog


def filled(count: int, step: int = 1000) -> MessageLog:
    log = MessageLog()
    while log.next_offset < count:
        take = min(step, count - log.next_offset)
        first = log.next_offset
        rows = range(first, first + take)
        created = max(first * 10, log.last_created_us + 1)
        log.append([n * 2 for n in rows], created, array("I", [n % 3 for n in rows]), array("Q", rows))
    return log


def test_rows_are_found_by_offset_across_chunks() -> None:
    log = filled(2 * CHUNK_ROWS + 5)

    for offset in (0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, 2 * CHUNK_ROWS + 4):
        assert (log.position(offset), log.partition(offset), log.fingerprint(offset)) == (
            offset * 2,
            offset % 3,
            offset,
        )
    assert log.live == log.next_offset == 2 * CHUNK_ROWS + 5


def test_the_first_offset_at_a_time_is_exact_everywhere() -> None:
    log = filled(CHUNK_ROWS + 100)
    for offset in (0, 999, 1000, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 99):
        assert log.offset_at(log.created_us(offset)) == offset
    assert log.offset_at(0) == 0
    assert log.offset_at(log.last_created_us + 1) == log.next_offset
    assert MessageLog().offset_at(5) == 0


def test_forgotten_rows_leave_holes_and_move_the_start() -> None:
    log = filled(10)
    log.forget([3, 0, 1])

    assert (log.first_offset, log.live) == (2, 7)
    assert log.partition(3) == GONE
    assert list(log.live_offsets(0, 6)) == [2, 4, 5]
    log.forget([3, 0])
    assert log.live == 7


def test_a_dead_chunk_is_freed_in_the_middle_but_not_before_dedup_is_done_with_it() -> None:
    log = filled(3 * CHUNK_ROWS)
    log.forget(range(CHUNK_ROWS, 2 * CHUNK_ROWS))

    log.drop_dead(2 * CHUNK_ROWS - 1)
    assert log.fingerprint(CHUNK_ROWS) == CHUNK_ROWS
    log.drop_dead(2 * CHUNK_ROWS)

    assert log.partition(CHUNK_ROWS) == GONE
    with pytest.raises(IndexError):
        log.fingerprint(CHUNK_ROWS)
    assert list(log.live_offsets(CHUNK_ROWS - 1, 2 * CHUNK_ROWS + 1)) == [CHUNK_ROWS - 1, 2 * CHUNK_ROWS]
    assert log.offset_at(log.created_us(2 * CHUNK_ROWS)) == 2 * CHUNK_ROWS


def test_rows_of_a_delivery_are_the_same_in_one_slice_and_one_by_one() -> None:
    log = filled(4 * CHUNK_ROWS)
    log.forget(range(CHUNK_ROWS))
    log.forget(range(2 * CHUNK_ROWS, 3 * CHUNK_ROWS))
    log.drop_dead(3 * CHUNK_ROWS)
    log.punch(CHUNK_ROWS + 2)
    border, behind = 2 * CHUNK_ROWS, 3 * CHUNK_ROWS

    for offsets in (
        range(CHUNK_ROWS, CHUNK_ROWS + 2),  # up to the hole
        [CHUNK_ROWS + 1, CHUNK_ROWS + 3],  # over it
        range(border - 3, border),  # the end of a chunk
        [border - 1, behind],  # over one that was dropped
        range(behind, behind + CHUNK_ROWS),  # a whole one
        range(behind, behind + 1),
        range(0),
    ):
        one_by_one = [(n, log.position(n), log.created_us(n)) for n in offsets]
        assert log.refs(array("Q", offsets)) == log.refs(list(offsets)) == one_by_one


def test_rows_of_a_delivery_are_found_over_the_border_of_two_chunks() -> None:
    log = filled(2 * CHUNK_ROWS)
    offsets = range(CHUNK_ROWS - 2, CHUNK_ROWS + 2)

    assert log.refs(offsets) == [(n, log.position(n), log.created_us(n)) for n in offsets]


def state(log: MessageLog) -> LogState:
    """The log as a checkpoint has it."""
    base, next_offset, last_created_us, starts, _ = captured = log.capture()
    columns = [tuple(column.tobytes() for column in found or ()) for found in captured.columns()]
    return base, next_offset, last_created_us, starts, columns


@pytest.mark.parametrize("gone", [range(0), range(CHUNK_ROWS), range(CHUNK_ROWS, 2 * CHUNK_ROWS), range(5)])
def test_a_dump_loads_into_the_same_log(gone: range) -> None:
    log = filled(2 * CHUNK_ROWS)
    log.forget(gone)
    log.drop_dead(log.next_offset)
    again = MessageLog()
    again.load(state(log))

    assert again.capture() == log.capture()
    assert (again.first_offset, again.live) == (log.first_offset, log.live)
    again.append([1], 10**9, array("I", [0]), array("Q", [1]))
    assert again.next_offset == log.next_offset + 1


def test_a_log_emptied_to_the_last_chunk_goes_on() -> None:
    log = filled(CHUNK_ROWS)
    log.forget(range(CHUNK_ROWS))
    log.drop_dead(CHUNK_ROWS)
    assert (log.first_offset, log.live) == (CHUNK_ROWS, 0)

    log.append([7], 10**9, array("I", [1]), array("Q", [1]))

    assert log.position(CHUNK_ROWS) == 7
    assert log.offset_at(0) == CHUNK_ROWS


def test_message_ids_sort_as_strings_in_queue_order() -> None:
    start = 1_800_000_000_000_990
    made = [message_id(7, offset, start + offset * 3) for offset in range(40)]

    assert made == sorted(made)
    assert all(len(one) == 36 and one[14] == "7" for one in made)
    assert [offset_of(one) for one in made] == list(range(40))


def test_ids_lead_back_to_what_they_name_and_strangers_to_nothing() -> None:
    assert partition_of(partition_id(3, 99)) == (3, 99)
    assert dead_letter_of(dead_letter_id(3, 99)) == (3, 99)
    for stranger in ("", "x", "-1", "1.5", "9" * 1000, "²"):
        assert partition_of(stranger) is None
        assert dead_letter_of(stranger) is None
    assert offset_of("not-a-message-id") is None
    assert offset_of("x" * 23 + "-" + "z" * 12) is None
