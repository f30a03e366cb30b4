"""A broker with queues of all kinds and dead letters, for tests of transactions.

Owns: the queues, and how to look at them and at a restarted broker. Must not touch: sockets and clocks.
"""

from amqp_support import NOW_MS, Client, new_broker, numbers, publish

from holtmq.amqp.methods import BasicGet, TxSelect
from holtmq.broker.broker import Broker
from holtmq.broker.message import Message
from holtmq.broker.records.recovery import recover
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.journal.interface import Journal
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

LASTING = Properties(delivery_mode=2)
LETTERS: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
QUORUM: FieldTable = {"x-queue-type": "quorum", "x-delivery-limit": 2}
SOURCES: dict[str, FieldTable] = {
    "plain": {},
    "a": LETTERS,
    "both": {"x-dead-letter-exchange": "letters"},
    "quorum": {**QUORUM, "x-dead-letter-exchange": "letters"},
    "retry": {**QUORUM, **LETTERS, "x-delayed-retry-type": "all", "x-delayed-retry-min": 1_000},
    "loop": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "loop"},
    "short": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "narrow"},
    "levels": {"x-max-priority": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "levels-2"},
    "lost": {"x-dead-letter-exchange": "nowhere"},
    "to-quorum": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "quorum-2"},
    "to-tight": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "tight"},
    "to-passing-on": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "passing-on"},
    "turning": {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "turning",
    },
}
# A full queue takes its own letters. It would refuse the messages of a transaction.
OWN: FieldTable = {
    "x-max-length": 4,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "own",
}
# Full queues refuse publishers: partial completion. Some dead-letter what they refuse, one into the other.
TIGHT: FieldTable = {"x-max-length": 3, "x-overflow": "reject-publish"}
PASSING_ON: FieldTable = {
    "x-max-length-bytes": 9,
    "x-overflow": "reject-publish-dlx",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "passing-too",
}
TARGETS: dict[str, FieldTable] = {
    "tight": TIGHT,
    "passing-on": PASSING_ON,
    "passing-too": {**PASSING_ON, **LETTERS},
    "dead": {},
    "dead-2": {},
    "narrow": {"x-max-length": 3, **LETTERS},
    "levels-2": {"x-max-priority": 2},
    "quorum-2": {"x-queue-type": "quorum"},
    "own": OWN,
}


def set_up(journal: Journal) -> Client:
    client = Client(new_broker(journal))
    broker, vhost = client.broker, client.broker.vhost("/")
    broker.exchanges.declare(vhost, "letters", "fanout", durable=True)
    for name, arguments in {**TARGETS, **SOURCES}.items():
        broker.declare_queue(vhost, name, durable=True, arguments=arguments)
    broker.declare_queue(vhost, "passing", arguments=LETTERS)
    for name in ("dead", "dead-2"):
        broker.bind(vhost, "letters", name, "")
    client.call(TxSelect())
    journal.flush()
    client.told()
    return client


def hold(client: Client, queue: str, count: int = 10) -> None:
    """Publish messages to a queue and have them delivered."""
    Client(client.broker).feed(b"".join(publish(body, queue, LASTING) for body in numbers(count)))
    for _ in range(count):
        client.call(BasicGet(queue))


def restarted(journal: MemoryJournal) -> Client:
    following, found = journal.restart()
    broker = Broker(following)
    broker.flow.now_ms = NOW_MS
    recover(broker, found)
    broker.flow.turn()
    return Client(broker)


def waiting(broker: Broker, queue: WorkQueue) -> list[Message]:
    store = queue.store
    fifos = [fifo for _, fifo in store.by_level(True)] if isinstance(store, Levels) else [store]
    return [message for fifo in fifos for message in fifo.browse(broker.flow.pager)]
