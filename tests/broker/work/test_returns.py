"""What becomes of messages that return together."""

import pytest

from holtmq.broker.message import Message
from holtmq.broker.topology.queue_options import DelayedRetry, QueueOptions
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.returns import count_returns
from holtmq.broker.work.work_queue import WorkQueue

QUEUE = WorkQueue("/", "q", 1, QueueOptions())


def leases(*numbers: int) -> list[Lease]:
    return [Lease(number, QUEUE, Message(number, b"", b"", b"", 0), None) for number in numbers]


@pytest.mark.parametrize(
    ("kind", "failed", "waits"),
    [
        (DelayedRetry.ALL, True, True),
        (DelayedRetry.ALL, False, True),
        (DelayedRetry.FAILED, True, True),
        (DelayedRetry.FAILED, False, False),
        (DelayedRetry.RETURNED, True, False),
        (DelayedRetry.RETURNED, False, True),
        (DelayedRetry.DISABLED, True, False),
    ],
)
def test_a_retry_type_says_which_of_lost_and_returned_messages_wait(
    kind: DelayedRetry, failed: bool, waits: bool
) -> None:
    options = QueueOptions(delayed_retry_type=kind, delayed_retry_min_ms=500, delayed_retry_max_ms=500)
    both = leases(1, 2)

    found = count_returns({}, both, options, failed)

    messages = [lease.message for lease in both]
    assert (found.waiting, found.ready) == (({500: messages}, []) if waits else ({}, messages))
    assert (found.too_often, found.count) == ([], 2)


@pytest.mark.parametrize("failed", [True, False])
def test_the_limit_is_reached_by_one_return_more_than_allowed(failed: bool) -> None:
    returned = {1: 2, 2: 1}
    (one, two) = leases(1, 2)

    found = count_returns(returned, [one, two], QueueOptions(delivery_limit=2), failed)

    assert (found.too_often, found.ready) == ([one.message], [two.message])
    assert returned == {1: 3, 2: 2}
