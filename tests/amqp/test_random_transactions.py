"""Random transactions with rejections and returns: in steps they end as in one go, also across crashes."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from amqp_support import NOW_MS, Client, finish, publish
from rejections_support import SOURCES, TARGETS, hold, restarted, set_up, waiting

from holtmq.amqp import committing, transaction
from holtmq.amqp.methods import BasicAck, BasicGet, BasicNack, TxCommit, TxRollback, TxSelect
from holtmq.broker.broker import Broker
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.turn_limits import TurnLimits
from holtmq.journal import JournalOptions, MemoryJournal, open_journal
from holtmq.journal.fake_disk import FakeDisk, Keep
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable


@contextmanager
def no_commit_in_one_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(_: object) -> None:
        raise AssertionError("this transaction can be committed in steps")

    with monkeypatch.context() as patched:
        patched.setattr(transaction.Transaction, "commit", refuse)
        yield


def contents(broker: Broker, after_restart: bool = False) -> dict[str, object]:
    """What a client can see of the messages, and what a restart must bring back."""
    broker.flow.complete()
    found: dict[str, object] = {}
    for queue in broker.work_queues():
        messages = waiting(broker, queue)
        later = [m for part in queue.held_back.values() for m in part]
        is_counted = queue.options.deliveries_allowed is not None or not after_restart
        found[queue.name] = (
            [(m.body, m.header, m.address, m.priority, m.persistent) for m in messages],
            [queue.returned.get(m.seq) for m in messages + later if is_counted],
            sorted(m.body for m in later),
            queue.bytes,
        )
    return found


def figures(broker: Broker) -> dict[str, object]:
    vhost = broker.vhost("/")
    found: dict[str, object] = {"letters": broker.flow.dead_lettering.count}
    for name, exchange in vhost.exchanges.items():
        found[f"exchange {name}"] = (exchange.published, exchange.more_copies)
    for queue in broker.work_queues():
        counts = queue.figures
        letters = counts.dead_letters.within_a_day(NOW_MS) if counts.dead_letters else None
        found[queue.name] = (
            queue.unacked,
            counts.totals(queue),
            counts.dropped,
            counts.returned,
            letters,
            len(queue.returned),
            queue.expiring,
        )
    return found


class History:
    """Random transactions of one client; the same for the same seed, however they are committed."""

    def __init__(self, seed: int, journal: MemoryJournal) -> None:
        self.rng = random.Random(seed)
        self.journal = journal
        self.client = set_up(journal)
        self.other = Client(self.client.broker)
        self.number = 0
        self.tags: list[int] = []
        self.last_tag = 0
        self.partial = 0  # commits that a full queue has refused in part

    def _message(self, *more_keys: str) -> bytes:
        rng = self.rng
        self.number += 1
        headers: FieldTable = {"n": self.number}
        if rng.random() < 0.2:
            headers["CC"] = [rng.choice(["dead-2", "a"])]
        properties = Properties(
            delivery_mode=rng.choice([1, 2, 2]),
            priority=rng.choice([None, 0, 1, 3, 9]),
            expiration=rng.choice([None, None, "100000"]),
            headers=headers,
        )
        key = rng.choice([*SOURCES, "passing", "nowhere", *more_keys])
        return publish(b"%d" % self.number, key, properties)

    def transaction(self, checkpoint: Callable[[str], None]) -> None:
        """Publish, take, settle, publish, commit."""
        rng, client = self.rng, self.client
        self.other.feed(b"".join(self._message("own") for _ in range(rng.randrange(50))))
        for _ in range(rng.randrange(60)):
            queue = rng.choice([*SOURCES, *TARGETS, "passing"])
            if len(client.queue(queue)):
                client.call(BasicGet(queue))
                self.last_tag += 1
                self.tags.append(self.last_tag)
        while self.tags and rng.random() < 0.9:
            self._settle()
        keys = [] if rng.random() < 0.7 else ["tight", "passing-on", "own"] * 5
        client.feed(b"".join(self._message(*keys) for _ in range(rng.randrange(12))))
        checkpoint("before")
        if rng.random() < 0.1:
            client.call(TxRollback())
            finish(client)
            client.call(BasicNack(0, multiple=True, requeue=True))
            finish(client)
            self.tags = []
        client.call(TxCommit())
        checkpoint("amid")
        self.journal.flush()
        finish(client)
        checkpoint("after")
        client.broker.flow.complete()
        self.journal.flush()
        if client.failure is not None:  # partial completion closes the channel
            self.partial += 1
            finish(client)
            self.client = Client(client.broker)
            self.client.call(TxSelect())
            self.tags, self.last_tag = [], 0

    def _settle(self) -> None:
        rng = self.rng
        tag = rng.choice(self.tags)
        multiple = rng.random() < 0.2
        ended = [one for one in self.tags if one == tag or (multiple and one < tag)]
        self.tags = [one for one in self.tags if one not in ended]
        if rng.random() < 0.3:
            self.client.call(BasicAck(tag, multiple))
        else:
            self.client.call(BasicNack(tag, multiple, requeue=rng.random() < 0.5))
        finish(self.client)


@pytest.mark.parametrize("seed", range(30))
def test_a_commit_in_steps_does_what_one_in_one_go_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[list[object]] = []
    moments = random.Random(seed).choices(["", "before", "amid", "after"], k=6)
    for in_steps in (False, True):
        monkeypatch.setattr(committing, "STEP", 2)
        monkeypatch.setattr(transaction, "STEP", -1 if in_steps else 1 << 40)
        journal = MemoryJournal()
        history = History(seed, journal)
        broker = history.client.broker
        if in_steps:
            broker.flow.per_turn = TurnLimits(returned=2)
            monkeypatch.setattr(transaction, "_RESTORED", 2)
        seen: list[object] = []
        for moment in moments:

            def checkpoint(now: str, moment: str = moment) -> None:
                if now == moment:
                    assert journal.checkpoint(*snapshot(broker))  # noqa: B023
                    journal.flush()  # noqa: B023

            if in_steps:
                with no_commit_in_one_go(monkeypatch):
                    history.transaction(checkpoint)
            else:
                history.transaction(checkpoint)
            broker.flow.complete()
            seen += [
                history.partial,
                contents(broker),
                figures(broker),
                contents(restarted(journal).broker, after_restart=True),
            ]
        results.append(seen)

    for in_one_go, in_steps_ in zip(*results, strict=True):
        assert in_steps_ == in_one_go


@pytest.mark.parametrize("operations", [0, 1, 2, 9])
@pytest.mark.parametrize("with_checkpoint", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_a_power_cut_leaves_all_of_a_transaction_or_nothing(
    monkeypatch: pytest.MonkeyPatch, operations: int, with_checkpoint: bool, late: bool
) -> None:
    monkeypatch.setattr(transaction, "STEP", 3)
    monkeypatch.setattr(committing, "STEP", 3)
    ends: set[tuple[int, ...]] = set()
    for seed in range(15):
        disk, options = FakeDisk(seed), JournalOptions(segment_bytes=1 << 16)
        journal, nothing = open_journal("", options, disk=disk)
        assert not list(nothing.records)
        client = set_up(journal)
        for queue in ("a", "both", "plain"):
            hold(client, queue)
        if late:  # deliveries that were taken back
            ledger = client.connection.channels[1].ledger
            holders = {lease.holder for lease in ledger.by_number.values()}
            for holder in filter(None, holders):
                client.broker.flow.release(ledger.revoke(holder))
        journal.flush()
        client.call(BasicNack(20, multiple=True, requeue=False), BasicAck(25, multiple=True))
        client.feed(publish(b"new", "plain", Properties(delivery_mode=2)))
        for _ in range(5):
            client.feed(publish(b"new", "tight", Properties(delivery_mode=2)))  # which refuses two of them
        client.call(TxCommit())
        while late and not client.queue("both").unacked:
            client.broker.flow.tick()
            client.broker.flow.turn()
        if with_checkpoint:
            assert journal.checkpoint(*snapshot(client.broker))
            journal.flush()
        while client.broker.long_changes:
            client.broker.flow.tick()
            client.broker.flow.turn()
        assert len(client.queue("dead")) == 20
        disk.cut_power_after(operations)
        journal.flush()
        disk.crash(Keep.SECTORS)

        again, found = open_journal("", options, disk=disk)
        broker = Broker(again)
        recover(broker, found)
        broker.flow.turn()
        names = ("a", "both", "plain", "dead", "dead-2", "tight")
        ends.add(tuple(len(Client(broker).queue(name)) for name in names))

    assert ends <= {(10, 10, 10, 0, 0, 0), (0, 0, 6, 20, 10, 3)}
    assert operations < 9 or ends == {(0, 0, 6, 20, 10, 3)}
