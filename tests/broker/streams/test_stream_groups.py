"""Members of a consumer group on AMQP: what they hold may go away under them, the group goes on."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import pytest
from streams_support import NOW_MS, Member, Stream, bodies

from holtmq.broker.partitioned.commands.admin import configure, delete_queue, seek
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import AckRequest, Popped, PopRequest, PushItem, Waiter


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_what_retention_took_from_a_member_does_not_block_its_partition(how: str, atomic: bool) -> None:
    stream = Stream()
    stream.publish(b"1", b"2")
    member = stream.join(room=2)
    assert bodies(member) == [b"1", b"2"]
    stream.publish(b"3")
    stream.let_go(2)

    stream.settle(member, how, atomic=atomic)

    assert bodies(member) == [b"3"]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_deleted_message_that_a_member_gives_back_does_not_block_its_partition(atomic: bool) -> None:
    stream = Stream()
    stream.publish(b"1", b"2")
    member = stream.join()
    assert bodies(member) == [b"1", b"2"]
    stream.delete(0)

    stream.settle(member, "requeue", atomic=atomic)

    assert bodies(member) == [b"2"]


def test_a_member_that_leaves_takes_nothing_from_the_one_that_holds_its_partition_now() -> None:
    stream = Stream()
    stream.publish(b"1")
    first = stream.join(room=1)
    assert bodies(first) == [b"1"]
    seek(stream.service, "g", "s", 0, None)
    second = stream.join(room=1)
    assert bodies(second) == [b"1"]

    stream.queue.remove_consumer(first)
    third = stream.join()

    assert bodies(third) == []


class Quiet(Stream):
    """A stream that is served only on request, with a clock."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        flow, line = self.broker.flow, self.service.line
        line.at = lambda at, action: flow.at(ceil(at * 1000), action)
        configure(self.service, "s", None, None, options, NOW_MS / 1000)

    def turn(self) -> None:
        self.broker.flow.turn()

    def join(self, room: int = 100) -> Member:
        self.broker.flow.touch(self.queue)  # as the broker does
        return super().join(room)

    def worker_pops(self) -> Popped:
        """Another member of the group, over HTTP."""
        popped = self.service.pop(PopRequest("lease", "s", group="g", limit=9), self.queue.now())
        assert popped is not None
        return popped

    def passes(self, milliseconds: int) -> None:
        self.broker.flow.now_ms += milliseconds
        self.broker.flow.tick()
        self.turn()


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
def test_a_member_gets_what_was_held_back_when_its_time_has_come(option: str) -> None:
    stream = Quiet(**{option: 5})
    member = stream.join()
    stream.publish(b"1")
    stream.passes(4_000)
    assert bodies(member) == []

    stream.passes(1_001)

    assert bodies(member) == [b"1"]


def test_a_member_gets_what_another_worker_let_expire() -> None:
    stream = Quiet(lease_seconds=5)
    stream.publish(b"1")
    stream.worker_pops()
    member = stream.join()
    stream.passes(4_000)
    assert bodies(member) == []

    stream.passes(1_001)

    assert bodies(member) == [b"1"]


def test_a_member_gets_a_failed_message_after_its_delay() -> None:
    stream = Quiet(retry_delay_ms=3_000)
    stream.publish(b"1")
    popped = stream.worker_pops()
    name = popped.runs[0].bodies[0].transaction_id
    stream.service.ack([AckRequest(stream.log.number, 0, "g", name, AckStatus.FAILED)], stream.queue.now())
    member = stream.join()
    assert bodies(member) == []

    stream.passes(3_001)

    assert bodies(member) == [b"1"]


def test_a_member_gets_what_another_worker_gives_back() -> None:
    stream = Quiet()
    stream.publish(b"1")
    stream.worker_pops()
    member = stream.join()
    assert bodies(member) == []

    stream.service.give_back(stream.log, "g", 0, "lease")
    stream.turn()

    assert bodies(member) == [b"1"]


def test_a_member_goes_on_when_pops_are_paused_no_more() -> None:
    stream = Quiet()
    member = stream.join()
    stream.service.spool.switch(pops_paused=True)
    stream.publish(b"1")
    assert bodies(member) == []

    stream.service.spool.switch(pops_paused=False)
    stream.service.line.wake_all()
    stream.turn()

    assert bodies(member) == [b"1"]


@pytest.mark.parametrize("how", ["leaves", "queue goes"])
def test_nobody_is_told_who_is_no_member_any_more(how: str) -> None:
    stream = Quiet()
    member = stream.join()
    assert stream.service.line._members

    if how == "leaves":
        stream.queue.remove_consumer(member)
    else:
        delete_queue(stream.service, "s")

    assert not stream.service.line._members


def test_the_leases_of_members_leave_no_timers_behind() -> None:
    stream = Quiet(delayed_processing=1)
    planned: list[int] = []
    flow = stream.broker.flow

    def at(due: float, action: Callable[[], None]) -> None:
        planned.append(1)

        def passed() -> None:
            planned.pop()
            action()

        flow.at(ceil(due * 1000), passed)

    stream.service.line.at = at
    member = stream.join()

    for number in range(20):
        stream.publish(b"%d" % number)
        stream.passes(1_001)
        assert bodies(member) == [b"%d" % number]
        stream.settle(member, "ack")
    stream.passes(100)  # until deliveries that were not acked would have been written down

    assert planned == []


@pytest.mark.parametrize("wide", [False, True])
def test_a_near_deadline_leaves_no_far_one_behind(wide: bool) -> None:
    stream = Quiet(delayed_processing=1)
    stream.join()  # holds a partition as long as it lives
    stream.publish(b"held")
    stream.passes(1_001)
    calls: list[float] = []
    flow = stream.broker.flow

    def at(due: float, action: Callable[[], None]) -> None:
        calls.append(due)
        flow.at(ceil(due * 1000), action)

    stream.service.line.at = at
    line = stream.service.line
    for number in range(20):  # a member of the same group waits over HTTP, again and again
        stream.service.push([PushItem("s", f"p{number}", Body(f"i{number}", b"1"))], stream.queue.now())
        stream.broker.journal.flush()
        request = PopRequest(f"l{number}", group="g") if wide else PopRequest(f"l{number}", "s", group="g")
        waiter = Waiter(request, lambda popped: None)
        assert stream.service.pop(waiter.request, stream.queue.now()) is None
        line.add(waiter, stream.queue.now())
        stream.passes(1_001)
        stream.service.turn(stream.queue.now())
        line.remove(waiter)

    far = [due for due in calls if due > stream.queue.now() + 86_400]
    assert len(far) <= 1
