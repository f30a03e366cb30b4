"""Very many deliveries of a group end in steps, with the outcome of one go; a transaction has a limit."""

from __future__ import annotations

from contextlib import suppress

import pytest
from amqp_support import NOW_MS, Client, finish, frame, new_broker, step

from holtmq.amqp import frame_loop, transaction
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicDeliver,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverOk,
    ChannelClose,
    ChannelCloseOk,
    Method,
    QueueDeclare,
    QueueDelete,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxSelect,
)
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.changes import Kind
from holtmq.broker.turn_limits import TurnLimits
from holtmq.journal import MemoryJournal
from holtmq.journal.interface import JournalFailed

AT_ONCE = 4
COUNT = 11  # three steps
_IN_GROUP = {"x-consumer-group": "g", "x-stream-offset": "first"}


class Site:
    """A stream with messages, three in a partition, and a member of its group that holds them all."""

    def __init__(
        self,
        count: int = COUNT,
        *,
        group: bool = True,
        in_transaction: bool = False,
        each: int = 3,
        verdicts: int = 1_000,
    ) -> None:
        self.each = each
        self.service = PartitionedService(MemoryJournal())
        self.client = client = Client(new_broker(self.service.journal, self.service))
        client.broker.flow.per_turn = TurnLimits(returned=1_000, of_groups=AT_ONCE, verdicts=verdicts)
        client.call(QueueDeclare("s", durable=True, arguments={"x-queue-type": "stream"}), BasicQos(0, 1_000))
        if in_transaction:
            client.call(TxSelect())
        self.push(count)
        arguments = _IN_GROUP if group else {"x-stream-offset": "first"}
        told = client.call(BasicConsume("s", "me", arguments=dict(arguments)))
        self.delivered = [method for method in told if isinstance(method, BasicDeliver)]
        assert len(self.delivered) == count

    def push(self, count: int) -> None:
        items = [PushItem("s", f"p{n // self.each}", Body(f"i{n}", b"%d" % n)) for n in range(count)]
        self.service.push(items, NOW_MS / 1000)
        self.service.journal.flush()
        self.client.broker.flow.turn()

    @property
    def lag(self) -> int:
        group = self.service.store.queues["s"].groups["g"]
        return sum(lag for _, lag in group.lagging())

    @property
    def leased(self) -> int:
        return sum(
            lease.size for lease in self.service.store.queues["s"].groups["g"].leases.live(NOW_MS / 1000)
        )

    @property
    def letters(self) -> int:
        return len(self.service.store.queues["s"].dead_letters)

    def call(self, *methods: Method) -> list[Method]:
        told = self.client.call(*methods)
        self.service.journal.flush()
        return told + self.client.told()

    def finish(self) -> list[Method]:
        told = finish(self.client)
        self.client.connection.wake_consumers()
        self.client.broker.flow.turn()
        return told + self.client.told()


@pytest.mark.parametrize("tag", [0, COUNT])
def test_acks_of_many_go_in_steps(tag: int) -> None:
    site = Site()
    lags: list[int] = []

    site.call(BasicAck(tag, multiple=True))
    while site.client.broker.long_changes:
        lags.append(site.lag)
        step(site.client)

    assert lags == [7, 3, 0]
    assert site.leased == 0
    assert not site.client.connection.channels[1].ledger.by_number


def test_acks_up_to_a_tag_leave_the_others() -> None:
    site = Site()

    site.call(BasicAck(7, multiple=True))
    site.finish()

    assert (site.lag, site.leased) == (4, 4)
    assert list(site.client.connection.channels[1].ledger.by_number) == [8, 9, 10, 11]


@pytest.mark.parametrize(
    "following", [ChannelClose(200, "", 0, 0), BasicNack(0, multiple=True, requeue=False), BasicRecover(True)]
)
def test_what_follows_acks_of_many_in_the_same_read_waits_for_them(following: Method) -> None:
    site = Site()

    site.call(BasicAck(0, multiple=True), following)
    site.finish()

    assert (site.lag, site.leased, site.letters) == (0, 0, 0)


def test_acks_of_few_go_at_once() -> None:
    site = Site()

    site.call(BasicAck(AT_ONCE, multiple=True))

    assert not site.client.broker.long_changes
    assert site.lag == COUNT - AT_ONCE


def test_acks_of_a_reader_without_a_group_go_at_once() -> None:
    site = Site(group=False)

    site.call(BasicAck(0, multiple=True))

    assert not site.client.broker.long_changes
    assert not site.client.connection.channels[1].ledger.by_number


def test_a_tag_that_is_not_known_closes_the_channel_and_settles_nothing() -> None:
    site = Site()

    told = site.call(BasicAck(999, multiple=True)) + site.finish()

    (closed,) = [method for method in told if isinstance(method, ChannelClose)]
    assert closed.reply_code == ReplyCode.PRECONDITION_FAILED
    assert site.lag == COUNT


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(BasicNack(0, multiple=True, requeue=True), None), (BasicRecover(True), BasicRecoverOk)],
    ids=["nack", "recover"],
)
def test_what_a_member_returns_in_steps_comes_again_in_order(
    asked: Method, answer: type[Method] | None
) -> None:
    site = Site()

    site.call(asked)
    assert site.client.broker.long_changes
    told = site.finish()

    if answer is not None:
        assert any(isinstance(method, answer) for method in told)
    held = list(site.client.connection.channels[1].ledger.by_number.values())
    assert sorted(lease.message.seq for lease in held) == list(range(COUNT))
    for partition in range(4):
        mine = [lease.message.seq for lease in held if lease.message.seq // 3 == partition]
        assert mine == sorted(mine)
    assert site.lag == COUNT


def test_what_a_member_rejects_in_steps_goes_to_the_dead_letters() -> None:
    site = Site()

    site.call(BasicNack(0, multiple=True, requeue=False))
    assert site.client.broker.long_changes
    site.finish()

    assert (site.letters, site.lag) == (COUNT, 0)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(BasicCancel("me"), BasicCancelOk), (ChannelClose(200, "done"), ChannelCloseOk)],
    ids=["cancel", "close"],
)
def test_another_member_gets_what_one_leaves_behind_in_steps(asked: Method, answer: type[Method]) -> None:
    site = Site()
    other = Client(site.client.broker)
    other.call(BasicConsume("s", "other", arguments=dict(_IN_GROUP)))

    told = site.call(asked)
    told += site.finish()
    other.broker.flow.turn()

    assert any(isinstance(method, answer) for method in told)
    assert len([method for method in other.told() if isinstance(method, BasicDeliver)]) == COUNT
    assert site.lag == COUNT


def test_of_very_many_single_acks_in_one_read_others_have_their_turn_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_loop, "_ACKS_MAX", AT_ONCE * 21)
    site = Site()
    site.client.time_is_up = True
    lags: list[int] = []

    site.client.feed(b"".join(frame(BasicAck(tag)) for tag in range(1, COUNT + 1)))
    while site.client.unstalls > len(lags):
        lags.append(site.lag)
        site.client.connection.unstall()
        site.client.connection.resume()
        site.client.broker.flow.turn()

    assert lags == [7, 3]
    assert site.lag == 0


def test_a_wrong_one_among_single_acks_closes_the_channel_and_those_before_it_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_loop, "_ACKS_MAX", AT_ONCE * 21)
    site = Site()

    told = site.client.feed(b"".join(frame(BasicAck(tag)) for tag in (1, 2, 3, 4, 5, 999, 6, 7)))
    told += site.finish()

    assert any(isinstance(method, ChannelClose) for method in told)
    assert site.lag == COUNT - 5


@pytest.mark.parametrize(
    ("asked", "limit", "fits"),
    [
        (BasicAck(0, multiple=True), 4, True),
        (BasicAck(0, multiple=True), 3, False),
        (BasicNack(0, multiple=True, requeue=True), 4, True),
        (BasicNack(0, multiple=True, requeue=False), 4 + COUNT, True),
        (BasicNack(0, multiple=True, requeue=False), 3 + COUNT, False),
    ],
)
def test_a_transaction_settles_so_much_of_groups(
    monkeypatch: pytest.MonkeyPatch, asked: Method, limit: int, fits: bool
) -> None:
    monkeypatch.setattr(transaction, "_GROUPS_MAX", limit)
    site = Site(in_transaction=True)

    told = site.call(asked)
    if fits:
        told += site.call(TxCommit()) + site.finish()
        assert any(isinstance(method, TxCommitOk) for method in told)
        return
    told += site.finish()

    (closed,) = [method for method in told if isinstance(method, ChannelClose)]
    assert closed.reply_code == ReplyCode.PRECONDITION_FAILED
    assert f"more than {limit} partitions and rejected messages" in closed.reply_text
    assert (site.lag, site.letters) == (COUNT, 0)


def test_the_limit_holds_for_each_transaction_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_GROUPS_MAX", 2)
    site = Site(in_transaction=True)

    for tag in (6, 11):
        assert TxCommitOk() in site.call(BasicAck(tag, multiple=True), TxCommit()) + site.finish()

    assert site.lag == 0


def test_a_commit_settles_what_was_acked_before_the_consumer_was_cancelled() -> None:
    site = Site(in_transaction=True)

    site.call(BasicAck(7, multiple=True))
    site.call(BasicCancel("me"))
    told = site.call(TxCommit()) + site.finish()

    assert TxCommitOk() in told
    assert (site.lag, site.leased) == (COUNT - 7, 0)


@pytest.mark.parametrize("rolls_back", [False, True])
def test_what_an_open_transaction_has_settled_returns_when_its_channel_closes(rolls_back: bool) -> None:
    site = Site(in_transaction=True)

    site.call(BasicAck(7, multiple=True))
    site.call(BasicCancel("me"))
    if rolls_back:
        site.call(TxRollback())
    site.call(ChannelClose(200, "done"))
    site.finish()

    assert (site.lag, site.leased) == (COUNT, 0)


VERDICTS = 3  # that take effect at once
REJECTED = 8  # of one partition, behind the first message; two more have no verdict


def rejected_but_the_first(*, in_transaction: bool = False) -> Site:
    site = Site(each=COUNT, verdicts=VERDICTS, in_transaction=in_transaction)
    for tag in range(2, 2 + REJECTED):
        site.call(BasicNack(tag, requeue=False), *([TxCommit()] if in_transaction else []))
        site.finish()
    assert (site.lag, site.letters) == (COUNT, 0)
    return site


def letters_in_order(site: Site) -> bool:
    offsets = [letter.offset for letter in site.service.store.queues["s"].dead_letters]
    return offsets == list(range(1, 1 + REJECTED))


def test_what_a_late_ack_lets_take_effect_does_so_in_steps() -> None:
    site = rejected_but_the_first()
    seen: list[tuple[int, int]] = []

    site.call(BasicAck(1))
    while site.client.broker.long_changes:
        seen.append((site.lag, site.letters))
        step(site.client)

    assert seen == [(8, 2), (5, 5)]
    assert letters_in_order(site)
    assert (site.lag, site.leased) == (2, 2)


def test_what_follows_in_the_partition_waits_for_those_in_line() -> None:
    site = rejected_but_the_first()

    site.call(BasicAck(1), BasicAck(10), BasicNack(11, requeue=True))
    assert site.client.broker.long_changes
    site.finish()

    assert letters_in_order(site)
    assert site.lag == 1
    assert [lease.message.seq for lease in site.client.connection.channels[1].ledger.by_number.values()] == [
        10
    ]


@pytest.mark.parametrize("how", ["cancel", "close", "lost"])
def test_a_member_that_leaves_does_not_give_back_what_it_has_settled(how: str) -> None:
    site = rejected_but_the_first()
    other = Client(site.client.broker)
    other.call(BasicConsume("s", "other", arguments=dict(_IN_GROUP)))

    site.call(BasicAck(1))
    if how == "lost":
        site.client.connection.end("gone")
    else:
        site.call(BasicCancel("me") if how == "cancel" else ChannelClose(200, "done"))
    assert site.client.broker.long_changes
    assert not other.told()
    site.finish()
    other.broker.flow.turn()

    got = [lease.message.seq for lease in other.connection.channels[1].ledger.by_number.values()]
    assert got == [9, 10]
    assert letters_in_order(site)


@pytest.mark.parametrize("stops", [True, False])
def test_what_is_in_line_takes_effect_before_a_stop_and_is_nothing_once_the_queue_is_gone(
    stops: bool,
) -> None:
    site = rejected_but_the_first()

    site.call(BasicAck(1))
    if stops:
        site.client.broker.complete()
        assert (site.lag, site.letters) == (2, REJECTED)
    else:
        site.call(QueueDelete("s"))
        site.finish()

    assert not site.client.broker.long_changes


def test_a_crash_while_some_are_in_line_delivers_these_again() -> None:
    site = rejected_but_the_first()

    site.call(BasicAck(1))
    assert site.client.broker.long_changes
    assert isinstance(site.service.journal, MemoryJournal)
    site.service.journal.flush()
    journal, recovery = site.service.journal.restart()
    store = PartitionedService(journal).store
    for position, kind, payload in recovery.records:
        if kind >= int(Kind.PARTITIONED):
            store.fold(position, kind, payload)

    queue = store.queues["s"]
    assert [letter.offset for letter in queue.dead_letters] == [1, 2]
    assert queue.groups["g"].cursor(0) == 3


def test_a_commit_files_its_own_at_once_and_what_waited_for_them_in_steps() -> None:
    site = rejected_but_the_first(in_transaction=True)

    told = site.call(BasicAck(1), BasicAck(10), TxCommit())
    seen = [(site.lag, site.letters)]
    told += site.finish()

    assert TxCommitOk() in told
    assert seen == [(1, REJECTED)]  # the ack behind them is of the same transaction
    assert letters_in_order(site)


def test_a_commit_does_not_take_along_all_that_waited_for_it() -> None:
    site = rejected_but_the_first(in_transaction=True)

    told = site.call(BasicAck(1), TxCommit())
    seen = [(site.lag, site.letters)]
    told += site.finish()

    assert TxCommitOk() in told
    assert seen == [(COUNT - 1, 0)]
    assert (site.lag, site.letters) == (2, REJECTED)


@pytest.mark.parametrize(
    ("limit", "acked", "fits"),
    [(REJECTED, (1, 10), True), (REJECTED - 1, (1, 10), False), (1, (1,), True), (1, (10,), True)],
)
def test_a_commit_takes_along_so_many_rejections_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, limit: int, acked: tuple[int, ...], fits: bool
) -> None:
    site = rejected_but_the_first(in_transaction=True)
    monkeypatch.setattr(transaction, "_GROUPS_MAX", limit)
    monkeypatch.setattr(transaction, "_TAKEN_ALONG", REJECTED - 1)

    told = site.call(*map(BasicAck, acked), TxCommit()) + site.finish()

    assert (TxCommitOk() in told) == fits
    if not fits:
        (closed,) = [method for method in told if isinstance(method, ChannelClose)]
        assert closed.reply_code == ReplyCode.PRECONDITION_FAILED
        assert f"before and behind more than {limit} rejected ones" in closed.reply_text
        assert "settle those before them in a transaction of their own" in closed.reply_text
        assert (site.lag, site.letters) == (COUNT, 0)


def test_a_commit_waits_for_what_was_settled_before_it() -> None:
    site = rejected_but_the_first(in_transaction=True)
    site.call(BasicAck(1), TxCommit())
    assert site.client.broker.long_changes

    told = site.call(BasicAck(10), TxCommit())
    assert TxCommitOk() not in told
    assert site.letters < REJECTED
    while TxCommitOk() not in told:
        assert site.lag > 1
        told += step(site.client)

    assert (site.lag, site.letters) == (1, REJECTED)


def test_a_commit_does_not_wait_for_ever_when_the_journal_has_failed() -> None:
    site = rejected_but_the_first(in_transaction=True)
    site.call(BasicAck(1), TxCommit())
    site.call(BasicAck(10), TxCommit())

    assert isinstance(site.service.journal, MemoryJournal)
    site.service.journal.fail("disk")
    for _ in range(10):
        with suppress(JournalFailed):  # the node stops
            site.client.broker.flow.tick()

    assert not site.client.broker.long_changes
    assert site.letters < REJECTED


def test_many_single_rejections_in_one_read_take_effect_in_steps() -> None:
    site = Site(verdicts=VERDICTS)

    site.call(*(BasicNack(tag, requeue=False) for tag in range(1, COUNT + 1)))
    before = site.letters
    site.finish()

    assert 0 < before < COUNT
    assert (site.letters, site.lag, site.leased) == (COUNT, 0, 0)


@pytest.mark.parametrize(
    "asked",
    [
        [BasicAck(0, multiple=True)],
        [BasicAck(tag) for tag in range(1, 9)],
        [BasicNack(0, multiple=True, requeue=False)],
        [BasicNack(0, multiple=True, requeue=True)],
    ],
    ids=["ack all", "ack each", "reject all", "return all"],
)
def test_what_is_settled_together_of_streams_by_turns_is_one_record(asked: list[Method]) -> None:
    service = PartitionedService(MemoryJournal())
    client = Client(new_broker(service.journal, service))
    client.call(BasicQos(0, 1_000))
    for name in ("s", "t"):
        client.call(QueueDeclare(name, durable=True, arguments={"x-queue-type": "stream"}))
        client.call(BasicConsume(name, name, arguments=dict(_IN_GROUP)))
    for n in range(8):
        service.push([PushItem("st"[n % 2], "p", Body(f"i{n}", b""))], NOW_MS / 1000)
        service.journal.flush()
        client.broker.flow.turn()
    ledger = client.connection.channels[1].ledger
    assert [lease.queue.name for lease in ledger.by_number.values()] == ["s", "t"] * 4
    before = service.journal.stats().records

    client.call(*asked)

    records = service.journal.stats().records - before
    groups = [service.store.queues[name].groups["g"] for name in ("s", "t")]
    if asked == [BasicNack(0, multiple=True, requeue=True)]:
        records -= len(groups)  # that these are delivered again
        assert len(ledger.by_number) == 8
    else:
        assert [group.lag(0) for group in groups] == [0, 0]
    assert records == 1
