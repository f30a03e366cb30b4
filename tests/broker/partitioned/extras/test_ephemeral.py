"""Queues in memory alone: who gets what, how often, in which order, and when a waiting pop looks again."""

import pytest

from holtmq.broker.partitioned.extras.ephemeral import NAMELESS, EphemeralConfig, EphemeralQueue, Handed


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
    assert queue.next_change("g", None, 10.95) == 11.0
    assert [handed.payload for handed in queue.pop("g", None, 10, False, 11.0)] == [b"1", b"2"]


def test_a_group_waits_for_its_own_leases() -> None:
    queue = EphemeralQueue("q", EphemeralConfig(lease_seconds=5))
    queue.push("p", [b"1"], 10.0)
    queue.pop("mine", None, 1, False, 10.0)
    queue.pop("other", None, 1, False, 8.0)

    assert queue.next_change("mine", None, 11.0) == 15.0
    assert queue.next_change("mine", "p", 11.0) == 15.0
    assert queue.next_change("mine", "elsewhere", 11.0) is None
    assert queue.next_change("new", None, 11.0) is None
