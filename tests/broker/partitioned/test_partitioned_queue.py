"""Claims, rotation, visibility, leases with a clock, seeks: a partitioned queue as its readers see it."""

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.partitioned.events import MessageDeleted, QueueConfigured
from holtmq.broker.partitioned.groups import group
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.groups.joining import decide_group_deletion, decide_seek
from holtmq.broker.partitioned.queue_config import QueueConfig
from snapshots import restore, snapshot


def test_a_pop_right_after_a_push_sees_it_in_order() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")

    assert ids(node.pop(batch=2)) == ["a", "b"]


def test_a_leased_partition_is_skipped_by_its_group_and_by_no_other() -> None:
    node = node_with()
    node.push("p", "a", "b")
    node.pop("g")

    assert node.pop("g") == []
    assert node.pop("g", partition="p") == []
    assert ids(node.pop("h")) == ["a"]


def test_a_batch_is_a_cap_over_all_partitions_of_a_claim() -> None:
    node = node_with()
    for name in "abcde":
        node.push(name, *[f"{name}{n}" for n in range(100)])

    batch = node.pop(batch=250, partitions=5)

    assert len(batch) == 250
    assert len({m.partition for m in batch}) == 3
    assert len({m.lease_id for m in batch}) == 1
    assert len(node.pop(batch=1000, partitions=1)) == 100


def test_a_busy_partition_waits_its_turn() -> None:
    node = node_with()
    for name in "abc":
        node.push(name, *[f"{name}{n}" for n in range(10)])

    order = []
    for _ in range(6):
        batch = node.pop()
        order.append(batch[0].transaction_id)
        node.ack(batch)

    assert order == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_many_partitions_cost_a_claim_no_more_looks_than_two() -> None:
    node = node_with()
    for number in range(3_000):
        node.push(f"p{number}", f"m{number}")
    node.pop()
    line = node.queue.groups[QUEUE_MODE].ready
    before = len(line)

    assert len(node.pop(batch=5, partitions=5)) == 5
    assert before - len(line) == 5


def test_auto_ack_settles_at_delivery_and_leaves_no_lease() -> None:
    node = node_with()
    node.push("p", "a", "b")

    assert ids(node.pop(auto_ack=True)) == ["a"]
    node.restart()
    assert ids(node.pop(auto_ack=True)) == ["b"]
    assert node.pop(auto_ack=True) == []


def test_an_unknown_partition_is_empty_and_creates_nothing() -> None:
    node = node_with()

    assert node.pop(partition="nowhere") == []
    assert node.queue.partitions == []


def test_a_partition_pushed_to_while_leased_is_claimable_after_the_ack() -> None:
    node = node_with()
    node.push("p", "a")
    batch = node.pop()
    node.push("p", "b")
    assert node.pop() == []
    node.ack(batch)

    assert ids(node.pop()) == ["b"]


def test_an_expired_lease_gives_the_same_messages_again() -> None:
    node = node_with(lease_seconds=10)
    node.push("p", "a", "b")
    first = node.pop(batch=2)
    node.now += 9.999
    assert node.pop(batch=2) == []
    node.now += 0.001

    again = node.pop(batch=2)

    assert ids(again) == ids(first)
    assert again[0].attempt == 2


def test_a_lease_time_of_zero_means_a_minute() -> None:
    node = node_with(lease_seconds=0)
    node.push("p", "a")
    node.pop()

    assert node.queue.groups[QUEUE_MODE].ready.next_deadline() == node.now + 60


def test_one_extend_renews_all_partitions_and_never_shortens() -> None:
    node = node_with(lease_seconds=100)
    node.push("p", "a")
    node.push("r", "b")
    batch = node.pop(batch=2, partitions=2)

    short = node.queue.extend(batch[0].lease_id, 10, node.now)
    long = node.queue.extend(batch[0].lease_id, 200, node.now)

    assert (short.renewed, short.expires_at) == (2, node.now + 100)
    assert (long.renewed, long.expires_at) == (2, node.now + 200)
    node.now += 150
    assert node.pop() == []
    node.now += 50
    assert node.pop() != []


def test_an_expired_lease_cannot_be_revived() -> None:
    node = node_with(lease_seconds=10)
    node.push("p", "a")
    (message,) = node.pop()
    node.now += 10

    expired = node.queue.extend(message.lease_id, 60, node.now)
    unknown = node.queue.extend("nobody", 60, node.now)

    assert (expired.renewed, expired.known) == (0, True)
    assert (unknown.renewed, unknown.known) == (0, False)


def test_a_lease_given_back_makes_the_partition_claimable_at_once() -> None:
    node = node_with()
    node.push("p", "a")
    (message,) = node.pop()
    node.queue.take_woken()

    node.queue.release(QUEUE_MODE, message.partition, message.lease_id)

    assert node.queue.take_woken() == {QUEUE_MODE}
    assert node.pop()[0].attempt == 1


def test_a_restart_ends_leases_and_keeps_cursors() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    batch = node.pop(batch=2)
    node.ack(batch[:1])

    node.restart()

    assert ids(node.pop(batch=5)) == ["b", "c"]
    assert not node.ack(batch[1:])[0].success


def test_of_very_many_expired_leases_a_claim_ends_as_many_as_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group, "_DEADLINES_AT_ONCE", 2)
    node = node_with()
    for number in range(7):
        node.push(f"p{number}", f"m{number}")
    kept = node.pop(batch=5, partitions=5)
    node.pop(batch=2, partitions=2)
    node.queue.extend(kept[0].lease_id, 1_000, node.now)
    node.now += 500

    assert ids(node.pop(batch=1)) == ["m5"]  # behind five that were renewed
    assert ids(node.pop(batch=5, partitions=5)) == ["m6"]
    node.now += 1_000
    assert sorted(ids(node.pop(batch=9, partitions=9))) == [f"m{number}" for number in range(7)]


def test_a_delayed_message_is_invisible_until_its_delay_is_over() -> None:
    node = node_with(delayed_processing=5)
    node.push("p", "a")
    node.now += 2
    node.push("p", "b")
    assert node.pop(batch=5) == []
    assert node.queue.groups[QUEUE_MODE].ready.next_deadline() == node.now + 3

    node.now += 3
    assert node.queue.groups[QUEUE_MODE].advance(node.now)
    assert ids(node.pop(batch=5)) == ["a"]


def test_a_delayed_partition_uses_up_no_claim() -> None:
    node = node_with(delayed_processing=5)
    node.push("ripe", "a")
    node.now += 5
    node.push("green", "b")

    assert ids(node.pop(batch=5, partitions=1)) == ["a"]


def test_a_window_holds_a_partition_until_it_is_quiet() -> None:
    node = node_with(window_buffer=3)
    node.push("p", "a")
    node.now += 2
    assert node.pop(batch=5) == []
    node.push("p", "b")
    node.now += 2
    assert node.pop(batch=5) == []
    assert node.pop(batch=5, partition="p") == []
    assert node.queue.groups[QUEUE_MODE].ready.next_deadline() is not None

    node.now += 1
    assert ids(node.pop(batch=5)) == ["a", "b"]


def test_a_shorter_delay_takes_effect_when_it_is_configured() -> None:
    node = node_with(delayed_processing=3600)
    node.push("p", "a")
    assert node.pop() == []
    node.queue.take_woken()

    node.commit(node.queue.number, QueueConfigured("q", "", "", QueueConfig(), 0))

    assert node.queue.take_woken() == {QUEUE_MODE}
    assert ids(node.pop()) == ["a"]


def test_pushes_acks_and_seeks_say_which_groups_to_wake() -> None:
    node = node_with()
    node.push("p", "a", "b")
    node.pop("g")
    batch = node.pop("h")
    node.queue.take_woken()

    node.push("p", "c")
    assert node.queue.take_woken() == {"g", "h"}
    node.ack(batch, group="h")
    assert node.queue.take_woken() == {"h"}
    node.commit(node.queue.number, *decide_seek(node.queue, "g", None).events)
    assert node.queue.take_woken() == {"g"}


def test_a_seek_to_a_time_delivers_again_from_there_and_ends_leases() -> None:
    node = node_with()
    for one in ("a", "b", "c"):
        node.push("p", one)
        node.now += 10
    batch = node.pop(batch=3)
    node.ack(batch[:2])

    decision = decide_seek(node.queue, QUEUE_MODE, int((node.now - 20) * 1e6))
    node.commit(node.queue.number, *decision.events)

    assert decision.partitions == 1
    assert not node.ack(batch[2:])[0].success
    assert ids(node.pop(batch=5)) == ["b", "c"]


def test_a_seek_to_the_end_skips_what_is_there_and_nothing_later() -> None:
    node = node_with()
    node.push("p", "a")
    node.push("r", "b")
    node.pop("g")
    node.commit(node.queue.number, *decide_seek(node.queue, "g", None).events)
    assert node.pop("g", batch=5, partitions=5) == []

    node.push("p", "c")
    node.push("new", "d")

    assert sorted(ids(node.pop("g", batch=5, partitions=5))) == ["c", "d"]


def test_a_seek_of_one_partition_leaves_the_others() -> None:
    node = node_with()
    node.push("p", "a")
    node.push("r", "b")
    node.commit(node.queue.number, *decide_seek(node.queue, "g", None, partition="p").events)

    assert ids(node.pop("g", batch=5, partitions=5)) == ["b"]


def test_a_deleted_group_reads_everything_again() -> None:
    node = node_with()
    node.push("p", "a")
    node.ack(node.pop("g"), group="g")
    event, members = decide_group_deletion(node.queue, "g")
    assert event is not None
    node.commit(node.queue.number, event)

    assert members == 1
    assert ids(node.pop("g")) == ["a"]
    assert decide_group_deletion(node.queue, "nobody") == (None, 0)


def test_a_conflating_group_gets_the_newest_and_its_ack_settles_all_before() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    batch = node.pop("g", batch=10, conflates=True)
    node.push("p", "d")

    assert ids(batch) == ["c"]
    node.ack(batch, group="g")
    assert ids(node.pop("g", batch=10, conflates=False)) == ["d"]


def test_a_snapshot_restores_the_same_queue() -> None:
    node = node_with(retry_limit=0, retry_delay_ms=1000)
    for number in range(20_000 // 100):
        node.push(f"p{number % 7}", *[f"{number}-{n}" for n in range(100)])
    batch = node.pop("g", batch=50)
    node.ack(batch[:20], group="g")
    node.ack(node.pop("h", batch=3), group="h")
    data = snapshot(node.queue)

    again = restore(data, lambda offset, position: node.stored[1][offset])

    assert snapshot(again) == data
    assert [p.offsets for p in again.partitions] == [p.offsets for p in node.queue.partitions]
    assert again.find(0, "0-5") == 5
    assert again.groups["g"].cursor(0) == 20


def test_offsets_of_the_whole_queue_are_dense_and_searchable_by_time() -> None:
    node = node_with()
    node.push("p", "a", "b")
    node.now += 10
    node.push("r", "c")
    log = node.queue.log

    assert (log.first_offset, log.next_offset) == (0, 3)
    assert log.offset_at(int(node.now * 1e6)) == 2
    assert log.offset_at(int(node.now * 1e6) + 1) == 3
    assert [node.stored[1][o] for o in log.live_offsets(1, 3)] == ["b", "c"]


def test_a_group_number_is_not_used_twice() -> None:
    node = Node()
    node.create()
    node.push("p", "a")
    node.pop("g")
    event, _ = decide_group_deletion(node.queue, "g")
    assert event is not None
    node.commit(node.queue.number, event)
    node.pop("h")

    assert node.queue.groups["h"].number == 1


def test_an_ack_of_an_id_that_came_twice_means_the_first_that_is_not_settled() -> None:
    node = node_with(dedup_window_seconds=0)
    node.push("p", "a", "b", "a")
    batch = node.pop(batch=3)
    assert ids(batch) == ["a", "b", "a"]

    node.ack(batch[:1])
    node.now += 1000  # the worker is gone

    assert ids(again := node.pop(batch=3)) == ["b", "a"]
    assert [outcome.lease_released for outcome in node.ack(again)] == [True, True]
    assert node.pop() == []


def test_acks_of_an_id_that_came_twice_settle_both_in_order() -> None:
    node = node_with(dedup_window_seconds=0)
    node.push("p", "a", "b", "a")
    batch = node.pop(batch=3)

    outcomes = [outcome for message in batch for outcome in node.ack([message])]

    assert [outcome.lease_released for outcome in outcomes] == [False, False, True]
    node.push("p", "a", "a", "a")
    whole = node.pop(batch=3)
    assert all(outcome.lease_released for outcome in node.ack(whole))
    assert node.pop() == []


def test_of_two_messages_with_one_id_under_a_lease_the_deleted_one_is_not_meant() -> None:
    node = node_with(dedup_window_seconds=0)
    node.push("p", "a", "b", "a", "c")
    batch = node.pop(batch=4)
    node.commit(node.queue.number, MessageDeleted(0, 0))
    assert [outcome.success for outcome in node.ack(batch[1:2])] == [True]
    node.push("p", "d")

    kept = node.ack(batch[2:3])
    node.commit(node.queue.number, MessageDeleted(0, 3))

    assert [(outcome.success, outcome.noop) for outcome in kept] == [(True, False)]
    assert ids(node.pop()) == ["d"]


def test_an_id_under_a_lease_that_was_deleted_twice_is_not_found() -> None:
    node = node_with(dedup_window_seconds=0)
    node.push("p", "a", "b", "a", "c")
    batch = node.pop(batch=4)
    for position in (0, 2):
        node.commit(node.queue.number, MessageDeleted(0, position))

    assert [outcome.success for outcome in node.ack(batch)] == [False, True, False, True]
    assert node.pop() == []
