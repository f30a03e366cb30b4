"""What a pop may hand out, and when its answer may go out."""

from collections.abc import Callable, Sequence

import pytest

from holtmq.broker.partitioned.commands import popping
from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.commands.staging_records import StagedRow, Winner
from holtmq.broker.partitioned.extras.timers import Timed, TimedChange
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import AckRequest, Popped, PopRequest, PushItem, Waiter
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.partitioned.waiting import waiting_pops
from holtmq.journal import JournalCorrupt, JournalFailed, MemoryJournal


@pytest.fixture
def service() -> PartitionedService:
    """On a journal that is durable when it is flushed; the nameless group has joined queue "q"."""
    service = PartitionedService(MemoryJournal(), Settings(0, "all"))
    push(service, "p", "a", "b")
    assert service.pop(PopRequest("l0", "q", partition="other"), 0.0) is None
    service.journal.flush()
    return service


def push(service: PartitionedService, partition: str, *ids: str) -> None:
    service.push([PushItem("q", partition, Body(name, b"1")) for name in ids], 0.0)


def ids(popped: Popped | None) -> list[str]:
    return [] if popped is None else [body.transaction_id for run in popped.runs for body in run.bodies]


def test_nobody_gets_a_message_that_is_not_durable_yet_and_nobody_waits_for_it(
    service: PartitionedService,
) -> None:
    push(service, "p", "c")
    push(service, "p2", "d")

    old = service.pop(PopRequest("l1", "q", limit=9, most_partitions=9), 0.0)

    assert ids(old) == ["a", "b"]
    assert old is not None
    assert not old.waits
    assert service.pop(PopRequest("l2", "q", partition="p2"), 0.0) is None
    service.journal.flush()
    assert ids(service.pop(PopRequest("l3", "q", limit=9, most_partitions=9), 0.0)) == ["d"]


def test_a_waiting_pop_is_served_when_the_message_is_durable(service: PartitionedService) -> None:
    got: list[Popped] = []
    service.wait(Waiter(PopRequest("l1", "q", partition="new"), got.append), 0.0)
    push(service, "new", "c")
    service.turn(0.0)
    assert got == []

    service.journal.flush()
    service.turn(0.0)

    assert [ids(popped) for popped in got] == [["c"]]


def test_a_partition_looked_at_too_early_is_offered_again_when_its_messages_show(
    service: PartitionedService,
) -> None:
    held = service.pop(PopRequest("l1", "q", limit=9), 0.0)
    push(service, "p2", "c")
    assert service.pop(PopRequest("l2", "q", limit=9), 0.0) is None  # takes p2 out of the line

    service.journal.flush()

    assert ids(held) == ["a", "b"]
    assert ids(service.pop(PopRequest("l3", "q", limit=9), 0.0)) == ["c"]


def test_after_a_failure_of_the_disk_nothing_is_handed_out(service: PartitionedService) -> None:
    push(service, "p2", "c")
    assert isinstance(service.journal, MemoryJournal)

    service.journal.fail("the disk is gone")

    with pytest.raises(JournalFailed):  # "c" was taken back, and of the others no ack could be kept
        service.pop(PopRequest("l2", "q", limit=9), 0.0)


def test_staged_rows_show_when_their_commit_is_durable(service: PartitionedService) -> None:
    rows = [StagedRow("q", "p2", Body("staged", b"1"))]
    service.staging.stage("w", 1, 0, 0, 0, rows, 0.0)
    service.journal.flush()  # so the bodies are durable
    list(service.staging.commit("w", 1, [Winner(0, 0, 1)], 0.0))

    assert service.pop(PopRequest("l1", "q", partition="p2"), 0.0) is None
    assert service.store.queues["q"].log.durable_end == 2
    service.journal.flush()
    assert service.store.queues["q"].log.durable_end == 3
    assert ids(service.pop(PopRequest("l2", "q", partition="p2"), 0.0)) == ["staged"]


def test_a_pop_waits_for_the_journal_only_if_it_wrote(service: PartitionedService) -> None:
    settled = service.pop(PopRequest("l1", "q", auto_ack=True), 0.0)
    leased = service.pop(PopRequest("l2", "q"), 0.0)
    joined = service.pop(PopRequest("l3", "q", group="g"), 0.0)

    assert [popped.waits for popped in (settled, leased, joined) if popped is not None] == [True, False, True]


def test_an_ack_cannot_name_a_message_that_is_not_durable_yet(service: PartitionedService) -> None:
    push(service, "p", "c")
    queue = service.store.queues["q"]
    acks = [AckRequest(queue.number, 0, "g", name, AckStatus.DEAD_LETTER) for name in ("b", "c")]

    early = service.ack(acks, 0.0)
    service.journal.flush()
    late = service.ack(acks[1:], 0.0)

    assert [answer.outcome.verdict.value for answer in early + late] == [
        "failed_dlq",
        "not_found",
        "failed_dlq",
    ]


def test_a_message_that_waits_too_long_for_the_disk_is_no_dead_letter(service: PartitionedService) -> None:
    configure(service, "q", None, None, {"max_wait_seconds": 5, "dead_letter_queue": True}, 0.0)
    service.journal.flush()
    push(service, "p", "c")
    queue = service.store.queues["q"]

    service.retain(60.0)
    early = [letter.position for letter in queue.dead_letters]
    service.journal.flush()
    service.retain(60.0)

    assert early == [0, 1]
    assert [letter.position for letter in queue.dead_letters] == [0, 1, 2]


@pytest.mark.parametrize("auto_ack", [False, True])
def test_a_pop_that_fails_leaves_its_partition_to_the_next(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch, auto_ack: bool
) -> None:
    def unreadable(_positions: Sequence[int]) -> list[Body]:
        raise OSError("the file could not be read")

    with monkeypatch.context() as patch:
        patch.setattr(service.store, "bodies", unreadable)
        with pytest.raises(OSError, match="could not be read"):
            service.pop(PopRequest("l1", "q", auto_ack=auto_ack), 0.0)

    again = service.pop(PopRequest("l2", "q", limit=9), 0.0)

    assert ids(again) == ["a", "b"]
    assert again is not None
    assert again.runs[0].delivery.attempt == 1


def test_after_a_failure_of_the_disk_a_due_timer_and_a_waiting_pop_raise_nothing_and_get_nothing(
    service: PartitionedService,
) -> None:
    timer = Timed("q", "key", "p", "timed", b"1", 5_000_000, "id")
    service.store.commit((), state_records=service.timed.record(TimedChange([timer])))
    service.journal.flush()
    due: list[Callable[[], None]] = []
    served: list[str] = []
    service.line.at = lambda _, action: due.append(action)
    service.plan_timed()
    service.pop(PopRequest("l1", "q", limit=9, lease_seconds=5), 0.0)
    service.wait(Waiter(PopRequest("l2", "q", limit=9), lambda popped: served.extend(ids(popped))), 0.0)
    assert isinstance(service.journal, MemoryJournal)
    service.journal.fail("the disk is gone")

    for action in due:
        action()
    service.turn(5.0)

    assert served == []


@pytest.mark.parametrize("wide", [False, True])
def test_a_waiting_pop_that_fails_gives_up_and_holds_nobody_else_up(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    told: list[str] = []
    turns: list[None] = []
    service.line.on_dirty = lambda: turns.append(None)
    first = PopRequest("l1", namespace="ns") if wide else PopRequest("l1", "ns.broken")
    for request in (first, PopRequest("l2", "ns.whole", group="g")):
        waiter = Waiter(request, lambda popped: told.extend(ids(popped)), lambda: told.append("gave up"))
        service.wait(waiter, 0.0)
    read = service.store.bodies

    def read_badly(positions: Sequence[int]) -> list[Body]:
        bodies = read(positions)
        if any(body.transaction_id == "damaged" for body in bodies):
            raise JournalCorrupt("a bit fell over")
        return bodies

    monkeypatch.setattr(service.store, "bodies", read_badly)
    service.push([PushItem("ns.broken", "p", Body("damaged", b"1"))], 0.0)
    service.push([PushItem("ns.whole", "p", Body("fine", b"1"))], 0.0)
    service.journal.flush()

    failures = 0
    while turns:
        turns.pop()
        try:
            service.turn(0.0)
        except JournalCorrupt:
            failures += 1

    assert failures == 1
    assert sorted(told) == ["fine", "gave up"]
    assert len(service.line) == 0


def test_names_of_partitions_that_were_popped_once_do_not_pile_up(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "_JOINED_MAX", 8)

    for number in range(50):
        assert service.pop(PopRequest("l", "q", partition=f"never-{number}"), 0.0) is None
    written = service.journal.end
    assert ids(service.pop(PopRequest("l1", "q", partition="p", limit=9), 0.0)) == ["a", "b"]

    assert len(service._popping._joined) <= 8
    assert service.journal.end == written


def test_very_many_waiting_pops_are_served_in_turns(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_pops, "TRIES_AT_ONCE", 3)
    turns: list[None] = []
    service.line.on_dirty = lambda: turns.append(None)
    served: list[str] = []
    for number in range(8):
        request = PopRequest(f"l{number}", "many", partition=f"p{number}" if number % 2 else "", group="g")
        service.wait(Waiter(request, lambda popped: served.extend(ids(popped))), 0.0)
    for number in range(8):
        service.push([PushItem("many", f"p{number}", Body(f"t{number}", b"1"))], 0.0)
    service.journal.flush()
    rounds: list[int] = []

    while turns:
        turns.clear()
        before = len(served)
        service.turn(0.0)
        rounds.append(len(served) - before)

    assert max(rounds) <= 3
    assert sorted(served) == ["t0", "t1", "t2", "t3", "t5", "t7"]  # the first four took any partition
    assert len(service.line) == 2


def test_ended_leases_are_forgotten_a_few_at_a_time(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "_FEW_HOMES", 8)
    service.push([PushItem("held", "p", Body("held", b"1"))], 0.0)
    service.journal.flush()
    assert service.pop(PopRequest("kept", "held", lease_seconds=1e6), 0.0) is not None

    for number in range(100):
        push(service, f"x{number}", f"t{number}")
        service.journal.flush()
        request = PopRequest(f"l{number}", "q", partition=f"x{number}", lease_seconds=1)
        assert service.pop(request, 10.0 * number) is not None

    assert [home.name for home in service._popping.homes("kept")] == ["held"]
    assert len(service._popping._homes) < 8 + 4
