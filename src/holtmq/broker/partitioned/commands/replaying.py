"""Replaying and purging dead letters.

Owns: finding a dead letter by its message's address, the replay as one step (push and removal), the purge.
Must not touch: state, bodies (the caller copies the payload), clocks.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands.pushing import PushDecision, decide_push
from holtmq.broker.partitioned.events import DeadLettersRemoved
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter, LetterFilter
from holtmq.broker.partitioned.log.identifiers import dead_letter_id
from holtmq.broker.partitioned.queue import PartitionedQueue


@dataclass(frozen=True, slots=True)
class ReplayDecision:
    """Both events belong in one journal record; ``push.event`` is None for a duplicate."""

    letter: DeadLetter
    target: PartitionedQueue
    partition: str
    transaction_id: str
    push: PushDecision
    removed: DeadLettersRemoved


def decide_replay(
    queue: PartitionedQueue,
    number: int,
    now: float,
    target: PartitionedQueue | None = None,
    partition: str | None = None,
) -> ReplayDecision:
    """Push a dead letter as a new message, to its own queue and partition unless others are given."""
    letter = queue.dead_letters.get(number)
    if letter is None:
        raise NotFound("Message not found")
    target = queue if target is None else target
    partition = queue.partitions[letter.partition].name if partition is None else partition
    # The id derives from the letter: a repeated replay is a duplicate, not a second message.
    transaction_id = f"dlq:{dead_letter_id(queue.number, number)}"
    push = decide_push(target, [(partition, transaction_id)], now)
    return ReplayDecision(letter, target, partition, transaction_id, push, DeadLettersRemoved((number,)))


def decide_purge(
    queue: PartitionedQueue, letters: Iterable[DeadLetter], wanted: LetterFilter
) -> DeadLettersRemoved | None:
    """Delete those of these dead letters that match and are still there; None when there are none."""
    there = queue.dead_letters.get
    numbers = tuple(
        letter.number for letter in letters if wanted.matches(letter) and there(letter.number) is letter
    )
    return DeadLettersRemoved(numbers) if numbers else None


def find_letter(
    queue: PartitionedQueue, partition: int, transaction_id: str, group: str | None = None
) -> Generator[None, None, DeadLetter | None]:
    """The newest dead letter of a message; the message itself may be gone from the queue.

    In steps: then the transaction id of each dead letter of the partition is read.
    """
    position = queue.find(partition, transaction_id)
    if position is not None:
        letters = queue.dead_letters.of_message(queue.offset_of(partition, position))
        return next((one for one in reversed(letters) if group in (None, one.group)), None)
    for letter in queue.dead_letters.newest_first():
        if letter.partition == partition and group in (None, letter.group):
            is_there = queue.dead_letters.get(letter.number) is letter
            if is_there and queue.letter_carries(letter, transaction_id):
                return letter
        yield
    return None
