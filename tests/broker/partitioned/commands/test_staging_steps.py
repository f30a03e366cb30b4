"""A commit of staged rows in steps: whatever others do in between, all of it happens once or nothing does."""

from collections.abc import Callable, Generator

import pytest

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.commands import staging
from holtmq.broker.partitioned.commands.staging_records import Committed, PushesSuspended, StagedRow, Winner
from holtmq.broker.partitioned.events import QueueDeleted
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.journal import MemoryJournal

NOW = 1_800_000_000.0
Steps = Generator[None, None, Committed]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STEP_ROWS", 3)


@pytest.fixture
def service() -> PartitionedService:
    return PartitionedService(MemoryJournal(), Settings(0, "all"))


def stage(service: PartitionedService, count: int, *, part: int = 0, queue: str = "q") -> Winner:
    rows = [
        StagedRow(queue, f"p{n % 2}", Body(f"t{n}", b"%d" % n)) for n in range(part * 100, part * 100 + count)
    ]
    total = service.staging.stage("w", 1, 0, 7, part, rows, NOW)
    return Winner(0, 7, total)


def push(service: PartitionedService, partition: str, name: str) -> None:
    service.push([PushItem("q", partition, Body(name, b"other"))], NOW)


def finish(steps: Steps) -> Committed:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: Committed = end.value
            return done


def content(service: PartitionedService, queue: str = "q") -> dict[str, list[str]]:
    """Transaction ids by partition, in order."""
    found = service.store.queues[queue]
    store = service.store
    return {
        where.name: [store.body(found.log.position(offset)).transaction_id for offset in where.offsets]
        for where in found.partitions
    }


BETWEEN: dict[str, Callable[[PartitionedService], None]] = {
    "nothing": lambda service: None,
    "another message": lambda service: push(service, "p0", "x"),
    "a new partition": lambda service: push(service, "fresh", "x"),
    "a partition that the batch makes too": lambda service: push(service, "p1", "x"),
}


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("when", range(7))
def test_rows_land_in_their_partitions_whatever_is_pushed_between_two_steps(
    service: PartitionedService, what: str, when: int, existing: bool
) -> None:
    if existing:
        push(service, "p0", "before")
    winner = stage(service, 8)
    stage(service, 2, part=1)
    steps = service.staging.commit("w", 1, [replace_rows(winner, 10)], NOW)
    for _ in range(when):
        next(steps)
    BETWEEN[what](service)

    done = finish(steps)

    assert done == Committed(10, 0, False)
    found = content(service)
    others = {"x", "before"}
    assert [name for name in found["p0"] if name not in others] == ["t0", "t2", "t4", "t6", "t100"]
    assert [name for name in found["p1"] if name not in others] == ["t1", "t3", "t5", "t7", "t101"]
    assert sum(map(len, found.values())) == 10 + existing + (what != "nothing")


def replace_rows(winner: Winner, rows: int) -> Winner:
    return winner._replace(rows=rows)


@pytest.mark.parametrize("when", range(5))
def test_an_id_that_comes_between_two_steps_makes_its_row_a_duplicate(
    service: PartitionedService, when: int
) -> None:
    push(service, "p0", "before")
    push(service, "p1", "before")
    steps = service.staging.commit("w", 1, [stage(service, 8)], NOW)
    for _ in range(when):
        next(steps)
    push(service, "p1", "t5")

    assert finish(steps) == Committed(7, 1, False)
    assert content(service)["p1"] == ["before", "t5", "t1", "t3", "t7"]


def test_a_partition_made_at_every_step_does_not_keep_a_commit_from_its_end(
    service: PartitionedService,
) -> None:
    steps = service.staging.commit("w", 1, [stage(service, 8)], NOW)
    turns = 0
    done = None
    while done is None:
        assert turns < 100
        push(service, f"new{turns}", "x")
        turns += 1
        try:
            next(steps)
        except StopIteration as end:
            done = end.value

    assert done == Committed(8, 0, False)
    assert content(service)["p0"] == ["t0", "t2", "t4", "t6"]


def test_a_queue_deleted_between_two_steps_is_made_again(service: PartitionedService) -> None:
    push(service, "p1", "before")
    steps = service.staging.commit("w", 1, [stage(service, 8)], NOW)
    for _ in range(3):
        next(steps)
    service.store.commit([(service.store.queues["q"].number, QueueDeleted())])

    assert finish(steps) == Committed(8, 0, False)
    assert content(service) == {"p0": ["t0", "t2", "t4", "t6"], "p1": ["t1", "t3", "t5", "t7"]}


def test_of_two_commits_of_one_batch_at_once_one_counts(service: PartitionedService) -> None:
    winner = stage(service, 8)
    one, other = (service.staging.commit("w", 1, [winner], NOW) for _ in range(2))
    for _ in range(2):
        next(one)
        next(other)

    assert [finish(one).repeated, finish(other).repeated] == [False, True]
    assert sum(map(len, content(service).values())) == 8


@pytest.mark.parametrize("how", ["abort", "end", "stage"])
def test_rows_taken_away_between_two_steps_are_not_published(service: PartitionedService, how: str) -> None:
    steps = service.staging.commit("w", 1, [stage(service, 8)], NOW)
    next(steps)
    if how == "abort":
        service.staging.abort("w", 1)
    elif how == "end":
        service.staging.end("w", NOW)
    else:
        stage(service, 8)  # the same part once more: its rows lie elsewhere now

    with pytest.raises(Conflict):
        finish(steps)
    assert "q" not in service.store.queues
    assert service.staging.last_batch("w") is None


def test_a_commit_that_is_dropped_on_the_way_has_done_nothing(service: PartitionedService) -> None:
    winner = stage(service, 8)
    steps = service.staging.commit("w", 1, [winner], NOW)
    next(steps)
    steps.close()

    assert "q" not in service.store.queues
    assert finish(service.staging.commit("w", 1, [winner], NOW)) == Committed(8, 0, False)


@pytest.mark.parametrize("apart", [1, 4])
def test_an_id_twice_in_a_batch_counts_once_in_whichever_steps_it_stands(
    service: PartitionedService, apart: int
) -> None:
    names = [f"t{n}" for n in range(8)]
    names[2 + apart] = "t2"
    rows = [StagedRow("q", "p", Body(name, b"1")) for name in names]
    service.staging.stage("w", 1, 0, 7, 0, rows, NOW)

    assert finish(service.staging.commit("w", 1, [Winner(0, 7, 8)], NOW)) == Committed(7, 1, False)
    assert content(service)["p"] == sorted(set(names))


@pytest.mark.parametrize("how", ["abort", "commit"])
def test_a_checkpoint_after_the_rows_are_gone_does_not_surprise_a_commit_between_two_steps(
    service: PartitionedService, how: str
) -> None:
    winner = stage(service, 8)._replace(rows=16)
    stage(service, 8, part=1)
    steps = service.staging.commit("w", 1, [winner], NOW)
    next(steps)
    if how == "abort":
        service.staging.abort("w", 1)
    else:
        finish(service.staging.commit("w", 1, [winner], NOW))
    service.journal.flush()
    assert service.journal.checkpoint(*service.store.capture())
    service.journal.flush()

    if how == "abort":
        with pytest.raises(Conflict):
            finish(steps)
    else:
        assert finish(steps) == Committed(0, 0, True)


@pytest.mark.parametrize("when", range(5))
def test_maintenance_between_two_steps_puts_the_commit_off(service: PartitionedService, when: int) -> None:
    winner = stage(service, 8)
    steps = service.staging.commit("w", 1, [winner], NOW)
    for _ in range(when):
        next(steps)
    service.spool.switch(pushes_spooled=True)

    with pytest.raises(PushesSuspended):
        finish(steps)

    service.spool.switch(pushes_spooled=False)
    assert finish(service.staging.commit("w", 1, [winner], NOW)) == Committed(8, 0, False)


@pytest.fixture
def _large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows at once are the most; a larger batch goes three at a time."""
    monkeypatch.setattr(staging, "ATOMIC_ROWS", 4)
    monkeypatch.setattr(staging, "PIECE_ROWS", 3)


def stage_large(service: PartitionedService, attempt: int = 7, rows: int = 2) -> Winner:
    """Five parts."""
    total = 0
    for part in range(5):
        some = [
            StagedRow("q", "p", Body(f"a{attempt}.{part}.{n}", b"%d" % (part * rows + n)))
            for n in range(rows)
        ]
        total = service.staging.stage("w", 1, 0, attempt, part, some, NOW)
    return Winner(0, attempt, total)


def numbers(service: PartitionedService, queue: str = "q") -> list[bytes]:
    if queue not in service.store.queues:
        return []
    log = service.store.queues[queue].log
    return [service.store.body(log.position(at)).payload for at in range(log.next_offset)]


ALL = [b"%d" % n for n in range(10)]


@pytest.mark.usefixtures("_large_batches")
def test_a_batch_too_large_for_one_record_is_published_whole_and_once(service: PartitionedService) -> None:
    winner = stage_large(service)

    first = finish(service.staging.commit("w", 1, [winner], NOW))
    again = finish(service.staging.commit("w", 1, [winner], NOW))

    assert (first, again) == (Committed(10, 0, False), Committed(0, 0, True))
    assert numbers(service) == ALL
    assert service.staging.staged() == {}


def begin(service: PartitionedService) -> None:
    """Publish the first piece of a large batch; its request is gone then."""
    steps = service.staging.commit("w", 1, [stage_large(service)], NOW)
    while not numbers(service):
        next(steps)
    steps.close()
    assert 0 < len(numbers(service)) < 10


@pytest.mark.usefixtures("_large_batches")
@pytest.mark.parametrize("how", ["the broker", "the same commit", "a batch run again", "the next batch"])
@pytest.mark.parametrize("restart", [None, "recovery", "checkpoint"])
def test_a_batch_that_has_begun_to_appear_is_finished_from_its_own_rows(
    service: PartitionedService, how: str, restart: str | None
) -> None:
    begin(service)
    if restart:
        service.journal.flush()
        if restart == "checkpoint":
            assert service.journal.checkpoint(*service.store.capture())
            service.journal.flush()
        service = recovered(service)

    if how == "the broker":
        for _ in service.staging.finish(NOW):
            pass
    elif how == "the same commit":
        finish(service.staging.commit("w", 1, [Winner(0, 7, 10)], NOW))
    elif how == "a batch run again":  # cut and ordered differently, under another attempt
        finish(service.staging.commit("w", 1, [stage_large(service, attempt=8, rows=3)], NOW))
    else:
        finish(service.staging.commit("w", 2, [], NOW))

    assert numbers(service) == ALL
    assert finish(service.staging.commit("w", 1, [Winner(0, 7, 10)], NOW)).repeated
    assert service.staging.staged() == {}


def recovered(service: PartitionedService) -> PartitionedService:
    """The same journal after a crash."""
    journal = service.journal
    assert isinstance(journal, MemoryJournal)
    following, recovery = journal.restart()
    after = PartitionedService(following, Settings(0, "all"))
    for kind, payload in recovery.checkpoint:
        after.store.fold(-1, kind, payload)
    for position, kind, payload in recovery.records:
        after.store.fold(position, kind, payload)
    return after


@pytest.mark.usefixtures("_large_batches")
def test_a_batch_that_has_begun_to_appear_cannot_be_aborted_nor_expire(service: PartitionedService) -> None:
    begin(service)

    assert not service.staging.abort("w", 1)
    assert not service.staging.end("w", NOW)
    service.staging.drop_orphans(NOW + 1e6)
    with pytest.raises(Conflict, match="being published"):
        service.staging.stage("w", 1, 0, 7, 4, [StagedRow("q", "p", Body("other", b"99"))], NOW + 1e6)

    assert finish(service.staging.commit("w", 1, [], NOW)).rows == 10 - 2
    assert numbers(service) == ALL


@pytest.mark.usefixtures("_large_batches")
def test_of_two_commits_of_one_large_batch_at_once_each_row_counts_once(service: PartitionedService) -> None:
    winner = stage_large(service)
    running = [service.staging.commit("w", 1, [winner], NOW) for _ in range(2)]
    done: list[Committed] = []
    while running:
        for steps in list(running):
            try:
                next(steps)
            except StopIteration as end:
                done.append(end.value)
                running.remove(steps)

    assert sum(one.rows for one in done) == 10
    assert numbers(service) == ALL
