"""The node's memory for request bodies: what is reserved before a body is read, and who waits for it.

Owns: the sum and the line. Must not touch: sockets. A body that was admitted has all of its room: two halves
that wait for each other's room would wait for ever.
"""

from collections import OrderedDict
from collections.abc import Callable


class BodyRoom:
    """So many bytes for all."""

    def __init__(self, total: int) -> None:
        self.free = total
        self._waiting: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self, who: object, size: int, then: Callable[[], None]) -> bool:
        """Reserve; when that has to wait, False, and ``then`` is called once it is done."""
        if not self._waiting and size <= self.free:
            self.free -= size
            return True
        self._waiting[who] = (size, then)
        return False

    def try_take(self, size: int) -> bool:
        """Reserve at once or not at all."""
        if self._waiting or size > self.free:
            return False
        self.free -= size
        return True

    def withdraw(self, who: object) -> None:
        """Wait no longer."""
        if self._waiting.pop(who, None) is not None:
            self._serve()

    def give(self, size: int) -> None:
        """Let go of what was reserved."""
        self.free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            who, (size, then) = next(iter(self._waiting.items()))
            if size > self.free:
                return
            del self._waiting[who]
            self.free -= size
            then()
