"""Staged rows that cannot be read: the others of their batch are published, and the queue goes on."""

from collections import deque

import pytest
from staging_site import NOW, QUEUES, Site, batch, finish

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.commands import staging
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.records.rehearsal import rehearse
from holtmq.journal import JournalOptions, open_journal
from holtmq.journal.fake_disk import Keep
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.records import FRAME_SIZE
from holtmq.journal.repair import apply_repair, plan_repair
from holtmq.journal.segment import HEADER_SIZE, base_of, segment_name


@pytest.fixture(autouse=True)
def _tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ATOMIC_ROWS", 2)
    monkeypatch.setattr(staging, "PIECE_ROWS", 2)


@pytest.fixture
def site() -> Site:
    return Site()


def damage(site: Site, position: int) -> None:
    """Flip a byte of the record at this position."""
    bases = [base for name in site.disk.list() if (base := base_of(name)) is not None and base <= position]
    file = site.disk.open(segment_name(max(bases)), write=True)
    at = position - max(bases) + HEADER_SIZE + FRAME_SIZE
    file.pwrite([bytes([file.pread(1, at)[0] ^ 1])], at)
    file.sync()


def repaired(site: Site) -> None:
    """Kill the broker, repair its folder, and start it again."""
    site.disk.crash(Keep.EVERYTHING)
    for _ in range(2):
        plan = plan_repair(site.disk, None)
        if plan.needed:
            apply_repair(site.disk, plan)
    site.journal, found = open_journal("data", JournalOptions(segment_bytes=2048), disk=site.disk)
    _, site.service = rehearse(site.journal, found)


def damaged(store: PartitionedStore) -> list[tuple[str, str, int]]:
    return [(row.where, row.name, row.position) for row in store.damage.rows]


def parts(site: Site) -> dict[int, tuple[int, list[int]]]:
    """Of each staged part: the position of its record, and those of its bodies."""
    return {place[2]: (part.header, list(part.positions)) for _, place, part in site.service.staging.parts()}


@pytest.mark.parametrize("unreadable", [[3], [2, 3, 4]])
def test_a_begun_batch_is_completed_without_the_parts_that_cannot_be_read(
    site: Site, unreadable: list[int]
) -> None:
    site.begin(pieces=2)  # parts 0 and 1
    site.push("between")
    site.checkpoint()
    site.crash()
    wanted = [position for number in unreadable for position in [parts(site)[number][0]]]
    for position in wanted:
        damage(site, position)

    deque(site.service.staging.finish(NOW), maxlen=0)
    site.journal.flush()

    lost = {f"w1.{part}.{n}" for part in unreadable for n in range(2)}
    assert site.pop() == sorted(["between", *set(batch()) - lost])
    assert site.pop("r") == sorted(set(batch(queue="r")) - lost)
    assert damaged(site.service.store) == [("staged", "w", position) for position in wanted]
    site.push("later")
    site.journal.flush()
    assert site.pop() == ["later"]


@pytest.mark.parametrize("given_up", [[3], [2, 3, 4]])
def test_a_begun_batch_is_completed_without_the_parts_that_a_repair_gave_up(
    site: Site, given_up: list[int]
) -> None:
    winner = site.stage("w", 1)
    before = parts(site)
    site.go_on(site.commit("w", 1, winner), 2)
    site.push("between")
    site.journal.flush()
    for number in given_up:
        damage(site, before[number][0])
    repaired(site)

    site.service.staging.drop_orphans(NOW)
    deque(site.service.staging.finish(NOW), maxlen=0)
    site.journal.flush()

    lost = {f"w1.{part}.{n}" for part in given_up for n in range(2)}
    assert site.pop() == sorted(["between", *set(batch()) - lost])
    assert site.pop("r") == sorted(set(batch(queue="r")) - lost)
    assert site.service.staging.last_batch("w") == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_a_batch_with_a_row_that_a_repair_gave_up_is_staged_again(site: Site, lost: int) -> None:
    winner = site.stage("w", 1, parts=1)
    site.journal.flush()
    damage(site, parts(site)[0][1][lost])
    repaired(site)

    with pytest.raises(Conflict, match="stage them again"):
        finish(site.commit("w", 1, winner))

    finish(site.commit("w", 1, site.stage("w", 1, parts=1)))
    site.journal.flush()
    assert site.pop() + site.pop("r") == ["w1.0.0", "w1.0.1"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_row_of_a_begun_batch_that_a_repair_gave_up_does_not_give_others_wrong_contents(
    site: Site, lost: int
) -> None:
    winner = site.stage("w", 1)
    position = parts(site)[3][1][lost]
    site.go_on(site.commit("w", 1, winner), 2)
    damage(site, position)
    repaired(site)

    deque(site.service.staging.finish(NOW), maxlen=0)
    site.journal.flush()

    store = site.service.store
    assert sum(queue.log.live for queue in store.queues.values()) == 10
    unreadable = []
    for name in QUEUES:
        queue = store.queues[name]
        for offset in queue.log.live_offsets(0, queue.log.next_offset):
            where = queue.partitions[queue.log.partition(offset)].name
            try:
                staged_as = store.body(queue.log.position(offset)).transaction_id
            except RecordUnreadable:
                unreadable.append((name, where))
            else:
                part, row = map(int, staged_as.removeprefix("w1.").split("."))
                assert (name, where) == (QUEUES[(part + row) % 2], f"p{row % 3}")
    assert unreadable == [(QUEUES[(3 + lost) % 2], f"p{lost}")]
