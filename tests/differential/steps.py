"""Random sequences of AMQP methods, valid and invalid, from a seed.

Owns: which methods, names and arguments occur, and how often. Must not touch: sockets. A step is plain JSON,
so that a recorded sequence stays the same when this module changes.
"""

from random import Random
from typing import Any, Final

# {"at": [connection, channel], "do": a method's name, then its fields}; "pick": which unsettled delivery
Step = dict[str, Any]

QUEUES: Final = ("q1", "q2", "q3", "q4")
EXCHANGES: Final = ("e1", "e2", "e3")
KEYS: Final = ("a", "b", "a.b", "a.b.c", "#", "*.b", "", "q1")
KINDS: Final = ("direct", "fanout", "topic", "headers")
BIND_ARGUMENTS: Final[tuple[dict[str, object], ...]] = (
    {},
    {"x-match": "any", "h": 1},
    {"x-match": "all", "h": 1, "g": "x"},
    {"h": 2},
    {"x-match": "any", "h": 1, "g": None},
    {"x-match": "all-with-x", "x-h": 1},
    {"x-match": "any-with-x", "x-h": 1, "h": 2},
)
QUEUE_ARGUMENTS: Final[tuple[dict[str, object], ...]] = (
    {},
    {},
    {},
    {},
    {},
    {"x-max-length": 2},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "e1"},
    {"x-max-length": 2, "x-dead-letter-exchange": "e1"},
    {"x-max-length-bytes": 12, "x-dead-letter-exchange": "e2"},
    {"x-dead-letter-exchange": "e1"},
    {"x-dead-letter-exchange": "e1", "x-dead-letter-routing-key": "a.b"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q2"},
    {"x-message-ttl": 0, "x-dead-letter-exchange": "e1"},
    {"x-message-ttl": 60_000_000},
    {"x-expires": 60_000_000},
    {"x-max-priority": 5},
    {"x-max-priority": 5, "x-max-length": 2, "x-dead-letter-exchange": "e1"},
    {"x-single-active-consumer": True},
    {"x-max-length": 0},
    {"x-max-length": 2, "x-max-length-bytes": 6, "x-overflow": "drop-head"},
    {"x-max-priority": 5, "x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-single-active-consumer": True, "x-max-priority": 3},
    {"x-queue-type": "quorum"},
    {"x-queue-type": "quorum", "x-single-active-consumer": True},
    {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "e1"},
)
WRONG_ARGUMENTS: Final[tuple[dict[str, object], ...]] = (
    {"x-message-ttl": -1},
    {"x-message-ttl": "1"},
    {"x-max-length": -1},
    {"x-expires": 0},
    {"x-overflow": "none"},
    {"x-dead-letter-routing-key": "k"},
    {"x-dead-letter-exchange": 1},
    {"x-max-priority": -1},
    {"x-max-priority": 256},
    {"x-queue-type": "none"},
    {"x-single-active-consumer": "yes"},
    {"x-unknown": 1},
    {"x-max-length-bytes": "6"},
    {"x-dead-letter-exchange": "e1", "x-dead-letter-routing-key": 1},
    {"x-queue-type": "quorum", "x-message-ttl": "1"},
    {"x-queue-mode": "fast"},
    {"x-queue-version": 3},
    {"x-delivery-limit": "1", "x-queue-type": "quorum"},
)
WEIGHTS: Final = {
    "publish": 40,
    "get": 16,
    "settle": 22,
    "consume": 6,
    "cancel": 2,
    "declare queue": 4,
    "declare exchange": 2,
    "bind": 4,
    "unbind": 1,
    "purge": 1,
    "delete queue": 1,
    "delete exchange": 0.5,
    "qos": 3,
    "recover": 3,
    "flow": 0.5,
    "mode": 3,
    "transaction": 6,
    "close": 2,
    "end": 0.5,
}


def sequence(seed: int, length: int = 40) -> list[Step]:
    """The sequence of a seed."""
    return _Writer(Random(seed)).steps(length)


class _Writer:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._bodies = 0
        self._dead_letters_of = ""
        self._passed_on_by = ""
        self._single_active: list[str] = []
        self._transactional: list[list[int]] = []
        self._priorities = 0
        self._consumed: dict[str, str] = {}  # consumer tag -> queue, roughly

    def steps(self, length: int) -> list[Step]:
        """A topology first, then anything."""
        made = [self._declare_exchange(name, usual=True) for name in EXCHANGES]
        made += [self._declare_queue(name, usual=True) for name in QUEUES]
        made += [self._bind() for _ in range(6)]
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        while len(made) < length:
            name = self._random.choices(names, weights)[0]
            made.append(getattr(self, "_" + name.replace(" ", "_"))())
        return made

    def _at(self) -> list[int]:
        return [self._random.choice((0, 0, 1)), self._random.choice((1, 1, 2))]

    def _some(self, often: float) -> bool:
        return self._random.random() < often

    def _queue(self) -> str:
        # An empty name is the queue last declared on the channel.
        return self._random.choice(("none", "")) if self._some(0.03) else self._random.choice(QUEUES)

    def _exchange(self) -> str:
        if self._some(0.1):
            return self._random.choice(("", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "none"))
        return self._random.choice(EXCHANGES)

    def _step(self, do: str, **fields: object) -> Step:
        return {"at": self._at(), "do": do, **fields}

    def _declare_queue(self, name: str = "", usual: bool = False) -> Step:
        wrong = not usual and self._some(0.2)
        arguments = self._random.choice(WRONG_ARGUMENTS if wrong else QUEUE_ARGUMENTS)
        # Dead letters of two queues would meet in an order that depends on time.
        if "x-dead-letter-exchange" in arguments and name != self._dead_letters_of:
            if not self._dead_letters_of and usual:
                self._dead_letters_of = name
            elif not self._passed_on_by and usual and name == "q2":
                self._passed_on_by = name  # the second part of a chain, which leads elsewhere
                arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q4"}
            else:
                arguments = {}
        if usual and "x-single-active-consumer" in arguments:
            self._single_active.append(name)
        # RabbitMQ 3.10 answers an unknown type of a queue without a name with an internal error.
        named = arguments.get("x-queue-type") == "none"
        other = (
            self._random.choice(("amq.own", "q1" if named else ""))
            if self._some(0.1)
            else self._random.choice(QUEUES)
        )
        return self._step(
            "queue.declare",
            queue=name or other,
            passive=not usual and self._some(0.3),
            durable=self._some(0.9 if "x-queue-type" in arguments else 0.5),
            exclusive=self._some(0.08),
            auto_delete=self._some(0.08),
            arguments=dict(arguments),
            no_wait=not usual and self._some(0.05),
        )

    def _declare_exchange(self, name: str = "", usual: bool = False) -> Step:
        alternate = {"alternate-exchange": self._random.choice(EXCHANGES)} if self._some(0.15) else {}
        return self._step(
            "exchange.declare",
            exchange=name or self._random.choice((*EXCHANGES, "amq.topic", "amq.own")),
            type=self._random.choice(KINDS),
            passive=not usual and self._some(0.3),
            durable=self._some(0.5),
            auto_delete=self._some(0.05),
            internal=self._some(0.05),
            arguments=alternate,
            no_wait=not usual and self._some(0.05),
        )

    def _ends(self) -> tuple[str, dict[str, object]]:
        arguments = dict(self._random.choice(BIND_ARGUMENTS))
        more: dict[str, object] = {"routing_key": self._random.choice(KEYS), "arguments": arguments}
        if self._some(0.15):
            return "exchange", {"destination": self._exchange(), "source": self._exchange(), **more}
        return "queue", {"queue": self._queue(), "exchange": self._exchange(), **more}

    def _bind(self) -> Step:
        kind, ends = self._ends()
        return self._step(f"{kind}.bind", **ends)

    def _unbind(self) -> Step:
        kind, ends = self._ends()
        return self._step(f"{kind}.unbind", **ends)

    def _purge(self) -> Step:
        return self._step("queue.purge", queue=self._queue(), no_wait=self._some(0.1))

    def _delete_queue(self) -> Step:
        return self._step(
            "queue.delete", queue=self._queue(), if_unused=self._some(0.4), if_empty=self._some(0.4)
        )

    def _delete_exchange(self) -> Step:
        return self._step("exchange.delete", exchange=self._exchange(), if_unused=self._some(0.5))

    def _publish(self) -> Step:
        self._bodies += 1
        properties: dict[str, object] = {}
        if self._some(0.4):
            properties["delivery_mode"] = self._random.choice((1, 2))
        if self._some(0.3):
            properties["priority"] = self._random.choice((0, 1, 3, 9))
        # In a priority queue RabbitMQ may deliver an expired message, if another one was there before it.
        if self._some(0.1) and "priority" not in properties:
            properties["expiration"] = "soon" if self._some(0.1) else self._random.choice(("0", "60000000"))
        if self._some(0.05):
            properties["user_id"] = self._random.choice(("guest", "other"))
        headers: dict[str, object] = {}
        if self._some(0.3):
            headers["h"] = self._random.choice((1, 2, "1"))
        if self._some(0.2):
            headers["g"] = "x"
        if self._some(0.1):
            headers["x-h"] = 1
        if self._some(0.06):
            headers[self._random.choice(("CC", "BCC"))] = self._random.choice((["a", "q2"], ["b"], "a"))
        if headers:
            properties["headers"] = headers
        to_queue = self._some(0.55)
        return self._step(
            "basic.publish",
            exchange="" if to_queue else self._exchange(),
            routing_key=self._queue() if to_queue else self._random.choice(KEYS),
            mandatory=self._some(0.3),
            immediate=self._some(0.01),
            properties=properties,
            body="" if self._some(0.03) else f"m{self._bodies}",
        )

    def _get(self) -> Step:
        return self._step("basic.get", queue=self._queue(), no_ack=self._some(0.4))

    def _settle(self) -> Step:
        pick = self._random.choice((0, 0, 0, 1, 2, -1)) if not self._some(0.03) else 1000
        match self._random.choice(("ack", "ack", "nack", "reject")):
            case "ack":
                return self._step("basic.ack", pick=pick, multiple=self._some(0.2))
            case "nack":
                return self._step("basic.nack", pick=pick, multiple=self._some(0.2), requeue=self._some(0.5))
        return self._step("basic.reject", pick=pick, requeue=self._some(0.4))

    def _consume(self) -> Step:
        free = [name for name in QUEUES if name not in self._consumed.values()]
        # Two consumers of one queue take turns, and whose turn it is depends on time.
        queue = self._random.choice(free) if free else "none"
        arguments: dict[str, object] = {}
        if self._some(0.1):
            arguments = {"x-priority": self._random.choice((1, -1, "1"))}
        taken = [name for name in QUEUES if name in self._consumed.values()]
        if self._single_active and self._some(0.4):
            queue = self._random.choice(self._single_active)  # one is active, the others wait in order
        elif taken and self._some(0.3):
            queue = self._random.choice(taken)
            self._priorities += 1
            arguments = {"x-priority": 10 + self._priorities}  # before all others, as long as it has room
        tag = "c1" if self._some(0.1) else f"c{len(self._consumed) + 1}"
        self._consumed[tag] = queue
        return self._step(
            "basic.consume",
            queue=queue,
            consumer_tag=tag,
            no_ack=self._some(0.3),
            exclusive=self._some(0.15),
            arguments=arguments,
        )

    def _cancel(self) -> Step:
        return self._step("basic.cancel", consumer_tag=self._random.choice(("c1", "c2", "c3", "none")))

    def _qos(self) -> Step:
        return self._step(
            "basic.qos",
            prefetch_size=int(self._some(0.03)),
            prefetch_count=self._random.choice((0, 1, 1, 2)),
            global_=self._some(0.3),
        )

    def _recover(self) -> Step:
        if self._some(0.2):
            return self._step("basic.recover-async", requeue=True)
        return self._step("basic.recover", requeue=self._some(0.95))

    def _flow(self) -> Step:
        return self._step("channel.flow", active=self._some(0.8))

    def _mode(self) -> Step:
        step = self._step("confirm.select" if self._some(0.6) else "tx.select")
        if step["do"] == "tx.select":
            self._transactional.append(step["at"])
        return step

    def _transaction(self) -> Step:
        step = self._step(self._random.choice(("tx.commit", "tx.commit", "tx.rollback")))
        if self._transactional and self._some(0.95):
            step["at"] = self._random.choice(self._transactional)
        elif self._some(0.9):
            return self._get()
        return step

    def _close(self) -> Step:
        return self._step("channel.close", reply_code=200, reply_text="bye")

    def _end(self) -> Step:
        return self._step("connection.close", reply_code=200, reply_text="bye")
