"""Random sequences about streams: declare, publish, read from an offset, acknowledge, cancel, refusals.

Owns: which methods and arguments occur. Must not touch: sockets. Each message is confirmed before the next
step, so that it is a chunk of its own in RabbitMQ and offset ``last`` means the same everywhere.
"""

from random import Random
from typing import Final

from differential.steps import Step

STREAMS: Final = ("s1", "s2")
_ARGUMENTS: Final[tuple[dict[str, object], ...]] = (
    {},
    {},
    {"x-max-length-bytes": 50_000_000},
    {"x-max-age": "1h"},
    {"x-stream-max-segment-size-bytes": 1_000_000},
    {"x-initial-cluster-size": 1},
)
_WRONG: Final[tuple[dict[str, object], ...]] = (
    {"x-max-length": 5},
    {"x-message-ttl": 1000},
    {"x-expires": 100_000},
    {"x-dead-letter-exchange": "e1"},
    {"x-max-priority": 3},
    {"x-overflow": "drop-head"},
    {"x-max-age": "1 hour"},
    {"x-max-age": 5},
    {"x-max-length-bytes": -1},
    {"x-single-active-consumer": True},
)
# Wrong ones are among the deliberate differences.
_OFFSETS: Final = ("first", "first", "last", "next", 0, 1, 3, 1000, None)
_WEIGHTS: Final = {
    "publish": 40,
    "consume": 14,
    "settle": 18,
    "cancel": 8,
    "qos": 4,
    "declare": 4,
    "get": 0.7,
    "purge": 0.7,
    "delete": 1,
    "close": 2,
    "refuse": 3,
}


def stream_sequence(seed: int, length: int = 40) -> list[Step]:
    """The sequence of a seed."""
    return _Writer(Random(seed)).steps(length)


class _Writer:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._bodies = 0
        self._tags = 0
        self._reading: dict[int, str] = {}  # the tag of a channel's reader, roughly

    def steps(self, length: int) -> list[Step]:
        """Two streams, bound to an exchange; one channel publishes with confirms."""
        made: list[Step] = [{"at": [0, 1], "do": "confirm.select"}]
        made.append(
            {"at": [0, 1], "do": "exchange.declare", "exchange": "e1", "type": "fanout", "durable": True}
        )
        for name in STREAMS:
            arguments = {"x-queue-type": "stream", **self._random.choice(_ARGUMENTS)}
            made.append(
                {"at": [0, 1], "do": "queue.declare", "queue": name, "durable": True, "arguments": arguments}
            )
            made.append({"at": [0, 1], "do": "queue.bind", "queue": name, "exchange": "e1"})
        made += [{"at": [1, number], "do": "basic.qos", "prefetch_count": 3} for number in (1, 2)]
        names, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        while len(made) < length:
            made.append(getattr(self, "_" + self._random.choices(names, weights)[0])())
        return made

    def _reader(self) -> list[int]:
        return [1, self._random.choice((1, 2))]

    def _stream(self) -> str:
        return self._random.choice(STREAMS)

    def _publish(self) -> Step:
        self._bodies += 1
        properties: dict[str, object] = {}
        if self._random.random() < 0.3:
            properties = {"headers": {"h": self._random.choice((1, "text", True))}, "message_id": "m"}
        if self._random.random() < 0.2:
            properties["expiration"] = "1"  # a stream keeps it
        to_one = self._random.random() < 0.7
        return {
            "at": [0, 1],
            "do": "basic.publish",
            "exchange": "" if to_one else "e1",
            "routing_key": self._stream() if to_one else "key",
            "properties": properties,
            "body": f"m{self._bodies}",
        }

    def _consume(self) -> Step:
        # Two readers on one channel get their messages in an order that depends on time: one for a channel.
        channel = self._random.choice((1, 2))
        if channel in self._reading and self._random.random() < 0.9:
            return self._cancel()
        self._tags += 1  # RabbitMQ gives the credit of a late ack to a new consumer with the same tag
        self._reading[channel] = f"reader{self._tags}"
        offset = self._random.choice(_OFFSETS)
        return {
            "at": [1, channel],
            "do": "basic.consume",
            "queue": STREAMS[channel - 1],
            "consumer_tag": self._reading[channel],
            "no_ack": self._random.random() < 0.05,
            "exclusive": self._random.random() < 0.05,
            "arguments": {} if offset is None else {"x-stream-offset": offset},
        }

    def _settle(self) -> Step:
        return {
            "at": self._reader(),
            "do": "basic.ack",
            "pick": self._random.choice((0, 0, 1, -1)),
            "multiple": self._random.random() < 0.3,
        }

    def _refuse(self) -> Step:
        do = self._random.choice(("basic.nack", "basic.reject"))
        return {"at": self._reader(), "do": do, "pick": 0, "requeue": self._random.random() < 0.5}

    def _cancel(self) -> Step:
        at = self._reader()
        return {"at": at, "do": "basic.cancel", "consumer_tag": self._reading.pop(at[1], "none")}

    def _qos(self) -> Step:
        return {
            "at": self._reader(),
            "do": "basic.qos",
            "prefetch_count": self._random.choice((0, 1, 3, 10)),
            "global_": self._random.random() < 0.1,
        }

    def _declare(self) -> Step:
        wrong = self._random.random() < 0.6
        arguments = {"x-queue-type": "stream", **self._random.choice(_WRONG if wrong else _ARGUMENTS)}
        return {
            "at": [2, 1],
            "do": "queue.declare",
            "queue": "s3" if wrong else self._stream(),
            "passive": not wrong and self._random.random() < 0.5,
            "durable": self._random.random() < 0.9,
            "exclusive": self._random.random() < 0.1,
            "auto_delete": self._random.random() < 0.1,
            "arguments": arguments,
        }

    def _get(self) -> Step:
        return {"at": [2, 1], "do": "basic.get", "queue": self._stream()}

    def _purge(self) -> Step:
        return {"at": [2, 1], "do": "queue.purge", "queue": self._stream()}

    def _delete(self) -> Step:
        return {"at": [2, 1], "do": "queue.delete", "queue": self._stream()}  # RabbitMQ ignores if-unused

    def _close(self) -> Step:
        return {"at": self._reader(), "do": "channel.close", "reply_code": 200, "reply_text": "bye"}
