"""Large transactions with messages for streams go in steps, and leave what a commit in one go leaves."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from amqp_support import NOW_MS, Client, finish, new_broker, numbers, publish, step

from holtmq.amqp import committing, transaction
from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicReturn,
    Method,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.log import dedup
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.streams import prepared_pushes
from holtmq.broker.streams.envelopes import to_body
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties

LASTING = Properties(delivery_mode=2)
STREAM = {"x-queue-type": "stream"}


class Site:
    """A broker with work queue ``q`` and streams ``s`` and ``t``; ``amq.fanout`` leads to the first two."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.service = PartitionedService(self.journal)
        self.broker = new_broker(self.journal, self.service)
        broker, vhost = self.broker, self.broker.vhost("/")
        broker.declare_queue(vhost, "q", durable=True)
        for name in ("s", "t"):
            broker.declare_queue(vhost, name, durable=True, arguments=dict(STREAM))
        for name in ("q", "s"):
            broker.bind(vhost, "amq.fanout", name, "")
        broker.exchanges.declare(
            vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        broker.bind(vhost, "late", "t", "")
        self.client = self.open()

    def open(self) -> Client:
        """A transactional channel."""
        client = Client(self.broker)
        client.call(TxSelect())
        self.journal.flush()
        client.told()
        return client

    def crash(self) -> None:
        """Start again with what is durable."""
        now_ms = self.broker.flow.now_ms
        self.journal, found = self.journal.restart()
        self.service = PartitionedService(self.journal)
        self.broker = Broker(self.journal)
        streams = self.broker.attach(self.service)
        self.broker.flow.now_ms = now_ms
        recover(self.broker, found, self.service.store)
        streams.follow()
        self.client = self.open()

    def checkpoint(self) -> None:
        self.broker.flow.turn()
        assert self.journal.checkpoint(*snapshot(self.broker, self.service.store))
        self.journal.flush()

    def commit(self) -> tuple[int, list[Method]]:
        """How many steps it took to the answer, and the answers."""
        answers = self.client.call(TxCommit())
        steps = 0
        while TxCommitOk() not in answers and self.broker.long_changes:
            answers += step(self.client)
            steps += 1
        self.journal.flush()
        return steps, answers + self.client.told() + finish(self.client)

    def stream(self, name: str) -> list[tuple[str, bytes]]:
        """The visible messages: partition and body."""
        log = self.service.store.queues.get(name)
        if log is None:
            return []
        offsets = list(log.log.live_offsets(0, log.log.durable_end))
        names = {index: name for name, index in log.indexes.items()}
        return [
            (names[log.log.partition(at)], to_body(self.service.store.body(log.log.position(at)).payload))
            for at in offsets
        ]

    def bodies(self, name: str = "s") -> list[bytes]:
        return [body for _, body in self.stream(name)]

    def wait(self, ms: int) -> None:
        flow = self.broker.flow
        flow.now_ms += ms
        while (due := flow.timers.next_due()) is not None and due * 1000 <= flow.now_ms:
            step(self.client)

    def kept(self) -> tuple[object, ...]:
        """All that a client could find."""
        fifo = self.client.queue().fifo
        assert fifo is not None
        waiting = [message.body for message in fifo.browse(self.broker.flow.pager)]
        delays = sorted(due for _, due in self.broker.flow.delayed.values())
        return waiting, self.stream("s"), self.stream("t"), delays


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "STEP", 3)
    monkeypatch.setattr(committing, "STEP", 3)
    monkeypatch.setattr(dedup, "_ADOPTED", 5)
    monkeypatch.setattr(prepared_pushes, "_AT_ONCE", 2)
    monkeypatch.setattr(prepared_pushes, "_EXPIRED", 3)


@pytest.fixture
def site() -> Site:
    return Site()


def test_messages_for_a_stream_come_with_the_others_at_one_moment(site: Site) -> None:
    other = Client(site.broker)
    other.feed(publish(b"before", "s"))
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.client.feed(b"".join(publish(body, "q", LASTING) for body in numbers(3)))
    site.client.call(TxCommit())
    seen: list[tuple[int, int]] = []
    answers: list[Method] = []
    while not answers:
        seen.append((len(site.bodies()), len(site.client.queue())))
        other.feed(publish(b"meanwhile", "s"))
        answers = step(site.client)
    other.feed(publish(b"after", "s"))
    site.journal.flush()

    assert answers == [TxCommitOk()]
    assert len(seen) > 5
    assert [in_queue for _, in_queue in seen] == [0] * len(seen)
    assert site.bodies() == [b"before", *[b"meanwhile"] * len(seen), *numbers(8), b"after"]
    site.crash()
    assert site.bodies()[-9:] == [*numbers(8), b"after"]
    assert site.client.bodies() == numbers(3)


def test_a_crash_before_the_end_leaves_nothing_on_the_stream(site: Site) -> None:
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.client.call(TxCommit())
    step(site.client)

    site.crash()

    assert site.bodies() == []


def test_a_partition_is_chosen_by_header_or_key_and_may_be_new(site: Site) -> None:
    broker, vhost = site.broker, site.broker.vhost("/")
    broker.bind(vhost, "amq.topic", "s", "#")
    for number, body in enumerate(numbers(9)):
        properties = Properties(delivery_mode=2, headers={"x-partition": "chosen" if number % 3 == 0 else ""})
        site.client.feed(publish(body, f"key-{number % 2}", properties, exchange="amq.topic"))

    steps, answers = site.commit()

    assert (steps > 5, answers) == (True, [TxCommitOk()])
    wanted = ["chosen" if number % 3 == 0 else f"key-{number % 2}" for number in range(9)]
    assert site.stream("s") == list(zip(wanted, numbers(9), strict=True))


@pytest.mark.parametrize("before", [[], [b"0"]])
def test_a_partition_that_appears_meanwhile_is_found(site: Site, before: list[bytes]) -> None:
    properties = Properties(headers={"x-partition": "old"})
    Client(site.broker).feed(b"".join(publish(body, "s", properties) for body in before))
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.client.call(TxCommit())
    step(site.client)
    site.service.push([PushItem("s", "new", Body("id", b"1"))], NOW_MS / 1000)

    finish(site.client)
    site.journal.flush()

    assert site.stream("s")[len(before) :] == [("new", b"1"), *[("s", body) for body in numbers(8)]]


@pytest.mark.parametrize("room", [8, 7])
def test_a_stream_with_a_limit_is_asked_at_the_end_for_room_for_all(site: Site, room: int) -> None:
    configure(site.service, "s", None, None, {"max_size": room + 1}, NOW_MS / 1000)
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.client.call(TxCommit())
    Client(site.broker).feed(publish(b"first", "s"))

    (answer,) = finish(site.client)
    site.journal.flush()

    assert site.bodies() == [b"first", *numbers(room)]
    assert (answer == TxCommitOk()) == (room == 8)


def test_messages_go_to_the_spool_while_it_holds_pushes(site: Site) -> None:
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.client.call(TxCommit())
    step(site.client)
    site.service.spool.switch(pushes_spooled=True)

    assert finish(site.client) == [TxCommitOk()]
    assert (site.bodies(), len(site.service.spool)) == ([], 8)


def test_ids_of_a_large_commit_are_known_and_forgotten(site: Site) -> None:
    Client(site.broker).feed(b"".join(publish(body, "s") for body in numbers(5)))
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.commit()
    log = site.service.store.queues["s"]
    ids = [site.service.store.body(log.log.position(offset)).transaction_id for offset in range(5, 13)]
    Client(site.broker).feed(publish(b"after", "s"))
    site.journal.flush()

    again = site.service.push([PushItem("s", "s", Body(one, b"2")) for one in ids], NOW_MS / 1000)

    assert again is not None
    assert [(result.offset, result.duplicate) for result in again] == [(at, True) for at in range(5, 13)]
    assert [log.find(0, one) for one in ids] == list(range(5, 13))
    site.broker.flow.now_ms += 30 * 86_400_000
    site.client.feed(b"".join(publish(body, "s", LASTING) for body in numbers(8)))
    site.commit()
    assert len(log.dedup) == 8


def test_bcc_is_not_stored_on_a_stream(site: Site) -> None:
    properties = Properties(delivery_mode=2, headers={"BCC": ["s"], "x-partition": "p"})
    site.client.feed(b"".join(publish(body, "q", properties) for body in numbers(5)))

    assert site.commit()[1] == [TxCommitOk()]

    assert site.stream("s") == [("p", body) for body in numbers(5)]
    log = site.service.store.queues["s"].log
    stored = [site.service.store.body(log.position(offset)).metadata for offset in range(5)]
    assert not any(metadata is None or b"BCC" in metadata.header for metadata in stored)


def test_one_message_for_queues_and_streams_is_counted_as_often(site: Site) -> None:
    bodies = [publish(body, "", LASTING, exchange="amq.fanout") for body in numbers(8)]
    site.client.feed(b"".join(bodies))
    site.client.feed(publish(b"lost", "nowhere", LASTING, mandatory=True))

    steps, answers = site.commit()

    assert steps > 5
    assert (isinstance(answers[0], BasicReturn), answers[-1]) == (True, TxCommitOk())
    exchange = site.broker.vhost("/").exchanges["amq.fanout"]
    assert (exchange.published, exchange.more_copies) == (8, 8)
    assert site.service.counters.of("s").push_messages == 8
    site.crash()
    assert site.bodies() == site.client.bodies() == numbers(8)


def operations(rng: random.Random) -> Iterator[bytes]:
    """A random transaction."""
    for number in range(rng.randrange(1, 25)):
        body = b"%d-%d" % (rng.randrange(1_000), number)
        mode = rng.choice((1, 2, 2, 2))
        kind = rng.randrange(7)
        if kind < 2:
            yield publish(body, "q", Properties(delivery_mode=mode))
        elif kind < 4:
            headers = {"x-partition": rng.choice("abc")}
            yield publish(body, rng.choice("st"), Properties(delivery_mode=mode, headers=dict(headers)))
        elif kind == 4:
            yield publish(body, "", Properties(delivery_mode=mode), exchange="amq.fanout")
        elif kind == 5:
            delay = Properties(delivery_mode=2, headers={"x-delay": rng.choice((50, 100, 5_000))})
            yield publish(body, "d", delay, exchange="late")
        else:
            copies = Properties(delivery_mode=2, headers={rng.choice(("CC", "BCC")): ["s", "q"]})
            yield publish(body, rng.choice("tq"), copies)


class Round(NamedTuple):
    """What happens between two looks at a site."""

    frames: list[bytes]
    acks: int
    others: bytes
    checkpoint_before: bool
    checkpoint_after: bool
    is_lost: bool  # the broker crashes during the commit
    crashes: bool
    waits_ms: int


def a_round(rng: random.Random) -> Round:
    frames = list(operations(rng))
    others = b"".join(publish(b"other", name) for name in ("q", "s"))
    return Round(
        frames,
        rng.randrange(3),
        others if rng.random() < 0.5 else b"",
        rng.random() < 0.3,
        rng.random() < 0.3,
        len(frames) >= 10 and rng.random() < 0.3,
        rng.random() < 0.4,
        rng.choice((0, 0, 60)),
    )


def play(site: Site, round_: Round, in_steps: bool) -> None:
    client = site.client
    client.call(BasicConsume("q", consumer_tag="c"))
    if round_.acks and len(client.connection.channels[1].ledger) >= round_.acks:
        client.call(BasicAck(round_.acks, multiple=True))
    client.feed(b"".join(round_.frames))
    if round_.checkpoint_before:
        site.checkpoint()
    Client(site.broker).feed(round_.others)
    if round_.is_lost:
        site.journal.flush()
        if in_steps:
            client.call(TxCommit())
            step(client)
            assert site.broker.long_changes
        site.crash()
    else:
        steps, answers = site.commit()
        assert TxCommitOk() in answers
        assert in_steps == (steps > 0) or len(round_.frames) <= 3
    if round_.checkpoint_after:
        site.checkpoint()
    if round_.crashes:
        site.crash()
    site.wait(round_.waits_ms)
    site.client.connection.end("the round is over")
    finish(site.client)
    site.client = site.open()


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_with_crashes_leave_what_commits_in_one_go_leave(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    sites = {False: Site(), True: Site()}
    for _ in range(8):
        round_ = a_round(rng)
        for in_steps, site in sites.items():
            monkeypatch.setattr(transaction, "STEP", 3 if in_steps else 1_000_000)
            play(site, round_, in_steps)
        assert sites[False].kept() == sites[True].kept()
