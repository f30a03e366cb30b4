"""Messages that wait for their time: each fires once, and what was put off leaves nothing behind."""

from dataclasses import dataclass

import pytest

from holtmq.broker.partitioned.extras.timers import Timed, TimedChange
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal import MemoryJournal


@dataclass
class Timers:
    service: PartitionedService

    def put(self, key: str, due_us: int) -> None:
        timer = Timed("q", key, "p", f"{key}-{due_us}", b"1", due_us, "id")
        self.service.store.commit((), state_records=self.service.timed.record(TimedChange([timer])))


def test_a_timer_that_is_put_off_again_and_again_takes_the_room_of_one() -> None:
    timers = Timers(PartitionedService(MemoryJournal()))
    timers.put("other", 7)

    for due_us in range(10_000):
        timers.put("debounced", due_us)

    timed = timers.service.timed
    assert len(timed._line) == 2
    assert timed.next_due_us() == 7
    assert [timer.key for timer in timed.due(20_000)] == ["other", "debounced"]


def test_a_timer_moved_to_the_time_it_had_is_due_once() -> None:
    timers = Timers(PartitionedService(MemoryJournal()))
    timers.put("one", 5)
    timers.put("one", 6)
    timers.put("one", 5)

    assert [timer.key for timer in timers.service.timed.due(10)] == ["one"]


def test_timers_are_listed_by_key_in_pages_and_an_empty_queue_is_forgotten() -> None:
    timers = Timers(PartitionedService(MemoryJournal()))
    for key in ("c", "a", "d", "b"):
        timers.put(key, 5)
    timed = timers.service.timed

    first, more = timed.page("q", "", 3)
    second, rest = timed.page("q", "c", 3)
    timers.service.store.commit(
        (), state_records=timed.record(TimedChange([], [("q", key) for key in "abcd"]))
    )

    assert ([timer.key for timer in first], more) == (["a", "b", "c"], True)
    assert ([timer.key for timer in second], rest) == (["d"], False)
    assert (timed.page("q", "", 3), timed.next_due_us()) == (([], False), None)
    assert (timed._timers, timed._sorted, len(timed._line)) == ({}, {}, 0)


def test_a_timer_that_was_moved_while_it_could_not_be_pushed_is_not_due_at_its_old_time() -> None:
    timers = Timers(PartitionedService(MemoryJournal()))
    timers.put("moved", 5)
    timers.put("kept", 6)
    timed = timers.service.timed
    refused = timed.due(10)

    timers.put("moved", 100)
    timed.put_back(refused)

    assert [timer.key for timer in timed.due(10)] == ["kept"]
    assert timed.next_due_us() == 100


def test_an_error_when_timers_fire_leaves_them_due(monkeypatch: pytest.MonkeyPatch) -> None:
    service = PartitionedService(MemoryJournal())
    timers = Timers(service)
    planned: list[float] = []
    service.line.at = lambda at, action: planned.append(at)
    timers.put("one", 1_000_000)
    timers.put("two", 1_500_000)

    def broken(*_: object) -> None:
        raise LookupError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(service.store, "commit", broken)
        with pytest.raises(LookupError):
            service.firing.fire(2.0)
    assert planned == [3.0]

    service.firing.fire(3.0)

    assert len(list(service.store.queues["q"].live_positions())) == 2
