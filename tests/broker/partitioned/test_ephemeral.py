"""Queues in memory alone: when a waiting pop has to look again."""

from holtmq.broker.partitioned.ephemeral import EphemeralConfig, EphemeralQueue


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
