"""Dead letters: listing with filters, replay, purge, and finding them by their message."""

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands import admin
from holtmq.broker.partitioned.commands.replaying import decide_purge, decide_replay, find_letter
from holtmq.broker.partitioned.commands.retention import decide_clear, ends_of
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter, LetterFilter
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal import MemoryJournal


def failed(node: Node, group: str, partition: str, *transaction_ids: str) -> None:
    node.push(partition, *transaction_ids)
    batch = node.pop(group, batch=len(transaction_ids), partition=partition, mode="all")
    node.ack(batch, AckStatus.DEAD_LETTER, group=group, error=f"{group} gave up")


def letter(number: int) -> DeadLetter:
    return DeadLetter(number, "g", 0, number, number, 0, 0, 0, 0, "")


def found_letter(
    node: Node, partition: int, transaction_id: str, group: str | None = None
) -> DeadLetter | None:
    steps = find_letter(node.queue, partition, transaction_id, group)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: DeadLetter | None = end.value
            return found


def letters_of_two_groups() -> Node:
    node = node_with()
    failed(node, "g", "p", "a", "b")
    node.now += 10
    failed(node, "h", "r", "c")
    return node


def test_letters_are_listed_newest_first_and_the_list_stays_as_it_is() -> None:
    store = letters_of_two_groups().queue.dead_letters

    found = store.newest_first()
    store.remove([2])

    assert [letter.number for letter in found] == [3, 2, 1]
    assert [letter.number for letter in store.newest_first()] == [3, 1]


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
    event = decide_purge(node.queue, [*node.queue.dead_letters], LetterFilter(group="g"))
    assert event is not None
    node.commit(1, event)
    node.restart()

    assert [letter.group for letter in node.queue.dead_letters] == ["h"]
    assert decide_purge(node.queue, [*node.queue.dead_letters], LetterFilter(group="g")) is None


def test_a_letter_of_a_message_that_is_gone_is_looked_for_in_steps() -> None:
    node = letters_of_two_groups()
    event, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(1, event)

    steps = find_letter(node.queue, 0, "a")
    next(steps)  # letter 3, of another partition
    next(steps)  # letter 2, of b
    node.queue.dead_letters.remove([1])

    assert list(steps) == [None]  # letter 1 has been removed meanwhile


def test_a_purge_of_very_many_goes_in_steps_and_spares_what_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "_LETTERS", 2)
    service = PartitionedService(MemoryJournal())
    queue = admin.configure(service, "q", None, None, {}, 1.0)
    for number in range(1, 6):
        queue.dead_letters.file(letter(number))
    steps = admin.purge(service, queue, LetterFilter())

    left = []
    for _ in steps:
        left.append(len(queue.dead_letters))
        queue.dead_letters.remove([4])  # replayed meanwhile
        if len(left) == 1:
            queue.dead_letters.file(letter(6))

    assert left == [3, 2, 1]
    assert [one.number for one in queue.dead_letters] == [6]


def test_a_letter_is_found_by_its_message_even_after_the_message_is_gone() -> None:
    node = letters_of_two_groups()

    found = found_letter(node, 0, "b")
    assert found is not None
    assert (found.number, found.error) == (2, "g gave up")
    event, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(1, event)
    assert found_letter(node, 0, "b") == found
    assert found_letter(node, 0, "b", group="h") is None
    assert found_letter(node, 0, "c") is None
