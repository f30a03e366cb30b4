"""One request to the management API as its handlers see it.

Owns: the row of the table, the call, the answer. Must not touch: routing, logins.
"""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from holtmq.auth.permissions import Action
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.topology.vhost import VHost
from holtmq.http.engine.context import Context
from holtmq.http.engine.wire import Query
from holtmq.http.management.access import Need, require
from holtmq.http.management.wire import read_json

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


@dataclass(frozen=True, slots=True)
class ManagementCall:
    """A request that was let in."""

    context: Context
    user: User
    path: dict[str, str]
    query: Query
    body: bytes
    reason: str = ""  # why, in the words of whoever asks

    @property
    def broker(self) -> Broker:
        return self.context.broker

    @property
    def vhost(self) -> VHost:
        """The vhost in the path, or 404."""
        return self.broker.vhost(self.path["vhost"])

    def json(self, kind: type[T]) -> T:
        """The body as this struct, or 400."""
        return read_json(self.body, kind)

    def require(self, action: Action, name: str) -> None:
        """403 when the user may not do this in the path's vhost."""
        require(self.broker, self.user, self.path["vhost"], action, name)

    def refuse_if_failed(self) -> None:
        """503 before state changes: a journal that failed takes nothing more."""
        if self.context.journal.failed is not None:
            raise self.context.journal.failed


Handler = Callable[[ManagementCall], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one path."""

    method: str
    path: str
    handler: Handler
    need: Need = Need.ADMINISTRATOR
    paged: bool = False  # a list that can be asked for page by page
