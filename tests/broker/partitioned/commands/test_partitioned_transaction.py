"""Pushes and acks that happen together: all of it, or none."""

import pytest
from partitioned_support import Node, Popped, ids, node_with

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.commands.transaction import (
    AckOperation,
    PushOperation,
    TransactionDecision,
    decide_transaction,
)
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckRefused, AckStatus, AckVerdict
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from snapshots import snapshot


def two_queues() -> Node:
    node = node_with()
    node.create("next", max_size=4)
    node.push("p", "a", "b", "c")
    return node


def acks(
    node: Node, messages: list[Popped], status: AckStatus | None = AckStatus.COMPLETED
) -> list[AckOperation]:
    return [
        AckOperation(node.queue, QUEUE_MODE, Ack(m.partition, m.transaction_id, status, m.lease_id))
        for m in messages
    ]


def commit(node: Node, decision: TransactionDecision, pushed: list[str]) -> None:
    for queue, push, places in decision.pushes:
        fresh = [pushed[place] for at, place in enumerate(places) if at not in push.duplicates]
        node.stored[queue.number] += fresh
    for queue, event in decision.events:
        node.commit(queue.number, event)


def test_acks_and_pushes_over_two_queues_are_one_decision() -> None:
    node = two_queues()
    batch = node.pop(batch=3)
    push = PushOperation(node.queues["next"], [("x", "n1"), ("y", "n2"), ("x", "n1")])

    decision = decide_transaction([push], acks(node, batch), node.now)
    commit(node, decision, ["n1", "n2", "n1"])

    assert [item.duplicate for item in decision.pushed] == [False, False, True]
    assert all(outcome.lease_released for outcome in decision.acked)
    assert node.pop(batch=3) == []
    assert sorted(ids(node.pop(queue="next", batch=5, partitions=5))) == ["n1", "n2"]


def test_two_push_operations_to_one_queue_see_each_other() -> None:
    node = two_queues()
    target = node.queues["next"]

    decision = decide_transaction(
        [PushOperation(target, [("x", "n1")]), PushOperation(target, [("x", "n1"), ("x", "n2")])],
        [],
        node.now,
    )

    assert [(item.offset, item.duplicate) for item in decision.pushed] == [(0, False), (0, True), (1, False)]
    assert len(decision.events) == 1


@pytest.mark.parametrize(
    ("spoiler", "refusal"),
    [
        (Ack(0, "nobody", AckStatus.COMPLETED, ""), AckVerdict.NOT_FOUND),
        (Ack(9, "a", AckStatus.COMPLETED, ""), AckVerdict.NOT_FOUND),
        (Ack(0, "a", AckStatus.COMPLETED, "stolen"), AckVerdict.INVALID_LEASE),
        (Ack(0, "a", None, ""), AckVerdict.UNKNOWN_STATUS),
    ],
)
def test_one_refused_ack_refuses_everything(spoiler: Ack, refusal: AckVerdict) -> None:
    node = two_queues()
    batch = node.pop(batch=3)
    before = [snapshot(queue) for queue in node.queues.values()]
    push = PushOperation(node.queues["next"], [("x", "n1")])

    with pytest.raises(AckRefused) as refused:
        decide_transaction(
            [push], [*acks(node, batch), AckOperation(node.queue, QUEUE_MODE, spoiler)], node.now
        )

    assert refused.value.verdict is refusal
    assert [snapshot(queue) for queue in node.queues.values()] == before
    assert node.ack(batch)[0].success


def test_a_push_beyond_the_limit_refuses_the_acks_too() -> None:
    node = two_queues()
    batch = node.pop(batch=3)
    push = PushOperation(node.queues["next"], [("x", f"n{n}") for n in range(5)])

    with pytest.raises(LimitReached):
        decide_transaction([push], acks(node, batch), node.now)


def test_a_transaction_repeated_after_a_lost_answer_is_refused_when_it_carries_its_lease() -> None:
    node = two_queues()
    batch = node.pop(batch=3)
    commit(node, decide_transaction([], acks(node, batch), node.now), [])

    with pytest.raises(AckRefused, match="stale"):
        decide_transaction([PushOperation(node.queues["next"], [("x", "n1")])], acks(node, batch), node.now)


def test_failures_in_a_transaction_follow_the_ordinary_rules() -> None:
    node = two_queues()
    batch = node.pop(batch=3)

    decision = decide_transaction([], acks(node, batch, AckStatus.FAILED), node.now)

    assert [outcome.verdict for outcome in decision.acked] == [AckVerdict.REDELIVERED] * 3


def test_two_groups_new_to_a_queue_get_numbers_of_their_own() -> None:
    node = two_queues()
    operations = [AckOperation(node.queue, group, Ack(0, "a")) for group in ("g", "h")]

    commit(node, decide_transaction([], operations, node.now), [])

    assert node.queue.groups["g"].number != node.queue.groups["h"].number
    assert [node.queue.groups[g].cursor(0) for g in ("g", "h")] == [1, 1]
