"""A fifo keeps its order and its counts however often messages leave memory and come back."""

from random import Random

import pytest
from core_support import Shelf, message, seqs

from holtmq.broker.message import Message
from holtmq.broker.work import spilling_fifo
from holtmq.broker.work.spilled_run import LostRun
from holtmq.broker.work.spilling_fifo import SpillingFifo

pytestmark = pytest.mark.usefixtures("small_pages")


def fill(fifo: SpillingFifo, shelf: Shelf, first: int, last: int, persistent: bool = True) -> list[Message]:
    """Push one by one, with a look at memory after each, as turns do."""
    pushed = []
    for seq in range(first, last + 1):
        pushed.append(shelf.keep(message(seq, persistent=persistent, position=seq * 10 if persistent else 0)))
        fifo.push(pushed[-1])
        fifo.spill(shelf, 0)
    return pushed


def take(fifo: SpillingFifo, shelf: Shelf, count: int) -> list[Message]:
    """So many: a single call may give fewer, since it reads no more than a run."""
    return [found for _ in range(count) for found in fifo.take(1, shelf)]


def test_a_deep_lane_keeps_a_handful_in_memory() -> None:
    fifo, shelf = SpillingFifo(), Shelf()

    fill(fifo, shelf, 1, 1000)

    assert len(fifo) == 1000
    assert fifo.in_memory <= 6 + 2


def test_messages_come_out_in_the_order_they_went_in_at_every_depth() -> None:
    for depth in range(1, 40):
        fifo, shelf = SpillingFifo(), Shelf()
        fill(fifo, shelf, 1, depth)

        taken: list[int] = []
        while len(fifo):
            taken += seqs(fifo.take(1 + depth % 5, shelf))

        assert taken == list(range(1, depth + 1))


def test_pushing_and_taking_in_turns_keeps_the_order() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    taken: list[int] = []

    for start in range(0, 300, 30):
        fill(fifo, shelf, start + 1, start + 30)
        taken += seqs(fifo.take(17, shelf))
    while len(fifo):
        taken += seqs(fifo.take(7, shelf))

    assert taken == list(range(1, 301))


def test_a_returned_message_stands_before_what_was_paged_behind_it() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 30)
    taken = take(fifo, shelf, 4)

    fifo.restore(taken, shelf)

    assert seqs(take(fifo, shelf, 5)) == [1, 2, 3, 4, 5]


def test_a_straggler_finds_its_place_behind_what_a_burst_of_returns_paged_out() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 30)
    out = take(fifo, shelf, 20)
    straggler = out.pop(8)
    fifo.restore(out, shelf)
    fifo.spill(shelf, 0)

    fifo.restore([straggler], shelf)

    assert [found.seq for run in fifo.drain(shelf) for found in run] == list(range(1, 31))


def test_returns_in_any_order_end_in_arrival_order() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 40)
    out = take(fifo, shelf, 25)

    for part in (out[20:], out[3:4], out[10:20:2], out[11:20:2], out[:3], out[4:10]):
        fifo.restore(list(part), shelf)
        fifo.spill(shelf, 0)

    assert [found.seq for run in fifo.drain(shelf) for found in run] == list(range(1, 41))


def test_a_message_that_returns_alone_looks_at_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    for number in range(1, 1_001):
        fifo.push(message(number))
    out = take(fifo, shelf, 500)
    looked_at: list[int] = []

    def look(found: Message) -> int:
        looked_at.append(found.seq)
        return found.seq

    monkeypatch.setattr(spilling_fifo, "seq_of", look)
    most = 0
    for one in [*out[::2], *out[1::2]]:
        looked_at.clear()
        fifo.restore([one], shelf)
        most = max(most, len(looked_at))

    assert most < 25
    assert [found.seq for run in fifo.drain(shelf) for found in run] == list(range(1, 1_001))


def test_transient_messages_are_written_once_in_their_order_when_they_leave_memory() -> None:
    fifo, shelf = SpillingFifo(), Shelf()

    fill(fifo, shelf, 1, 50, persistent=False)

    assert shelf.written == sorted(set(shelf.written))
    assert [found.seq for run in fifo.drain(shelf) for found in run] == list(range(1, 51))


def test_a_message_is_withdrawn_wherever_it_lies() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    pushed = fill(fifo, shelf, 1, 30)

    for at in (0, 12, 29):
        assert fifo.withdraw(pushed[at])
        assert not fifo.withdraw(pushed[at])

    assert len(fifo) == 27
    assert [found.seq for run in fifo.drain(shelf) for found in run] == [
        seq for seq in range(1, 31) if seq not in (1, 13, 30)
    ]


def test_a_message_that_was_read_back_is_still_the_one_to_withdraw() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    pushed = fill(fifo, shelf, 1, 30)
    fifo.restore(take(fifo, shelf, 10), shelf)
    fifo.spill(shelf, 0)
    fifo.peek(shelf)

    assert all(fifo.withdraw(found) for found in pushed[:10])
    assert [found.seq for run in fifo.drain(shelf) for found in run] == list(range(11, 31))


def test_withdrawing_what_somebody_took_does_not_search_a_deep_lane() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 2000)
    taken = take(fifo, shelf, 10)
    shelf.reads = 0

    assert not any(fifo.withdraw(found) for found in taken)

    assert shelf.reads == 0
    assert len(fifo) == 1990


def test_a_run_of_withdrawn_positions_is_skipped_at_once() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    pushed = fill(fifo, shelf, 1, 60)
    for found in pushed[3:50]:
        assert fifo.withdraw(found)

    assert [found.seq for run in fifo.drain(shelf) for found in run] == [1, 2, 3, *range(51, 61)]


def test_a_lane_of_which_everything_was_withdrawn_is_empty_and_usable() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    for found in fill(fifo, shelf, 1, 30):
        fifo.withdraw(found)

    assert len(fifo) == 0
    assert fifo.peek(shelf) is None
    fill(fifo, shelf, 31, 33)
    assert seqs(fifo.take(5, shelf)) == [31, 32, 33]


def test_positions_name_every_waiting_message_of_the_journal_once() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 20)
    fill(fifo, shelf, 21, 40, persistent=False)
    fill(fifo, shelf, 41, 60)

    positions = [position for run in fifo.positions() for position in run]

    assert positions == [seq * 10 for seq in (*range(1, 21), *range(41, 61))]


def test_persistent_and_transient_messages_in_turn_keep_order_and_positions() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    pushed = [found for seq in range(1, 61) for found in fill(fifo, shelf, seq, seq, persistent=seq % 2 == 0)]
    for at in (20, 21, 40, 41):
        assert fifo.withdraw(pushed[at])
        assert not fifo.withdraw(pushed[at])
    left = [found for at, found in enumerate(pushed) if at not in (20, 21, 40, 41)]

    assert len(fifo) == 56
    assert [p for run in fifo.positions() for p in run] == [
        found.position for found in left if found.position
    ]
    assert fifo.transient_bytes() == sum(len(found.body) for found in left if not found.persistent)
    assert seqs(list(fifo.browse(shelf))) == seqs(left)
    assert [found.seq for run in fifo.drain(shelf) for found in run] == seqs(left)


def test_a_transient_message_that_came_back_and_was_spilled_is_withdrawn_by_a_late_ack() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 40, persistent=False)
    out = take(fifo, shelf, 20)
    fifo.restore(list(out), shelf)
    fifo.spill(shelf, 0)

    assert fifo.withdraw(out[15])

    assert [found.seq for run in fifo.drain(shelf) for found in run] == [n for n in range(1, 41) if n != 16]


def test_messages_stay_in_memory_while_the_spill_takes_none() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    shelf.full = True
    fill(fifo, shelf, 1, 30, persistent=False)
    assert fifo.in_memory == 30

    shelf.full = False
    fill(fifo, shelf, 31, 50, persistent=False)

    assert fifo.in_memory < 20
    shelf.full = True
    fill(fifo, shelf, 51, 60, persistent=False)
    assert [found.seq for run in fifo.drain(shelf) for found in run] == list(range(1, 61))


def test_nothing_leaves_memory_while_there_is_enough() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    for seq in range(1, 101):
        fifo.push(message(seq, persistent=False))
        fifo.spill(shelf, 0, is_short=False)

    assert fifo.in_memory == 100
    assert shelf.written == []


def test_bodies_that_a_restart_forgets_are_counted_exactly_through_paging() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    transient = fill(fifo, shelf, 1, 20, persistent=False)
    fill(fifo, shelf, 21, 40)
    take(fifo, shelf, 5)
    fifo.withdraw(transient[15])

    expected = sum(len(found.body) for at, found in enumerate(transient) if at >= 5 and at != 15)

    assert fifo.transient_bytes() == expected


def test_a_failed_read_loses_no_position() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 30)
    fifo.take(2, shelf)
    shelf.broken = True
    while fifo.in_memory > 2:
        fifo.ready.popleft()
    before = len(fifo)
    with pytest.raises(OSError, match="the disk is gone"):
        fifo.take(10, shelf)

    shelf.broken = False

    assert len(fifo) == before
    assert len([found for run in fifo.drain(shelf) for found in run]) == before


def mixed(fifo: SpillingFifo, shelf: Shelf) -> list[Message]:
    """Every third message is in the journal; all but the first few are spilled."""
    pushed = []
    for seq in range(1, 41):
        persistent = seq % 3 == 0
        pushed.append(shelf.keep(message(seq, persistent=persistent, position=seq * 10 if persistent else 0)))
        fifo.push(pushed[-1])
        fifo.spill(shelf, 0)
    return pushed


def test_of_a_spill_that_cannot_be_read_back_the_journal_has_what_was_persistent() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    pushed = mixed(fifo, shelf)
    in_memory = {found.seq for found in (*fifo.ready, *fifo.inbox)}
    spilled = [found for found in pushed if found.seq not in in_memory]
    withdrawn = [
        next(found for found in spilled if found.persistent),
        next(found for found in spilled if not found.persistent),
    ]
    assert all(fifo.withdraw(found) for found in withdrawn)
    left = [found for found in pushed if found not in withdrawn]
    shelf.spill_broken = True

    browsed = seqs(list(fifo.browse(shelf)))
    taken = seqs([found for run in fifo.drain(shelf) for found in run])

    assert taken == browsed == [found.seq for found in left if found.persistent or found.seq in in_memory]
    lost = [found for found in left if not (found.persistent or found.seq in in_memory)]
    runs = [run for run in fifo.unreadable if isinstance(run, LostRun)]
    assert len(runs) == len(fifo.unreadable)
    assert sum(run.messages for run in runs) == len(lost)
    assert sum(run.size for run in runs) == sum(len(found.body) for found in lost)
    assert {run.reason for run in runs} == {"the disk is gone"}
    assert len(fifo) == fifo.transient_bytes() == 0


def test_messages_that_are_returned_find_their_place_without_a_spill_that_cannot_be_read() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    mixed(fifo, shelf)
    taken = fifo.take(2, shelf)
    shelf.spill_broken = True

    fifo.restore(taken, shelf)

    assert seqs(fifo.take(2, shelf)) == seqs(taken)
    assert seqs(fifo.following((2, 0), 100, 1 << 20, shelf)) == seqs(list(fifo.browse(shelf)))
    assert len(fifo.following((2, 0), 100, 1 << 20, shelf)) > 10


def test_large_bodies_are_read_back_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.RUN", 1000)
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.RUN_BYTES", 5_000)
    fifo, shelf = SpillingFifo(), Shelf()
    for seq in range(1, 51):
        fifo.push(shelf.keep(message(seq, b"x" * 1000, position=seq)))
    fifo.spill(shelf, 50_000)

    most = 0
    while len(fifo):
        fifo.take(1, shelf)
        most = max(most, fifo.in_memory)

    assert most <= 10


def test_a_few_large_messages_behind_a_deep_lane_do_not_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.TAIL_MAX", 100)
    monkeypatch.setattr("holtmq.broker.work.spilling_fifo.TAIL_MAX_BYTES", 5_000)
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 30)

    for seq in range(31, 51):
        fifo.push(shelf.keep(message(seq, b"x" * 1000, position=seq * 10)))
        fifo.spill(shelf, 0)

    assert sum(len(found.body) for found in fifo.inbox) <= 5_000


def test_expiry_stops_at_the_first_message_that_lives() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 30)

    gone = fifo.expired(lambda found: 5 if found.seq != 12 else 50, 10, shelf, 1000)

    assert seqs(gone) == list(range(1, 12))
    assert fifo.next_deadline(lambda found: found.seq, shelf) == 12


def test_clearing_forgets_the_paged_too() -> None:
    fifo, shelf = SpillingFifo(), Shelf()
    fill(fifo, shelf, 1, 30, persistent=False)

    fifo.clear()

    assert len(fifo) == fifo.transient_bytes() == 0
    assert [run for run in fifo.positions() if run] == []
    fill(fifo, shelf, 31, 32)
    assert seqs(fifo.take(9, shelf)) == [31, 32]


@pytest.mark.parametrize("seed", range(40))
def test_sifting_finds_every_message_once_and_removes_only_what_it_is_told(seed: int) -> None:
    random, fifo, shelf = Random(seed), SpillingFifo(), Shelf()
    there: list[int] = []
    held: list[Message] = []
    seq, place = 0, (0, 0)
    found: list[int] = []
    due: set[int] = set()  # there since before the walk began, and not taken meanwhile

    for _ in range(200):
        match random.randrange(5):
            case 0 | 1:
                count = random.randrange(1, 12)
                fill(fifo, shelf, seq + 1, seq + count, persistent=random.random() < 0.6)
                there += range(seq + 1, seq + count + 1)
                seq += count
            case 2:
                held += (taken := fifo.take(random.randrange(1, 5), shelf))
                assert seqs(taken) == there[: len(taken)]
                del there[: len(taken)]
                due.difference_update(seqs(taken))
            case 3 if held:
                fifo.restore(held, shelf)
                there, held = sorted(there + seqs(held)), []
            case _:
                if place == (0, 0):
                    due, found = set(there), []
                run = fifo.following(place, random.randrange(1, 9), 1 << 20, shelf)
                assert seqs(run) == [one for one in there if one > place[0]][: len(run)]
                found += seqs(run)
                gone = [one for one in run if random.random() < 0.5]
                fifo.remove(gone)
                there = [one for one in there if one not in seqs(gone)]
                if run:
                    place = (run[-1].seq, max(place[1], *(one.position for one in run)))
                else:
                    assert len(found) == len(set(found))
                    assert due <= set(found)
                    place = (0, 0)
        assert len(fifo) == len(there)
    assert seqs(take(fifo, shelf, len(there))) == there
