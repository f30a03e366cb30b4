"""Very many deliveries of one channel that end together: in steps, so that other clients have their turn.

Owns: the steps and their order. Must not touch: how one delivery ends, and what becomes of its message.

Until its step, a delivery is like any other: it counts as unacked, a checkpoint keeps its message, and the
client may settle it. The connection processes no frame until the last step.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ConnectionFault
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import JournalFailed

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

End = Callable[[list[int]], list[Lease]]  # ends or revokes the leases of these numbers


def is_long(channel: "Channel", deliveries: int) -> bool:
    """Whether this many deliveries must end in steps."""
    return deliveries > channel.flow.per_turn.returned


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
    held = [queue for queue in queues if isinstance(queue, WorkQueue)]
    for queue in held:
        queue.returning += 1

    def returned() -> None:
        for queue in held:
            queue.returning -= 1
            channel.flow.touch(queue)
        then()

    def settle(some: list[int]) -> None:
        channel.flow.release(end(some), failed)

    _add(channel, sorted(numbers, reverse=True), settle, returned)


def reject_in_steps(channel: "Channel", numbers: Iterable[int], end: End, then: Callable[[], None]) -> None:
    """Reject messages, the oldest first: dead letters keep their order. Run ``then`` after the last."""
    _add(channel, sorted(numbers), lambda some: channel.flow.reject(end(some)), then)


def _add(
    channel: "Channel", numbers: list[int], settle: Callable[[list[int]], None], then: Callable[[], None]
) -> None:
    channel.connection.stall()
    channel.broker.long_changes.add(_steps(channel, numbers, settle, then), step=1)


def _steps(
    channel: "Channel", numbers: list[int], settle: Callable[[list[int]], None], then: Callable[[], None]
) -> Iterator[None]:
    at_once = max(1, channel.flow.per_turn.returned)
    connection = channel.connection
    try:
        for start in range(0, len(numbers), at_once):
            settle(numbers[start : start + at_once])
            yield
    except JournalFailed as error:
        connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))
    then()
    connection.unstall()
