"""The short way for clean acks answers and writes what the long way does, or stands aside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_support import Node, Popped, node_with

from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.clean_acks import CleanRun, decide_clean
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE


def runs_of(popped: list[Popped]) -> list[CleanRun]:
    found: dict[int, list[str]] = {}
    for message in popped:
        found.setdefault(message.partition, []).append(message.transaction_id)
    return [CleanRun(partition, popped[0].lease_id, names) for partition, names in found.items()]


def filled(**options: bool | float | None) -> Node:
    node = node_with(**options)
    for name in "ab":
        node.push(name, *[f"{name}{number}" for number in range(6)])
    return node


@given(
    st.integers(1, 12),
    st.lists(st.integers(0, 11), min_size=1, max_size=14),
    st.integers(0, 3),
    st.booleans(),
)
def test_clean_runs_are_decided_as_the_long_way_decides_them(
    batch: int, chosen: list[int], acked_before: int, nacked_before: bool
) -> None:
    node = filled(retry_limit=5)
    if nacked_before:
        node.ack(node.pop(batch=1, partition="a"), AckStatus.FAILED)
        node.now += 3600
    popped = node.pop(batch=batch, partitions=2)
    for message in popped[:acked_before]:
        node.ack([message])
    wanted = [popped[place % len(popped)] for place in chosen]
    runs = runs_of(wanted)
    acks = [
        Ack(run.partition, name, AckStatus.COMPLETED, run.lease_id)
        for run in runs
        for name in run.transaction_ids
    ]

    long_way = decide_acks(node.queue, QUEUE_MODE, acks, node.now)
    short_way = decide_clean(node.queue, QUEUE_MODE, runs, node.now)

    if short_way is None:
        assert acked_before, "only what is settled already needs a closer look here"
        return
    outcomes, events = short_way
    assert tuple(events) == long_way.events
    assert [event.answers for event in events] == [event.answers for event in long_way.events]  # type: ignore[union-attr]
    spread = [outcome for run, outcome in zip(runs, outcomes, strict=True) for _ in run.transaction_ids]
    assert spread == long_way.outcomes


@pytest.mark.parametrize(
    "spoil", ["group", "lease", "id", "expired", "settled", "twice", "partition", "auto-ack"]
)
def test_whatever_is_not_wholly_clean_is_left_to_the_long_way(spoil: str) -> None:
    node = filled()
    popped = node.pop(batch=3, partition="a", auto_ack=spoil == "auto-ack")
    group, runs = QUEUE_MODE, runs_of(popped)
    (run,) = runs
    match spoil:
        case "group":
            group = "stranger"
        case "lease":
            runs = [run._replace(lease_id="other")]
        case "id":
            runs = [run._replace(transaction_ids=["a0", "unknown"])]
        case "expired":
            node.now += 100_000
        case "settled":
            node.ack(popped[:1])
        case "twice":
            runs = [run, run]
        case "partition":
            runs = [run._replace(partition=77)]

    assert decide_clean(node.queue, group, runs, node.now) is None


def test_one_run_that_is_not_clean_stops_them_all() -> None:
    node = filled()
    first, second = runs_of(node.pop(batch=12, partitions=2))

    assert decide_clean(node.queue, QUEUE_MODE, [first, second._replace(lease_id="x")], node.now) is None
