"""The node's memory for request bodies: reserved before a body is read.

Owns: the free bytes and the queue of waiting requests. Must not touch: sockets. A request waits only while it
holds nothing: two that hold a part and wait for the rest would deadlock.
"""

from collections import OrderedDict
from collections.abc import Callable


class BodyRoom:
    """A fixed number of bytes, shared by all requests."""

    def __init__(self, total: int) -> None:
        self.free = total
        self._waiting: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def take(self, who: object, size: int, then: Callable[[], None]) -> bool:
        """Reserve ``size`` bytes. False: not yet; ``then`` is called once they are reserved."""
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
        """Stop waiting."""
        if self._waiting.pop(who, None) is not None:
            self._serve()

    def give(self, size: int) -> None:
        """Release reserved bytes."""
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
