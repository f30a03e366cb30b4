"""One group's cursors and leases, and the line of partitions worth a look."""

from holtmq.broker.partitioned.groups.partition_leases import PartitionLeases
from holtmq.broker.partitioned.waiting.ready_partitions import ReadyPartitions


def test_a_partition_never_touched_has_no_cursor() -> None:
    leases = PartitionLeases()
    leases.settle(3, old=0, new=5, retry_count=0, hold_us=0, at_us=9)

    assert [leases.cursor(n) for n in (0, 3, 4)] == [None, 5, None]
    assert (leases.consumed[3], leases.settled_at[3]) == (5, 9)


def test_a_lease_is_live_until_its_very_expiry() -> None:
    leases = PartitionLeases()
    lease = leases.lend(0, "x", 0, 3, expires_at=10.0)

    assert leases.lease(0, 9.999) is lease
    assert leases.lease(0, 10.0) is None
    assert leases.held(0) is not None


def test_lending_again_after_expiry_replaces_the_old_lease_under_both_names() -> None:
    leases = PartitionLeases()
    leases.lend(0, "old", 0, 3, expires_at=10.0)
    leases.lend(0, "new", 0, 3, expires_at=30.0)

    assert leases.extend("old", 99.0, now=11.0) == ([], False)
    renewed, known = leases.extend("new", 99.0, now=11.0)
    assert known
    assert [lease.expires_at for lease in renewed] == [99.0]


def test_a_lease_that_shrinks_to_nothing_ends() -> None:
    leases = PartitionLeases()
    lease = leases.lend(0, "x", 5, 8, expires_at=10.0)

    assert not leases.shrink(0, 7)
    assert (lease.first, lease.size) == (7, 1)
    assert leases.shrink(0, 8)
    assert leases.lease(0, 1.0) is None


def test_attempts_count_until_the_cursor_moves() -> None:
    leases = PartitionLeases()
    assert [leases.lend(0, str(n), 0, 1, 1.0).attempt for n in range(3)] == [1, 2, 3]
    leases.settle(0, old=0, new=1, retry_count=0, hold_us=0, at_us=0)

    assert leases.lend(0, "next", 1, 2, 1.0).attempt == 1


def test_a_seek_forgets_lease_budget_and_hold() -> None:
    leases = PartitionLeases()
    leases.settle(0, old=0, new=4, retry_count=2, hold_us=77, at_us=0)
    leases.lend(0, "x", 4, 5, expires_at=10.0)
    leases.seek(0, 1)

    assert leases.cursor(0) == 1
    assert (leases.retries, leases.holds, list(leases.live(0.0))) == ({}, {}, [])


def test_a_partition_stands_in_line_once_and_leaves_in_order() -> None:
    line = ReadyPartitions()

    assert [line.offer(n) for n in (5, 2, 5)] == [True, True, False]
    assert [line.take() for _ in range(3)] == [5, 2, None]
    assert line.offer(5)


def test_an_earlier_deadline_replaces_a_later_one_and_not_the_reverse() -> None:
    line = ReadyPartitions()
    line.wake_at(1, 30.0)
    line.wake_at(1, 10.0)
    line.wake_at(1, 20.0)

    assert line.next_deadline() == 10.0
    assert line.due(10.0) == [1]
    assert line.due(100.0) == []
    assert line.next_deadline() is None


def test_replaced_deadlines_do_not_pile_up() -> None:
    line = ReadyPartitions()
    for at in range(10_000, 0, -1):
        line.wake_at(1, float(at))

    assert len(line._deadlines) < 1100
    assert line.due(1.0) == [1]
