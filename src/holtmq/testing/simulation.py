"""Seeded random schedules of clients, time, crashes and disk faults against the real broker and journal.

Owns: the schedule, the promises it checks, and how a failing seed is repeated. Must not touch: threads,
sockets, clocks, files. One seed is one history, down to the byte: ``python -m holtmq.testing.soak --seed N``
shows it again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Final

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicReject,
    ChannelClose,
    ConfirmSelect,
    TxCommit,
    TxRollback,
    TxSelect,
)
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.recovery import recover, snapshot
from holtmq.journal import FileJournal, JournalFailed, JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk, Keep, PowerCut
from holtmq.testing import views
from holtmq.testing.sim_client import BrokenRule, SimClient
from holtmq.verify.record import Record, make_body, name_of

_WORK, _IN, _OUT, _AUDIT, _SHORT, _DEAD = "work", "in", "out", "audit", "short", "dead"
_TTL_MS: Final = 1_000
_QUEUES: Final[dict[str, dict[str, object]]] = {
    _WORK: {},
    _IN: {},
    _OUT: {},
    _AUDIT: {},
    _SHORT: {"x-message-ttl": _TTL_MS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": _DEAD},
    _DEAD: {},
}
_FLEETING: Final = "x"  # publisher of transient messages: a crash may take them
_SEGMENT_BYTES: Final = 8_192  # small, so that a short history fills, checkpoints and compacts several
_START_MS: Final = 1_700_000_000_000
STEPS: Final = 80


@dataclass(frozen=True, slots=True)
class History:
    """What one seed did. Two runs of a seed have the same digest."""

    seed: int
    steps: int
    crashes: int
    confirmed: int
    digest: str


class BrokenPromise(BrokenRule):
    """A seed whose history breaks a promise; the text says how to see it again."""

    def __init__(self, seed: int, step: int, what: str) -> None:
        super().__init__(f"seed {seed}, step {step}: {what}\n  python -m holtmq.testing.soak --seed {seed}")
        self.seed = seed


class Simulation:
    """One world: a disk, a broker on it, and clients that come and go."""

    def __init__(self, seed: int, trace: Callable[[str], None] = lambda line: None) -> None:
        self._seed = seed
        self._trace = trace
        self._random = Random(seed)
        self._digest = blake2b(digest_size=8)
        self._disk = FakeDisk(seed)
        self._record = Record()
        self._now_ms = _START_MS
        self._clients: list[SimClient] = []
        self._mover: SimClient | None = None
        self._transaction_open = False  # a commit was sent and not answered
        self._acks_on_their_way: list[str] = []
        self._fleeting: set[str] = set()  # transient messages that were confirmed and not settled
        self._fleeting_gone: set[str] = set()
        self._numbers = 0  # of clients and transient messages
        self._steps = 0
        self._crashes = 0
        self._journal: FileJournal
        self._broker: Broker
        self._open()

    def run(self, steps: int = STEPS) -> History:
        """Live through a history; BrokenPromise at its first wrong turn."""
        try:
            for _ in range(steps):
                self._steps += 1
                self._step()
            self._crash(self._random.choice(list(Keep)))
        except BrokenPromise:
            raise
        except Exception as error:
            raise BrokenPromise(self._seed, self._steps, f"{type(error).__name__}: {error}") from error
        return History(
            self._seed, self._steps, self._crashes, self._record.confirmed, self._digest.hexdigest()
        )

    # -- the schedule ----------------------------------------------------------------------------

    def _step(self) -> None:
        action = self._random.choices(_ACTIONS, _WEIGHTS)[0]
        self._say(action.__name__)
        try:
            self._act(action)
        except PowerCut:  # the machine is off, and with it whoever wanted to read
            self._crash(self._random.choice(list(Keep)))

    def _act(self, action: "Callable[[Simulation], None]") -> None:
        action(self)
        if self._random.random() < 0.8:
            self._turn()
        if self._random.random() < 0.5:
            self._flush()
        if self._journal.failed is not None and self._random.random() < 0.3:
            self._crash(self._random.choice(list(Keep)))
        elif self._steps % 3 == 0:
            self._check()

    def _connects(self) -> None:
        if len(self._clients) < 4:
            client = self._new_client()
            client.send(ConfirmSelect())
            self._clients.append(client)
            if self._random.random() < 0.7:
                client.send(BasicQos(prefetch_count=self._random.randint(1, 5)))
                client.send(BasicConsume(self._random.choice((_WORK, _SHORT, _DEAD)), "worker"))

    def _mover_connects(self) -> None:
        # One transaction at a time, so that the record knows which one a crash left in doubt.
        if self._mover is None and not self._transaction_open:
            mover = self._mover = self._new_client()
            mover.send(TxSelect())
            mover.send(BasicQos(prefetch_count=4))
            mover.send(BasicConsume(_IN, "mover"))

    def _publishes(self) -> None:
        client = self._some_client()
        if client is None:
            return
        for _ in range(self._random.randint(1, 4)):
            queue = self._random.choice((_WORK, _WORK, _IN, _SHORT))
            persistent = queue != _WORK or self._random.random() < 0.8
            if persistent:
                name = self._record.next_name(queue, f"{queue}-{client.number}")
            else:
                self._numbers += 1
                name = f"{_FLEETING}.{self._numbers}"
            padding = int(self._random.random() ** 4 * 1_500)
            client.publish(queue, name, make_body(name, padding), persistent)

    def _settles(self) -> None:
        client = self._some_client()
        if client is None or not client.held:
            return
        at = self._random.randrange(len(client.held))
        choice = self._random.random()
        if choice < 0.2:
            for held in client.held[: at + 1]:
                self._leaves(held.name)
            tag = client.held[at].tag
            for held in client.revoked:  # a late ack counts if nobody else has taken the message
                if held.tag < tag:
                    self._may_leave(held.name)
            client.send(BasicAck(tag, multiple=True))
            del client.held[: at + 1]
            return
        held = client.held.pop(at)
        if choice < 0.4:
            client.send(BasicNack(held.tag, requeue=True))
        elif choice < 0.5:
            if held.routing_key != _SHORT:  # from there it goes to the dead letters
                self._leaves(held.name)
            client.send(BasicReject(held.tag, requeue=False))
        else:
            self._leaves(held.name)
            client.send(BasicAck(held.tag))

    def _gets(self) -> None:
        client = self._some_client()
        if client is not None:
            client.send(BasicGet(self._random.choice((_WORK, _SHORT, _DEAD))))

    def _cancels(self) -> None:
        client = self._some_client()
        if client is not None:
            client.send(BasicCancel("worker"))
            client.read()
            # What the consumer held goes back to the queue; what was fetched singly does not.
            client.revoked += [held for held in client.held if not held.fetched]
            client.held = [held for held in client.held if held.fetched]

    def _closes_a_channel(self) -> None:
        client = self._some_client()
        if client is not None:
            client.send(ChannelClose(200, "done"))
            self._leave_client(client)

    def _hangs_up(self) -> None:
        client = self._some_client()
        if client is not None:
            self._leave_client(client)

    def _mover_moves(self) -> None:
        mover = self._mover
        if mover is None or not mover.held or self._transaction_open:
            return
        batch = [mover.held.pop(0) for _ in range(self._random.randint(1, min(3, len(mover.held))))]
        rolls_back = self._random.random() < 0.2
        for held in batch:
            mover.send(BasicAck(held.tag))
        if rolls_back:
            mover.send(TxRollback())
            mover.held[:0] = batch
            return
        for queue, copy in self._record.move([held.name for held in batch], (_OUT, _AUDIT)):
            mover.publish(queue, copy, make_body(copy, 0), persistent=True)
        mover.send(TxCommit())
        self._transaction_open = True

    def _mover_hangs_up(self) -> None:
        if self._mover is not None:
            self._mover.connection.end("gone")
            self._mover = None

    def _time_passes(self) -> None:
        self._now_ms += self._random.choice((1, 10, 300, 999, 1_000, 2_500))
        self._broker.flow.now_ms = self._now_ms
        self._broker.flow.tick()
        self._turn()

    def _checkpoints(self) -> None:
        if self._journal.failed is None:
            self._turn()
            self._journal.checkpoint(*snapshot(self._broker))

    def _disk_fails(self) -> None:
        choice = self._random.random()
        if choice < 0.4:
            self._disk.fail_sync(self._random.randint(1, 3))
        elif choice < 0.8:
            self._disk.fail_write(self._random.randint(1, 3), partial=self._random.randint(0, 400))
        else:
            self._disk.cut_power_after(self._random.randint(0, 6))

    def _crashes_now(self) -> None:
        self._crash(self._random.choice(list(Keep)))

    # -- what a node does ------------------------------------------------------------------------

    def _turn(self) -> None:
        """Finish the round of reads, then let the clients see what it brought."""
        self._broker.flow.turn()
        for client in list(self._clients):
            client.read()
            if not client.is_alive:
                self._leave_client(client)
        mover = self._mover
        if mover is not None:
            mover.read()
            if mover.commits_answered and self._transaction_open:
                self._record.moved()
                self._transaction_open = False
            mover.commits_answered = 0
            if not mover.is_alive:
                self._mover_hangs_up()

    def _flush(self) -> None:
        """The disk's turn: one write, one sync, and everybody who waited for it is told."""
        turned = not self._broker.flow.dirty
        self._journal.flush()
        if self._journal.failed is None and turned:
            self._record.ack_is_durable(self._acks_on_their_way)
            self._acks_on_their_way.clear()
        self._turn()

    def _open(self) -> None:
        while not self._opens():
            self._say("dies while opening")
            self._disk.crash(self._random.choice(list(Keep)))

    def _opens(self) -> bool:
        try:
            self._journal, recovery = open_journal(
                "simulated",
                JournalOptions(segment_bytes=_SEGMENT_BYTES),
                disk=self._disk,
                clock=lambda: self._now_ms / 1000,
            )
            self._broker = Broker(self._journal)
            self._broker.flow.now_ms = self._now_ms
            recover(self._broker, recovery)
        except (JournalFailed, OSError):
            return False
        if not self._broker.vhosts:
            self._broker.put_vhost("/")
            self._broker.put_user(User("guest", "", ()))
            self._broker.set_permissions("guest", "/", FULL_ACCESS)
        vhost = self._broker.vhost("/")
        for name, arguments in _QUEUES.items():
            self._broker.declare_queue(vhost, name, durable=True, arguments=arguments)
        self._journal.flush()
        return self._journal.failed is None

    def _crash(self, keep: Keep) -> None:
        self._say(f"crash {keep.value}")
        self._crashes += 1
        self._clients.clear()
        self._mover = None
        self._transaction_open = False
        self._acks_on_their_way.clear()
        self._fleeting.clear()
        self._disk.crash(keep)
        if self._random.random() < 0.2:
            self._disk.cut_power_after(self._random.randint(0, 12))
        self._open()
        findings = self._record.compare(self._found())
        if not findings.is_clean:
            raise BrokenPromise(self._seed, self._steps, f"after a crash ({keep.value}): {findings}")
        self._broker.flow.turn()
        self._flush()

    # -- the promises ----------------------------------------------------------------------------

    def _check(self) -> None:
        """What must hold between any two turns."""
        if self._broker.flow.dirty or self._journal.failed is not None:
            return
        living = {
            channel.ledger
            for client in self._all_clients()
            for channel in client.connection.channels.values()
        }
        if not self._broker.sessions <= living:
            raise BrokenPromise(self._seed, self._steps, "a session outlived its channel")
        there: set[str] = set()
        for queue in self._broker.vhost("/").queues.values():
            leased = [
                lease.message
                for ledger in living
                for lease in ledger.by_number.values()
                if lease.queue is queue and lease.holder is not None
            ]
            if queue.unacked != len(leased):
                raise BrokenPromise(
                    self._seed,
                    self._steps,
                    f"{queue} says {queue.unacked} unacked, holders have {len(leased)}",
                )
            ready = views.raw_messages(self._broker, queue)
            if len(ready) != len(queue):
                raise BrokenPromise(self._seed, self._steps, f"{queue} has {len(ready)} messages")
            if sum(len(message.body) for message in ready) != queue.bytes:
                raise BrokenPromise(self._seed, self._steps, f"{queue} counts {queue.bytes} bytes")
            there.update(name_of(message.body) or "" for message in ready)
            there.update(name_of(message.body) or "" for message in leased)
            head = queue.store.peek(self._broker.flow.pager) if queue.lane is not None else None
            if queue.name == _SHORT and head is not None and head.arrived_ms + _TTL_MS <= self._now_ms:
                raise BrokenPromise(self._seed, self._steps, f"{queue} holds an expired message")
        missing = (self._record.must_be_there() | self._fleeting) - there
        if missing:
            raise BrokenPromise(self._seed, self._steps, f"neither waiting nor leased: {sorted(missing)[:5]}")

    def _found(self) -> dict[str, list[bytes]]:
        """All that waits, persistent only; what may move from one queue to the other counts as one queue."""
        found: dict[str, list[bytes]] = {}
        for name, queue in sorted(self._broker.vhost("/").queues.items()):
            bodies = [
                message.body for message in views.raw_messages(self._broker, queue) if message.persistent
            ]
            self._digest.update(b"".join(bodies))
            found[name] = bodies
        # Dead letters arrive in order of death, so order says nothing there.
        found[_SHORT] = sorted([*found[_SHORT], *found.pop(_DEAD)], key=_publisher_and_number)
        return found

    # -- small things ----------------------------------------------------------------------------

    def _confirmed(self, name: str) -> None:
        if name.startswith(_FLEETING + "."):
            if name not in self._fleeting_gone:  # a consumer may have been faster than the confirm
                self._fleeting.add(name)
        else:
            self._record.confirm(name)

    def _leaves(self, name: str) -> None:
        self._may_leave(name)
        if not name.startswith(_FLEETING + "."):
            self._acks_on_their_way.append(name)

    def _may_leave(self, name: str) -> None:
        if name.startswith(_FLEETING + "."):
            self._fleeting.discard(name)
            self._fleeting_gone.add(name)
        else:
            self._record.leave(name)

    def _new_client(self) -> SimClient:
        self._numbers += 1
        return SimClient(self._broker, self._random, self._numbers, self._confirmed, unordered=_DEAD)

    def _some_client(self) -> SimClient | None:
        return self._random.choice(self._clients) if self._clients else None

    def _all_clients(self) -> list[SimClient]:
        return [*self._clients, *([self._mover] if self._mover is not None else [])]

    def _leave_client(self, client: SimClient) -> None:
        client.connection.end("gone")
        self._clients.remove(client)

    def _say(self, line: str) -> None:
        self._digest.update(line.encode())
        self._trace(f"{self._steps:4} {line}")


_SCHEDULE: Final[dict[Callable[[Simulation], None], int]] = {
    Simulation._connects: 8,
    Simulation._mover_connects: 4,
    Simulation._publishes: 30,
    Simulation._settles: 25,
    Simulation._gets: 6,
    Simulation._cancels: 2,
    Simulation._closes_a_channel: 3,
    Simulation._hangs_up: 3,
    Simulation._mover_moves: 12,
    Simulation._mover_hangs_up: 1,
    Simulation._time_passes: 8,
    Simulation._checkpoints: 3,
    Simulation._disk_fails: 2,
    Simulation._crashes_now: 3,
}
_ACTIONS: Final = list(_SCHEDULE)
_WEIGHTS: Final = list(_SCHEDULE.values())


def simulate(seed: int, steps: int = STEPS, trace: Callable[[str], None] = lambda line: None) -> History:
    """One history; BrokenPromise names the seed."""
    return Simulation(seed, trace).run(steps)


def _publisher_and_number(body: bytes) -> tuple[str, int]:
    publisher, _, number = (name_of(body) or ".0").rpartition(".")
    return publisher, int(number)
