"""The work-queue core against a model of lists: any operation, any order, a restart at any point.

Owns: the machine that drives both. Paging is shrunk so that a dozen messages is a deep queue, and the
journal lies on a disk that forgets what was not synced.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from unittest.mock import patch

import pytest
from core_support import START_MS, Bench, Session, Taker, headers_of, shrink_paging
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from work_queue_model import DEAD, QUEUES, TOPICS, Item, Model, ModelQueue, Projection, Shape

from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.message_records import decode_delayed
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Lease
from holtmq.journal import JournalOptions
from holtmq.journal.fake_disk import FakeDisk, Keep
from holtmq.wire.tables import FieldTable

pytestmark = pytest.mark.model

# A few settings at a time: a queue with all of them drops everything before anything can go wrong.
settings_of_a_queue = st.one_of(
    st.fixed_dictionaries({"durable": st.just(False)}),
    st.fixed_dictionaries({"top": st.just(2)}),
    st.fixed_dictionaries({"ttl_ms": st.sampled_from([0, 50, 50])}),
    st.fixed_dictionaries(
        {
            "max_length": st.sampled_from([0, 1, 4]),
            "overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
        }
    ),
    st.fixed_dictionaries(
        {"max_bytes": st.just(30), "overflow": st.sampled_from(["drop-head", "reject-publish"])}
    ),
    st.fixed_dictionaries({"dead_letters": st.just(True)}),
    st.fixed_dictionaries({"delivery_limit": st.sampled_from([0, 1, 2])}),
    st.fixed_dictionaries({"retry_delay_ms": st.just(20)}),
    # All that such a queue must be or have; the limit is the one it has when it names none.
    st.just({"quorum": True, "durable": True, "top": 0, "delivery_limit": 20}),
)
shapes = st.lists(settings_of_a_queue, max_size=3).map(
    lambda some: Shape(
        **{key: value for one in sorted(some, key=lambda one: "quorum" in one) for key, value in one.items()}
    )
)
picks = st.integers(0, 1000)
# A checkpoint gives back, or rewrites, whatever has lost a message.
TINY_SEGMENTS = JournalOptions(segment_bytes=512, compact_below=0.95)
ends_turn = st.sampled_from([True, True, False])  # whether the operation ends its turn


class Witness(Taker):
    """A consumer that tells the machine what it was given."""

    machine: Machine

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        self.machine.delivered(self, queue, messages)
        super().deliver(queue, messages)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = [patch.object(module, name, value) for module, name, value in shrink_paging()]
        # Every power cut is a critical line, and there are thousands.
        self.patches += [
            patch.object(logging.getLogger(f"holtmq.journal.{name}"), "disabled", True)
            for name in ("file_journal", "opening")
        ]
        for one in self.patches:
            one.start()
        self.disk = FakeDisk()
        self.bench = Bench(self.disk, options=TINY_SEGMENTS)
        self.model = Model()
        self.model.now_ms = START_MS
        self.bench.declare(DEAD)
        for name, kind, arguments in (
            ("fan", "fanout", {}),
            ("top", "topic", {}),
            ("late", "x-delayed-message", {"x-delayed-type": "fanout"}),
        ):
            self.bench.broker.exchanges.declare(
                self.bench.vhost, name, kind, durable=True, arguments=dict(arguments)
            )
        self.bench.broker.bind(self.bench.vhost, "late", DEAD, "")
        self.sessions: list[Session] = [Session(self.bench), Session(self.bench)]
        # By lease: a Lease object is what both sides can point at.
        self.leases: dict[tuple[Session, int], tuple[ModelQueue, Item]] = {}
        self.revoked: dict[tuple[Session, int], tuple[ModelQueue, Item]] = {}
        self.all_delays: dict[bytes, tuple[int, Item]] = {}
        self.serial = 0
        self.overtaken: list[tuple[ModelQueue, Item]] = []
        self.ordered = True  # whether this operation promises the order in which messages die
        self.settled_turn = True
        self.remember_durable()

    def teardown(self) -> None:
        for one in self.patches:
            one.stop()

    def remember_durable(self) -> None:
        """All so far is on the disk."""
        self.bench.sync()
        self.durable: tuple[Projection, list[tuple[int, Item]]] = (
            self.model.projection(),
            self.model.lasting_delays(),
        )
        self.since: list[Projection] = []
        self.totals: list[Counter[bytes]] = []
        self.note()

    def note(self) -> None:
        """A state that a power cut may leave behind; what waits for its time counts as being somewhere."""
        self.since.append(self.model.projection())
        items = [item for kept in self.since[-1].values() for item in kept.items]
        items += [item for _, item in self.model.lasting_delays()]
        self.totals.append(Counter(item.body for item in items))

    def delivered(self, taker: Taker, queue: Queue, messages: list[Message]) -> None:
        model = self.model.queues[queue.name]
        assert len(messages) <= taker.room()
        assert not any(
            other.priority > taker.priority and other.room() > 0
            for other in self.takers(queue.name)
            if other is not taker
        ), "a consumer of lower priority was served first"
        for at, found in enumerate(messages):
            item = self.find(model, found)
            for ahead in model.in_order():
                if ahead is item:
                    break
                if 0 < model.deadline(ahead) <= self.model.now_ms and ahead.arrived_ms < model.deadline(
                    ahead
                ):
                    model.leave(ahead, "expired")
                else:
                    self.overtaken.append((model, ahead))
            self.hand_out(model, item, queue.is_redelivered(found))
            if taker.no_ack:
                model.counts.pop(item, None)
            else:
                model.leased.append(item)
                self.leases[taker.session, taker.session.ledger.last + 1 + at] = model, item

    def hand_out(self, model: ModelQueue, item: Item, redelivered: bool) -> None:
        model.waiting.remove(item)
        if item.was_out or not model.shape.top:
            assert redelivered == item.was_out, item
        item.was_out = True

    def find(self, model: ModelQueue, found: Message) -> Item:
        return next(item for item in model.waiting if item.body == found.body)

    def takers(self, queue: str) -> list[Taker]:
        return [t for session in self.sessions for t in session.consumers if t.queue.name == queue]

    def has_room(self, queue: ModelQueue) -> bool:
        return any(taker.room() > 0 for taker in self.takers(queue.name))

    def enforce(self, queue: ModelQueue) -> None:
        """The broker has just looked at the limits of this queue."""
        if queue.is_over():
            if self.has_room(queue):
                queue.drop_expired(self.model.now_ms)
            queue.shed()

    def end(self, turn: bool) -> None:
        if turn:
            self.bench.turn()
            self.follow_turn()
        self.settled_turn = turn

    def follow_turn(self) -> None:
        model = self.model
        for queue in model.queues.values():
            if self.has_room(queue):
                queue.drop_expired(model.now_ms)
                assert not queue.waiting, "a consumer with room was not served"
            queue.drop_expired(model.now_ms)
            queue.shed()
        for queue, item in self.overtaken:
            assert item not in queue.waiting, "a message was overtaken and still waits"
        self.overtaken = []
        self.adopt_dead(model.cast_out())
        self.note()
        self.ordered = True

    def adopt_dead(self, dead_lettered: dict[str, list[Item]]) -> None:
        """Who died first among several queues is not promised; within one queue it is."""
        dead = self.model.queues[DEAD]
        new = [
            (str(headers_of(found).get("x-last-death-queue")), found.body)
            for found in self.bench.waiting(DEAD)[len(dead.waiting) :]
        ]
        expected = {(item.died_in, item.body): item for items in dead_lettered.values() for item in items}
        if self.ordered:
            for name, items in dead_lettered.items():
                assert [body for source, body in new if source == name] == [item.body for item in items]
        assert sorted(new) == sorted(expected)
        for key in new:
            self.model._n += 1
            expected[key].n = self.model._n
            dead.waiting.append(expected[key])

    def turn_now(self) -> None:
        if not self.settled_turn:
            self.end(True)

    @initialize(one=shapes, other=shapes)
    def begin(self, one: Shape, other: Shape) -> None:
        self.declare("q0", one)
        self.declare("q1", other)
        self.remember_durable()

    @rule(which=picks, shape=shapes)
    @precondition(lambda self: len(self.model.queues) <= len(QUEUES))
    def declare_another(self, which: int, shape: Shape) -> None:
        missing = [name for name in QUEUES if name not in self.model.queues]
        self.declare(missing[which % len(missing)], shape)

    def declare(self, name: str, shape: Shape) -> None:
        self.bench.declare(name, shape.arguments(), durable=shape.durable)
        self.bind(name)
        self.model.queues[name] = ModelQueue(name, shape)
        self.end(True)

    def bind(self, name: str) -> None:
        for source, keys in (("fan", ("",)), ("top", TOPICS[name])):
            for key in keys:
                self.bench.broker.bind(self.bench.vhost, source, name, key)

    def some_queue(self, which: int) -> str:
        names = [name for name in QUEUES if name in self.model.queues]
        return names[which % len(names)]

    @rule(which=picks, delete=st.sampled_from([False, False, True]))
    def empty(self, which: int, delete: bool) -> None:
        name = self.some_queue(which)
        if delete and len(self.model.queues) > 2:  # one is always left, beside that of the dead
            self.delete(name)
        else:
            self.purge(name)

    def purge(self, name: str) -> None:
        self.turn_now()
        queue = self.model.queues[name]
        assert self.bench.broker.purge_queue(self.bench.vhost, name)[0] == len(queue.waiting)
        for item in queue.waiting:
            queue.counts.pop(item, None)
        queue.waiting.clear()
        self.end(True)

    def delete(self, name: str) -> None:
        self.turn_now()
        queue = self.model.queues.pop(name)
        assert self.bench.broker.delete_queue(self.bench.vhost, name)[0] == len(queue.waiting)
        for session in self.sessions:
            session.consumers = [t for t in session.consumers if t.queue.name != name]
        self.end(True)

    @rule(
        exchange=st.sampled_from(["", "", "", "fan", "top"]),
        keys=st.lists(st.sampled_from([*QUEUES, "a.b", "a.c", "z.b"]), min_size=1, max_size=2),
        persistent=st.sampled_from([True, True, False]),
        priority=st.sampled_from([None, 0, 1, 5]),
        ttl_ms=st.sampled_from([None, None, None, None, 0, 30]),
        size=st.integers(0, 12),
        count=st.sampled_from([1, 1, 1, 2, 9]),
        turn=ends_turn,
    )
    def publish_anywhere(
        self,
        exchange: str,
        keys: list[str],
        persistent: bool,
        priority: int | None,
        ttl_ms: int | None,
        size: int,
        count: int,
        turn: bool,
    ) -> None:
        self.publish(exchange, keys, persistent, priority, ttl_ms, size, count, turn)

    def publish(
        self,
        exchange: str,
        keys: list[str],
        persistent: bool,
        priority: int | None,
        ttl_ms: int | None,
        size: int,
        count: int,
        turn: bool,
    ) -> None:
        refusing = any(queue.shape.refuses for queue in self.model.route(exchange, keys))
        for _ in range(count):
            if refusing:
                self.turn_now()  # otherwise a consumer may make room while the broker decides
            body = self.next_body(size)
            accepted, expected = self.place(exchange, keys, body, persistent, priority, ttl_ms)
            self.note()  # a power cut may come before a limit bites
            outcome = self.send(exchange, keys, body, persistent, priority, ttl_ms)
            assert outcome is expected
            for queue in accepted:
                self.enforce(queue)
            self.settled_turn = False
        self.end(turn or refusing)

    @rule(which=picks, persistent=st.booleans(), count=st.sampled_from([1, 3, 12]), turn=ends_turn)
    def publish_to_one(self, which: int, persistent: bool, count: int, turn: bool) -> None:
        self.publish("", [self.some_queue(which)], persistent, None, None, 0, count, turn)

    def next_body(self, size: int) -> bytes:
        self.serial += 1
        return b"%d-" % self.serial + b"x" * size

    def place(
        self,
        exchange: str,
        keys: list[str],
        body: bytes,
        persistent: bool,
        priority: int | None,
        ttl_ms: int | None,
        ahead: Counter[str] | None = None,
        bytes_ahead: Counter[str] | None = None,
    ) -> tuple[list[ModelQueue], PublishOutcome]:
        queues = list(self.model.route(exchange, keys))
        persistent = self.lasts(persistent, queues)
        ahead, bytes_ahead = ahead or Counter(), bytes_ahead or Counter()
        accepted = []
        for queue in queues:
            if queue.would_refuse(body, ahead[queue.name], bytes_ahead[queue.name]):
                if queue.shape.overflow == "reject-publish-dlx":
                    refused = self.model.item(body, persistent, priority or 0, ttl_ms)
                    queue.outcasts.append(("maxlen", refused))
            else:
                accepted.append(queue)
        for queue in accepted:
            queue.waiting.append(self.model.item(body, persistent, priority or 0, ttl_ms))
        if len(accepted) < len(queues):
            return accepted, PublishOutcome.REFUSED
        if not queues:
            return accepted, PublishOutcome.UNROUTED
        lasts = persistent and any(queue.shape.durable for queue in accepted)
        return accepted, PublishOutcome.JOURNALLED if lasts else PublishOutcome.PLACED

    @staticmethod
    def lasts(persistent: bool, queues: list[ModelQueue]) -> bool:
        """What reaches a quorum queue is persistent in all its queues, whatever its publisher said."""
        return persistent or any(queue.shape.quorum for queue in queues)

    def send(
        self,
        exchange: str,
        keys: list[str],
        body: bytes,
        persistent: bool,
        priority: int | None,
        ttl_ms: int | None,
    ) -> PublishOutcome:
        return self.bench.publish(
            keys[0],
            body,
            exchange=exchange,
            persistent=persistent,
            priority=priority,
            expiration=None if ttl_ms is None else str(ttl_ms),
            headers={"CC": list(keys[1:])} if keys[1:] else None,
            turn=False,
        )

    @rule(persistent=st.booleans(), delay_ms=st.sampled_from([10, 25, 60]))
    def publish_later(self, persistent: bool, delay_ms: int) -> None:
        body = self.next_body(0)
        headers: FieldTable = {"x-delay": delay_ms}
        outcome = self.bench.publish(
            "",
            body,
            exchange="late",
            persistent=persistent,
            headers=headers,
            turn=False,
        )
        assert outcome is (PublishOutcome.JOURNALLED if persistent else PublishOutcome.PLACED)
        self.all_delays[body] = self.model.now_ms + delay_ms, self.model.item(body, persistent)
        self.model.delayed.append(self.all_delays[body])
        self.end(True)

    @rule(
        who=picks,
        which=picks,
        prefetch=st.sampled_from([0, 1, 2, 9]),
        no_ack=st.sampled_from([False, False, False, True]),
        priority=st.sampled_from([0, 0, 1]),
        turn=ends_turn,
    )
    def consume(self, who: int, which: int, prefetch: int, no_ack: bool, priority: int, turn: bool) -> None:
        name = self.some_queue(which)
        if len(self.takers(name)) >= 3:
            return
        session = self.sessions[who % len(self.sessions)]
        witness = Witness(session, self.bench.queue(name), prefetch, no_ack, priority)
        witness.machine = self
        session.consumers.append(witness)
        self.bench.broker.consume(witness.queue, witness)
        self.end(turn)

    @rule(who=picks, which=picks, from_dead=st.sampled_from([False, False, False, True]), turn=ends_turn)
    def get(self, who: int, which: int, from_dead: bool, turn: bool) -> None:
        name = DEAD if from_dead else self.some_queue(which)
        self.turn_now()
        session = self.sessions[who % len(self.sessions)]
        queue = self.model.queues[name]
        lease = session.get(name)
        expected = next(iter(queue.in_order()), None)
        assert (None if lease is None else lease.message.body) == (expected and expected.body)
        if lease is not None and expected is not None:
            self.hand_out(queue, expected, self.bench.queue(name).is_redelivered(lease.message))
            queue.leased.append(expected)
            self.leases[session, lease.number] = queue, expected
            if not queue.shape.quorum:
                queue.drop_expired(self.model.now_ms)  # the answer counts those that are left
        self.end(turn)

    def some_leases(self, who: int, multiple: bool) -> tuple[Session, list[int]] | None:
        known = sorted({*self.leases, *self.revoked}, key=lambda key: (self.sessions.index(key[0]), key[1]))
        if not known:
            return None
        session, number = known[who % len(known)]
        return session, [n for s, n in known if s is session and (n == number or (multiple and n <= number))]

    def end_leases(self, session: Session, numbers: list[int]) -> list[Lease]:
        """As a channel does it: one by one, or all up to a number."""
        return session.ledger.end_upto(numbers[-1]) if len(numbers) > 1 else session._end(numbers)

    @rule(who=picks, multiple=st.booleans(), turn=ends_turn)
    @precondition(lambda self: self.leases or self.revoked)
    def ack(self, who: int, multiple: bool, turn: bool) -> None:
        chosen = self.some_leases(who, multiple)
        if chosen is None:
            return
        self.bench.flow.ack(self.end_leases(*chosen))
        self.follow_ack(*chosen)
        self.end(turn)

    @rule(who=picks, good=st.booleans(), turn=ends_turn)
    @precondition(lambda self: self.revoked)
    def settle_late(self, who: int, good: bool, turn: bool) -> None:
        """A verdict on a message that was taken from its holder."""
        session, number = sorted(self.revoked, key=lambda key: (self.sessions.index(key[0]), key[1]))[
            who % len(self.revoked)
        ]
        leases = session._end([number])
        (self.bench.flow.ack if good else self.bench.flow.reject)(leases)
        (self.follow_ack if good else self.follow_reject)(session, [number])
        self.end(turn)

    def follow_ack(self, session: Session, numbers: list[int]) -> None:
        for number in numbers:
            if (session, number) in self.revoked:
                queue, item = self.revoked.pop((session, number))
                queue.take_out(item)
            else:
                queue, item = self.leases.pop((session, number))
                queue.leased.remove(item)
            if item not in queue.leased:
                queue.counts.pop(item, None)

    @rule(who=picks, multiple=st.booleans(), turn=ends_turn)
    @precondition(lambda self: self.leases or self.revoked)
    def reject(self, who: int, multiple: bool, turn: bool) -> None:
        chosen = self.some_leases(who, multiple)
        if chosen is None:
            return
        self.bench.flow.reject(self.end_leases(*chosen))
        self.follow_reject(*chosen)
        self.end(turn)

    def follow_reject(self, session: Session, numbers: list[int]) -> None:
        for number in numbers:
            if (session, number) in self.revoked:
                queue, item = self.revoked.pop((session, number))
                if not queue.take_out(item):
                    continue
            else:
                queue, item = self.leases.pop((session, number))
                queue.leased.remove(item)
            queue.outcasts.append(("rejected", item))

    @rule(who=picks, multiple=st.booleans(), turn=ends_turn)
    @precondition(lambda self: self.leases or self.revoked)
    def release(self, who: int, multiple: bool, turn: bool) -> None:
        chosen = self.some_leases(who, multiple)
        if chosen is None:
            return
        session, numbers = chosen
        leases = self.end_leases(session, numbers)
        self.give_back([key for key in ((session, n) for n in numbers) if key in self.leases])
        for number in numbers:
            self.revoked.pop((session, number), None)
        self.bench.flow.release([lease for lease in leases if lease.holder is not None])
        self.end(turn)

    def give_back(self, keys: list[tuple[Session, int]]) -> None:
        """In order of arrival: that is how messages of one queue meet their delivery limit."""
        for key in keys:
            queue, item = self.leases.pop(key)
            if self.model.queues.get(queue.name) is queue:
                queue.give_back([item], self.model.now_ms)

    @rule(who=picks, requeue=st.sampled_from([True, True, False]), turn=ends_turn)
    @precondition(lambda self: any(session.consumers for session in self.sessions))
    def cancel(self, who: int, requeue: bool, turn: bool) -> None:
        takers = [taker for session in self.sessions for taker in session.consumers]
        taker = takers[who % len(takers)]
        if requeue:
            keys = [(taker.session, number) for number in taker.held]
            self.revoked.update({key: self.leases[key] for key in keys})
            self.give_back(keys)
            self.bench.flow.release(taker.session.ledger.revoke(taker))
        taker.session.consumers.remove(taker)
        self.bench.broker.cancel(taker.queue, taker)
        self.end(turn)

    @rule(who=picks, turn=ends_turn)
    def close_session(self, who: int, turn: bool) -> None:
        session = self.sessions.pop(who % len(self.sessions))
        self.sessions.append(Session(self.bench))
        self.revoked = {key: value for key, value in self.revoked.items() if key[0] is not session}
        self.give_back([key for key in self.leases if key[0] is session])
        session.close()
        self.end(turn)

    @rule(
        who=picks,
        keys=st.lists(st.sampled_from(QUEUES), max_size=3),
        persistent=st.booleans(),
        verdict=st.sampled_from(["ack", "reject", "none"]),
    )
    def commit_a_batch(self, who: int, keys: list[str], persistent: bool, verdict: str) -> None:
        """What a transaction does: publishes and verdicts in one record."""
        self.turn_now()
        self.ordered = False
        flow = self.bench.flow
        flow.begin()
        ahead: Counter[str] = Counter()
        bytes_ahead: Counter[str] = Counter()
        placed: list[tuple[list[ModelQueue], bytes]] = []
        for key in keys:
            body = self.next_body(3)
            queues = list(self.model.route("", [key]))
            accepted = [q for q in queues if not q.would_refuse(body, ahead[q.name], bytes_ahead[q.name])]
            self.send("", [key], body, persistent, None, None)
            for queue in accepted:
                ahead[queue.name] += 1
                bytes_ahead[queue.name] += len(body)
            for queue in queues:
                if queue not in accepted and queue.shape.overflow == "reject-publish-dlx":
                    refused = self.model.item(body, self.lasts(persistent, queues))
                    queue.outcasts.append(("maxlen", refused))
            placed.append((accepted, body))
        leases: list[Lease] = []
        chosen = self.some_leases(who, multiple=True) if verdict != "none" else None
        if chosen is not None:
            leases = self.end_leases(*chosen)
            (flow.ack if verdict == "ack" else flow.reject)(leases)
            (self.follow_ack if verdict == "ack" else self.follow_reject)(*chosen)
        for accepted, body in placed:
            for queue in accepted:
                queue.waiting.append(self.model.item(body, self.lasts(persistent, accepted)))
        self.note()
        flow.commit({id(x.queue): x.queue for x in leases if not x.queue.deleted}.values())
        self.overtaken = []
        for accepted, _ in placed:
            for queue in accepted:
                self.enforce(queue)
        self.end(True)

    @rule(ms=st.sampled_from([1, 5, 20, 60]))
    def advance(self, ms: int) -> None:
        self.turn_now()
        self.ordered = False
        model = self.model
        model.now_ms += ms
        back: list[ModelQueue] = []
        for queue in model.queues.values():
            due = [item for at, item in queue.held if at <= model.now_ms]
            queue.held = [(at, item) for at, item in queue.held if at > model.now_ms]
            queue.waiting += due
            if due:
                back.append(queue)
        self.bench.now_ms = self.bench.flow.now_ms = model.now_ms
        self.bench.flow.tick()
        for queue in back:
            self.enforce(queue)
        for at, item in sorted(model.delayed, key=lambda entry: entry[0]):
            if at <= model.now_ms:
                model._n += 1
                item.n = model._n
                model.queues[DEAD].waiting.append(item)
        model.delayed = [entry for entry in model.delayed if entry[0] > model.now_ms]
        self.end(True)

    @rule()
    def sync(self) -> None:
        self.turn_now()
        self.remember_durable()

    @rule(wait=st.booleans())
    def checkpoint(self, wait: bool) -> None:
        self.turn_now()
        if not wait:
            self.bench._journal.checkpoint(*snapshot(self.bench.broker))
            return
        self.bench._journal.flush()
        self.bench.checkpoint()
        self.remember_durable()

    @rule(
        how=st.sampled_from(["crash", "stop", "power"]),
        keep=st.sampled_from([Keep.NOTHING, Keep.SECTORS, Keep.EVERYTHING]),
        after=st.integers(0, 6),
    )
    def end_and_start(self, how: str, keep: Keep, after: int) -> None:
        if how == "crash":
            # Nothing unsynced was ever handed to the disk, so what comes back is known to the message.
            self.restart(lambda: self.bench.crash(keep), *self.durable)
        elif how == "stop":
            self.stop_and_start()
        else:
            self.power_fails(after)
        self.sessions = [Session(self.bench), Session(self.bench)]
        if len(self.model.queues) == 1:
            self.declare("q0", Shape())

    def stop_and_start(self) -> None:
        self.turn_now()
        self.restart(self.bench.restart, self.model.projection(), self.model.lasting_delays())

    def restart(
        self, how: Callable[[], None], projection: Projection, delayed: list[tuple[int, Item]]
    ) -> None:
        self.sessions, self.leases, self.revoked, self.overtaken = [], {}, {}, []
        self.model.restart(projection, delayed)
        self.ordered = False
        how()
        self.follow_turn()
        self.settled_turn = True
        self.remember_durable()

    def power_fails(self, after: int) -> None:
        """While a commit is being written: some first part of its records survives."""
        self.turn_now()
        self.disk.cut_power_after(after)
        self.bench._journal.flush()
        self.disk.crash(Keep.SECTORS)
        self.bench.crash(Keep.EVERYTHING)
        self.check_survivors()
        self.adopt_broker()
        self.remember_durable()

    def check_survivors(self) -> None:
        """Nothing that was there all the time is gone, nothing that never was there is; no message twice."""
        found = {name: self.bench.bodies(name) for name in self.bench.vhost.queues}
        pending = [self.delayed_body(position) for position in self.bench.flow.delayed]
        now = Counter([*pending, *(body for bodies in found.values() for body in bodies)])
        ever = set().union(*self.totals)
        for body in ever:
            if not any(body in bodies for bodies in self.perishable()):
                counts = [past[body] for past in self.totals]
                assert min(counts) <= now[body] <= max(counts), body
        assert set(now) <= ever
        for name in QUEUES:
            order = {
                item.body: (-min(item.priority, past[name].shape.top), item.n)
                for past in self.since
                if name in past
                for item in past[name].items
            }
            ranks = [order[body] for body in found.get(name, [])]
            assert ranks == sorted(ranks), name

    def perishable(self) -> list[set[bytes]]:
        """Bodies of queues whose own rules may drop a message at the restart."""
        return [
            {item.body for item in kept.items}
            for past in self.since
            for kept in past.values()
            if kept.shape.ttl_ms is not None
            or kept.shape.max_length is not None
            or kept.shape.max_bytes is not None
            or any(item.expires_ms for item in kept.items)
        ]

    def adopt_broker(self) -> None:
        """Go on from what the broker found."""
        shapes_known = {kept.shape for past in self.since for kept in past.values() if kept.shape.durable}
        self.sessions, self.leases, self.revoked, self.overtaken = [], {}, {}, []
        self.model.queues = {}
        for queue in self.bench.broker.work_queues():
            name = queue.name
            # Of two queues of this name, one after the other, the disk may know the first.
            shape = next(one for one in shapes_known if one.arguments() == queue.arguments or name == DEAD)
            model = self.model.queues[name] = ModelQueue(name, Shape() if name == DEAD else shape)
            for found in self.bench.waiting(name):
                item = Item(
                    found.seq,
                    found.body,
                    found.persistent,
                    found.priority,
                    found.arrived_ms,
                    found.expires_ms,
                    was_out=queue.is_redelivered(found),
                )
                model.waiting.append(item)
                model.counts[item] = queue.returned.get(found.seq, 0)
        self.model._n = max(self.model._n, self.bench.flow.seq)
        pending = sorted(self.bench.flow.delayed)
        bodies = [self.delayed_body(position) for position in pending]
        self.model.delayed = [self.all_delays[body] for body in bodies]
        for name in QUEUES:
            if name in self.model.queues:
                self.bind(name)  # the queue may be there without its bindings: they were records of their own

    def delayed_body(self, position: int) -> bytes:
        return decode_delayed(self.bench._journal.read(position)[1])[3].body

    @invariant()
    def broker_and_model_agree(self) -> None:
        if not self.settled_turn:
            return
        assert set(self.bench.vhost.queues) == set(self.model.queues)
        for name, model in self.model.queues.items():
            queue = self.bench.queue(name)
            assert self.bench.bodies(name) == [item.body for item in model.in_order()], name
            assert (len(queue), queue.bytes) == (len(model.waiting), model.size), name
            assert queue.unacked == len(model.leased), name
            assert not queue.outcasts
            assert not queue.settled
            assert queue.store.in_memory <= 6 + 2 * 3 + 3, "memory is not bounded"
        held = sum(len(session.ledger) for session in self.sessions)
        assert held == len(self.leases)

    @invariant()
    def all_of_it_is_on_the_disk(self) -> None:
        if self.bench.broker.journal.failed is None:
            with self.disk.spared():
                self.bench.read_back()


Machine.TestCase.settings = settings.get_profile("model")
TestWorkQueueModel = Machine.TestCase


def test_a_get_drops_what_has_expired_behind_its_message() -> None:
    machine = Machine()
    machine.begin(Shape(), Shape())
    machine.commit_a_batch(keys=["q0"], persistent=False, verdict="ack", who=0)
    machine.publish_anywhere(
        count=1, exchange="fan", keys=["q0"], persistent=True, priority=None, size=0, ttl_ms=0, turn=True
    )
    machine.get(from_dead=False, turn=False, which=0, who=0)

    machine.release(multiple=False, turn=True, who=0)

    machine.broker_and_model_agree()
    machine.teardown()


def test_a_delay_whose_end_a_crash_undid_ends_again_with_a_new_message() -> None:
    machine = Machine()
    machine.begin(Shape(), Shape())
    machine.publish_later(persistent=True, delay_ms=10)
    machine.sync()
    machine.advance(ms=10)
    machine.get(who=1, which=0, from_dead=True, turn=True)
    machine.end_and_start(how="crash", keep=Keep.NOTHING, after=0)
    machine.advance(ms=1)

    machine.get(who=0, which=0, from_dead=True, turn=True)

    machine.teardown()


def test_nothing_is_kept_for_the_leases_of_a_deleted_queue() -> None:
    machine = Machine()
    machine.begin(Shape(), Shape(durable=False))
    machine.consume(who=0, which=0, prefetch=0, no_ack=False, priority=0, turn=True)
    for _ in range(6):
        machine.sync()  # so that the messages come to be in a segment that is deleted
    machine.commit_a_batch(who=0, keys=["q0"] * 3, persistent=True, verdict="ack")
    machine.empty(which=0, delete=True)
    for _ in range(2):
        machine.checkpoint(wait=True)
        machine.all_of_it_is_on_the_disk()

    machine.teardown()
