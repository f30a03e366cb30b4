"""A member of a group gets more of the partitions that it holds: it must not wait for its own acks."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams_support import NOW_MS, Member, Stream, bodies

from holtmq.broker.message import Message
from holtmq.broker.partitioned.commands.admin import configure, delete_message
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import Group
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem
from holtmq.broker.streams import stream_readers
from holtmq.broker.streams.claims import ClaimedMessage
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work.leases import Lease

PARTITIONS = ("p0", "p1", "p2")


def test_a_member_with_room_gets_what_follows_what_it_holds() -> None:
    """A consumer that acknowledges ten at a time would wait for ever for the second."""
    stream = Stream()
    member = stream.join(room=10)

    for number in range(12):
        stream.publish(b"%d" % number)

    assert bodies(member) == [b"%d" % number for number in range(10)]
    stream.settle(member, "ack")
    assert bodies(member) == [b"10", b"11"]


def test_a_member_gets_more_than_one_read_of_a_partition() -> None:
    stream = Stream()
    stream.publish(*[b"%d" % number for number in range(1_000)])

    member = stream.join(room=900)

    assert bodies(member) == [b"%d" % number for number in range(900)]


def test_a_member_gets_more_bytes_than_one_read_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_readers, "_BYTES_AT_ONCE", 1_000)
    stream = Stream()
    stream.publish(*[bytes([65 + number]) * 400 for number in range(10)])

    member = stream.join(room=10)

    assert [body[:1] for body in bodies(member)] == [b"%c" % (65 + number) for number in range(10)]


def test_what_is_delivered_later_is_not_called_redelivered() -> None:
    stream = Stream()
    stream.publish(b"1")
    member = stream.join(room=3)
    stream.settle(member, "requeue")
    stream.publish(b"2")

    assert bodies(member) == [b"1", b"2"]
    assert [stream.queue.is_redelivered(message) for message in member.got] == [True, False]


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_rejected_message_leaves_the_others_to_their_holder(which: int, atomic: bool) -> None:
    """They are not delivered a second time while the consumer works on them."""
    world = World(Stream(), Random(0))
    member = world.join(room=10)
    world.push("p0", 3)

    world.settle(member, member.got[which : which + 1], "reject", atomic=atomic)
    rest = [number for number in range(3) if number != which]
    assert [message.seq for message in member.got] == rest
    for _ in rest:
        world.settle(member, member.got[:1], "ack")

    log = world.stream.log
    assert member.got == []
    assert [letter.offset for letter in log.dead_letters] == [which]
    assert log.groups["g"].lag(0) == 0


@pytest.mark.parametrize("is_held", [False, True])
def test_messages_rejected_together_are_dead_letters_although_one_between_them_was_deleted(
    is_held: bool,
) -> None:
    world = World(Stream(), Random(0))
    if is_held:
        member = world.join(room=10)
    world.push("p0", 4)
    world.delete(1)
    if not is_held:
        member = world.join(room=10)

    world.settle(member, member.got[:-1], "reject")

    log = world.stream.log
    assert [letter.offset for letter in log.dead_letters] == [0, 2]
    assert [message.seq for message in member.got] == [3]


def test_another_partition_that_is_ready_comes_first() -> None:
    stream = Stream()
    world = World(stream, Random(0))
    world.push("p0", 4)
    member = world.join(room=2)
    world.push("p1", 1)

    world.settle(member, member.got[:1], "ack")

    assert [world.partition_of[message.seq] for message in member.got] == ["p0", "p1"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_worker_does_not_look_at_what_members_hold(
    is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 partitions of a consumer that had no room, that took 44 ms."""
    world = World(Stream(), Random(0))
    for partition in PARTITIONS:
        world.push(partition, 1)
    member = world.join(room=3)
    for partition in PARTITIONS:
        world.push(partition, 1)
    world.push("p3", 1)
    if is_restarted:
        world.stream.log.groups["g"].lined_up = False
    looked: list[int] = []
    visible = Group.visible

    def look(group: Group, partition: int, now: float, config: QueueConfig) -> tuple[int, int] | None:
        looked.append(partition)
        return visible(group, partition, now, config)

    monkeypatch.setattr(Group, "visible", look)
    world.work(AckStatus.COMPLETED)

    assert looked == [3]
    member.allow(6)
    world.turn()
    assert sorted(bodies(member)) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
def test_what_is_held_back_follows_when_its_time_has_come(option: str) -> None:
    world = World(Stream(), Random(0))
    configure(world.stream.service, "s", None, None, {option: 5}, NOW_MS / 1000)
    member = world.join(room=10)
    world.push("p0", 1)
    world.passes(5_001)
    assert bodies(member) == [b"0"]
    world.push("p0", 1)
    world.passes(4_000)
    assert bodies(member) == [b"0"]

    world.passes(1_001)

    assert bodies(member) == [b"0", b"1"]


def test_a_member_with_room_does_not_get_what_follows_in_a_partition_of_another() -> None:
    world = World(Stream(), Random(0))
    other = world.join(room=0)
    member = world.join(room=1)
    world.push("p0", 3)
    other.allow(1)

    world.settle(member, member.got[:], "ack")

    assert (bodies(other), bodies(member)) == ([b"1"], [])
    other.allow(2)
    world.turn()
    assert (bodies(other), bodies(member)) == ([b"1", b"2"], [])


def test_of_two_large_partitions_that_a_member_holds_none_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_readers, "_BYTES_AT_ONCE", 1_000)
    world = World(Stream(), Random(0))
    member = world.join(room=2)
    for partition in ("p0", "p1"):
        world.push(partition, 1)
    for partition in ("p0", "p1"):
        world.push(partition, 4, size=400)
    assert len(member.got) == 2

    member.allow(100)
    world.turn()

    for partition in ("p0", "p1"):
        mine = [number for number, name in world.partition_of.items() if name == partition]
        assert [m.seq for m in member.got if world.partition_of[m.seq] == partition] == mine


def test_what_retention_took_is_passed_over() -> None:
    stream = Stream()
    stream.publish(*[b"%d" % number for number in range(5)])
    member = stream.join(room=1)
    stream.publish(b"5")
    stream.let_go(4)
    assert bodies(member) == [b"0"]

    member.allow(10)
    stream.turn()

    assert bodies(member) == [b"0", b"4", b"5"]
    stream.settle(member, "ack")
    assert bodies(member) == []


def test_how_far_was_delivered_is_recorded() -> None:
    world = World(Stream(), Random(0))
    world.join(room=10)
    world.push("p0", 1)
    world.push("p0", 2)

    world.passes(100)

    assert world.stream.log.groups["g"].leases.marks == {0: (1, 3)}


def test_what_was_delivered_before_a_restart_is_called_redelivered_and_nothing_else() -> None:
    world = World(Stream(), Random(0))
    member = world.join(room=1)
    world.push("p0", 5)
    world.stream.log.groups["g"].leases.mark(0, 1, 3)  # as a restart finds it

    member.allow(10)
    world.turn()

    flags = [world.stream.queue.is_redelivered(message) for message in member.got]
    assert flags == [False, True, True, False, False]


@pytest.mark.parametrize("milliseconds", [0, 100])
@pytest.mark.parametrize("how", ["leave", "requeue"])
def test_what_another_member_had_is_called_redelivered_although_it_comes_in_pieces(
    how: str, milliseconds: int
) -> None:
    """The first member had five at once. The second gets two at first, then one after the other."""
    world = World(Stream(), Random(0))
    first = world.join(room=5)
    world.push("p0", 5)
    world.passes(milliseconds)  # long enough to be recorded, or not
    if how == "leave":
        world.leave(first)
    else:
        first.allow(0)
        world.settle(first, first.got[:], "requeue")
    second = world.join(room=2)
    world.push("p0", 1)

    flags: list[bool] = []
    while second.got:
        flags.append(world.stream.queue.is_redelivered(second.got[0]))
        world.settle(second, second.got[:1], "ack")

    assert flags == [True, True, True, True, True, False]


@pytest.mark.parametrize(("room", "flags"), [(3, [True, True, False]), (1, [False, False, False])])
@pytest.mark.parametrize("milliseconds", [0, 100])
def test_what_was_delivered_with_a_deleted_message_is_called_redelivered_and_nothing_else(
    room: int, flags: list[bool], milliseconds: int
) -> None:
    world = World(Stream(), Random(0))
    first = world.join(room)
    world.push("p0", 3)
    world.passes(milliseconds)  # long enough to be recorded, or not
    world.delete(0)
    first.allow(0)
    world.leave(first)
    second = world.join(room=1)
    world.push("p0", 1)

    found: list[bool] = []
    while second.got:
        found.append(world.stream.queue.is_redelivered(second.got[0]))
        world.settle(second, second.got[:1], "ack")

    assert found == flags


def test_a_worker_may_settle_by_id_what_a_member_got_later() -> None:
    world = World(Stream(), Random(0))
    member = world.join(room=10)
    world.push("p0", 2)
    world.push("p0", 3)
    world.settle(member, member.got[:1], "ack")

    world.work_on([1, 2, 3, 4])

    assert world.stream.log.groups["g"].lag(0) == 0


def test_a_worker_may_settle_by_id_what_a_member_got_after_one_was_deleted() -> None:
    world = World(Stream(), Random(0))
    world.join(room=10)
    world.push("p0", 3)
    world.delete(1)
    world.push("p0", 2)

    world.work_on([0, 2, 3, 4])

    assert world.stream.log.groups["g"].lag(0) == 0


class Consumer(Member):
    """A member that checks what it gets."""

    def __init__(self, world: World, room: int) -> None:
        super().__init__(room)
        self._world = world
        self.latest: dict[int, Message] = {}  # deliveries, by offset; the client may have settled them

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        self._world.with_it = {message.seq for message in messages}
        for message in messages:
            self._world.check_delivery(self, message)
            self.got.append(message)
            self.latest[message.seq] = message


class World:
    """Random members and workers of one group."""

    def __init__(self, stream: Stream, dice: Random) -> None:
        self.stream = stream
        self.dice = dice
        self.members: list[Consumer] = []
        self.partition_of: dict[int, str] = {}  # by offset
        self.gone: set[int] = set()
        self.acked: set[int] = set()
        self.with_it: set[int] = set()  # offsets that are delivered together
        self._pops = 0
        flow = stream.broker.flow
        stream.service.line.at = lambda at, action: flow.at(ceil(at * 1000), action)

    def turn(self) -> None:
        self.stream.broker.journal.flush()
        self.stream.turn()
        if self.dice.random() < 0.5:
            self.stream.broker.flow.tick()
            self.stream.turn()

    def rest(self) -> None:
        """Do all that is left for later steps."""
        while self.stream.broker.long_changes:
            self.stream.broker.flow.tick()
            self.turn()

    def passes(self, milliseconds: int) -> None:
        self.stream.broker.flow.now_ms += milliseconds
        self.stream.broker.flow.tick()
        self.turn()

    def push(self, partition: str, count: int, size: int = 0) -> None:
        stream = self.stream
        log = stream.queue.log
        first = 0 if log is None else log.log.next_offset
        items = [
            PushItem("s", partition, Body(f"i{first + n}", b"%d" % (first + n) + b" " * size))
            for n in range(count)
        ]
        stream.service.push(items, stream.queue.now())
        self.partition_of.update((first + n, partition) for n in range(count))
        self.turn()

    def join(self, room: int) -> Consumer:
        member = Consumer(self, room)
        self.members.append(member)
        self.stream.queue.add_consumer(member)
        self.turn()
        return member

    def leave(self, member: Consumer) -> None:
        self.members.remove(member)
        self.stream.queue.remove_consumer(member)
        self.turn()

    def settle(self, member: Consumer, some: list[Message], how: str, *, atomic: bool = False) -> None:
        flow = self.stream.broker.flow
        leases = [Lease(number, self.stream.queue, message, member) for number, message in enumerate(some)]
        if how == "ack":
            self.acked.update(message.seq for message in some if self.is_held(message))
        member.got = [message for message in member.got if message not in some]
        if atomic:
            flow.begin()
        {"ack": flow.ack, "reject": flow.reject, "requeue": flow.release}[how](leases)
        if atomic:
            flow.commit((self.stream.queue,))
        self.turn()

    def work(self, how: AckStatus | None) -> None:
        """A worker over HTTP pops and settles, or gives back."""
        service, now = self.stream.service, self.stream.queue.now()
        self._pops += 1
        lease = f"w{self._pops}"
        popped = service.pop(PopRequest(lease, "s", group="g", limit=3, most_partitions=2), now)
        for run in popped.runs if popped is not None else ():
            index = run.delivery.partition
            ids = [body.transaction_id for body in run.bodies]
            if how is None:
                service.give_back(self.stream.log, "g", index, lease)
            else:
                service.ack([AckRequest(self.stream.log.number, index, "g", one, how) for one in ids], now)
                if how is AckStatus.COMPLETED:
                    self.acked.update(offset for offset, _, _ in run.rows)
        self.turn()

    def work_on(self, offsets: list[int]) -> None:
        """A worker over HTTP completes these, without a lease of its own."""
        number, completed = self.stream.log.number, AckStatus.COMPLETED
        service, now = self.stream.service, self.stream.queue.now()
        service.ack([AckRequest(number, 0, "g", f"i{one}", completed) for one in offsets], now)

    def delete(self, offset: int) -> None:
        name, log = f"i{offset}", self.stream.log

        if offset in self.gone or offset in self.acked:
            return
        if delete_message(self.stream.service, log, log.indexes[self.partition_of[offset]], name):
            self.gone.add(offset)
        self.turn()

    def is_held(self, message: Message) -> bool:
        """Whether the broker still counts this delivery."""
        assert isinstance(message, ClaimedMessage)
        assert message.claim is not None
        held = message.claim.held
        leases = self.stream.log.groups["g"].leases
        return not message.claim.over and leases.has(held.partition, held.lease_id)

    def check_delivery(self, member: Consumer, message: Message) -> None:
        """Only its holder gets messages of a partition, in order, and none that is acknowledged."""
        partition = self.partition_of[message.seq]
        log = self.stream.log
        index = log.indexes[partition]
        where = log.partitions[index]
        cursor = log.groups["g"].cursor(index)
        assert cursor is not None
        unsettled = where.offsets[cursor - where.first :]
        held = {
            offset: other
            for other in self.members
            for offset, got in other.latest.items()
            if offset in unsettled and self.is_held(got)
        }
        assert message.seq in unsettled
        assert message.seq not in self.gone
        assert message.seq not in held
        assert all(holder is member for holder in held.values())
        earlier = {offset for offset in unsettled if offset < message.seq} - self.gone
        assert earlier <= set(held) | self.with_it

    def check_settled(self) -> None:
        """The group has passed over no message that has no verdict."""
        log = self.stream.log
        letters = {letter.offset for letter in log.dead_letters}
        for index, where in enumerate(log.partitions):
            cursor = log.groups["g"].cursor(index)
            assert cursor is not None
            passed = set(where.offsets[: max(0, cursor - where.first)])
            assert passed <= self.acked | self.gone | letters

    def check_rest(self) -> None:
        """A member with room waits for nothing."""
        if all(member.room() <= 0 for member in self.members):
            return
        log, now = self.stream.queue.log, self.stream.queue.now()
        if log is None or "g" not in log.groups:
            return
        group = log.groups["g"]
        for index, where in enumerate(log.partitions):
            lease = group.leases.lease(index, now)
            if lease is None:
                assert group.visible(index, now, log.config) is None
                continue
            holders = [
                member
                for member in self.members
                for offset, got in member.latest.items()
                if self.partition_of[offset] == where.name and self.is_held(got)
            ]
            if holders and holders[0].room() > 0:
                assert where.live_end(where.end) <= lease.end


OPS = st.lists(
    st.sampled_from(
        ["push"] * 4
        + ["join", "leave", "delete", "work", "fail", "give back", "time"]
        + ["ack"] * 5
        + ["ack some", "atomic", "requeue", "reject", "reject", "reject in one"]
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(OPS, st.integers(0, 1 << 32), st.sampled_from([1, 2, 1_000]), st.sampled_from([1, 2, 1_000]))
def test_members_get_each_partition_in_order_and_wait_for_nothing(
    ops: list[str], seed: int, looks: int, verdicts: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_readers, "_LOOKS", looks)
        play(ops, Random(seed), verdicts)


def play(ops: list[str], dice: Random, verdicts: int) -> None:
    world = World(Stream(), dice)
    world.stream.broker.flow.per_turn = TurnLimits(verdicts=verdicts)
    world.push("p0", 1)
    world.join(room=3)
    for op in ops:
        member = dice.choice(world.members) if world.members else None
        some = [] if member is None else [m for m in member.got if dice.random() < 0.5]
        match op:
            case "push":
                world.push(dice.choice(PARTITIONS), dice.randrange(1, 4))
            case "join":
                world.join(dice.choice((1, 4, 100)))
            case "work":
                world.work(AckStatus.COMPLETED)
            case "fail":
                world.work(AckStatus.FAILED)
            case "give back":
                world.work(None)
            case "delete":
                world.delete(dice.choice(list(world.partition_of)))
            case "time":
                world.passes(1_000)
            case "leave" if member is not None:
                world.leave(member)
            case "ack" if member is not None:
                world.settle(member, member.got[: dice.randrange(1, 4)], "ack")
            case "ack some" if some and member is not None:
                world.settle(member, some, "ack")
            case "atomic" if some and member is not None:
                world.settle(member, some, "ack", atomic=True)
            case "requeue" if some and member is not None:
                world.settle(member, some[:1], op)
            case "reject" | "reject in one" if some and member is not None:
                world.settle(member, some, "reject", atomic=op != "reject")
        world.check_settled()
        if dice.random() < 0.5:
            world.rest()
            world.check_settled()
            world.check_rest()

    last = world.join(room=1_000)
    for _ in range(20):
        for member in world.members:
            world.settle(member, member.got[:], "ack")
        world.rest()
    log = world.stream.log
    assert [log.groups["g"].lag(index) for index in range(len(log.partitions))] == [0] * len(log.partitions)
    assert not last.got
