"""Transaction ids seen before: within a call, across calls, windows, collisions, restarts."""

from array import array
from random import Random

import pytest
from partitioned_support import Node, node_with

from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.commands.retention import decide_clear, ends_of
from holtmq.broker.partitioned.events import QueueConfigured
from holtmq.broker.partitioned.log import dedup
from holtmq.broker.partitioned.log.dedup import DedupIndex, fingerprint
from holtmq.broker.partitioned.log.message_log import MessageLog
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig
from snapshots import restore, snapshot


@pytest.fixture(autouse=True, params=[1, 2, dedup.GENERATION])
def _generations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with many small generations and with one."""
    monkeypatch.setattr(dedup, "GENERATION", request.param)


def test_within_one_call_the_first_is_stored_and_the_others_point_to_it() -> None:
    node = node_with()

    decision = node.push("p", "a", "b", "a", "a")

    assert decision.offsets == [0, 1, 0, 0]
    assert decision.duplicates == {2, 3}
    assert node.queue.log.next_offset == 2


def test_a_stored_id_is_a_duplicate_and_writes_nothing() -> None:
    node = node_with()
    node.push("p", "a")

    decision = node.push("p", "a")

    assert decision.event is None
    assert decision.offsets == [0]


def test_the_same_id_in_another_partition_is_another_message() -> None:
    node = node_with()
    node.push("p", "a")

    assert node.push("r", "a").duplicates == frozenset()


def test_an_id_is_remembered_over_a_restart_by_journal_and_by_snapshot() -> None:
    node = node_with()
    node.push("p", "a")
    restored = restore(snapshot(node.queue), lambda offset, position: node.stored[1][offset])

    assert decide_push(restored, [("p", "a")], node.now).event is None
    node.restart()
    assert node.push("p", "a").event is None


def test_an_id_may_come_again_after_its_window() -> None:
    node = node_with(dedup_window_seconds=60)
    node.push("p", "a")
    node.now += 60
    assert node.push("p", "a").duplicates == {0}
    node.now += 0.001

    assert node.push("p", "a").offsets == [1]
    assert node.push("p", "a").offsets == [1]


def test_a_push_repeated_at_a_node_whose_clock_is_ahead_counts_as_long_as_the_window_is_longer() -> None:
    for ahead, offsets in ((3599, [0]), (3601, [1])):
        node = node_with(dedup_window_seconds=3600)
        node.push("p", "a")  # stored, and the owner died before it could answer
        node.restart()
        node.now += ahead

        assert node.push("p", "a").offsets == offsets


def test_a_push_repeated_at_a_node_whose_clock_is_behind_is_a_duplicate() -> None:
    node = node_with(dedup_window_seconds=3600)
    node.push("p", "a")
    node.restart()
    node.now -= 7200

    assert node.push("p", "a").duplicates == {0}


def test_a_window_of_zero_switches_deduplication_off() -> None:
    node = node_with(dedup_window_seconds=0)

    assert node.push("p", "a", "a").offsets == [0, 1]
    assert len(node.queue.dedup) <= 2


def test_an_id_whose_message_retention_took_is_still_a_duplicate() -> None:
    node = node_with()
    node.push("p", "a")
    event, count = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(1, event)

    assert count == 1
    assert node.push("p", "a").duplicates == {0}


def test_entries_leave_in_step_with_new_pushes() -> None:
    node = node_with(dedup_window_seconds=10)
    for number in range(20):
        node.push("p", *[f"{number}-{n}" for n in range(100)])
        node.now += 1

    assert len(node.queue.dedup) <= 1200


def test_beyond_its_bound_the_index_forgets_the_oldest_and_counts_them() -> None:
    stored: list[str] = []
    queue = PartitionedQueue(
        1,
        QueueConfigured("q", "", "", QueueConfig(), 0),
        lambda offset, _: stored[offset],
        max_dedup_entries=100,
    )
    for number in range(10):
        items = [("p", f"{number}-{n}") for n in range(50)]
        decision = decide_push(queue, items, 1000.0)
        assert decision.event is not None
        stored += [one for _, one in items]
        queue.apply(decision.event, range(50))

    assert len(queue.dedup) == 100
    assert queue.dedup.forgotten_early == 400
    assert decide_push(queue, [("p", "9-0")], 1000.0).event is None


def test_ids_with_equal_fingerprints_are_told_apart() -> None:
    node = Node()
    node.stored[1] = []
    queue = PartitionedQueue(
        1,
        QueueConfigured("q", "", "", QueueConfig(), 0),
        lambda offset, _: node.stored[1][offset],
        fingerprint=lambda partition, transaction_id: 7,
    )
    node.queues["q"] = queue
    node.push("p", "a", "b", "a")
    node.push("p", "c", "b", "d")

    assert node.stored[1] == ["a", "b", "c", "d"]
    assert [queue.find(0, one) for one in ("a", "b", "c", "d", "e")] == [0, 1, 2, 3, None]


def test_a_fingerprint_is_stable_and_fits_sixty_bits() -> None:
    # Journals hold these numbers: they may never change.
    assert fingerprint(0, "order-1") == 0xD021B8C0E009925
    assert fingerprint(5, "order-1") == 0xA177B137274F54C
    assert fingerprint(3, "\udcff") == fingerprint(3, "\udcff")


def test_when_the_youngest_of_equal_prints_is_forgotten_the_older_is_known_still() -> None:
    index = DedupIndex(MessageLog())
    index.add(0, array("Q", [7]))
    index.add(1, array("Q", [7]))
    index.add(2, array("Q", [7]))

    index.forget(7, 2)
    assert list(index.candidates(7)) == [1, 0]
    index.forget(7, 0)
    assert list(index.candidates(7)) == [1]
    index.forget(7, 1)
    assert not index.knows(7)


@pytest.mark.parametrize("seed", range(20))
def test_the_index_knows_what_a_list_of_all_ids_knows(seed: int) -> None:
    dice = Random(seed)
    log = MessageLog()
    index = DedupIndex(log, max_entries=30)
    known: dict[int, int] = {}  # offset -> fingerprint
    for now in range(0, 6_000, 100):
        first = log.next_offset
        prints = array("Q", [dice.randrange(25) for _ in range(dice.randint(1, 5))])
        assert index.knows_none(prints) == set(known.values()).isdisjoint(prints)
        log.append([1] * len(prints), now, array("I", [0] * len(prints)), prints)
        index.add(first, prints)
        known.update(enumerate(prints, first))
        if dice.random() < 0.3:
            gone = dice.choice(list(known))
            index.forget(known.pop(gone), gone)
        index.expire(now - 1_000, dice.choice((1, 3, 100)))
        known = {offset: print_ for offset, print_ in known.items() if offset >= index.floor}
        for print_ in range(25):
            assert sorted(index.candidates(print_)) == [at for at, one in known.items() if one == print_]
            assert index.knows(print_) == (print_ in known.values())
        assert index.floor > 0 or now < 1_500


def test_no_dict_grows_beyond_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict is copied when it grows, at one moment."""
    monkeypatch.setattr(dedup, "GENERATION", 100)
    index = DedupIndex(MessageLog())
    for first in range(0, 5_000, 7):
        index.add(first, array("Q", range(first, first + 7)))

    assert max(len(one.entries) for one in index._generations) <= 100
    assert len(index) == 5_005


def test_ids_that_were_indexed_ahead_are_found_and_forgotten_like_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedup, "_ADOPTED", 3)
    log = MessageLog()
    index = DedupIndex(log)

    def push(*prints: int, ahead: bool = False) -> None:
        column = array("Q", prints)
        if ahead:
            index.prepare(column, {print_: place for place, print_ in enumerate(prints)})
        first = log.next_offset
        log.append([0] * len(prints), 1_000 + first, array("I", [0] * len(prints)), column)
        index.add(first, column)

    push(1, 2, 3)
    push(4, 5, 3, 6, ahead=True)
    push(7, 5)

    assert [list(index.candidates(print_)) for print_ in range(1, 8)] == [
        [0],
        [1],
        [5, 2],
        [3],
        [8, 4],
        [6],
        [7],
    ]
    assert index.knows(6)
    index.forget(6, 6)
    index.forget(5, 8)
    assert (index.knows(6), list(index.candidates(5))) == (False, [4])
    index.expire(2_000, 100)
    assert (len(index), index.floor) == (0, 9)
