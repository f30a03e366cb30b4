"""Workers that push, pop and acknowledge, in the broker's dialect.

Owns: the order of requests, the counts, and the bounds on what is pushed but not settled.
Must not touch: bytes on the wire (the dialect has them), sockets.
"""

from __future__ import annotations

from time import perf_counter, perf_counter_ns
from typing import Generic, Protocol, TypeVar

from holtmq.load.errors import LoadError
from holtmq.load.http_workloads import HttpMode, HttpWorkload

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Held = TypeVar("Held")  # what a pop returned, as the dialect keeps it until the ack
Made = TypeVar("Made", covariant=True)
Read = TypeVar("Read", contravariant=True)


class Dialect(Protocol[Made, Read, Held]):
    """Builds requests and parses responses. Anything unexpected raises ``LoadError``."""

    def push(self, number: int) -> Made:
        """The next push of a connection; connections never share a partition unless there are too few."""

    def pushed(self, answer: Read) -> None: ...

    def pop(self, number: int, group: int) -> Made | None: ...

    def popped(self, answer: Read, number: int, group: int) -> Held | None:
        """The popped messages; None if there were none."""

    def size(self, held: Held) -> int: ...

    def ack(self, held: Held, first: int, count: int, group: int) -> Made: ...

    def acked(self, answer: Read, count: int) -> None: ...


class Pace:
    """A fixed rate, evenly spaced."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = perf_counter()
        self._taken = 0

    def take(self) -> bool:
        due = (perf_counter() - self._began) * self._rate
        if self._taken >= due:
            return False
        # Sends that were missed are not made up for: a burst would measure the burst.
        self._taken = max(self._taken + 1, int(due - 0.05 * self._rate))
        return True


class Flow:
    """What has been pushed and settled in one round, and how much more may be pushed."""

    def __init__(self, workload: HttpWorkload) -> None:
        self.workload = workload
        self.offered = 0  # sent to be stored
        self.pushed = 0  # confirmed as stored
        self.settled = [0] * workload.lines
        self.bounded = False
        self.closed = False
        self.push_pace: Pace | None = None
        self.ack_pace: Pace | None = None
        self.push_ns: list[int] = []
        self.ack_ns: list[int] = []
        self.wake_ns: list[int] = []  # from a push to the response of the pop that waited for it
        self.offered_at = 0

    @property
    def deliveries(self) -> int:
        return sum(self.settled)

    @property
    def drained(self) -> bool:
        return self.offered == self.pushed and min(self.settled) >= self.pushed

    def may_push(self) -> bool:
        if self.closed:
            return False
        if self.bounded and self.offered - min(self.settled) >= self.workload.backlog:
            return False
        return self.push_pace is None or self.push_pace.take()

    def forget_times(self) -> None:
        """Discard the times so far; the measured part starts here."""
        self.push_ns, self.ack_ns, self.wake_ns = [], [], []

    def check(self) -> None:
        """Check that every group settled every message once."""
        for group, settled in enumerate(self.settled):
            if settled != self.pushed:
                raise LoadError(
                    f"{self.workload.name}: {self.pushed} pushed, {settled} settled by group {group}"
                )


class Pusher(Generic[Request, Answer, Held]):
    """Pushes continuously."""

    __slots__ = ("_batch", "_dialect", "_flow", "_number")

    def __init__(self, dialect: Dialect[Request, Answer, Held], flow: Flow, number: int) -> None:
        self._dialect = dialect
        self._flow = flow
        self._number = number
        self._batch = flow.workload.push_batch

    def next(self) -> Request | None:
        flow = self._flow
        if not flow.may_push():
            return None
        flow.offered += self._batch
        flow.offered_at = perf_counter_ns()
        return self._dialect.push(self._number)

    def take(self, answer: Answer, took_ns: int) -> Request | None:
        self._dialect.pushed(answer)
        flow = self._flow
        flow.pushed += self._batch
        flow.push_ns.append(took_ns)
        return self.next()


class Popper(Generic[Request, Answer, Held]):
    """Pops, then acks the messages, at once or in parts."""

    __slots__ = ("_acked", "_asked", "_dialect", "_flow", "_group", "_held", "_number", "_step", "_wakes")

    def __init__(self, dialect: Dialect[Request, Answer, Held], flow: Flow, number: int, group: int) -> None:
        self._dialect = dialect
        self._flow = flow
        self._number = number
        self._group = group
        self._step = flow.workload.ack_batch
        self._wakes = flow.workload.mode is HttpMode.WAKE
        self._held: Held | None = None
        self._acked = 0  # of the held messages
        self._asked = 0  # in flight

    def next(self) -> Request | None:
        held, flow = self._held, self._flow
        if held is None:
            return self._dialect.pop(self._number, self._group)
        if flow.ack_pace is not None and not flow.ack_pace.take():
            return None
        left = self._dialect.size(held) - self._acked
        self._asked = min(left, self._step) if self._step else left
        return self._dialect.ack(held, self._acked, self._asked, self._group)

    def take(self, answer: Answer, took_ns: int) -> Request | None:
        held = self._held
        if held is None:
            self._held = self._dialect.popped(answer, self._number, self._group)
            self._acked = 0
            if self._wakes and self._held is not None:
                self._flow.wake_ns.append(perf_counter_ns() - self._flow.offered_at)
            return self.next()
        self._dialect.acked(answer, self._asked)
        flow = self._flow
        flow.settled[self._group] += self._asked
        flow.ack_ns.append(took_ns)
        self._acked += self._asked
        if self._acked == self._dialect.size(held):
            self._held = None
        return self.next()
