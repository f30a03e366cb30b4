"""What a shovel has moved into this broker, written with the messages: a crash keeps both or neither.

Owns: the stored form, a runtime parameter of a component that no list shows. Must not touch: when it is
written (``destination.py``).
"""

import base64
import hashlib
from collections.abc import Iterable

import msgspec

from holtmq.broker.topology.parameters import Parameter, Parameters
from holtmq.broker.topology.shovels import PROGRESS_COMPONENT

MARK_SIZE = 16


class _Stored(msgspec.Struct):
    definition: str  # digest of the definition: another one under the same name begins at zero
    forwarded: int = 0
    redelivered: int = 0
    marks: str = ""


class Progress:
    """Counts, and the marks of messages that the source may deliver again."""

    def __init__(self, vhost: str, name: str, definition: bytes, parameters: Parameters) -> None:
        self.vhost = vhost
        self.name = name
        self._digest = hashlib.blake2b(definition, digest_size=16).hexdigest()
        self.forwarded = 0
        self.redelivered = 0
        self._marks: dict[bytes, None] = {}
        self._acked: list[bytes] = []
        found = parameters.get(vhost, PROGRESS_COMPONENT, name)
        if found is not None:
            stored = msgspec.json.decode(found.value, type=_Stored)
            if stored.definition == self._digest:
                self.forwarded, self.redelivered = stored.forwarded, stored.redelivered
                raw = base64.b64decode(stored.marks)
                cuts = range(0, len(raw), MARK_SIZE)
                self._marks = dict.fromkeys(raw[at : at + MARK_SIZE] for at in cuts)

    @property
    def marks(self) -> Iterable[bytes]:
        """Marks of messages that are stored here while the source may not know it."""
        return self._marks

    def moved(self, redelivered: bool, mark: bytes | None) -> None:
        """Count a message of the batch that is about to be written."""
        self.forwarded += 1
        self.redelivered += redelivered
        if mark is not None:
            self._marks[mark] = None

    def acked(self, mark: bytes | None) -> None:
        """The acknowledgement of a message was sent to the source."""
        if mark is not None:
            self._acked.append(mark)

    def take(self) -> Parameter:
        """What to write with the batch. Marks go one batch after the acknowledgement was sent: it may
        not have arrived."""
        marks = base64.b64encode(b"".join(self._marks)).decode()
        value = msgspec.json.encode(_Stored(self._digest, self.forwarded, self.redelivered, marks))
        for mark in self._acked:
            self._marks.pop(mark, None)
        self._acked.clear()
        return Parameter(self.vhost, PROGRESS_COMPONENT, self.name, value)
