"""Very many deliveries of a channel or connection that end together, in steps: others have their turn.

Owns: the steps and their order. Must not touch: how one delivery ends, and what becomes of its message.

Until its step, a delivery is like any other: it counts as unacked, a checkpoint keeps its message, and the
client may settle it. The connection processes no frame until the last step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ConnectionFault
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.methods import Method
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import JournalFailed

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

T = TypeVar("T")
End = Callable[[list[int]], list[Lease]]  # ends or revokes the leases of these numbers
_QUEUES_LEFT: Final = 200  # queues at once, of which each may be deleted then: about 6 ms
_RELEASED: Final = 100  # channels at a time, each of some twenty objects
_seq: Final = itemgetter(0)


class Closing(NamedTuple):
    """What is left to do for a channel that closes."""

    queues: list[Queue]  # whose messages it holds
    returned: Callable[[], None]  # to be called when they are back


def is_long(channel: "Channel", deliveries: int) -> bool:
    """Whether this many deliveries must end in steps."""
    return deliveries > _at_once(channel)


def _at_once(channel: "Channel") -> int:
    limits = channel.flow.per_turn
    return max(1, limits.of_groups if channel.settling.has_joined_group else limits.returned)


def return_in_steps(
    channel: "Channel",
    numbers: Iterable[int],
    end: End,
    queues: Iterable[Queue],
    then: Callable[[], None],
    failed: bool = False,
) -> None:
    """Return messages to their work queues; run ``then`` when all are there.

    The newest are first: each step puts its messages before those of the step before, at the head of the
    queue. Consumers receive nothing meanwhile: they would get a message before an older one.
    """

    def settle(some: list[int]) -> None:
        channel.flow.release(end(some), failed)

    newest_first = iter(sorted(numbers, reverse=True))
    _add(channel, newest_first, settle, _holding_back(channel, queues, then))


def return_together(channels: Sequence[tuple["Channel", Closing]]) -> None:
    """Return the messages of all channels of a connection that ends, as those of one channel would.

    Channel by channel, each message would be moved by those that older channels return after it.
    """
    if not channels:
        return
    one = channels[0][0]

    def returned() -> None:
        for _, closing in channels:
            closing.returned()

    if not is_long(one, sum(len(channel.ledger) for channel, _ in channels)):
        one.flow.release(
            [lease for channel, _ in channels for lease in channel.ledger.end_all()], failed=True
        )
        returned()
        return

    def settle(some: list[tuple[int, "Channel", int]]) -> None:
        by_channel: dict[Channel, list[int]] = {}
        for _, channel, number in some:
            by_channel.setdefault(channel, []).append(number)
        back = [channel.settling.take_back(numbers) for channel, numbers in by_channel.items()]
        one.flow.release([lease for leases in back for lease in leases], failed=True)

    newest_first = merge(*(_newest_first(channel) for channel, _ in channels), key=_seq, reverse=True)
    queues = {queue for _, closing in channels for queue in closing.queues}
    _add(one, newest_first, settle, _holding_back(one, queues, returned))


def releasing(channels: list["Channel"], consumers: list[object]) -> Callable[[], None]:
    """Free the channels of a connection that ends, and their consumers.

    To be called for each channel that has closed, and once when the connection needs none of them.
    """
    calls = len(channels) + 1

    def one_more() -> None:
        nonlocal calls
        calls -= 1
        if channels and not calls:
            changes = channels[0].broker.long_changes
            changes.free(consumers)
            changes.add(_releasing(channels), step=1)

    return one_more


def _releasing(channels: list["Channel"]) -> Iterator[None]:
    while True:
        for channel in channels[-_RELEASED:]:
            channel.released()
        del channels[-_RELEASED:]
        if not channels:
            return
        yield


def leave_queues(channel: "Channel", queues: list[Queue], then: Callable[[], None]) -> None:
    """Update the queues whose consumers this channel had; then run ``then``. It empties the list."""
    if len(queues) < _QUEUES_LEFT:
        for queue in queues:
            channel.broker.after_cancel(queue)
        then()
        return
    channel.connection.stall()
    changes = channel.broker.long_changes
    changes.then(
        lambda: changes.add(_leaving(channel, queues, then), _QUEUES_LEFT)
    )  # they have no consumer then


def _leaving(channel: "Channel", queues: list[Queue], then: Callable[[], None]) -> Iterator[None]:
    connection = channel.connection
    queues.reverse()
    try:
        while queues:  # not kept: those that are deleted must not all be freed at the end
            channel.broker.after_cancel(queues.pop())
            yield
    except JournalFailed as error:
        connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))
    then()
    connection.unstall()


def _newest_first(channel: "Channel") -> Iterator[tuple[int, "Channel", int]]:
    """Seq, channel and number of its leases."""
    leases = channel.ledger.by_number
    for number in sorted(leases, reverse=True):
        lease = leases.get(number)
        if lease is not None:
            yield lease.message.seq, channel, number


def _holding_back(
    channel: "Channel", queues: Iterable[Queue], then: Callable[[], None]
) -> Callable[[], None]:
    """Let these queues deliver nothing until the returned function is called."""
    held = [queue for queue in dict.fromkeys(queues) if isinstance(queue, WorkQueue)]
    for queue in held:
        queue.returning += 1

    def returned() -> None:
        for queue in held:
            queue.returning -= 1
            channel.flow.touch(queue)
        then()

    return returned


def reject_in_steps(channel: "Channel", numbers: Iterable[int], end: End, then: Callable[[], None]) -> None:
    """Reject messages, the oldest first: dead letters keep their order. Run ``then`` after the last."""
    _add(channel, iter(sorted(numbers)), lambda some: channel.flow.reject(end(some)), then)


def ack_in_steps(
    channel: "Channel", numbers: Iterable[int], ack: Callable[[list[int]], None], then: Callable[[], None]
) -> None:
    """Acknowledge messages; run ``then`` after the last."""
    _add(channel, iter(sorted(numbers)), ack, then)


def settle_in_transaction(
    channel: "Channel", numbers: Iterable[int], settle: Callable[[list[int]], None], method: type[Method]
) -> None:
    """Add settlements to the open transaction, the oldest first, as ``method`` asks for."""
    channel.connection.stall()
    channel.broker.long_changes.add(_settling(channel, sorted(numbers), settle, method), step=1)


def _settling(
    channel: "Channel", numbers: list[int], settle: Callable[[list[int]], None], method: type[Method]
) -> Iterator[None]:
    at_once = _at_once(channel)
    with answering_late(channel, method):
        for start in range(0, len(numbers), at_once):
            if channel.closing:
                return
            settle(numbers[start : start + at_once])
            yield


def _add(
    channel: "Channel", deliveries: Iterator[T], settle: Callable[[list[T]], None], then: Callable[[], None]
) -> None:
    channel.connection.stall()
    channel.broker.long_changes.add(_steps(channel, deliveries, settle, then), step=1)


def _steps(
    channel: "Channel", deliveries: Iterator[T], settle: Callable[[list[T]], None], then: Callable[[], None]
) -> Iterator[None]:
    at_once = _at_once(channel)
    connection = channel.connection
    try:
        while some := list(islice(deliveries, at_once)):
            settle(some)
            yield
    except JournalFailed as error:
        connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))
    then()
    connection.unstall()
