"""One request to the management API as its handlers see it.

Owns: the row of the table, the call, the answer. Must not touch: routing, logins.
"""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.auth.rights import MONITORING, Identity, Right
from holtmq.broker.broker import Broker
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.vhost import VHost
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import Query, read_json
from holtmq.http.management.access import ADMINISTER

T = TypeVar("T")

NODE: Final = f"holt@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is not simply 200 with JSON."""

    status: int
    location: str = ""
    body: object = None


CREATED = Answer(201)
CHANGED = Answer(204)


@contextmanager
def missing_is_bad_request() -> Iterator[None]:
    """A missing thing that a request only refers to is answered with 400, as in RabbitMQ, not with 404."""
    try:
        yield
    except NotFound as error:
        raise Refusal(400, str(error)) from None


@dataclass(frozen=True, slots=True)
class ManagementCall:
    """A request whose sender and rights on the route were checked."""

    context: Context
    identity: Identity
    path: dict[str, str]
    query: Query
    body: bytes
    reason: str = ""  # the client's X-Reason header

    @property
    def broker(self) -> Broker:
        return self.context.broker

    @property
    def vhost(self) -> VHost:
        """The vhost in the path; raises 404, or 403 if the user may neither access nor monitor it."""
        vhost = self.broker.vhost(self.path["vhost"])
        if not self.sees(vhost.name):
            raise Refusal(403, f"access to vhost '{vhost.name}' refused for user '{self.identity.name}'")
        return vhost

    def check_node(self) -> None:
        """Raise 404 if the path names another node."""
        if self.path["node"] != NODE:
            raise Refusal(404, f"no node '{self.path['node']}'; this one is '{NODE}'")

    def sees(self, vhost: str) -> bool:
        """Whether lists show the vhost to the user."""
        return self.identity.has_tag(MONITORING) or self.identity.may_enter(vhost)

    def json(self, kind: type[T]) -> T:
        """The body as this struct; raises 400 if it does not fit.

        Lenient like RabbitMQ, whose own tool sends "true" for true; no body is an empty object.
        """
        return read_json(self.body.strip() or b"{}", kind, is_lenient=True)

    def require(self, action: Action, name: str) -> None:
        """Raise 403 if the user may not do this in the path's vhost."""
        self.identity.require_in(self.path["vhost"], action, name or DEFAULT_EXCHANGE)

    def refuse_if_failed(self) -> None:
        """Raise 503 if the journal has failed; called before state changes, as it accepts no more records."""
        if self.context.journal.failed is not None:
            raise self.context.journal.failed


Handler = Callable[[ManagementCall], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the route table: one method on one path."""

    method: str
    path: str
    handler: Handler
    right: Right = ADMINISTER
    paged: bool = False  # a list that supports paging
