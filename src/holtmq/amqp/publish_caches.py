"""Caches for publishes, shared by all connections of a vhost.

Owns: publishes whose bytes before the body repeat, routes of the general path, and the memory bound of both.
Nothing is cached at its first occurrence: most applications never send the same bytes twice.
Must not touch: permissions; each connection checks its own before it uses an entry.
"""

from typing import Final
from weakref import WeakValueDictionary

from holtmq.broker.publish.routes import Route
from holtmq.broker.topology.targets import QueueSet
from holtmq.broker.topology.vhost import VHost

BODY_MAX: Final = 4_088  # fits the smallest frame_max that a client may negotiate
_PREFIX_MAX: Final = 512
_BYTES_MAX: Final = 1 << 20
_REPEATED_BYTES: Final = 400  # the size of an entry without its prefix, header and address
_ROUTE_BYTES: Final = 800
_SLOTS: Final = 4_096


class SeenBefore:
    """A hash filter: remembers the last value of each slot."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots = [0] * _SLOTS

    def __call__(self, value: bytes) -> bool:
        """Whether these bytes were seen before. Remembers them."""
        hashed = hash(value)
        slot = hashed % _SLOTS
        if self._slots[slot] == hashed:
            return True
        self._slots[slot] = hashed
        return False


class RepeatedPublish:
    """The parsed bytes before a body. Valid while ``token`` is the token of the exchange's targets."""

    __slots__ = ("address", "body_bytes", "header", "properties", "queues", "token")

    def __init__(
        self,
        token: object,
        queues: QueueSet,
        address: bytes,
        header: bytes,
        properties: int,
        body_bytes: int,
    ) -> None:
        self.token = token
        self.queues = queues
        self.address = address
        self.header = header
        self.properties = properties
        self.body_bytes = body_bytes


class PublishCaches:
    """The caches of one vhost."""

    __slots__ = (
        "__weakref__",
        "_repeated",
        "_repeated_bytes",
        "_routes",
        "_routes_bytes",
        "_routes_version",
        "_seen",
        "_vhost",
    )

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._seen = SeenBefore()
        self._repeated: dict[int, dict[bytes, RepeatedPublish]] = {}  # by channel number, then by prefix
        self._repeated_bytes = 0
        self._routes: dict[bytes, tuple[Route, bool]] = {}
        self._routes_bytes = 0
        self._routes_version = 0

    def repeated(self, channel_number: int) -> dict[bytes, RepeatedPublish]:
        """The cached publishes on channels with this number, by all their bytes before the body."""
        found = self._repeated.get(channel_number)
        if found is None:
            self._repeated_bytes += _REPEATED_BYTES
            found = self._repeated[channel_number] = {}
        return found

    def offer(self, channel_number: int, prefix: bytes, publish: RepeatedPublish) -> bool:
        """Cache this publish unless it is the first of its kind; return whether it was cached."""
        if len(prefix) > _PREFIX_MAX or not self._seen(prefix):
            return False
        self._repeated_bytes += len(prefix) + len(publish.header) + len(publish.address) + _REPEATED_BYTES
        if self._repeated_bytes > _BYTES_MAX:
            for known in self._repeated.values():
                known.clear()  # connections keep references to these dictionaries while they read
            self._repeated.clear()
            self._repeated_bytes = 0
        self.repeated(channel_number)[prefix] = publish
        return True

    def route(self, method: bytes) -> tuple[Route, bool] | None:
        """The cached route of a publish method and its mandatory bit, or None."""
        if self._routes_version != self._vhost.version:
            self._routes.clear()
            self._routes_bytes = 0
            self._routes_version = self._vhost.version
        return self._routes.get(method)

    def offer_route(self, method: bytes, route: Route, mandatory: bool) -> None:
        """Cache the route of a publish method unless it is the first of its kind."""
        if self._routes_version != self._vhost.version or not self._seen(method):
            return
        self._routes_bytes += 2 * len(method) + _ROUTE_BYTES
        if self._routes_bytes > _BYTES_MAX:
            self._routes.clear()
            self._routes_bytes = 0
        self._routes[method] = route, mandatory


# By the vhost's id(); the connections hold the strong references. With vhosts as weak keys no entry would
# ever go: the caches refer to queues, and these to their vhost.
_OF_VHOST: Final[WeakValueDictionary[int, PublishCaches]] = WeakValueDictionary()


def publish_caches(vhost: VHost) -> PublishCaches:
    """The caches shared by all connections of a vhost."""
    found = _OF_VHOST.get(id(vhost))
    if found is None:
        found = _OF_VHOST[id(vhost)] = PublishCaches(vhost)
    return found
