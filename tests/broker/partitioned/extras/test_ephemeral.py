"""Queues in memory alone: who gets what, how often, in which order, and when a waiting pop looks again."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType
from typing import Any

import pytest

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.extras.ephemeral import EphemeralQueue
from holtmq.broker.partitioned.extras.ephemeral_values import (
    NAMELESS,
    EphemeralConfig,
    Gauges,
    Handed,
)
from holtmq.broker.partitioned.extras.ephemeral_waiting import Place
from holtmq.broker.partitioned.steps import finish

TraceFunction = Callable[[FrameType, str, Any], Any]


def payloads(handed: list[Handed]) -> list[bytes]:
    return [one.payload for one in handed]


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_group_that_asked_before_the_push_gets_what_another_settles_first(partition: str | None) -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    for group in ("quick", "slow"):
        assert queue.pop(group, partition, 10, True, 1.0) == []

    queue.push("p", [b"1", b"2"], 2.0)

    assert payloads(queue.pop("quick", partition, 10, True, 2.0)) == [b"1", b"2"]
    assert payloads(queue.pop("slow", partition, 10, True, 3.0)) == [b"1", b"2"]
    assert queue.length == 0


def test_a_group_of_one_partition_holds_no_other_back() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.pop("of a", "a", 1, True, 1.0)

    queue.push("b", [b"1"], 2.0)
    queue.pop("of b", "b", 1, True, 2.0)

    assert queue.length == 0


def test_readers_go_on_after_a_reset() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.push("p", [b"1"], 1.0)
    for group in ("quick", "slow"):
        queue.pop(group, "p", 10, False, 1.0)

    assert queue.reset() == 1
    queue.push("p", [b"2"], 2.0)

    assert payloads(queue.pop("quick", "p", 10, True, 2.0)) == [b"2"]
    assert payloads(queue.pop("slow", "p", 10, True, 2.0)) == [b"2"]


def test_what_comes_back_comes_in_order_before_what_is_new() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.push("p", [b"1", b"2", b"3", b"4"], 1.0)
    first, second, third = queue.pop("g", None, 3, False, 1.0)

    for refused in ([third], [second, first]):
        acks = [("p", handed.number, False) for handed in refused]
        assert queue.settle("g", acks, 1.0) == ["redelivered"] * len(refused)

    assert payloads(queue.pop("g", None, 10, False, 1.0)) == [b"1", b"2", b"3", b"4"]


def test_a_message_that_kills_its_workers_is_given_up() -> None:
    queue = EphemeralQueue("q", EphemeralConfig(lease_seconds=5, retry_limit=2))
    queue.push("p", [b"1"], 0.0)

    seen = [[one.attempts for one in queue.pop("g", None, 1, False, now)] for now in (0.0, 5.0, 10.0, 15.0)]

    assert seen == [[1], [2], [3], []]
    assert (queue.dropped, queue.length) == (1, 0)


def test_what_has_aged_makes_room_in_a_full_queue() -> None:
    queue = EphemeralQueue("q", EphemeralConfig(max_length=1, ttl_seconds=10))
    queue.push("p", [b"old"], 0.0)

    queue.push("other", [b"new"], 10.0)

    assert payloads(queue.pop(NAMELESS, None, 10, True, 10.0)) == [b"new"]


def test_a_window_ends_for_its_oldest_unread_message() -> None:
    queue = EphemeralQueue("q", EphemeralConfig(window_ms=1000))
    queue.push("p", [b"1"], 10.0)
    queue.push("p", [b"2"], 10.9)

    assert queue.pop("g", None, 10, False, 10.95) == []
    assert queue.due() == 11.0
    assert [handed.payload for handed in queue.pop("g", None, 10, False, 11.0)] == [b"1", b"2"]


def test_a_group_waits_for_its_own_leases() -> None:
    queue = EphemeralQueue("q", EphemeralConfig(lease_seconds=5))
    queue.push("p", [b"1"], 10.0)
    queue.pop("mine", None, 1, False, 10.0)
    queue.pop("other", None, 1, False, 8.0)
    woken: list[str] = []
    for group, partition in (("mine", None), ("other", None), ("mine", "p"), ("mine", "elsewhere")):
        queue.wait(group, partition, lambda who=f"{group} {partition}": woken.append(who))  # type: ignore[misc]

    assert queue.due() == 13.0
    finish(queue.tidying(13.0))
    assert woken == ["other None"]
    assert queue.due() == 15.0
    finish(queue.tidying(15.0))
    assert woken == ["other None", "mine p", "mine None"]
    assert queue.due() is None


def shown(queue: EphemeralQueue, now: float = 0.0) -> Gauges:
    return finish(queue.gauges(now))


def steps(calls: Callable[[], object]) -> int:
    """How many lines of the queue's code a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal count
        if "ephemeral" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        calls()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("end", ["acked", "aged", "dropped", "reset"])
def test_partitions_do_not_stay_when_all_is_settled(end: str) -> None:
    queue = EphemeralQueue("q", EphemeralConfig(ttl_seconds=10, drops_oldest=True))
    for group in ("a", "b"):
        queue.pop(group, None, 1, True, 0.0)
    for number in range(500):
        queue.push(f"order-{number}", [b"1", b"2"], 0.0)
    for group in ("a", "b") if end == "acked" else ():
        held = queue.pop(group, None, 1_000, False, 0.0)
        assert (
            queue.settle(group, [(one.partition, one.number, True) for one in held], 0.0) == ["acked"] * 1_000
        )

    if end == "reset":
        assert queue.reset() == 1_000
    elif end == "dropped":
        queue.config = EphemeralConfig(max_length=1, drops_oldest=True)
        queue.push("last", [b"3"], 0.0)
        queue.reset()

    assert (shown(queue, 10.0).partitions, queue.length, queue.size) == (0, 0, 0)
    assert shown(queue).groups == {"a": (0, 0), "b": (0, 0)}


def test_a_group_that_reads_a_partition_by_name_keeps_it_among_those_used_last() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    for number in range(1_100):
        queue.pop("g", f"inbox-{number}", 1, True, 0.0)

    assert shown(queue).partitions == 1_000
    queue.push("inbox-1099", [b"1"], 0.0)
    queue.pop("other", "inbox-1099", 1, True, 0.0)

    assert payloads(queue.pop("g", "inbox-1099", 1, True, 0.0)) == [b"1"]


def test_a_partition_for_which_a_pop_waits_stays() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.pop("g", "waited for", 1, True, 0.0)
    place = queue.wait("g", "waited for", lambda: None)
    queue.pop("other", "waited for", 1, True, 0.0)
    for number in range(1_100):
        queue.pop("g", f"inbox-{number}", 1, True, 0.0)

    queue.push("waited for", [b"1"], 0.0)
    queue.pop("other", "waited for", 1, True, 0.0)

    assert payloads(queue.pop("g", "waited for", 1, True, 0.0)) == [b"1"]
    queue.leave(place)
    assert shown(queue).partitions == 1_000


def test_an_id_of_a_partition_that_was_removed_settles_nothing_later() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.push("p", [b"1", b"2"], 0.0)
    old = queue.pop("g", None, 2, False, 0.0)
    queue.settle("g", [("p", one.number, True) for one in old], 0.0)
    queue.push("p", [b"3", b"4"], 0.0)
    new = queue.pop("g", None, 2, False, 0.0)

    assert queue.settle("g", [("p", one.number, True) for one in old], 0.0) == ["unknown"] * 2
    assert queue.settle("g", [("p", one.number, True) for one in new], 0.0) == ["acked"] * 2


@pytest.mark.parametrize("partition", [None, "p0"])
@pytest.mark.parametrize("around", ["partitions", "messages", "leases"])
def test_the_work_does_not_grow_with_what_is_there(around: str, partition: str | None) -> None:
    counted: list[int] = []
    for size in (10, 2_000):
        queue = EphemeralQueue("q", EphemeralConfig(drops_oldest=True, max_length=size))
        for group in ("a", "b", None):
            queue.pop(group or "by name", None if group else "p0", 1, True, 0.0)
        if around == "partitions":
            for number in range(size):
                queue.push(f"p{number}", [b"1"], 0.0)
        else:
            queue.push("p0", [b"1"] * size, 0.0)
        if around == "leases":
            queue.pop("a", None, size // 2, False, 0.0)

        def use(queue: EphemeralQueue = queue) -> None:
            queue.push("p0", [b"new", b"newer"], 1.0)  # drops the oldest
            first, second = queue.pop("a", partition, 2, False, 1.0)
            acks = [(one.partition, one.number, one is first) for one in (first, second)]
            assert queue.settle("a", acks, 1.0) == ["acked", "redelivered"]
            queue.due()

        counted.append(steps(use))

    assert counted[1] <= 1.5 * counted[0] + 20


def test_a_partition_that_is_always_filled_does_not_hold_up_others() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.push("busy", [b"1", b"2", b"3"], 0.0)
    queue.push("quiet", [b"4"], 0.0)

    assert "quiet" in [queue.pop("g", None, 1, True, 0.0)[0].partition for _ in range(3)]


def test_groups_are_limited() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    for number in range(256):
        queue.pop(f"g{number}", None, 1, True, 0.0)
        queue.pop(f"h{number}", "p", 1, True, 0.0)

    for partition in (None, "p"):
        with pytest.raises(LimitReached):
            queue.pop("one more", partition, 1, True, 0.0)
    queue.pop("one more", "elsewhere", 1, True, 0.0)
    queue.pop("g7", None, 1, True, 0.0)


class Waiters:
    """Pops of one message each that wait; those that were woken pop when ``run`` is called."""

    def __init__(self, queue: EphemeralQueue, count: int, partition: str | None = None) -> None:
        self.queue = queue
        self.woken: list[list[Place]] = []
        self.wakes = 0
        self.found: list[bytes] = []
        for _ in range(count):
            self.wait(partition)

    def wait(self, partition: str | None) -> None:
        places: list[Place] = []
        places.append(self.queue.wait("g", partition, lambda: self.woken.append(places)))

    def run(self) -> None:
        while self.woken:
            (place,) = self.woken.pop(0)
            self.wakes += 1
            found = self.queue.pop("g", place.partition, 1, True, 1.0)
            self.queue.leave(place)
            self.found += payloads(found)
            if not found:
                self.wait(place.partition)


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_push_wakes_as_many_pops_as_it_has_messages_for(partition: str | None) -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.pop("g", partition, 1, True, 0.0)
    waiters = Waiters(queue, 100, partition)

    queue.push("p", [b"1", b"2", b"3"], 1.0)
    waiters.run()

    assert waiters.found == [b"1", b"2", b"3"]
    assert waiters.wakes <= 4


def test_a_pop_that_gives_up_after_it_was_woken_leaves_the_message_to_the_next() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    queue.pop("g", None, 1, True, 0.0)
    waiters = Waiters(queue, 2)

    queue.push("p", [b"1"], 1.0)
    ((first,),) = waiters.woken
    waiters.woken.clear()
    queue.leave(first)
    waiters.run()

    assert waiters.found == [b"1"]


def test_what_comes_in_the_last_steps_of_a_pop_wakes_it() -> None:
    queue = EphemeralQueue("q", EphemeralConfig())
    assert queue.pop("g", None, 1, True, 0.0) == []
    queue.push("p", [b"1"], 1.0)

    waiters = Waiters(queue, 1)
    waiters.run()

    assert waiters.found == [b"1"]


CALLS: dict[str, Callable[[EphemeralQueue, list[Handed]], Iterator[object]]] = {
    "ack": lambda queue, held: queue.settling("g", [(one.partition, one.number, True) for one in held], 1.0),
    "pop": lambda queue, _: queue.popping("g", None, 100, True, 1.0),
    "push": lambda queue, _: queue.pushing("p", [b"1"] * 90, 1.0),
    "reset": lambda queue, _: queue.resetting(),
    "gauges": lambda queue, _: queue.gauges(1.0),
    "expiry": lambda queue, _: queue.tidying(6.0),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_deletion_in_the_middle_of_a_call_does_not_disturb_it(call: str) -> None:
    for done in range(1, 240, 3):
        queue = EphemeralQueue("q", EphemeralConfig(ttl_seconds=5, max_length=100, drops_oldest=True))
        for number in range(10):
            queue.push(f"p{number}", [b"1"] * 10, 0.0)
        held = queue.pop("g", None, 60, False, 0.0)
        running = CALLS[call](queue, held)
        deque(islice(running, done), maxlen=0)

        rest = queue.discarding()
        next(rest, None)
        deque(running, maxlen=0)
        deque(rest, maxlen=0)

        assert queue.length in (0, 90)  # those of the push, which did not know
        assert queue.size == queue.length * 201
        queue.reset()
        assert (queue.length, queue.size) == (0, 0)
