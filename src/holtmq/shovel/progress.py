"""What a shovel has moved into this broker, written with the messages: a crash keeps both or neither.

Owns: the stored form, a runtime parameter of a component that no list shows. That of a stream outlives its
shovel: the stream keeps its messages, and the same shovel, set again, must not move them again. Must not
touch: when it is written (``destination.py``).
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holtmq.broker.topology.parameters import Parameter, Parameters
from holtmq.broker.topology.shovels import PROGRESS_COMPONENT, without_passwords

MARK_SIZE: Final = 16
_ARRIVES_SECONDS: Final = 5.0  # an acknowledgement has arrived after so long, while the connection lives


class _Stored(msgspec.Struct):
    definition: str  # digest of the definition: another one under the same name begins at zero
    forwarded: int = 0
    redelivered: int = 0
    marks: str = ""
    first_offset: int | None = None  # of a stream: of the first and the last message that was moved
    last_offset: int | None = None
    destination: tuple[str, str, int] | None = None  # vhost, queue and its id, if messages come from a stream


def is_needed(parameter: Parameter, queue_id: Callable[[str, str], int | None]) -> bool:
    """Whether the progress of a deleted shovel is kept: it is a stream's, and its messages are still here."""
    destination = msgspec.json.decode(parameter.value, type=_Stored).destination
    return destination is not None and queue_id(*destination[:2]) == destination[2]


class Progress:
    """Counts, and the marks of messages that the source may deliver again."""

    def __init__(
        self,
        vhost: str,
        name: str,
        definition: bytes,
        parameters: Parameters,
        prefetch: int,
        from_stream: bool = False,
    ) -> None:
        self.vhost = vhost
        self._prefetch = prefetch
        self.name = name
        if from_stream:
            definition = without_passwords(definition)  # a new password is no reason to begin again
        self._digest = hashlib.blake2b(definition, digest_size=16).hexdigest()
        self.from_stream = from_stream
        self._destination: tuple[str, str, int] | None = None
        self.forwarded = 0
        self.redelivered = 0
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self._marks: dict[bytes, float | None] = {}  # when the acknowledgement was sent; oldest first
        found = parameters.get(vhost, PROGRESS_COMPONENT, name)
        if found is not None:
            stored = msgspec.json.decode(found.value, type=_Stored)
            if stored.definition == self._digest:
                self.forwarded, self.redelivered = stored.forwarded, stored.redelivered
                self.first_offset, self.last_offset = stored.first_offset, stored.last_offset
                self._destination = stored.destination
                raw = base64.b64decode(stored.marks)
                cuts = range(0, len(raw), MARK_SIZE)
                self._marks = dict.fromkeys(raw[at : at + MARK_SIZE] for at in cuts)

    @property
    def marks(self) -> Iterable[bytes]:
        """Marks of messages that are stored here while the source may not know it."""
        return self._marks

    def aim_at(self, vhost: str, queue: str, queue_id: int) -> None:
        """Name the destination of a stream's messages; another queue than before has none of them."""
        destination = vhost, queue, queue_id
        if self._destination not in (None, destination):
            self.forwarded = self.redelivered = 0
            self.first_offset = self.last_offset = None
        self._destination = destination

    def moved(self, redelivered: bool, mark: bytes | None, offset: int | None) -> None:
        """Count a message of the batch that is about to be written."""
        self.forwarded += 1
        self.redelivered += redelivered
        if offset is not None:
            self.last_offset = offset
        if mark is None:
            return
        self._marks.pop(mark, None)
        self._marks[mark] = None
        if len(self._marks) > self._prefetch:
            # The source has delivered so many since: it must have seen this one's acknowledgement.
            del self._marks[next(iter(self._marks))]

    def acked(self, mark: bytes | None, now: float) -> None:
        """The acknowledgement of a message was sent to the source; it may not have arrived."""
        if mark in self._marks:
            self._marks[mark] = now

    def take(self, now: float) -> Parameter:
        """What to write with the batch."""
        while self._marks:
            mark, acked = next(iter(self._marks.items()))
            if acked is None or now - acked < _ARRIVES_SECONDS:
                break
            del self._marks[mark]
        marks = base64.b64encode(b"".join(self._marks)).decode()
        value = msgspec.json.encode(
            _Stored(
                self._digest,
                self.forwarded,
                self.redelivered,
                marks,
                self.first_offset,
                self.last_offset,
                self._destination,
            )
        )
        return Parameter(self.vhost, PROGRESS_COMPONENT, self.name, value)
