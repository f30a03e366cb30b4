"""Publishes that all differ, as one block of bytes.

Owns: the parts of a varied message (unique ids, a timestamp, two headers, a JSON body), and the check that
a delivered one is what was published. Must not touch: sockets.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from holtmq.load import frames
from holtmq.load.link import CHANNEL
from holtmq.load.workloads import Workload
from holtmq.wire.properties import Properties, encode_properties
from holtmq.wire.tables import Timestamp

_SERIAL: Final = re.compile(rb"m-(\d{12})")
_FIRST_SECOND: Final = 1_700_000_000
_TEXT: Final = '"text":"' + "lorem ipsum dolor sit amet consectetur " * 16
_SMALLEST: Final = 20


@dataclass(frozen=True, slots=True)
class Variety:
    """How the messages of a workload differ."""

    distinct: int
    largest: int
    sizes: bool
    persistent: bool
    routing_keys: int
    queues: int

    @classmethod
    def of(cls, workload: Workload) -> Variety:
        return cls(
            workload.distinct,
            workload.body_bytes,
            workload.varied_sizes,
            workload.durable,
            workload.routing_keys,
            workload.queues,
        )

    def key(self, serial: int) -> str:
        """The routing key of a message: its third word selects the queue, the others vary."""
        number = serial * 7919 % self.routing_keys
        return f"load.{number % 1000:03d}.q{number % self.queues:02d}.{number:06d}"


def binding_key(queue: int) -> str:
    """The binding pattern that routes a queue's share of the varied messages to it."""
    return f"load.*.q{queue:02d}.#"


def _body(serial: int, size: int) -> bytes:
    """A JSON object of about ``size`` bytes."""
    text = f'{{"n":{serial:d},' + _TEXT
    return (text[: max(size - 2, len(f'{{"n":{serial:d},"text":"'))] + '"}').encode()


def _properties(serial: int, persistent: bool) -> bytes:
    return encode_properties(
        Properties(
            content_type="application/json",
            headers={"tenant": f"tenant-{serial % 997:03d}", "attempt": serial % 3},
            delivery_mode=2 if persistent else None,
            correlation_id=f"c-{serial * 48271 % 2147483647:010d}-{serial:08x}",
            message_id=f"m-{serial:012d}",
            timestamp=Timestamp(_FIRST_SECOND + serial),
        )
    )


class VariedBlob:
    """Messages that all differ, sent repeatedly: more of them than a broker caches."""

    def __init__(self, variety: Variety, exchange: str, frame_max: int) -> None:
        sizes = random.Random(variety.distinct)
        parts: list[bytes] = []
        self._contents: list[tuple[int, int]] = []  # offsets of properties and body in a part
        self._ends: list[int] = []
        end = 0
        for serial in range(variety.distinct):
            size = sizes.randint(_SMALLEST, variety.largest) if variety.sizes else variety.largest
            body, props = _body(serial, size), _properties(serial, variety.persistent)
            part = frames.publish(CHANNEL, exchange, variety.key(serial), props, body, frame_max)
            end += len(part)
            parts.append(part)
            self._ends.append(end)
            self._contents.append((len(props), len(body)))
        self.data = b"".join(parts)
        self.view = memoryview(self.data)
        self.messages = len(parts)

    def whole(self, at: int) -> int:
        """How many messages end at or before a byte offset."""
        return bisect_right(self._ends, at)

    def end_of(self, messages: int) -> int:
        """The byte offset after this many messages."""
        return self._ends[messages - 1] if messages else 0

    def stamp(self, first: int, now_ns: int) -> None:
        """Do nothing: varied messages carry no send time."""

    def is_published(self, header_frame: bytes, body: bytes) -> bool:
        """Whether a delivered header frame and body are those of one of the messages."""
        found = _SERIAL.search(header_frame)
        if found is None or int(found[1]) >= self.messages:
            return False
        serial = int(found[1])
        props_bytes, body_bytes = self._contents[serial]
        body_at = self._ends[serial] - 1 - body_bytes
        props_at = body_at - frames.FRAME_HEAD.size - 1 - props_bytes
        props = self.data[props_at : props_at + props_bytes]
        return header_frame.endswith(props + b"\xce") and body == self.data[body_at : body_at + body_bytes]


@lru_cache(maxsize=1)
def varied_blob(variety: Variety, exchange: str, frame_max: int) -> VariedBlob:
    """The blob of a workload; its rounds share it, since it takes seconds to build."""
    return VariedBlob(variety, exchange, frame_max)
