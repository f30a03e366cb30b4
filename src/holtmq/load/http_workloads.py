"""The HTTP workloads by name: how many pushers, poppers and groups, and what they send.

Owns: their definition as values. Must not touch: how they are run or reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

PAYLOAD: Final = b'{"order":1234567,"note":"sixteen bytes ok","amount":12.5}'


class HttpMode(Enum):
    """What a round of the workload consists of, and what its rate counts."""

    PUSH = "push"  # push as fast as possible; counts messages stored
    DRAIN = "drain"  # pop and ack a backlog; counts messages settled
    FLOW = "flow"  # push, pop and ack at once; counts messages settled, by all groups together
    ACK = "ack"  # acks at half the maximum rate; measures their latency
    WAKE = "wake"  # one push for each waiting pop; measures the time from the push to the pop's response


@dataclass(frozen=True, slots=True)
class HttpWorkload:
    """One kind of work. Every push and ack is answered after it is on disk."""

    name: str
    about: str
    mode: HttpMode = HttpMode.PUSH
    push_batch: int = 100
    pop_batch: int = 100
    ack_batch: int = 0  # acks per request; 0: all that was popped
    pushers: int = 32  # connections
    poppers: int = 16  # connections per group
    partitions: int = 64
    pop_partitions: int = 1  # maximum partitions per pop
    groups: int = 0  # named groups; 0: the default group
    own_ids: bool = True  # transaction ids from the client; else the server creates them
    backlog: int = 20_000  # for FLOW: pushed and not yet settled by every group
    messages: int = 0  # for DRAIN: pushed before the clock starts

    @property
    def lines(self) -> int:
        """How many groups settle each message."""
        return max(self.groups, 1)


def _pushes() -> list[HttpWorkload]:
    found = []
    for batch in (1, 10, 100):
        about = f"pushes of {batch}, 32 connections"
        found.append(HttpWorkload(f"push-{batch}", about, push_batch=batch))
        minted = f"{about}, transaction ids made by the server"
        found.append(HttpWorkload(f"push-{batch}-minted", minted, push_batch=batch, own_ids=False))
    return found


_ALL: Final = (
    *_pushes(),
    HttpWorkload(
        "pop-ack-100",
        "a backlog popped and acked in batches of 100, 16 connections",
        mode=HttpMode.DRAIN,
        messages=300_000,
    ),
    HttpWorkload(
        "fanout-10-groups",
        "pushes of 100 for 10 groups, each pops and acks 100 at a time; the rate counts deliveries",
        mode=HttpMode.FLOW,
        pushers=4,
        poppers=2,
        groups=10,
        partitions=16,
        backlog=10_000,
    ),
    HttpWorkload(
        "partitions-2",
        "pushes of 10, pops and acks of up to 100 out of up to 16 partitions, over 2 partitions",
        mode=HttpMode.FLOW,
        push_batch=10,
        pushers=16,
        partitions=2,
        pop_partitions=16,
    ),
    HttpWorkload(
        "partitions-10001",
        "the same over 10,001 partitions",
        mode=HttpMode.FLOW,
        push_batch=10,
        pushers=16,
        partitions=10_001,
        pop_partitions=16,
    ),
    HttpWorkload(
        "ack-one",
        "single acks at half load: the time of each",
        mode=HttpMode.ACK,
        ack_batch=1,
        poppers=32,
        messages=200_000,
    ),
    HttpWorkload(
        "ack-100",
        "acks of 100 at half load: the time of each",
        mode=HttpMode.ACK,
        messages=400_000,
    ),
    HttpWorkload(
        "wake",
        "a waiting pop for each push of 1: from the push to the pop's answer",
        mode=HttpMode.WAKE,
        push_batch=1,
        pop_batch=1,
        pushers=1,
        poppers=1,
        partitions=1,
        backlog=1,
    ),
)

HTTP_WORKLOADS: Final[dict[str, HttpWorkload]] = {workload.name: workload for workload in _ALL}
