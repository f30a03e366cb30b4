"""Random sequences about time: messages and queues that expire, and what becomes of them.

Owns: which queues, times and orders occur. Must not touch: sockets, clocks. A sequence publishes, lets time
pass (``wait``: longer than every short time of it) and looks at the result. Nothing is read while messages
may be expiring, so that no outcome depends on how fast a broker is.
"""

from random import Random
from typing import Final

from differential.steps import Step

SHORT: Final = (1, 20, 60)  # milliseconds; all over after a wait
LONG: Final = 60_000_000
_NAMES: Final = ("q1", "q2", "q3")
_DEAD: Final = ("d1", "d2", "d3")  # each queue has its own: the order of two would depend on time
_ROUNDS: Final = 3


def expiry_sequence(seed: int, length: int = 40) -> list[Step]:
    """The sequence of a seed."""
    return _Writer(Random(seed)).steps(length)


class _Writer:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._bodies = 0

    def steps(self, length: int) -> list[Step]:
        """Rounds of publishing, waiting and looking, then everything that is left."""
        made = [_step("queue.declare", queue=name, durable=True) for name in _DEAD]
        made += [
            _step("queue.declare", queue=name, durable=True, arguments=self._arguments(dead))
            for name, dead in zip(_NAMES, _DEAD, strict=True)
        ]
        made.append(_step("queue.declare", queue="brief", arguments={"x-expires": 60}))
        made.append(_step("exchange.declare", exchange="e1", type="fanout"))
        made += [_step("queue.bind", queue=name, exchange="e1") for name in _NAMES]
        publishes = max(2, (length - len(made)) // _ROUNDS - 8)
        for _ in range(_ROUNDS):
            made += [self._publish() for _ in range(publishes)]
            made.append(_step("wait"))
            made += [self._look() for _ in range(4)]
        for name in (*_NAMES, *_DEAD):
            made.append(_step("queue.declare", queue=name, passive=True))
            made += [_step("basic.get", queue=name, no_ack=True) for _ in range(3)]
        made.append(_step("queue.declare", queue="brief", passive=True))  # 404: it has expired
        return made

    def _arguments(self, dead: str) -> dict[str, object]:
        arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        how = self._random.random()
        if how < 0.5:
            arguments["x-message-ttl"] = self._random.choice(SHORT)
            if self._random.random() < 0.5:  # with other times, counts of a quorum queue differ on purpose
                arguments["x-queue-type"] = "quorum"
        elif how < 0.6:
            arguments["x-message-ttl"] = LONG
        return arguments

    def _publish(self) -> Step:
        self._bodies += 1
        properties: dict[str, object] = {"delivery_mode": self._random.choice((1, 2))}
        if self._random.random() < 0.6:
            properties["expiration"] = str(self._random.choice((*SHORT, LONG)))
        to_one = self._random.random() < 0.8
        return _step(
            "basic.publish",
            exchange="" if to_one else "e1",
            routing_key=self._random.choice(_NAMES) if to_one else "key",
            properties=properties,
            body=f"m{self._bodies}",
        )

    def _look(self) -> Step:
        name = self._random.choice((*_NAMES, *_DEAD))
        how = self._random.random()
        if how < 0.4:
            return _step("queue.declare", queue=name, passive=True)
        if how < 0.8:
            return _step("basic.get", queue=name, no_ack=self._random.random() < 0.6)
        return _step("basic.nack", pick=0, requeue=self._random.random() < 0.3)


def _step(do: str, **fields: object) -> Step:
    return {"at": [0, 1], "do": do, **fields}
