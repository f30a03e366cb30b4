"""Simulated histories keep every promise, repeat exactly, and find planted bugs quickly."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from holtmq.amqp import committing, transaction
from holtmq.amqp.channel import Channel
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.methods import BasicPublish
from holtmq.broker.broker import Broker
from holtmq.broker.dead_lettering import DeadLettering
from holtmq.broker.flow import Flow, PublishOutcome
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands import acking
from holtmq.broker.partitioned.events import Acked, encode
from holtmq.broker.partitioned.groups import acknowledgment
from holtmq.broker.partitioned.groups.acknowledgment import Settlement
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.dedup import DedupIndex
from holtmq.broker.partitioned.log.pending_visibility import PendingVisibility
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.store import _EVENTS, Change, PartitionedStore
from holtmq.broker.partitioned.waiting.waiting_pops import WaitingLine
from holtmq.broker.publish import prepared
from holtmq.broker.publish.placings import Placings
from holtmq.broker.publish.prepared import PreparedPublishes
from holtmq.broker.publish.routes import Route
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.recovered_queue import RecoveredQueue
from holtmq.broker.work.leases import Ledger
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.file_journal import FileJournal
from simulation import STEPS, simulate, soak
from simulation.__main__ import main
from simulation.planted import find
from simulation.world import World

SEEDS = int(os.environ.get("HOLT_SIMULATION_SEEDS", "300"))
_WORKERS = 4

pytestmark = pytest.mark.timeout(600)  # two minutes on a machine with a load of 15


@pytest.mark.timeout(300 + SEEDS)
@pytest.mark.parametrize("part", range(_WORKERS))
def test_every_history_keeps_every_promise(part: int) -> None:
    for seed in range(part, SEEDS, _WORKERS):
        simulate(seed)


def test_every_history_with_commits_in_short_steps_keeps_every_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (transaction, committing):
        monkeypatch.setattr(module, "STEP", 2)
    monkeypatch.setattr(prepared, "_JOIN", 1)
    short, write = World.turn, PreparedPublishes.write
    written = 0

    def turn(world: World) -> None:
        short(world)
        for _ in range(4):  # steps
            world.broker.flow.tick()

    def counted(publishes: PreparedPublishes, records: list[tuple[int, bytes]]) -> list[int]:
        nonlocal written
        written += 1
        return write(publishes, records)

    monkeypatch.setattr(World, "turn", turn)
    monkeypatch.setattr(PreparedPublishes, "write", counted)
    for seed in range(88_000_000, 88_000_000 + max(SEEDS // 8, 40)):
        simulate(seed)
    assert written


def test_a_seed_is_the_same_history_every_time_and_in_every_process() -> None:
    here = [simulate(seed).digest for seed in range(4)]
    script = (
        "import logging; logging.disable(50); from simulation import simulate;"
        "print(*[simulate(seed).digest for seed in range(4)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}

    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()

    assert here == there
    assert len(set(here)) == 4


def test_confirming_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(journal: FileJournal, callback: object) -> None:
        callback(None)  # type: ignore[operator]

    monkeypatch.setattr(FileJournal, "on_durable", hasty)
    monkeypatch.setattr(FileJournal, "durable", FileJournal.end)

    find("lost=['", "not as promised")


def test_a_confirm_after_the_first_step_of_a_publish_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(channel: Channel, route: Route, *rest: Any) -> Iterator[None]:
        steps = channel.flow.publishing.take_steps()
        with answering_late(channel, BasicPublish):
            next(steps)
            yield
            next(steps)
            channel._published(PublishOutcome.JOURNALLED, route, *rest)
            channel.tell_confirms()
            yield
            yield from steps

    monkeypatch.setattr(Channel, "_publish_in_steps", hasty)

    find("neither waiting nor leased: ['wide-", "lost=['wide-")


def test_a_publish_that_overtakes_one_in_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(channel: Channel, *message: Any) -> Iterator[None]:
        channel.connection.unstall()
        yield from publish_in_steps(channel, *message)
        channel.connection.stall()

    publish_in_steps = Channel._publish_in_steps
    monkeypatch.setattr(Channel, "_publish_in_steps", hasty)

    find("neither waiting nor leased: ['wide-", "disordered=['wide-")


def test_dead_letters_of_which_only_the_first_step_is_done_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DeadLettering.cast_out_some

    def once(dead_lettering: DeadLettering, queue: WorkQueue) -> bool:
        whole(dead_lettering, queue)
        queue.outcasts.take_all()
        return True

    monkeypatch.setattr(DeadLettering, "cast_out_some", once)

    find("neither waiting nor leased", "lost=['")


def test_a_message_that_shows_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingVisibility, "add", lambda pending, *push: pending._show(*push))

    find("claimable was")


def test_a_message_that_nobody_is_told_of_when_it_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionedStore, "_show", lambda store, queue, event: queue.show(event))

    find("waits while there is")


def test_a_lease_that_is_not_released_on_channel_close_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(
        channel: Channel, then: Callable[[], None] = lambda: None, *, are_removed: bool = False
    ) -> None:
        channel.closing = True
        for consumer in [] if are_removed else channel.consumers.values():
            consumer.queue.remove_consumer(consumer)
        channel.consumers = {}
        channel.ledger.end_all()
        channel.broker.sessions.discard(channel.ledger)
        then()

    monkeypatch.setattr(Channel, "close", forgetful)

    find("unacked, holders have 0")


def test_an_ack_that_recovery_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecoveredQueue, "settle", lambda *_: None)

    find("after a crash", "after a restart")


def test_a_transaction_over_both_kinds_written_in_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append_batch = FileJournal.append_batch

    def in_pieces(journal: FileJournal, records: list[tuple[int, bytes]]) -> list[int]:
        ours = [record for record in records if record[0] >= Kind.PARTITIONED]
        if not ours:
            return append_batch(journal, records)
        positions = iter(append_batch(journal, ours))
        if len(ours) < len(records):
            journal.flush()  # another commit comes between the two
        return [
            next(positions) if kind >= Kind.PARTITIONED else journal.append(kind, payload)
            for kind, payload in records
        ]

    monkeypatch.setattr(FileJournal, "append_batch", in_pieces)

    find("torn=['")


def test_messages_put_back_at_the_wrong_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def behind(queue: WorkQueue, messages: list[object], *_: object) -> None:
        for message in messages:
            queue.push(message)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkQueue, "restore", behind)

    find("delivered after a later message", "disordered=['")


def test_an_ack_that_is_never_journalled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    turn_queue = Flow._turn_queue

    def lossy(flow: Flow, queue: WorkQueue) -> None:
        queue.settled.clear()
        turn_queue(flow, queue)

    monkeypatch.setattr(Flow, "_turn_queue", lossy)

    find("undone=['")


def test_a_multiple_ack_that_misses_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    end_upto = Ledger.end_upto
    monkeypatch.setattr(Ledger, "end_upto", lambda ledger, number: end_upto(ledger, number)[:-1])

    find("unacked, holders have")


def test_a_delayed_message_that_a_full_queue_drops_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placings, "must_wait", lambda *_: False)

    find("neither waiting nor leased")


def test_a_command_applied_before_its_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = PartitionedStore.commit

    def hasty(
        store: PartitionedStore,
        changes: list[Change],
        records: list[bytes] = [],  # noqa: B006
        bodies: list[Body] = [],  # noqa: B006
        state_records: list[StateRecord] = [],  # noqa: B006
        work_records: list[StateRecord] = [],  # noqa: B006
    ) -> list[int]:
        if records or state_records or work_records:
            return commit(store, changes, records, bodies, state_records, work_records)
        store._apply(changes, [])
        return store.journal.append_batch([(_EVENTS, b"".join(encode(*change) for change in changes))])[:0]

    monkeypatch.setattr(PartitionedStore, "commit", hasty)

    find("that the journal refused changed the partitioned queues", first=30)


def test_a_partition_lease_that_is_not_released_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    acked = PartitionedQueue._acked

    def forgetful(queue: PartitionedQueue, event: Acked) -> None:
        acked(queue, msgspec.structs.replace(event, released=False))

    monkeypatch.setattr(PartitionedQueue, "_acked", forgetful)

    find(
        "under a lease that is over",
        "should have been refused",
        "claimable",
        " of {",
        "waits while there is",
    )


def test_a_cursor_moved_by_a_nack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = acknowledgment.settle

    def skipping(*arguments: object) -> Settlement:
        settlement = settle(*arguments)  # type: ignore[arg-type]
        return replace(settlement, cursor=settlement.cursor + 1) if settlement.failed else settlement

    monkeypatch.setattr(acking, "settle", skipping)

    find("acks {")


def test_an_http_transaction_written_in_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = PartitionedStore.commit

    def in_two(
        store: PartitionedStore, changes: list[Change], *rest: list[bytes], **more: list[StateRecord]
    ) -> list[int]:
        acks = [change for change in changes if isinstance(change[1], Acked)]
        others = [change for change in changes if not isinstance(change[1], Acked)]
        if acks and others:
            commit(store, acks)
            changes = others
        return commit(store, changes, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionedStore, "commit", in_two)

    find("the partitioned queues are not as promised", first=100)


def test_deduplication_that_a_checkpoint_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DedupIndex, "rebuild", lambda index: None)

    find("duplicates", "messages: expected", first=100)


def test_a_waiting_pop_that_a_deadline_does_not_wake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingLine, "_deadline", lambda *_: None)

    find("waits while there is")


def test_histories_leave_no_broker_behind() -> None:
    def brokers() -> list[object]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is Broker]  # isinstance wakes others' proxies

    before = set(map(id, kept := brokers()))  # kept, or another test's broker could end and lend its id
    for seed in range(10):
        simulate(seed)

    assert [one for one in brokers() if id(one) not in before] == []
    assert len(kept) == len(before)


def test_soak_counts_histories_and_shows_one_on_request() -> None:
    many = CliRunner().invoke(main, ["--seeds", "5", "--first", "7"])
    one = CliRunner().invoke(main, ["--seed", "3"])

    assert (many.exit_code, one.exit_code) == (0, 0)
    assert "| schedules (seeds) | 5 (7 to 11) |" in many.output
    assert "| broken promises | 0 |" in many.output
    assert "_publishes" in one.output
    assert "History(seed=3" in one.output


def test_soak_names_the_seed_of_every_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecoveredQueue, "settle", lambda *_: None)

    total = soak.run_portion(list(range(40)), STEPS, None)

    assert total.findings
    assert all("--seed" in finding for finding in total.findings)
    assert total.findings[0] in total.report(0)
