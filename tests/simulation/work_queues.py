"""AMQP clients in a simulated history, and the promises about work queues.

Owns: what these clients do, the record of what they were promised, and the comparison. Must not touch: the
world's life and death.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

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
from holtmq.broker.message import Message, decode_message
from holtmq.broker.partitioned.log.bodies import decode_body
from holtmq.broker.records.message_records import decode_delayed
from holtmq.broker.streams.envelopes import to_body
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.testing import views
from holtmq.verify.record import Record, make_body, name_of, publisher_and_number
from simulation.amqp_client import SimClient
from simulation.disk_reads import Decode
from simulation.promises import Action, BrokenRule
from simulation.world import World

T = TypeVar("T")

_WORK, _IN, _OUT, _AUDIT, _SHORT, _DEAD = "work", "in", "out", "audit", "short", "dead"
_LATE, _EVENTS = "late", "log"
_DELAYING: Final = "delaying"  # an exchange that lets messages for _LATE wait
_QUORUM = "quorum"
_WIDE: Final = "wide"  # an exchange that leads to all of the next
_MANY: Final = ("wide-1", "wide-2", "wide-3")
_DYING, _LETTERS = "dying", "letters"  # a queue, and the exchange that leads its letters to all of the next
_DIED: Final = ("died-1", "died-2", "died-3")
_TTL_MS: Final = 1_000
_QUEUES: Final[dict[str, dict[str, object]]] = {
    _WORK: {},
    _IN: {},
    _OUT: {},
    _AUDIT: {"x-queue-type": "stream"},  # so that a mover's transaction concerns both kinds of queue
    _SHORT: {  # messages leave it for the dead letters in every way: too old, too many, rejected
        "x-message-ttl": _TTL_MS,
        "x-max-length": 3,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": _DEAD,
    },
    _DEAD: {},
    _LATE: {"x-max-length": 3, "x-overflow": "reject-publish"},  # what is due may have to wait for room
    _EVENTS: {"x-queue-type": "stream"},
    _QUORUM: {"x-queue-type": "quorum"},  # keeps every message, persistent or not
    _DYING: {"x-message-ttl": _TTL_MS, "x-max-length": 3, "x-dead-letter-exchange": _LETTERS},
    **{name: {} for name in (*_MANY, *_DIED)},
}
_LEADS_TO: Final = {_WIDE: _MANY, _LETTERS: _DIED}
_FLEETING: Final = "x-"  # begins the names of transient messages: a crash may take them


class WorkQueues:
    """AMQP clients of the history, a ``SimulatedClients``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._record = Record()
        self._clients: list[SimClient] = []
        self._mover: SimClient | None = None
        self._transaction_open = False  # a commit was sent and not answered
        self._acks_on_their_way: list[str] = []
        self._fleeting: set[str] = set()  # transient messages that were confirmed and not settled
        self._fleeting_gone: set[str] = set()
        self._copies: dict[str, dict[str, str]] = {}  # of a message for many queues: queue -> name on record
        self._numbers = 0  # of clients and transient messages

    @property
    def actions(self) -> Mapping[Action, int]:
        """What may happen next, and how often."""
        return {
            self._connects: 8,
            self._mover_connects: 4,
            self._publishes: 30,
            self._publishes_to_many: 10,
            self._publishes_what_dies: 10,
            self._settles: 25,
            self._gets: 6,
            self._cancels: 2,
            self._closes_a_channel: 3,
            self._hangs_up: 3,
            self._mover_moves: 12,
            self._mover_hangs_up: 1,
        }

    @property
    def confirmed(self) -> int:
        """Messages that were confirmed."""
        return self._record.confirmed

    def _connects(self) -> None:
        if len(self._clients) < 4:
            client = self._new_client()
            client.send(ConfirmSelect())
            self._clients.append(client)
            if self._world.random.random() < 0.7:
                client.send(BasicQos(prefetch_count=self._world.random.randint(1, 5)))
                queue = self._world.random.choice((_WORK, _SHORT, _DEAD, _LATE, _QUORUM))
                client.send(BasicConsume(queue, "worker"))

    def _mover_connects(self) -> None:
        # One transaction at a time, so that the record knows which one a crash left in doubt.
        if self._mover is None and not self._transaction_open:
            mover = self._mover = self._new_client()
            mover.send(TxSelect())
            mover.send(BasicQos(prefetch_count=4))
            mover.send(BasicConsume(_IN, "mover"))

    def _publishes(self) -> None:
        self._publish((_WORK, _WORK, _IN, _SHORT, _LATE, _EVENTS, _QUORUM))

    def _publish(self, queues: Sequence[str]) -> None:
        client = self._some_client()
        if client is None:
            return
        for _ in range(self._world.random.randint(1, 4)):
            queue = self._world.random.choice(queues)
            persistent = queue not in (_WORK, _QUORUM) or self._world.random.random() < 0.8
            if persistent or queue == _QUORUM:
                name = self._record.next_name(queue, f"{queue}-{client.number}")
            else:
                self._numbers += 1
                name = f"{_FLEETING}{client.number}.{self._numbers}"
            padding = int(self._world.random.random() ** 4 * 1_500)
            exchange, delay_ms = "", 0
            if queue == _LATE:
                exchange, delay_ms = _DELAYING, self._world.random.choice((1, 300, 2_000))
            client.publish(queue, name, make_body(name, padding), persistent, exchange, delay_ms)

    def _publishes_to_many(self) -> None:
        """A message for several queues, and one behind it for one of them. Nothing leaves these queues."""
        client = self._some_client()
        if client is None:
            return
        self._numbers += 1
        name = f"all.{self._numbers}"
        self._copies[name] = {
            queue: self._record.next_name(queue, f"{queue}-{client.number}") for queue in _MANY
        }
        padding = int(self._world.random.random() ** 4 * 1_500)
        client.publish("", name, make_body(name, padding), True, _WIDE)
        if self._world.random.random() < 0.5:
            queue = self._world.random.choice(_MANY)
            behind = self._record.next_name(queue, f"{queue}-{client.number}")
            client.publish(queue, behind, make_body(behind, 0), True)

    def _publishes_what_dies(self) -> None:
        """Messages whose dead letters are for several queues. Nothing else is done to them."""
        client = self._some_client()
        if client is None:
            return
        for _ in range(self._world.random.randint(1, 3)):
            self._numbers += 1
            name = f"dies.{self._numbers}"
            self._copies[name] = {
                queue: self._record.next_name(queue, f"{queue}-{client.number}") for queue in _DIED
            }
            padding = int(self._world.random.random() ** 4 * 1_500)
            client.publish(_DYING, name, make_body(name, padding), True)

    def _settles(self) -> None:
        client = self._some_client()
        if client is None or not client.held:
            return
        at = self._world.random.randrange(len(client.held))
        choice = self._world.random.random()
        if choice < 0.2:
            for held in client.held[: at + 1]:
                self._leaves(held.name)
            tag = client.held[at].tag
            for held in client.revoked:  # a late ack counts if no other consumer has the message
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
            client.send(BasicGet(self._world.random.choice((_WORK, _SHORT, _DEAD, _LATE, _QUORUM))))

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
        """Move some messages in a transaction; first, if need be, what has to be there for it."""
        mover = self._mover
        if self._transaction_open:
            return
        if mover is None:
            self._mover_connects()
            return
        if not mover.held:
            if not self._clients:
                self._connects()
            self._publish((_IN,))
            return
        batch = [mover.held.pop(0) for _ in range(self._world.random.randint(1, min(3, len(mover.held))))]
        rolls_back = self._world.random.random() < 0.2
        for held in batch:
            mover.send(BasicAck(held.tag))
        if rolls_back:
            mover.send(TxRollback())
            mover.held[:0] = batch
            return
        many = _MANY if self._world.random.random() < 0.5 else ()
        for queue, copy in self._record.move([held.name for held in batch], (_OUT, _AUDIT, *many)):
            if queue not in _MANY:
                mover.publish(queue, copy, make_body(copy, 0), persistent=True)
            elif queue == _MANY[0]:
                source = copy.removesuffix(f">{queue}")
                self._copies[f"{source}>many"] = {one: f"{source}>{one}" for one in _MANY}
                mover.publish("", f"{source}>many", make_body(f"{source}>many", 0), True, _WIDE)
        mover.send(TxCommit())
        self._transaction_open = True
        self._world.may_lose_power()

    def _mover_hangs_up(self) -> None:
        if self._mover is not None:
            self._mover.connection.end("gone")
            self._mover = None

    def prepare(self) -> None:
        """Durable queues, all of them."""
        vhost = self._world.broker.vhost("/")
        for name, arguments in _QUEUES.items():
            self._world.broker.declare_queue(vhost, name, durable=True, arguments=arguments)
        self._world.broker.exchanges.declare(
            vhost, _DELAYING, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
        )
        self._world.broker.bind(vhost, _DELAYING, _LATE, _LATE)
        for exchange, names in _LEADS_TO.items():
            self._world.broker.exchanges.declare(vhost, exchange, "fanout", durable=True)
            for name in names:
                self._world.broker.bind(vhost, exchange, name, "")

    def turned(self) -> None:
        """Let the clients see what the turn brought."""
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

    def flushed(self) -> None:
        """Acks have no answer; what was appended before a flush is durable after it."""
        if any(client.connection.is_stalled for client in self._clients):
            return  # it may not have read them yet
        self._record.ack_is_durable(self._acks_on_their_way)
        self._acks_on_their_way.clear()

    def died(self) -> None:
        """All clients are disconnected."""
        for client in self._all_clients():
            for channel in client.connection.channels.values():
                channel.transaction = None  # its acks are leases, too: see World.die
        self._clients.clear()
        self._mover = None
        self._transaction_open = False
        self._acks_on_their_way.clear()
        self._fleeting.clear()

    def recovered(self) -> str:
        """Compare with the record."""
        findings = self._record.compare(self._found())
        return "" if findings.is_clean else str(findings)

    def check(self) -> None:
        """Counts agree with what is there, and nothing promised is missing."""
        living = {
            channel.ledger
            for client in self._all_clients()
            for channel in client.connection.channels.values()
        }
        broker = self._world.broker
        if not broker.sessions <= living and not broker.long_changes:  # messages may return in steps
            raise BrokenRule("a session outlived its channel")
        living |= broker.sessions
        there: set[str] = set()
        for queue in self._queues():
            if not isinstance(queue, WorkQueue):
                there.update(name_of(body) or "" for body in self._stored(queue))
                continue
            leased = [
                lease.message
                for ledger in living
                for lease in ledger.outstanding()
                if lease.queue is queue and lease.holder is not None
            ]
            if queue.unacked != len(leased):
                raise BrokenRule(f"{queue} says {queue.unacked} unacked, holders have {len(leased)}")
            ready = views.raw_messages(self._world.broker, queue)
            if len(ready) != len(queue):
                raise BrokenRule(f"{queue} has {len(ready)} messages")
            if sum(len(message.body) for message in ready) != queue.bytes:
                raise BrokenRule(f"{queue} counts {queue.bytes} bytes")
            there.update(self._name_on_record(queue.name, message.body) for message in ready)
            if queue.name == _DYING:
                there.update(self._name_on_record(one, message.body) for message in ready for one in _DIED)
            there.update(name_of(message.body) or "" for message in leased)
            head = queue.store.peek(self._world.broker.flow.pager) if queue.fifo is not None else None
            if (
                queue.name in (_SHORT, _DYING)
                and head is not None
                and head.arrived_ms + _TTL_MS <= self._world.now_ms
            ):
                raise BrokenRule(f"{queue} holds an expired message")
        there.update(name_of(message.body) or "" for message in self._delayed())
        there.update(self._name_on_record(queue, body) for queue, body in self._on_their_way())
        missing = (self._record.must_be_there() | self._fleeting) - there
        if missing:
            raise BrokenRule(f"neither waiting nor leased: {sorted(missing)[:5]}")

    def read_all_back(self) -> None:
        """Every message that the journal holds for a queue or a lease is there as it was published."""
        broker = self._world.broker
        held = [lease.message for session in broker.sessions for lease in session.outstanding()]
        for queue in self._queues():
            if not isinstance(queue, WorkQueue):
                damaged = [body for body in self._stored(queue) if name_of(body) is None]
                if damaged:
                    raise BrokenRule(f"{queue} stores {damaged[:3]}")
            else:
                held += views.raw_messages(broker, queue)
                held += [message for _, message in queue.outcasts]  # dead-lettered in later turns
        there = [message for message in held if message.position]
        stored = self._read(_message, [message.position for message in there])
        for message, (body, address) in zip(there, stored, strict=True):
            if (body, address) != (message.body, message.address):
                raise BrokenRule(f"the disk has another message than {name_of(message.body)}: {body!r}")
        for waiting in self._delayed():
            if name_of(waiting.body) is None:
                raise BrokenRule(f"a delayed message is damaged: {waiting.body!r}")

    def _delayed(self) -> list[Message]:
        """What waits at the exchange for its time, as the disk has it."""
        positions = list(self._world.broker.flow.delayed)
        return self._read(_delayed, positions)

    def _late(self) -> list[bytes]:
        """What waits at the delaying exchange, persistent only."""
        waiting = self._read(_placed_late, list(self._world.broker.flow.delayed))
        return [one.body for exchange, one, _ in waiting if exchange == _DELAYING and one.persistent]

    def _on_their_way(self) -> Iterator[tuple[str, bytes]]:
        """Queues that a message in the journal still has to enter, and its body, in the order of entry."""
        ids = {queue.id: queue.name for queue in self._queues()}
        waiting = sorted((due_ms, at) for at, (_, due_ms) in self._world.broker.flow.delayed.items())
        for exchange, message, only in self._read(_placed_late, [at for _, at in waiting]):
            names = [ids[one] for one in only] if only else _LEADS_TO.get(exchange, ())
            yield from ((name, message.body) for name in names if name in (*_MANY, *_DIED))

    def _found(self) -> dict[str, list[bytes]]:
        """All that waits, persistent only; what may move from one queue to the other counts as one queue."""
        found: dict[str, list[bytes]] = {}
        for queue in self._queues():
            bodies = self._waiting(queue) if isinstance(queue, WorkQueue) else self._stored(queue)
            self._world.digest.update(b"".join(bodies))
            found[queue.name] = bodies
        found[_LATE] = sorted(
            [*found[_LATE], *self._late()],
            key=publisher_and_number,
        )
        for name, body in self._on_their_way():
            found[name].append(make_body(self._name_on_record(name, body), 0))
        dying = found.pop(_DYING)
        for name in _DIED:
            found[name] += [make_body(self._name_on_record(name, body), 0) for body in dying]
        # Dead letters arrive in order of death, so order says nothing there.
        found[_SHORT] = sorted([*found[_SHORT], *found.pop(_DEAD)], key=publisher_and_number)
        return found

    def _waiting(self, queue: WorkQueue) -> list[bytes]:
        messages = [message for _, message in queue.outcasts]  # a start found it too long
        messages += views.raw_messages(self._world.broker, queue)
        bodies = [message.body for message in messages if message.persistent]
        if queue.name not in (*_MANY, *_DIED) or not all(map(name_of, bodies)):
            return bodies
        return [make_body(self._name_on_record(queue.name, body), 0) for body in bodies]

    def _name_on_record(self, queue: str, body: bytes) -> str:
        """The record has each copy of a message for many queues under its own name."""
        name = name_of(body) or ""
        return self._copies.get(name, {}).get(queue, name)

    def _stored(self, queue: Queue) -> list[bytes]:
        """What a stream holds, and behind it what the spool holds for it, as the disk has it."""
        service = self._world.partitioned
        log = service.store.queues.get(queue.name)
        positions = [] if log is None else sorted(log.live_positions())
        positions += [at for name, _, at in service.spool.waiting() if name == queue.name]
        return self._read(_streamed, positions)

    def _confirmed(self, name: str) -> None:
        if name.startswith(_FLEETING):
            if name not in self._fleeting_gone:  # a consumer may have been faster than the confirm
                self._fleeting.add(name)
        else:
            for copy in self._copies.get(name, {"": name}).values():
                self._record.confirm(copy)

    def _leaves(self, name: str) -> None:
        self._may_leave(name)
        if not name.startswith(_FLEETING):
            self._acks_on_their_way.append(name)

    def _may_leave(self, name: str) -> None:
        if name.startswith(_FLEETING):
            self._fleeting.discard(name)
            self._fleeting_gone.add(name)
        else:
            self._record.leave(name)

    def _read(self, decode: Decode[T], positions: Sequence[int]) -> list[T]:
        return self._world.reads.read(self._world.partitioned, decode, positions)

    def _queues(self) -> list[Queue]:
        queues = self._world.broker.vhost("/").queues
        return [queues[name] for name in sorted(_QUEUES)]

    def _new_client(self) -> SimClient:
        self._numbers += 1
        return SimClient(
            self._world.broker, self._world.random, self._numbers, self._confirmed, unordered=(_DEAD, _LATE)
        )

    def _some_client(self) -> SimClient | None:
        return self._world.random.choice(self._clients) if self._clients else None

    def _all_clients(self) -> list[SimClient]:
        return [*self._clients, *([self._mover] if self._mover is not None else [])]

    def _leave_client(self, client: SimClient) -> None:
        if client.connection.is_stalled:
            self._acks_on_their_way.clear()  # it has perhaps not read them, and will not
        client.connection.end("gone")
        self._clients.remove(client)


def _message(payload: bytes, position: int) -> tuple[bytes, object]:
    stored, _ = decode_message(payload, position)
    return stored.body, stored.address


def _delayed(payload: bytes, _position: int) -> Message:
    return decode_delayed(payload)[3]


def _placed_late(payload: bytes, _position: int) -> tuple[str, Message, tuple[int, ...]]:
    _, _, exchange, message, only = decode_delayed(payload)
    return exchange, message, only


def _streamed(payload: bytes, _position: int) -> bytes:
    return to_body(decode_body(payload, None).payload)
