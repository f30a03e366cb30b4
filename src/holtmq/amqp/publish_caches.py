"""What is remembered about publishes, for all connections of a vhost together.

Owns: publishes whose bytes before the body repeat, routes of those that go the general way, and how many
bytes both may take. Nothing is kept at first sight: most applications never send the same bytes twice. Must
not touch: permissions; a connection asks for its own before it uses what others found.
"""

from typing import Final
from weakref import WeakValueDictionary

from holtmq.broker.publish.routes import Route
from holtmq.broker.topology.targets import QueueSet
from holtmq.broker.topology.vhost import VHost

BODY_MAX: Final = 4_088  # fits the smallest frame that a connection may negotiate
_PREFIX_MAX: Final = 512
_BYTES_MAX: Final = 1 << 20
_REPEATED_BYTES: Final = 400  # what an entry takes beside its prefix, header and address
_ROUTE_BYTES: Final = 800
_SLOTS: Final = 4_096


class SeenBefore:
    """A hash filter: remembers the last value of each slot."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots = [0] * _SLOTS

    def __call__(self, value: bytes) -> bool:
        """Whether these bytes were seen before; from now on they were."""
        hashed = hash(value)
        slot = hashed % _SLOTS
        if self._slots[slot] == hashed:
            return True
        self._slots[slot] = hashed
        return False


class RepeatedPublish:
    """What the bytes before a body say. ``token`` is that of the exchange's targets when it was found."""

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
    """Of one vhost."""

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
        """Publishes on channels of this number, by all their bytes before the body."""
        found = self._repeated.get(channel_number)
        if found is None:
            self._repeated_bytes += _REPEATED_BYTES
            found = self._repeated[channel_number] = {}
        return found

    def offer(self, channel_number: int, prefix: bytes, publish: RepeatedPublish) -> bool:
        """Know the next publish like this one, if this is not the first; whether it is known now."""
        if len(prefix) > _PREFIX_MAX or not self._seen(prefix):
            return False
        self._repeated_bytes += len(prefix) + len(publish.header) + len(publish.address) + _REPEATED_BYTES
        if self._repeated_bytes > _BYTES_MAX:
            for known in self._repeated.values():
                known.clear()  # connections hold on to these dictionaries while they read
            self._repeated.clear()
            self._repeated_bytes = 0
        self.repeated(channel_number)[prefix] = publish
        return True

    def route(self, method: bytes) -> tuple[Route, bool] | None:
        """Where a publish method leads, and whether it is mandatory, if that is known."""
        if self._routes_version != self._vhost.version:
            self._routes.clear()
            self._routes_bytes = 0
            self._routes_version = self._vhost.version
        return self._routes.get(method)

    def offer_route(self, method: bytes, route: Route, mandatory: bool) -> None:
        """Remember where a publish method leads, if this is not the first like it."""
        if self._routes_version != self._vhost.version or not self._seen(method):
            return
        self._routes_bytes += 2 * len(method) + _ROUTE_BYTES
        if self._routes_bytes > _BYTES_MAX:
            self._routes.clear()
            self._routes_bytes = 0
        self._routes[method] = route, mandatory


# By the vhost's identity, and kept by the connections that use them. With the vhosts themselves in it the
# dictionary would keep all of it for ever: what is remembered leads to queues, and they to their vhost.
_OF_VHOST: Final[WeakValueDictionary[int, PublishCaches]] = WeakValueDictionary()


def publish_caches(vhost: VHost) -> PublishCaches:
    """Those that all connections of a vhost share."""
    found = _OF_VHOST.get(id(vhost))
    if found is None:
        found = _OF_VHOST[id(vhost)] = PublishCaches(vhost)
    return found
