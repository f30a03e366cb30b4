"""What becomes of unacknowledged messages that return: ready again, a wait, or delivered too often.

Owns: counting the returns of a message, and this decision. Must not touch: the queue's store and counters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holtmq.broker.message import Message
from holtmq.broker.topology.queue_options import QueueOptions
from holtmq.broker.work.leases import Lease


@dataclass(slots=True)
class Returns:
    """Messages that return together, by what becomes of them."""

    ready: list[Message] = field(default_factory=list)
    waiting: dict[int, list[Message]] = field(default_factory=dict)  # by their wait in ms
    too_often: list[Message] = field(default_factory=list)
    count: int = 0  # of all


def count_returns(
    returned: dict[int, int], leases: Iterable[Lease], options: QueueOptions, failed: bool
) -> Returns:
    """Count one more return of each message in ``returned``, and decide what becomes of it.

    ``failed``: their consumer was lost, rather than that it gave them back.
    """
    found = Returns()
    limit = options.deliveries_allowed
    step = 1 if failed or not options.counts_failures_only else 0
    waits = bool(options.retry_delay_ms) or options.counts_failures_only
    for lease in leases:
        found.count += 1
        message = lease.message
        returned[message.seq] = times = returned.get(message.seq, 0) + step
        if limit is not None and times > limit:
            found.too_often.append(message)
        elif waits and (wait_ms := options.retry_wait_ms(times, failed)):
            found.waiting.setdefault(wait_ms, []).append(message)
        else:
            found.ready.append(message)
    return found
