"""The head rule on bare positions, then whole acks on a queue: leases, retries, dead letters, repeats."""

import pytest
from partitioned_support import ids, node_with

from holtmq.broker.partitioned.groups.acknowledgment import (
    AckOutcome,
    AckStatus,
    AckVerdict,
    Budget,
    Named,
    Settlement,
    settle,
    verdict_at,
)
from holtmq.broker.partitioned.groups.group import QUEUE_MODE

OK, FAILED, DLQ, RETRY = AckStatus.COMPLETED, AckStatus.FAILED, AckStatus.DEAD_LETTER, AckStatus.RETRY


def said(*statuses: AckStatus | None) -> dict[int, Named]:
    """Positions from 10 on; None leaves one unnamed."""
    return {10 + n: Named(status, f"e{10 + n}") for n, status in enumerate(statuses) if status is not None}


def filed(*positions: int) -> tuple[tuple[int, str], ...]:
    return tuple((position, f"e{position}") for position in positions)


FRESH, SPENT = Budget(0, 3), Budget(3, 3)


@pytest.mark.parametrize(
    ("statuses", "budget", "expected"),
    [
        pytest.param([OK], Budget(2, 3), Settlement(11, 2, False), id="partial ack keeps lease and budget"),
        pytest.param([None, None, OK], FRESH, Settlement(13, 0, False), id="implicit ack below"),
        pytest.param([OK] * 5, Budget(2, 3), Settlement(15, 0, True), id="whole batch clears the budget"),
        pytest.param([None] * 4 + [OK], Budget(1, 3), Settlement(15, 0, True), id="last one acks the batch"),
        pytest.param([RETRY], Budget(2, 3), Settlement(10, 2, True), id="retry spends nothing"),
        pytest.param([OK, RETRY, OK], FRESH, Settlement(11, 0, True), id="retry keeps what is above it"),
        pytest.param([FAILED], FRESH, Settlement(10, 1, True, True), id="failed spends one"),
        pytest.param([FAILED] * 5, FRESH, Settlement(10, 1, True, True), id="a whole batch spends one"),
        pytest.param(
            [OK, FAILED, OK], FRESH, Settlement(11, 1, True, True), id="nothing lost above a failure"
        ),
        pytest.param([FAILED], SPENT, Settlement(11, 0, True, filed=filed(10)), id="spent budget files"),
        pytest.param([FAILED], Budget(0, 0), Settlement(11, 0, True, filed=filed(10)), id="limit zero files"),
        pytest.param([DLQ], FRESH, Settlement(11, 0, True, filed=filed(10)), id="dlq files at once"),
        pytest.param(
            [FAILED, FAILED, OK], SPENT, Settlement(13, 0, True, filed=filed(10, 11)), id="files all failures"
        ),
        pytest.param(
            [DLQ, FAILED, OK],
            Budget(1, 3),
            Settlement(11, 1, True, filed=filed(10)),
            id="unspent failure stops",
        ),
        pytest.param([DLQ, RETRY, OK], FRESH, Settlement(11, 0, True, filed=filed(10)), id="retry stops"),
        pytest.param(
            [DLQ, None, OK], FRESH, Settlement(13, 0, True, filed=filed(10)), id="gap below completed"
        ),
        pytest.param([DLQ, None, DLQ], FRESH, Settlement(11, 0, True, filed=filed(10)), id="gap stops"),
        pytest.param(
            [OK, DLQ], FRESH, Settlement(12, 0, True, filed=filed(11)), id="completed below the head"
        ),
        pytest.param([None, DLQ], FRESH, Settlement(12, 0, True, filed=filed(11)), id="implicit below a dlq"),
        pytest.param([DLQ, OK, DLQ], FRESH, Settlement(13, 0, True, filed=filed(10, 12)), id="dlq after ok"),
    ],
)
def test_one_call_settles_a_batch_by_its_head(
    statuses: list[AckStatus | None], budget: Budget, expected: Settlement
) -> None:
    assert settle(said(*statuses), 10, 15, budget) == expected


def test_an_error_text_missing_says_that_retries_are_exhausted() -> None:
    result = settle({10: Named(FAILED, None)}, 10, 15, SPENT)

    assert result.filed == ((10, "Retries exhausted"),)


def test_a_clean_ack_can_release_a_lease_before_its_end() -> None:
    assert settle(said(OK), 10, 15, Budget(2, 3), release=True) == Settlement(11, 0, True)


def test_the_words_of_a_client_become_statuses_and_unknown_ones_do_not() -> None:
    assert AckStatus.named("success") is AckStatus.COMPLETED
    assert AckStatus.named("dlq") is AckStatus.DEAD_LETTER
    assert AckStatus.named("donne") is None


def verdicts(outcomes: list[AckOutcome]) -> list[AckVerdict]:
    return [outcome.verdict for outcome in outcomes]


def test_acking_the_last_of_a_batch_releases_the_lease() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    batch = node.pop(batch=2)

    (outcome,) = node.ack(batch[1:])

    assert outcome == AckOutcome(AckVerdict.ACKNOWLEDGED, lease_released=True)
    assert ids(node.pop(batch=5)) == ["c"]


def test_a_partial_ack_keeps_the_lease_over_the_rest() -> None:
    node = node_with(lease_seconds=10)
    node.push("p", "a", "b", "c")
    batch = node.pop(batch=3)

    (outcome,) = node.ack(batch[:1])

    assert not outcome.lease_released
    assert node.pop(batch=3) == []
    node.now += 10
    assert ids(node.pop(batch=3)) == ["b", "c"]


def test_a_late_holder_cannot_ack_after_its_lease_expired() -> None:
    node = node_with(lease_seconds=10)
    node.push("p", "a")
    late = node.pop()
    node.now += 10

    assert verdicts(node.ack(late)) == [AckVerdict.INVALID_LEASE]

    taken = node.pop()
    assert verdicts(node.ack(late)) == [AckVerdict.INVALID_LEASE]
    assert verdicts(node.ack(taken)) == [AckVerdict.ACKNOWLEDGED]
    assert verdicts(node.ack(late)) == [AckVerdict.INVALID_LEASE]


def test_the_repeat_of_the_ack_that_released_a_lease_is_answered_as_before() -> None:
    node = node_with(retry_limit=0)
    node.push("p", "a", "b")
    batch = node.pop(batch=2)
    first = node.ack(batch, OK, FAILED)
    written = len(node.journal)

    again = node.ack(batch, OK, FAILED)

    assert verdicts(again) == verdicts(first) == [AckVerdict.ACKNOWLEDGED, AckVerdict.FILED]
    assert all(outcome.lease_released and outcome.repeated for outcome in again)
    assert len(node.journal) == written
    assert len(node.queue.dead_letters) == 1


def test_a_changed_mind_after_a_nack_is_no_repeat_and_no_success() -> None:
    node = node_with()
    node.push("p", "a")
    popped = node.pop()
    node.ack(popped, AckStatus.RETRY)

    (late,) = node.ack(popped, AckStatus.COMPLETED)

    assert late.verdict is AckVerdict.INVALID_LEASE
    assert ids(node.pop()) == ["a"]


def test_an_ack_without_a_lease_still_moves_the_cursor() -> None:
    node = node_with()
    node.push("p", "a", "b")
    batch = node.pop(batch=2)

    (outcome,) = node.ack(batch[1:], lease=False)

    assert outcome.lease_released
    assert node.pop(batch=2) == []


def test_a_completed_ack_below_the_cursor_changes_nothing_and_succeeds() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    batch = node.pop(batch=3)
    node.ack(batch[1:2])

    assert node.ack(batch[:1]) == [AckOutcome(AckVerdict.ACKNOWLEDGED, noop=True)]
    assert node.ack(batch[:1], lease=False) == [AckOutcome(AckVerdict.ACKNOWLEDGED, noop=True)]
    assert verdicts(node.ack(batch[:1], FAILED)) == [AckVerdict.STALE]
    assert node.queue.groups[QUEUE_MODE].cursor(0) == 2


def test_acking_an_auto_acked_message_is_a_success_without_effect() -> None:
    node = node_with()
    node.push("p", "a")
    batch = node.pop(auto_ack=True)

    assert batch[0].lease_id == ""
    assert node.ack(batch) == [AckOutcome(AckVerdict.ACKNOWLEDGED, noop=True)]


def test_unknown_messages_partitions_and_statuses_are_refused_one_by_one() -> None:
    node = node_with()
    node.push("p", "a", "b")
    a, b = node.pop(batch=2)
    stranger = type(a)("q", 0, "nobody", a.lease_id, 1)
    elsewhere = type(a)("q", 7, "a", a.lease_id, 1)

    outcomes = node.ack([a, stranger, elsewhere, b], OK, OK, OK, None)

    assert verdicts(outcomes) == [
        AckVerdict.ACKNOWLEDGED,
        AckVerdict.NOT_FOUND,
        AckVerdict.NOT_FOUND,
        AckVerdict.UNKNOWN_STATUS,
    ]
    assert node.queue.groups[QUEUE_MODE].cursor(0) == 1


def test_a_message_not_delivered_under_the_lease_cannot_be_acked_with_it() -> None:
    node = node_with()
    node.push("p", "a", "b")
    (a,) = node.pop()
    b = type(a)("q", 0, "b", a.lease_id, 1)

    assert verdicts(node.ack([b])) == [AckVerdict.INVALID_LEASE]


def test_a_message_that_always_fails_is_delivered_limit_plus_one_times() -> None:
    node = node_with(retry_limit=2)
    node.push("p", "bad", "good")
    deliveries = 0

    while (batch := node.pop()) and batch[0].transaction_id == "bad":
        deliveries += 1
        assert batch[0].attempt == deliveries
        node.ack(batch, FAILED, error="boom")

    assert deliveries == 3
    (letter,) = node.queue.dead_letters
    assert (letter.error, letter.retry_count, letter.group, letter.position) == ("boom", 2, QUEUE_MODE, 0)
    assert batch[0].transaction_id == "good"


def test_a_batch_nacked_as_a_whole_costs_one_retry() -> None:
    node = node_with(retry_limit=3)
    node.push("p", *[f"m{n}" for n in range(100)])
    for _ in range(2):
        node.ack(node.pop(batch=100), FAILED)

    assert node.queue.groups[QUEUE_MODE].leases.retries == {0: 2}
    outcomes = node.ack(node.pop(batch=100))

    assert all(outcome.lease_released for outcome in outcomes)
    assert node.queue.groups[QUEUE_MODE].leases.retries == {}
    assert len(node.queue.dead_letters) == 0


def test_after_a_nack_the_rest_of_the_batch_is_refused_under_the_old_lease() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    batch = node.pop(batch=3)
    node.ack(batch[:1], FAILED)

    assert verdicts(node.ack(batch[1:])) == [AckVerdict.INVALID_LEASE] * 2
    assert ids(node.pop(batch=3)) == ["a", "b", "c"]


def test_expiry_never_touches_the_retry_budget() -> None:
    node = node_with(retry_limit=0, lease_seconds=1)
    node.push("p", "a")
    for attempt in (1, 2, 3):
        assert node.pop()[0].attempt == attempt
        node.now += 1

    assert node.queue.groups[QUEUE_MODE].leases.retries == {}
    assert len(node.queue.dead_letters) == 0


def test_with_both_switches_off_a_spent_message_is_dropped() -> None:
    node = node_with(retry_limit=0, dead_letter_queue=False, dlq_after_max_retries=False)
    node.push("p", "a", "b")

    assert verdicts(node.ack(node.pop(), FAILED)) == [AckVerdict.DROPPED]
    assert len(node.queue.dead_letters) == 0
    assert node.pop()[0].transaction_id == "b"


@pytest.mark.parametrize("switches", [(False, None), (None, False), (False, True), (None, None)])
def test_one_switch_off_still_files(switches: tuple[bool | None, bool | None]) -> None:
    node = node_with(retry_limit=0, dead_letter_queue=switches[0], dlq_after_max_retries=switches[1])
    node.push("p", "a")

    assert verdicts(node.ack(node.pop(), FAILED)) == [AckVerdict.FILED]


def test_a_retry_delay_holds_a_failed_head_back_even_over_a_restart() -> None:
    node = node_with(retry_delay_ms=5_000)
    node.push("p", "a")
    node.ack(node.pop(), FAILED)

    node.restart()
    assert node.pop() == []
    assert node.queue.groups[QUEUE_MODE].ready.next_deadline() == node.now + 5
    node.now += 5
    assert node.queue.groups[QUEUE_MODE].advance(node.now)
    assert node.pop() != []


def test_without_a_retry_delay_a_failed_head_comes_back_at_once() -> None:
    node = node_with()
    node.push("p", "a")
    node.ack(node.pop(), FAILED)

    assert node.pop() != []


def test_a_batch_over_two_partitions_settles_each_by_itself() -> None:
    node = node_with()
    node.push("p", "a", "b")
    node.push("r", "a", "b")
    batch = node.pop(batch=4, partitions=2)

    outcomes = node.ack(batch, OK, FAILED, OK, OK)

    assert len({m.lease_id for m in batch}) == 1
    assert verdicts(outcomes) == [
        AckVerdict.ACKNOWLEDGED,
        AckVerdict.REDELIVERED,
        AckVerdict.ACKNOWLEDGED,
        AckVerdict.ACKNOWLEDGED,
    ]
    assert ids(node.pop(batch=4, partitions=2)) == ["b"]


def test_a_stream_cycle_releases_at_its_ack_and_a_gate_does_not() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    batch = node.pop(batch=3)

    (gated,) = node.ack(batch[:1], release=False)
    (released,) = node.ack(batch[1:2], release=True)

    assert not gated.lease_released
    assert released.lease_released
    assert ids(node.pop(batch=3)) == ["c"]


def test_acks_are_found_again_beyond_the_dedup_window() -> None:
    node = node_with(dedup_window_seconds=1)
    node.push("p", "a", "b")
    batch = node.pop(batch=2)
    node.now += 10
    node.push("p", *[f"later{n}" for n in range(100)])
    assert len(node.queue.dedup) == 100

    assert verdicts(node.ack(batch[:1], lease=False)) == [AckVerdict.ACKNOWLEDGED]


def test_a_group_that_never_popped_can_ack_and_survives_a_restart() -> None:
    node = node_with()
    node.push("p", "a", "b")
    batch = node.pop("g")

    assert verdicts(node.ack(batch, group="other", lease=False)) == [AckVerdict.ACKNOWLEDGED]
    node.restart()
    assert node.queue.groups["other"].cursor(0) == 1


class Compared(int):
    """A position that counts how often it is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = int.__hash__


def test_very_many_dead_letters_of_a_call_are_not_searched_for_each_answer() -> None:
    positions = [Compared(10 + number) for number in range(1_000)]
    settlement = settle({one: Named(DLQ, None) for one in positions}, 10, 1_010, FRESH)
    Compared.times = 0

    verdicts = {verdict_at(one, settlement, files=True) for one in positions}

    assert verdicts == {AckVerdict.FILED}
    assert Compared.times < 100 * len(positions)
