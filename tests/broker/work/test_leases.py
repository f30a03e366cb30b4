"""A lease ends exactly once, and both indexes agree on who holds what."""

import pytest
from core_support import Bench, message

from holtmq.broker.work import leases
from holtmq.broker.work.leases import Holder, Ledger
from holtmq.broker.work.work_queue import WorkQueue


@pytest.fixture
def queue(bench: Bench) -> WorkQueue:
    return bench.declare("q")


def grant(ledger: Ledger, queue: WorkQueue, holder: Holder, count: int) -> list[int]:
    return [ledger.grant(queue, message(seq), holder).number for seq in range(count)]


def test_numbers_rise_from_one(queue: WorkQueue) -> None:
    assert grant(Ledger(), queue, Holder(), 3) == [1, 2, 3]


def test_a_lease_ends_once(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 1)

    assert ledger.end(1) is not None
    assert ledger.end(1) is None
    assert (len(ledger), len(holder.held)) == (0, 0)


def test_ending_up_to_a_number_ends_both_holders_leases_in_order(queue: WorkQueue) -> None:
    ledger, one, other = Ledger(), Holder(), Holder()
    for holder in (one, other, one, other):
        grant(ledger, queue, holder, 1)

    assert [lease.number for lease in ledger.end_upto(3)] == [1, 2, 3]
    assert (list(one.held), list(other.held)) == ([], [4])


def test_zero_means_everything(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 5)

    assert len(ledger.end_upto(0)) == 5
    assert ledger.end_upto(0) == []


def test_a_number_beyond_the_last_does_not_swallow_later_leases(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 2)
    ledger.end_upto(100)

    grant(ledger, queue, holder, 2)

    assert [lease.number for lease in ledger.end_upto(4)] == [3, 4]


def test_sparse_numbers_are_not_walked_one_by_one(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 1)
    ledger.last = 10**9  # as many were delivered without a lease
    grant(ledger, queue, holder, 1)

    assert [lease.number for lease in ledger.end_upto(0)] == [1, 10**9 + 1]


def test_revoking_takes_one_holders_leases_and_leaves_the_others(queue: WorkQueue) -> None:
    ledger, one, other = Ledger(), Holder(), Holder()
    grant(ledger, queue, one, 2)
    grant(ledger, queue, other, 1)

    revoked = ledger.revoke(one)

    assert [lease.number for lease in revoked] == [1, 2]
    assert all(lease.holder is None for lease in revoked)
    assert (len(ledger), list(other.held)) == (1, [3])


def test_a_revoked_lease_can_still_be_ended_by_a_late_verdict(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 2)
    ledger.revoke(holder)

    late = ledger.end(1)

    assert late is not None
    assert late.holder is None
    assert len(ledger) == 0
    assert [lease.number for lease in ledger.end_upto(0)] == [2]


def test_no_more_revoked_leases_are_remembered_than_the_bound(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "REVOKED_MAX", 3)
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 5)

    ledger.revoke(holder)

    assert sorted(ledger.by_number) == [3, 4, 5]
    assert len(ledger) == 0


def test_ending_all_leaves_revoked_ones_out(queue: WorkQueue) -> None:
    ledger, one, other = Ledger(), Holder(), Holder()
    grant(ledger, queue, one, 1)
    grant(ledger, queue, other, 1)
    ledger.revoke(one)

    assert [lease.number for lease in ledger.end_all()] == [2]
    assert (len(ledger), ledger.by_number, other.held) == (0, {}, {})


def test_a_rolled_back_settlement_gives_the_leases_back_to_their_holders(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 3)

    ledger.restore(ledger.end_upto(2))

    assert sorted(holder.held) == [1, 2, 3]
    assert [lease.number for lease in ledger.end_upto(0)] == [1, 2, 3]


def test_a_lease_set_aside_by_an_open_transaction_is_outstanding_until_the_commit(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 3)
    ledger.set_aside(ledger.end_upto(2))

    assert [lease.number for lease in ledger.outstanding()] == [3, 1, 2]

    ledger.commit()

    assert [lease.number for lease in ledger.outstanding()] == [3]


def test_a_rolled_back_lease_is_outstanding_once(queue: WorkQueue) -> None:
    ledger, holder = Ledger(), Holder()
    grant(ledger, queue, holder, 2)
    ended = ledger.end_upto(0)
    ledger.set_aside(ended)

    ledger.restore(ended)

    assert [lease.number for lease in ledger.outstanding()] == [1, 2]
