"""Space given back while batches are staged: what was committed stays readable, whatever was aborted."""

import pytest

from holtmq.broker.partitioned.commands.staging_records import StagedRow, Winner
from holtmq.broker.partitioned.log.bodies import Body, decode_body
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.journal import FileJournal, JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk

NOW = 1_800_000_000.0
ROWS = 40


def opened(disk: FakeDisk) -> FileJournal:
    journal, recovery = open_journal("", JournalOptions(segment_bytes=8192), disk=disk)
    recovery.drain()
    return journal


def payload(batch: int, task: int, part: int, row: int) -> bytes:
    return b'{"row":"%d/%d/%d/%d"}' % (batch, task, part, row) + b" " * 60


def stage(service: PartitionedService, batch: int, tasks: int, parts: int) -> list[Winner]:
    """Every task stages its parts in turn with the others, as executors do."""
    for part in range(parts):
        for task in range(tasks):
            rows = [
                StagedRow(
                    "q", f"p{row % 3}", Body(f"{batch}-{task}-{part}-{row}", payload(batch, task, part, row))
                )
                for row in range(ROWS)
            ]
            service.staging.stage("w", batch, task, 1, part, rows, NOW)
    return [Winner(task, 1, parts * ROWS) for task in range(tasks)]


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_rows_that_several_tasks_staged_stay_readable_when_later_batches_are_aborted(tasks: int) -> None:
    journal = opened(FakeDisk())
    service = PartitionedService(journal, Settings(0, "all"))
    committed: list[bytes] = []
    for batch in range(0, 24, 2):
        winners = stage(service, batch, tasks, parts=3)
        list(service.staging.commit("w", batch, winners, NOW))
        committed += [
            payload(batch, task, part, row)
            for task in range(tasks)
            for part in range(3)
            for row in range(ROWS)
        ]
        stage(service, batch + 1, tasks, parts=9)
        service.staging.abort("w", batch + 1)
        journal.flush()
        assert journal.checkpoint(*service.store.capture())
        journal.flush()

        log = service.store.queues["q"].log
        positions = [log.position(offset) for offset in range(log.next_offset)]
        assert [decode_body(record, None).payload for _, record in journal.read_many(positions)] == committed

    assert journal.stats().compactions + journal.stats().deleted_segments > 10
    assert journal.stats().checkpoint_failures == 0
