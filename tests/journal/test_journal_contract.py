"""What every journal promises: the same tests on the one in memory, in files, and replicated."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from holtmq.journal import (
    Journal,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalOptions,
    MemoryJournal,
    Recovery,
    open_journal,
)
from holtmq.journal.disk import OsDisk
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.fake_disk import FakeDisk, Keep
from holtmq.journal.replica.opening import ReplicaOptions, ReplicatedOpening

Restart = Callable[[Journal], tuple[Journal, Recovery]]
SMALL = JournalOptions(segment_bytes=2048)


class Bench:
    """One kind of journal, and how the next process would find it."""

    def __init__(self, kind: str, folder: Path, url: str = "") -> None:
        self.kind = kind
        self.folder = folder
        self.disk = FakeDisk()
        self.replica = ReplicaOptions(url, name=uuid4().hex, takeover_after=30)
        self.openings: list[ReplicatedOpening] = []
        self.journal: Journal = self._fresh()

    def _fresh(self) -> Journal:
        if self.kind == "memory":
            return MemoryJournal()
        journal, recovery = self._open()
        assert recovery.drain() == 0
        return journal

    def _open(self) -> tuple[Journal, Recovery]:
        if self.kind == "fake":
            return open_journal("", SMALL, disk=self.disk)
        if self.kind == "replicated":
            self.openings.append(ReplicatedOpening("", SMALL, self.replica, disk=self.disk))
            return self.openings[-1].journal, self.openings[-1].recovery
        return open_journal(self.folder, SMALL)

    def reopen(self) -> Recovery:
        """Close in good order and open again."""
        self.journal.close()
        if isinstance(self.journal, MemoryJournal):
            self.journal, recovery = self.journal.restart()
        else:
            self.journal, recovery = self._open()
        return recovery

    def crash(self) -> Recovery:
        """Lose what is not durable and open again. (Real files cannot lose it: they only die unclosed.)"""
        if isinstance(self.journal, MemoryJournal):
            self.journal, recovery = self.journal.restart()
            return recovery
        if self.openings:
            self.openings[-1].abandon()
        if self.kind in ("fake", "replicated"):
            self.disk.crash(Keep.NOTHING)
        else:
            self.journal.release()  # type: ignore[attr-defined]
        self.journal, recovery = self._open()
        return recovery

    def fail(self) -> None:
        if isinstance(self.journal, MemoryJournal):
            self.journal.fail("the disk is gone")
        elif self.kind == "fake":
            self.disk.fail_sync()
        elif self.kind == "replicated":
            impatient = replace(self.replica, node="other", takeover_after=0)
            self.openings.append(ReplicatedOpening("", SMALL, impatient, disk=FakeDisk()))
            self.openings[-1].recovery.drain()
        else:
            pytest.skip("a real disk does not fail on request")


@pytest.fixture(params=["memory", "fake", "files", "replicated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    url = request.getfixturevalue("postgres").url if request.param == "replicated" else ""
    bench = Bench(request.param, tmp_path / "journal", url)
    yield bench
    for opening in bench.openings:
        opening.abandon()


def test_records_come_back_in_order_with_their_positions(bench: Bench) -> None:
    written = [(bench.journal.append(16 + i % 200, b"x" * i), 16 + i % 200, b"x" * i) for i in range(300)]

    recovery = bench.reopen()

    assert list(recovery.checkpoint) == []
    assert list(recovery.records) == written
    assert recovery.clean
    assert recovery.torn is None


def test_positions_rise_and_are_never_zero(bench: Bench) -> None:
    positions = [bench.journal.append(20, b"") for _ in range(100)]

    assert positions == sorted(set(positions))
    assert positions[0] > 0


def test_appending_goes_on_behind_what_was_recovered(bench: Bench) -> None:
    first = bench.journal.append(20, b"first")
    assert bench.reopen().drain() == 1

    second = bench.journal.append(20, b"second")

    assert second > first
    assert [payload for _, _, payload in bench.reopen().records] == [b"first", b"second"]


def test_a_record_can_be_read_before_and_after_it_is_durable(bench: Bench) -> None:
    journal = bench.journal
    one = journal.append(20, b"one")
    assert journal.read(one) == (20, b"one")
    two = journal.append(21, b"two")
    assert journal.read(two) == (21, b"two")

    journal.flush()
    three = journal.append(22, b"three")

    assert journal.read_many([three, one, two]) == [(22, b"three"), (20, b"one"), (21, b"two")]


def test_big_records_among_small_ones_can_be_read_before_and_after_they_are_durable(bench: Bench) -> None:
    sizes = [70_000, 0, 9, 5000, 1, 0, 0, 20_000, 18]
    written = [(20, bytes([number]) * size) for number, size in enumerate(sizes)]
    positions = [bench.journal.append(kind, payload) for kind, payload in written]
    early = bench.journal.read(positions[3])  # what follows it is a part of its own
    positions += bench.journal.append_batch(written)
    positions += [bench.journal.append(kind, payload) for kind, payload in reversed(written)]
    written += written + written[::-1]

    before = bench.journal.read_many(positions)
    bench.journal.flush()

    assert early == written[3]
    assert before == written
    assert bench.journal.read_many(positions) == written
    assert [(kind, payload) for _, kind, payload in bench.reopen().records] == written


def test_many_records_are_read_back_in_the_order_asked(bench: Bench) -> None:
    journal = bench.journal
    sizes = [0, 1, 100, 5000, 3, 70_000, 900] * 40
    positions = [journal.append(30, bytes([i % 251]) * size) for i, size in enumerate(sizes)]
    journal.flush()
    expected = [(30, bytes([i % 251]) * size) for i, size in enumerate(sizes)]

    assert journal.read_many(positions) == expected
    assert journal.read_many(positions[::-1]) == expected[::-1]
    assert journal.read_many(positions[::17]) == expected[::17]
    assert journal.read_many(array("Q", positions)) == expected
    assert journal.read_many([]) == []


def test_reading_where_nothing_was_appended_is_refused(bench: Bench) -> None:
    position = bench.journal.append(20, b"some record")
    bench.journal.flush()

    for wrong in (position + 1, bench.journal.end, bench.journal.end + 1000):
        with pytest.raises(JournalCorrupt):
            bench.journal.read(wrong)


def test_nothing_is_durable_before_flush_and_everything_after(bench: Bench) -> None:
    journal = bench.journal
    assert journal.durable == journal.end
    position = journal.append(20, b"payload")
    assert journal.durable <= position < journal.end
    assert journal.backlog > 0

    journal.flush()

    assert journal.durable == journal.end
    assert journal.backlog == 0


def test_durable_callbacks_run_in_order_and_not_inside_the_call(bench: Bench) -> None:
    journal = bench.journal
    told: list[object] = []
    journal.on_durable(lambda error: told.append(("idle", error)))
    journal.append(20, b"a")
    journal.on_durable(lambda error: told.append(("a", error)))
    journal.append(20, b"b")
    journal.on_durable(lambda error: told.append(("b", error)))
    assert told == []

    journal.flush()

    assert told == [("idle", None), ("a", None), ("b", None)]


def test_a_callback_may_append_and_wait_again(bench: Bench) -> None:
    journal = bench.journal
    told: list[str] = []

    def again(error: JournalFailed | None) -> None:
        told.append("first")
        journal.append(20, b"second")
        journal.on_durable(lambda error: told.append("second"))

    journal.append(20, b"first")
    journal.on_durable(again)
    journal.flush()
    assert told == ["first"]

    journal.flush()

    assert told == ["first", "second"]
    assert bench.reopen().drain() == 2


def test_a_callback_that_raises_does_not_keep_the_others_waiting(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    journal = bench.journal
    told: list[object] = []

    def broken(error: JournalFailed | None) -> None:
        raise RuntimeError("a bug")

    journal.append(20, b"")
    journal.on_durable(broken)
    journal.on_durable(told.append)
    journal.flush()

    assert told == [None]
    assert "a durable callback failed" in caplog.text


def test_a_crash_keeps_what_was_durable(bench: Bench) -> None:
    if bench.kind == "files":
        pytest.skip("files in the page cache survive")
    kept = bench.journal.append(20, b"kept")
    bench.journal.flush()
    bench.journal.append(20, b"lost")

    recovery = bench.crash()

    assert list(recovery.records) == [(kept, 20, b"kept")]
    assert not recovery.clean


def test_a_batch_is_recovered_record_by_record(bench: Bench) -> None:
    journal = bench.journal
    batch = [(20, b"one"), (21, b""), (22, b"three" * 1000)]
    positions = journal.append_batch(batch)
    assert journal.read_many(positions) == batch
    journal.flush()
    assert journal.read_many(positions) == batch

    recovery = bench.reopen()

    assert list(recovery.records) == [(at, *record) for at, record in zip(positions, batch, strict=True)]
    assert bench.journal.read(positions[1]) == (21, b"")


@pytest.mark.parametrize("sizes", [[0], [3, 0, 70], [1, 9_000, 0, 700_000, 2], [40] * 5_000])
def test_a_batch_that_was_encoded_before_is_like_any_other(bench: Bench, sizes: list[int]) -> None:
    records = [(20 + number % 9, bytes([number % 251]) * size) for number, size in enumerate(sizes)]
    batch = EncodedBatch()
    offsets = [batch.add(kind, payload) for kind, payload in records]
    first = bench.journal.append(20, b"before")

    base = bench.journal.append_encoded(batch)
    positions = [base + offset for offset in offsets]
    last = bench.journal.append(20, b"after")

    assert bench.journal.read_many(positions) == records
    bench.journal.flush()
    assert bench.journal.read_many(positions) == records
    everything = [(20, b"before"), *records, (20, b"after")]
    assert list(bench.reopen().records) == [
        (at, *record) for at, record in zip([first, *positions, last], everything, strict=True)
    ]


@pytest.mark.parametrize("counts", [(3, 4), (0, 2), (2, 0), (2_500, 2_001), (1, 1, 1)])
def test_batches_that_were_encoded_apart_are_joined(bench: Bench, counts: tuple[int, ...]) -> None:
    whole = EncodedBatch()
    records: list[tuple[int, bytes]] = []
    offsets: list[int] = []
    for number, count in enumerate(counts):
        part = EncodedBatch()
        mine = [(20 + number, b"%d" % place * (place % 50)) for place in range(count)]
        added = [part.add(kind, payload) for kind, payload in mine]
        shift = whole.absorb(part)
        offsets += [shift + offset for offset in added]
        records += mine
    offsets.append(whole.add(30, b"last"))

    base = bench.journal.append_encoded(whole)
    positions = [base + offset for offset in offsets]
    bench.journal.flush()

    everything = [*records, (30, b"last")]
    assert bench.journal.read_many(positions) == everything
    assert list(bench.reopen().records) == [
        (at, *record) for at, record in zip(positions, everything, strict=True)
    ]


def test_batches_of_one_and_none_are_fine(bench: Bench) -> None:
    assert bench.journal.append_batch([]) == []
    (position,) = bench.journal.append_batch([(20, b"alone")])

    assert bench.journal.read(position) == (20, b"alone")


@pytest.mark.parametrize("kind", [0, 1, 2, 15])
def test_reserved_kinds_are_refused(bench: Bench, kind: int) -> None:
    with pytest.raises(ValueError, match="reserved"):
        bench.journal.append(kind, b"")
    with pytest.raises(ValueError, match="reserved"):
        bench.journal.append_batch([(20, b""), (kind, b"")])

    assert bench.journal.backlog == 0


def test_a_checkpoint_replaces_the_log_before_it(bench: Bench) -> None:
    journal = bench.journal
    positions = array("Q", [journal.append(20, b"%d" % i * 50) for i in range(200)])
    journal.flush()
    live = [positions[::50], positions[25::50]]

    assert journal.checkpoint([(40, b"state"), (41, b"more")], live)
    assert journal.bytes_since_checkpoint < 100
    tail = journal.append(20, b"tail")
    recovery = bench.reopen()

    assert list(recovery.checkpoint) == [(40, b"state"), (41, b"more")]
    assert list(recovery.records) == [(tail, 20, b"tail")]
    for index in sorted([*range(0, 200, 50), *range(25, 200, 50)]):
        assert bench.journal.read(positions[index]) == (20, b"%d" % index * 50)


def test_live_positions_may_come_in_any_order(bench: Bench) -> None:
    journal = bench.journal
    positions = [journal.append(20, b"%d" % i * 50) for i in range(400)]
    journal.flush()
    shuffled = positions[::9]
    Random(1).shuffle(shuffled)

    for _ in range(3):
        assert journal.checkpoint(
            [(40, b"state")], [array("Q", shuffled), array("Q", reversed(positions[:40]))]
        )
        bench.reopen().drain()
        journal = bench.journal
        for index in {*range(0, 400, 9), *range(40)}:
            assert journal.read(positions[index]) == (20, b"%d" % index * 50)


@pytest.mark.parametrize("beyond", [0, 100, 1 << 63])
def test_a_checkpoint_over_a_position_that_the_log_never_gave_is_refused(bench: Bench, beyond: int) -> None:
    journal = bench.journal
    positions = [journal.append(20, b"%d" % i * 50) for i in range(400)]
    journal.flush()

    journal.checkpoint([(40, b"state")], [array("Q", [journal.end + beyond, positions[3]])])

    assert journal.stats().checkpoint_failures == 1
    assert journal.stats().checkpoints == journal.stats().deleted_segments == 0
    recovery = bench.reopen()
    assert list(recovery.checkpoint) == []
    assert [at for at, _, _ in recovery.records] == positions


def test_a_checkpoint_counts_only_once_the_log_is_durable(bench: Bench) -> None:
    if bench.kind == "files":
        pytest.skip("files in the page cache survive")
    bench.journal.append(20, b"durable")
    bench.journal.flush()
    bench.journal.append(20, b"not yet")
    assert bench.journal.checkpoint([(40, b"both")], [])
    assert not bench.journal.checkpoint([(40, b"again")], [])

    recovery = bench.crash()

    assert list(recovery.checkpoint) == []
    assert [payload for _, _, payload in recovery.records] == [b"durable"]


def test_a_checkpoint_completes_with_the_commit_it_waited_for(bench: Bench) -> None:
    bench.journal.append(20, b"one")
    assert bench.journal.checkpoint([(40, b"state")], [])
    bench.journal.append(20, b"after")
    bench.journal.flush()

    assert bench.journal.stats().checkpoints == 1
    recovery = bench.reopen()

    assert list(recovery.checkpoint) == [(40, b"state")]
    assert [payload for _, _, payload in recovery.records] == [b"after"]


def test_a_checkpoint_is_that_of_the_position_where_it_began(bench: Bench) -> None:
    journal = bench.journal
    before = journal.append(30, b"in the state")
    position = journal.begin_checkpoint()
    after = journal.append(30, b"behind it")

    assert journal.is_checkpointing
    assert journal.begin_checkpoint() is None
    assert not journal.checkpoint([], [])
    assert journal.checkpoint([(40, b"state")], [array("Q", [before])], position)

    recovery = bench.reopen()
    assert list(recovery.checkpoint) == [(40, b"state")]
    assert list(recovery.records) == [(after, 30, b"behind it")]
    assert bench.journal.read(before) == (30, b"in the state")


def test_a_position_behind_the_beginning_of_a_checkpoint_is_refused(bench: Bench) -> None:
    journal = bench.journal
    journal.append(30, b"in the state")
    position = journal.begin_checkpoint()
    after = journal.append(30, b"behind it")

    journal.checkpoint([(40, b"state")], [array("Q", [after])], position)
    journal.flush()

    assert journal.stats().checkpoint_failures == 1
    assert not journal.is_checkpointing


def test_after_a_checkpoint_that_was_given_up_comes_the_next_one(bench: Bench) -> None:
    journal = bench.journal
    journal.append(30, b"in the state")
    assert journal.begin_checkpoint() is not None
    journal.give_up_checkpoint()

    assert not journal.is_checkpointing
    assert journal.checkpoint([(40, b"state")], [])

    assert list(bench.reopen().checkpoint) == [(40, b"state")]


def test_checkpoints_in_a_row_give_space_back(bench: Bench) -> None:
    journal = bench.journal
    sizes = []
    for _ in range(5):
        for _ in range(200):
            last = journal.append(20, b"x" * 100)
        journal.flush()
        assert journal.checkpoint([(40, b"s")], [array("Q", [last])])
        sizes.append(journal.stats().bytes_on_disk)

    assert max(sizes) < 60_000, "the last two rounds at most, of 22 kB each"
    assert journal.read(last) == (20, b"x" * 100)


def test_a_big_checkpoint_streams_back_whole(bench: Bench) -> None:
    records = [(40 + i % 3, bytes([i % 256]) * (i * 13 % 5000)) for i in range(1500)]
    records.append((50, b"huge" * 800_000))
    assert bench.journal.checkpoint(records, [])

    recovery = bench.reopen()

    assert list(recovery.checkpoint) == records


def test_after_a_failure_everyone_is_told_and_nothing_more_is_taken(bench: Bench) -> None:
    journal = bench.journal
    durable = journal.append(20, b"durable")
    journal.flush()
    told: list[JournalFailed | None] = []
    journal.append(20, b"doomed")
    journal.on_durable(told.append)
    bench.fail()

    journal.flush()

    assert journal.failed is not None
    assert journal.failed.reason
    assert told == [journal.failed]
    with pytest.raises(JournalFailed):
        journal.append(20, b"late")
    with pytest.raises(JournalFailed):
        journal.append_batch([(20, b"late"), (20, b"late")])
    with pytest.raises(JournalFailed):
        journal.checkpoint([], [])
    journal.on_durable(told.append)
    journal.flush()
    assert told == [journal.failed] * 2
    assert journal.durable <= journal.end
    assert journal.read(durable) == (20, b"durable")
    journal.close()


def test_the_epoch_grows_with_every_opening(bench: Bench) -> None:
    epochs = []
    for _ in range(3):
        recovery = bench.reopen()
        recovery.drain()
        epochs.append(recovery.epoch)

    assert epochs == sorted(set(epochs))


def test_a_closed_journal_takes_nothing_and_closes_twice(bench: Bench) -> None:
    bench.journal.close()
    bench.journal.close()

    with pytest.raises(JournalError):
        bench.journal.append(20, b"late")


def test_the_counters_count(bench: Bench) -> None:
    journal = bench.journal
    for _ in range(10):
        journal.append(20, b"x" * 90)
        journal.flush()

    stats = journal.stats()

    assert stats.records == 10
    assert stats.commits == stats.syncs == 10
    assert stats.bytes_written >= 10 * 99
    assert stats.bytes_on_disk >= 10 * 99


def test_the_journals_meet_the_protocol(tmp_path: Path) -> None:
    opened, recovery = open_journal(tmp_path, disk=OsDisk(tmp_path))
    recovery.drain()
    journals: list[Journal] = [MemoryJournal(), opened]

    for journal in journals:
        journal.close()
