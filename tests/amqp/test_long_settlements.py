"""Very many unacked deliveries end in steps: others have their turn, and the outcome is that of one go."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from amqp_support import Client, finish, new_broker, numbers, publish, step

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    QueueDeclare,
    QueueDelete,
    TxRollback,
    TxSelect,
)
from holtmq.broker.flow import Flow
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work.leases import Lease
from holtmq.journal import JournalFailed
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

AT_ONCE = 4
COUNT = 11  # three steps
BODIES = numbers(COUNT)
LETTERS: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}

ENDINGS: dict[str, tuple[Method, type[Method] | None]] = {
    "cancel": (BasicCancel("me"), BasicCancelOk),
    "nack": (BasicNack(0, multiple=True, requeue=True), None),
    "recover": (BasicRecover(True), BasicRecoverOk),
    "close a channel": (ChannelClose(200, "done"), ChannelCloseOk),
    "fail a channel": (BasicAck(999), ChannelClose),
}


def holding(arguments: FieldTable | None = None) -> Client:
    """A client whose consumer has been delivered all of a queue."""
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(returned=AT_ONCE)
    client.call(QueueDeclare("q", durable=True, arguments=arguments or {}), QueueDeclare("dead"))
    client.broker.journal.flush()
    client.told()
    lasting = Properties(delivery_mode=2)
    client.feed(b"".join(publish(body, properties=lasting) for body in BODIES))
    told = client.call(BasicConsume("q", "me"))
    assert len(told) == 1 + COUNT
    return client


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}, {"x-queue-type": "quorum"}], ids=str)
@pytest.mark.parametrize("ending", ENDINGS)
def test_messages_return_in_steps_and_the_answer_follows_the_last(ending: str, arguments: FieldTable) -> None:
    client = holding(arguments)
    asked, answer = ENDINGS[ending]
    waiting = []

    assert client.call(asked) == []
    while client.broker.long_changes:
        waiting.append((len(client.queue()), client.queue().unacked))
        told = step(client)

    assert waiting == [(4, 7), (8, 3), (11, 0)]  # the last step only ends the wait
    if answer is not None:
        assert isinstance(told[0], answer)
    if ending not in ("nack", "recover"):  # else its own consumer has them again
        assert client.bodies() == BODIES
    assert client.queue().returning == 0
    assert len([method for method in told if isinstance(method, BasicDeliver)]) == (
        COUNT if ending in ("nack", "recover") else 0
    )


def test_the_newest_return_first_so_that_no_step_merges_with_those_before() -> None:
    client = holding()

    client.call(BasicCancel("me"))

    assert client.bodies() == BODIES[-AT_ONCE:]  # in the other order, the steps together take n² / AT_ONCE


@pytest.mark.parametrize(("at_once", "is_long"), [(COUNT - 1, True), (COUNT, False)])
def test_as_many_as_a_step_may_return_go_at_once(at_once: int, is_long: bool) -> None:
    client = holding()
    client.broker.flow.per_turn = TurnLimits(returned=at_once)

    told = client.call(BasicCancel("me"))

    assert bool(client.broker.long_changes) == is_long
    assert bool(told) != is_long


def test_late_acks_take_the_messages_out_of_their_queue_in_steps() -> None:
    client = holding()
    client.call(BasicCancel("me"))
    finish(client)
    waiting = []

    client.call(BasicAck(COUNT - 1, multiple=True))
    while client.broker.long_changes:
        waiting.append(len(client.queue()))
        step(client)

    assert waiting == [7, 3, 1]
    assert client.bodies() == BODIES[-1:]
    assert client.connection.channels[1].messages.acked == COUNT - 1
    (closed,) = client.call(BasicAck(COUNT - 1, multiple=True))
    assert isinstance(closed, ChannelClose)


def test_a_lost_connection_returns_its_messages_in_steps() -> None:
    client = holding()
    watcher = Client(client.broker)

    client.connection.end("gone")

    assert len(watcher.queue()) == AT_ONCE
    assert len(client.broker.sessions) == 2  # a checkpoint must still see what has not returned
    finish(watcher)
    assert watcher.bodies() == BODIES
    assert len(client.broker.sessions) == 1


def on_channels(at_once: int, arguments: FieldTable) -> Client:
    """A client whose channels hold the messages of a queue in turn: each has older and newer ones."""
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(returned=at_once)
    client.call(QueueDeclare("q", durable=True, arguments=arguments))
    client.broker.journal.flush()
    for channel in (2, 3, 4):
        client.call(ChannelOpen(), channel=channel)
    for channel in (2, 3, 4):
        client.call(BasicConsume("q", f"on-{channel}"), channel=channel)
    client.told()
    for body in BODIES:
        client.feed(publish(body, properties=Properties(delivery_mode=2)))
    assert {len(session) for session in client.broker.sessions} == {0, 3, 4}
    return client


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}, {"x-queue-type": "quorum"}], ids=str)
@pytest.mark.parametrize("at_once", [AT_ONCE, COUNT], ids=["in steps", "at once"])
def test_the_messages_of_all_channels_return_together_and_none_is_moved_twice(
    monkeypatch: pytest.MonkeyPatch, at_once: int, arguments: FieldTable
) -> None:
    client = on_channels(at_once, arguments)
    watcher = Client(client.broker)
    returned: list[list[int]] = []
    release = Flow.release

    def count(flow: Flow, leases: Iterable[Lease], failed: bool = False) -> None:
        some = list(leases)
        returned.append([lease.message.seq for lease in some])
        release(flow, some, failed)

    monkeypatch.setattr(Flow, "release", count)

    client.connection.end("gone")

    assert len(client.broker.sessions) == (1 if at_once == COUNT else 5)
    finish(watcher)
    assert watcher.bodies() == BODIES
    assert [len(part) for part in returned] == ([COUNT] if at_once == COUNT else [4, 4, 3])
    assert all(min(newer) > max(older) for newer, older in pairwise(returned))
    assert len(client.broker.sessions) == 1


def test_a_client_that_closes_its_connection_is_answered_after_the_last_message() -> None:
    client = holding()

    assert client.call(ConnectionClose(200, "bye", 0, 0), channel=0) == []

    (told,) = finish(client)
    assert isinstance(told, ConnectionCloseOk)
    assert client.bodies() == BODIES


def test_no_consumer_gets_a_message_before_an_older_one() -> None:
    client = holding()
    other = Client(client.broker)
    client.call(BasicCancel("me"))
    other.feed(publish(b"new"))

    assert [type(method) for method in other.call(BasicConsume("q"))] == [BasicConsumeOk]
    told = finish(other)

    assert [method.redelivered for method in told if isinstance(method, BasicDeliver)] == [True] * COUNT + [
        False
    ]


def test_messages_that_were_fetched_one_by_one_return_in_order_too() -> None:
    client = holding()
    client.call(BasicCancel("me"))
    finish(client)
    client.call(*[BasicGet("q")] * COUNT)
    other = Client(client.broker)
    other.call(BasicConsume("q"))

    client.call(BasicRecover(True))

    assert other.told() == []
    delivered = [method for method in finish(other) if isinstance(method, BasicDeliver)]
    assert len(delivered) == COUNT


def test_a_get_waits_for_what_returns() -> None:
    client = holding()
    other = Client(client.broker)
    client.call(BasicCancel("me"))

    assert other.call(BasicGet("q")) == []
    (told,) = finish(other)

    assert isinstance(told, BasicGetOk)
    assert told.message_count == COUNT - 1
    assert client.bodies() == BODIES[1:]


def test_a_get_that_waits_for_a_deleted_queue_is_refused() -> None:
    client = holding()
    other, third = Client(client.broker), Client(client.broker)
    client.call(BasicCancel("me"))
    other.call(BasicGet("q"))

    third.call(QueueDelete("q"))

    (told,) = finish(other)
    assert isinstance(told, ChannelClose)
    assert told.reply_code == ReplyCode.NOT_FOUND
    assert not other.connection.is_stalled


def test_frames_behind_it_wait() -> None:
    client = holding()

    assert client.call(ChannelClose(200, "done"), ChannelOpen(), BasicGet("q")) == []
    told = finish(client)

    assert [type(method) for method in told] == [ChannelCloseOk, ChannelOpenOk, BasicGetOk]


def test_a_connection_may_end_in_the_middle() -> None:
    client = holding()
    client.call(BasicCancel("me"))

    client.connection.end("gone")
    finish(client)

    assert client.bodies() == BODIES
    assert client.queue().returning == client.queue().unacked == 0
    assert client.queue().consumers == []
    assert not client.broker.sessions


def test_a_queue_may_be_deleted_in_the_middle() -> None:
    client = holding()
    other = Client(client.broker)
    client.call(ChannelClose(200, "done"))

    other.call(QueueDelete("q"))

    assert [type(method) for method in finish(client)] == [ChannelCloseOk]
    assert len(client.broker.sessions) == 1


def test_a_checkpoint_in_the_middle_keeps_every_message() -> None:
    client = holding()
    client.call(BasicCancel("me"))

    _, live = snapshot(client.broker)

    assert sum(map(len, live)) == COUNT


def test_rejected_messages_become_dead_letters_in_their_order() -> None:
    client = holding(LETTERS)

    client.call(BasicNack(0, multiple=True, requeue=False))
    finish(client)

    assert client.bodies("dead") == BODIES
    assert client.queue().unacked == len(client.queue()) == 0


def test_a_nack_of_some_leaves_the_others() -> None:
    client = holding(LETTERS)

    client.call(BasicNack(6, multiple=True, requeue=False))
    finish(client)

    assert client.bodies("dead") == BODIES[:6]
    assert client.queue().unacked == COUNT - 6


def test_the_room_of_a_channel_is_given_to_its_other_consumers_after_the_last_step() -> None:
    client = Client(new_broker())
    client.broker.flow.per_turn = TurnLimits(returned=AT_ONCE)
    client.call(QueueDeclare("q"), QueueDeclare("other"))
    client.feed(b"".join(publish(body) for body in BODIES))
    client.call(BasicQos(prefetch_count=COUNT, global_=True), BasicConsume("q", "me"))
    client.call(BasicConsume("other", "too"))
    client.feed(publish(b"waits", "other"))
    assert client.told() == []

    client.call(BasicNack(0, multiple=True, requeue=False))
    told = finish(client)

    assert [method.routing_key for method in told if isinstance(method, BasicDeliver)] == ["other"]


def test_a_nack_of_one_settles_one_of_very_many() -> None:
    client = holding(LETTERS)

    client.call(BasicNack(6, requeue=False))

    assert client.bodies("dead") == [BODIES[5]]
    assert client.queue().unacked == COUNT - 1


@pytest.mark.parametrize("requeue", [True, False])
def test_a_nack_of_very_many_in_a_transaction_waits_for_its_commit(requeue: bool) -> None:
    client = holding(LETTERS)
    client.call(TxSelect())

    client.call(BasicNack(0, multiple=True, requeue=requeue))
    finish(client)

    assert client.queue().unacked == COUNT
    client.call(TxRollback())
    assert client.queue().unacked == COUNT
    assert client.bodies("dead") == client.bodies() == []


def test_messages_of_a_lost_consumer_count_as_failed_also_in_steps() -> None:
    client = holding(
        {
            "x-queue-type": "quorum",
            "x-delayed-retry-type": "failed",
            "x-delayed-retry-min": 1_000,
            "x-delayed-retry-max": 1_000,
        }
    )
    watcher = Client(client.broker)

    client.connection.end("gone")
    finish(watcher)

    queue = watcher.queue()
    assert sum(map(len, queue.held_back.values())) == COUNT
    assert set(queue.returned.values()) == {1}


@pytest.mark.parametrize("ending", ["cancel", "nack"])
def test_a_journal_that_fails_in_the_middle_ends_the_connection_and_nothing_stays_held(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = holding()
    other = Client(client.broker)
    client.call(ENDINGS[ending][0])

    def failing(*_: object) -> None:
        monkeypatch.undo()
        raise JournalFailed("the disk is gone")

    monkeypatch.setattr(Flow, "release", failing)
    finish(other)

    assert "the disk is gone" in str(client.failure)
    assert client.queue().returning == 0
    assert not client.connection.is_stalled


def test_a_nack_of_an_unknown_delivery_settles_nothing() -> None:
    client = holding()

    client.call(BasicNack(999, multiple=True, requeue=True))
    finish(client)

    assert client.failure is not None
    assert "unknown delivery tag 999" in str(client.failure)
    assert client.bodies() == BODIES  # the channel is closed


@pytest.mark.parametrize("late", [1, COUNT], ids=["the last to return", "the first to return"])
def test_an_ack_after_the_cancel_counts(late: int) -> None:
    client = holding()

    client.call(BasicCancel("me"), BasicAck(late))
    finish(client)

    assert client.bodies() == [body for body in BODIES if body != BODIES[late - 1]]


def test_an_error_in_one_change_does_not_stop_the_next() -> None:
    client = holding()

    def broken() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    client.broker.long_changes.add(broken(), 1)
    client.call(BasicCancel("me"))
    with pytest.raises(ZeroDivisionError):
        step(client)
    finish(client)

    assert client.bodies() == BODIES
