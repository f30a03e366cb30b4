"""Dead letters: listing with filters, replay, purge, and finding them by their message."""

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands.replaying import decide_purge, decide_replay, find_letter
from holtmq.broker.partitioned.commands.retention import decide_clear
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.dead_letter_store import LetterFilter


def failed(node: Node, group: str, partition: str, *transaction_ids: str) -> None:
    node.push(partition, *transaction_ids)
    batch = node.pop(group, batch=len(transaction_ids), partition=partition, mode="all")
    node.ack(batch, AckStatus.DEAD_LETTER, group=group, error=f"{group} gave up")


def letters_of_two_groups() -> Node:
    node = node_with()
    failed(node, "g", "p", "a", "b")
    node.now += 10
    failed(node, "h", "r", "c")
    return node


def test_letters_are_listed_newest_first_in_pages_with_their_total() -> None:
    store = letters_of_two_groups().queue.dead_letters

    page, total = store.select(LetterFilter(), limit=2, skip=0)
    rest, _ = store.select(LetterFilter(), limit=2, skip=2)

    assert ([x.number for x in page], [x.number for x in rest], total) == ([3, 2], [1], 3)


def test_letters_are_filtered_by_group_partition_and_time_of_failure() -> None:
    node = letters_of_two_groups()
    store = node.queue.dead_letters

    assert store.count(LetterFilter(group="g")) == 2
    assert store.count(LetterFilter(partition=1)) == 1
    assert store.count(LetterFilter(from_us=micros(node.now))) == 1
    assert store.count(LetterFilter(to_us=micros(node.now) - 1)) == 2
    assert store.count(LetterFilter(group="g", partition=1)) == 0


def test_a_replay_pushes_a_new_message_and_removes_the_letter_in_one_step() -> None:
    node = letters_of_two_groups()
    decision = decide_replay(node.queue, 3, node.now)
    assert decision.push.event is not None
    node.stored[1].append(decision.transaction_id)
    node.commit(1, decision.push.event, decision.removed)

    assert (decision.partition, len(node.queue.dead_letters)) == ("r", 2)
    assert ids(node.pop("h", batch=5, partition="r")) == [decision.transaction_id]
    with pytest.raises(NotFound):
        decide_replay(node.queue, 3, node.now)


def test_a_replay_may_go_elsewhere_and_its_repeat_is_a_duplicate() -> None:
    node = letters_of_two_groups()
    target = node.create("repair")
    first = decide_replay(node.queue, 1, node.now, target, "x")
    assert first.push.event is not None
    node.stored[target.number].append(first.transaction_id)
    node.commit(target.number, first.push.event)

    again = decide_replay(node.queue, 1, node.now, target, "x")

    assert again.push.event is None
    assert again.push.offsets == [0]


def test_a_purge_takes_what_matches() -> None:
    node = letters_of_two_groups()
    event = decide_purge(node.queue, LetterFilter(group="g"))
    assert event is not None
    node.commit(1, event)
    node.restart()

    assert [letter.group for letter in node.queue.dead_letters] == ["h"]
    assert decide_purge(node.queue, LetterFilter(group="g")) is None


def test_a_letter_is_found_by_its_message_even_after_the_message_is_gone() -> None:
    node = letters_of_two_groups()

    found = find_letter(node.queue, 0, "b")
    assert found is not None
    assert (found.number, found.error) == (2, "g gave up")
    event, _ = decide_clear(node.queue)
    assert event is not None
    node.commit(1, event)
    assert find_letter(node.queue, 0, "b") == found
    assert find_letter(node.queue, 0, "b", group="h") is None
    assert find_letter(node.queue, 0, "c") is None
