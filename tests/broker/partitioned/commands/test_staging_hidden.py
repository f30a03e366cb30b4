"""A batch that several records publish: readers see all of it or nothing, also across crashes."""

from collections.abc import Generator
from dataclasses import replace
from random import Random

import msgspec
import pytest
from staging_site import NOW, QUEUES, Site, Steps, batch, finish

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.commands import admin, staging
from holtmq.broker.partitioned.commands.retention import ends_of
from holtmq.broker.partitioned.commands.staging import Staging
from holtmq.broker.partitioned.commands.staging_records import (
    Committed,
    PieceOfBatch,
    Publication,
    encode_record,
)
from holtmq.broker.partitioned.events import QueueDeleted
from holtmq.broker.partitioned.groups.joining import decide_seek
from holtmq.broker.partitioned.log.pending_visibility import PendingVisibility


@pytest.fixture(autouse=True)
def _tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ATOMIC_ROWS", 2)
    monkeypatch.setattr(staging, "PIECE_ROWS", 2)
    monkeypatch.setattr(staging, "STEP_ROWS", 1)


@pytest.fixture
def site() -> "Site":
    return Site()


def test_no_reader_sees_a_part_of_a_batch(site: Site) -> None:
    site.push("before")
    site.journal.flush()
    assert site.pop() == ["before"]
    steps = site.commit("w", 1, site.stage("w", 1))
    seen: list[list[str]] = []
    while True:
        try:
            next(steps)
        except StopIteration:
            break
        site.journal.flush()
        seen += [site.in_ranges(), site.for_groups(), ["before", *site.pop()]]
    assert seen == [["before"]] * len(seen)
    assert site.for_groups() == ["before"]  # the last record is not durable yet

    site.journal.flush()

    assert sorted(site.in_ranges()) == sorted(site.for_groups()) == ["before", *batch()]
    assert sorted(site.for_groups("r")) == site.pop("r") == batch(queue="r")
    assert site.pop() == batch()


def test_what_others_push_meanwhile_appears_with_the_batch(site: Site) -> None:
    steps = site.begin()
    site.push("between")
    site.push("elsewhere", queue="s")
    site.journal.flush()

    assert site.in_ranges() == site.for_groups() == []
    assert site.in_ranges("s") == site.for_groups("s") == ["elsewhere"]

    finish(steps)
    site.journal.flush()

    assert site.pop() == sorted(["between", *batch()])
    site.push("after")
    site.journal.flush()
    assert site.pop() == ["after"]


@pytest.mark.parametrize("with_checkpoint", [False, True])
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_batch_that_a_crash_interrupts_stays_hidden_until_it_is_complete(
    site: Site, with_checkpoint: bool, pieces: int
) -> None:
    site.push("before")
    site.begin(pieces=pieces)
    site.push("between")
    if with_checkpoint:
        site.checkpoint()
    site.journal.flush()

    site.crash()

    assert site.in_ranges() == site.for_groups() == site.pop() == ["before"]
    for _ in site.service.staging.finish(NOW):
        site.journal.flush()
        assert site.in_ranges() == site.for_groups() == ["before"]
        assert site.pop() == []
    site.journal.flush()
    assert site.pop() == sorted(["between", *batch()])
    assert site.pop("r") == batch(queue="r")
    site.checkpoint()
    site.crash()
    assert sorted(site.in_ranges()) == sorted(site.for_groups()) == sorted(["before", "between", *batch()])


def test_a_second_large_batch_begins_after_the_first(site: Site) -> None:
    first = site.begin("v")
    second = site.commit("w", 1, site.stage("w", 1))
    for _ in range(50):
        next(second)

    assert site.service.store.hidden_by("w") == {}

    finish(first)
    site.go_on(second, 1)

    assert site.pop() == batch("v")
    finish(second)
    site.journal.flush()
    assert site.pop() == batch("w")


def test_a_second_large_batch_completes_one_whose_request_is_gone(site: Site) -> None:
    site.begin("v").close()

    finish(site.commit("w", 1, site.stage("w", 1)))
    site.journal.flush()

    assert site.pop() == sorted(batch("v") + batch("w"))


def test_a_small_batch_waits_for_a_large_one(site: Site) -> None:
    steps = site.begin("v")

    finish(site.commit("w", 1, site.stage("w", 1, parts=1)))
    site.journal.flush()

    assert site.for_groups() == []
    finish(steps)
    site.journal.flush()
    assert site.pop() == sorted(batch("v") + batch("w", parts=1))


def test_a_queue_may_be_deleted_and_made_again_meanwhile(site: Site) -> None:
    steps = site.begin()
    store = site.service.store
    store.commit([(store.queues["q"].number, QueueDeleted())])
    site.push("new")
    site.journal.flush()

    assert site.pop() == ["new"]

    finish(steps)
    site.journal.flush()
    late = site.pop()
    assert late
    assert set(late) < set(batch())
    assert site.pop("r") == batch(queue="r")


def test_clearing_a_queue_leaves_what_is_hidden(site: Site) -> None:
    site.push("before")
    steps = site.begin()

    assert set(ends_of(site.service.store.queues["q"]).values()) <= {0, 1}
    deplete(admin.clear(site.service, site.service.store.queues["q"], None))

    finish(steps)
    site.journal.flush()
    assert site.pop() == batch()


def test_a_group_that_starts_at_the_end_gets_all_of_a_hidden_batch(site: Site) -> None:
    site.push("before")
    steps = site.begin()
    queue = site.service.store.queues["q"]
    for newest in (None, round(NOW * 1e6) + 10**9):
        assert decide_seek(queue, "late", newest).offset == 1
    finish(steps)
    site.journal.flush()
    assert decide_seek(queue, "late", None).offset == 1 + len(batch())


def test_the_size_limit_covers_the_whole_batch(site: Site) -> None:
    store = site.service.store
    site.push("before")
    queue = store.queues["q"]
    queue.config = replace(queue.config, max_size=len(batch()))
    winner = site.stage("w", 1)

    with pytest.raises(LimitReached, match="queue q is full"):
        finish(site.commit("w", 1, winner))

    assert site.rows() == 1
    queue.config = replace(queue.config, max_size=len(batch()) + 1)
    queue._room = None
    assert finish(site.commit("w", 1, winner)) == Committed(10, 0, False)


def test_former_versions_refuse_a_piece_and_their_pieces_stay_visible(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = encode_record(PieceOfBatch("w", 1, 0, b"", b"", [(0, 0, 1)]))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(piece, type=Publication)
    with monkeypatch.context() as former:
        former.setattr(staging, "PieceOfBatch", Publication)
        site.begin()
    site.crash()

    visible = site.pop()
    assert visible
    assert set(visible) < set(batch())
    for _ in site.service.staging.finish(NOW):
        pass
    site.journal.flush()
    assert sorted(visible + site.pop()) == batch()


class History:
    """A random history of two writers, a reader, pushes, checkpoints and crashes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.site = Site()
        self.commits: dict[str, tuple[int, Steps]] = {}
        self.next_batch = dict.fromkeys("vw", 1)
        self.published: dict[tuple[str, int], tuple[int, int]] = {}  # to parts and rows
        self.pushed: set[str] = set()
        self.popped: list[str] = []
        self.attempts = 0

    def run(self, steps: int) -> None:
        weights = {
            lambda: self.go_on(self.random.choice("vw")): 12,
            self.push: 2,
            self.pop: 2,
            self.sync: 3,
            self.checkpoint: 1,
            self.crash: 1,
            self.leave: 1,
        }
        for _ in range(steps):
            self.random.choices(list(weights), list(weights.values()))[0]()
            self.check()
        for writer in "vw":
            if (writer, self.next_batch[writer]) in self.published:
                self.begin(writer)
        while self.commits:  # in turn: one may wait for the other
            for writer in list(self.commits):
                self.go_on(writer)
        deplete(self.site.service.staging.finish(NOW))
        self.site.journal.flush()
        self.pop()
        assert sorted(self.popped) == sorted(
            [
                *self.pushed,
                *[name for key, size in self.published.items() for name in batch(*key, "q", *size)],
            ]
        )

    def go_on(self, writer: str) -> None:
        self.begin(writer)
        try:
            for _ in range(self.random.randint(1, 9)):
                next(self.commits[writer][1])
        except StopIteration:
            self.done(writer)

    def begin(self, writer: str) -> None:
        """Commit the writer's next batch, or again what was not answered."""
        if writer not in self.commits:
            number = self.next_batch[writer]
            size = self.published.get((writer, number)) or (
                self.random.randint(1, 4),
                self.random.randint(1, 3),
            )
            self.attempts += 1
            winner = self.site.stage(writer, number, *size, self.attempts)
            self.site.journal.flush()  # a task reports its rows after that
            self.published[writer, number] = size
            self.commits[writer] = (number, self.site.commit(writer, number, winner))

    def done(self, writer: str) -> None:
        self.site.journal.flush()  # else its client would repeat it
        self.next_batch[writer] = self.commits.pop(writer)[0] + 1

    def push(self) -> None:
        name = f"x{len(self.pushed)}"
        self.site.push(name, partition=f"p{self.random.randrange(3)}")
        self.site.journal.flush()
        self.pushed.add(name)

    def pop(self) -> None:
        if "q" in self.site.service.store.queues:
            self.popped += self.site.pop()
            self.site.journal.flush()

    def sync(self) -> None:
        self.site.journal.flush()

    def checkpoint(self) -> None:
        self.site.checkpoint()

    def crash(self) -> None:
        self.commits.clear()  # their clients repeat what was not answered
        self.site.crash()

    def leave(self) -> None:
        for _, steps in self.commits.values():
            steps.close()
        self.commits.clear()

    def check(self) -> None:
        for queue in QUEUES:
            for seen in (self.site.in_ranges(queue), self.site.for_groups(queue)):
                for (writer, number), size in self.published.items():
                    rows = set(batch(writer, number, queue, *size))
                    there = rows.intersection(seen)
                    assert there in (set(), rows), f"{writer} {number}: a part of the batch is visible"


def deplete(steps: Generator[None, None, object]) -> None:
    for _ in steps:
        pass


def test_random_histories_show_each_batch_whole_and_once() -> None:
    for seed in range(60):
        History(seed).run(40)


def find(words: str) -> None:
    with pytest.raises(AssertionError, match=words):  # noqa: PT012
        for seed in range(300):
            History(seed).run(40)


def test_pieces_that_are_not_hidden_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingVisibility, "hide", lambda *_: None)

    find("a part of the batch is visible")


def test_a_checkpoint_that_forgets_what_is_hidden_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingVisibility, "hidden_by", lambda *_: {})

    find("a part of the batch is visible")


def test_large_batches_within_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(_: Staging, __: float) -> Generator[None, None, None]:
        yield from ()

    monkeypatch.setattr(Staging, "_await_others", at_once)
    monkeypatch.setattr(Staging, "_is_alone", lambda _: True)

    find("a part of the batch is visible")
