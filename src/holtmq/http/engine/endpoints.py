"""What an endpoint is: its row of the route table, the call it receives, the reply it returns; and what all
endpoints of one API have in common.

Owns: the types that the application, the documentation and the endpoint modules share. Must not touch:
routing, sockets, rules.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.auth.rights import MONITORING, Identity, Right
from holtmq.auth.roles import Role
from holtmq.auth.users import ADMINISTRATOR
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.broker.topology.vhost import VHost
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import EMPTY_BODY, Refusal
from holtmq.http.engine.request import ErrorForm, HttpRequest, plain_error
from holtmq.http.engine.waiting_requests import until_durable
from holtmq.http.engine.wire import Query, read_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not simply 200 with JSON. Without a body it is empty."""

    status: int
    body: object = None
    content_type: str = "application/json"  # anything else: ``body`` is bytes
    headers: Mapping[str, str] = field(default_factory=dict)


CREATED: Final = Reply(201)
CHANGED: Final = Reply(204)


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is sent piece by piece."""

    chunks: AsyncGenerator[bytes, None]
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """One complete request. The sender's rights on the route and the names in its path were checked."""

    context: Context
    path: dict[str, str]
    query: Query
    body: bytes
    sender: Identity | None  # None: the route is public
    request: HttpRequest
    is_lenient: bool  # of its API: see Conventions

    @property
    def identity(self) -> Identity:
        assert self.sender is not None, "a public route asked for its caller"
        return self.sender

    @property
    def subject(self) -> str | None:
        return None if self.sender is None else self.sender.subject

    @property
    def broker(self) -> Broker:
        return self.context.broker

    @property
    def vhost(self) -> VHost:
        """The vhost in the path; raises 404, or 403 if the caller may neither access nor monitor it."""
        vhost = self.broker.vhost(self.path["vhost"])
        if not self.identity.sees(vhost.name):
            raise Refusal(403, f"access to vhost '{vhost.name}' refused for user '{self.identity.name}'")
        return vhost

    def require(self, action: Action, name: str) -> None:
        """Raise 403 unless the caller may do this to the partitioned queue of this name."""
        self.identity.require(action, name)

    def require_in_vhost(self, action: Action, name: str) -> None:
        """The same for a queue or exchange in the path's vhost; no name: the default exchange."""
        self.identity.require_in(self.path["vhost"], action, name or DEFAULT_EXCHANGE)

    def restricts_topics(self, vhost: VHost, exchange: str) -> bool:
        """Whether it is a topic exchange on which the caller may use some routing keys only."""
        found = vhost.exchanges.get(exchange)
        if found is None or found.inner_kind is not ExchangeKind.TOPIC:
            return False
        return self.identity.restricts_topics(self.broker.topic_permissions, vhost.name, exchange)

    def require_topics(self, vhost: VHost, exchange: str, keys: Iterable[str], *, write: bool) -> None:
        """Raise 403 unless the caller may use these routing keys on the exchange, if it has topics."""
        if self.restricts_topics(vhost, exchange):
            permissions = self.broker.topic_permissions
            for key in keys:
                self.identity.require_topic(permissions, vhost.name, exchange, key, write=write)

    def require_at(self, action: Action, where: tuple[int, int] | None) -> None:
        """The same for the queue in a partition's address; does nothing when there is no such queue."""
        queue = self.service.store.by_number.get(where[0]) if where is not None else None
        if queue is not None:
            self.identity.require(action, queue.name)

    def may_read(self, name: str) -> bool:
        """Whether a list shows the queue of this name to the caller."""
        return self.identity.reads_everything or self.identity.may(Action.READ, name)

    @property
    def service(self) -> PartitionedService:
        return self.context.service

    @property
    def now(self) -> float:
        return self.context.clock()

    def json(self, kind: type[T]) -> T:
        """The body as this struct; raises 400 when it is missing or does not fit."""
        body = self.body.strip()
        if self.is_lenient:
            return read_json(body or b"{}", kind, is_lenient=True)
        if not body:
            raise Refusal(400, EMPTY_BODY)
        return read_json(self.body, kind)

    def forget_body(self) -> None:
        """Free the body's memory, before a long wait. What was read from it must be small."""
        self.body = b""
        self.request.connection.free_body(self.request)

    def json_or(self, kind: type[T], default: T) -> T:
        """The same, for a body that may be omitted."""
        return self.json(kind) if self.body.strip() else default

    async def durable(self) -> None:
        """Wait until everything appended so far is on disk; raises when it never will be."""
        await until_durable(self.context.journal)

    def refuse_if_failed(self) -> None:
        """Raise 503 if the journal has failed; called before state changes, as it accepts no more records."""
        if self.context.journal.failed is not None:
            raise self.context.journal.failed


Handler = Callable[
    [Call], Awaitable[object]
]  # returns a Reply, a Stream, JSON as bytes, or what becomes JSON


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the route table. Without a handler it is a hot route: documented here, served elsewhere."""

    method: str
    path: str
    right: Right
    tag: str = ""  # tag and summary are for the API's documentation
    summary: str = ""
    handler: Handler | None = None
    query: tuple[str, ...] = ()
    body: type | None = None
    statuses: tuple[int, ...] = field(default=(200,))
    body_limit: int | None = None  # bytes; None: the node's limit
    in_steps: bool = False  # a long body does not hold up other clients: it may have ``max_long_body_bytes``
    is_paged: bool = False  # a list of the management API that supports paging

    @property
    def max_body(self) -> int | None:
        """A public route reads no body unless it sets a limit: any client can call it."""
        return 0 if self.right.is_public and self.body_limit is None else self.body_limit


async def _run(_endpoint: Endpoint, handler: Handler, call: Call) -> object:
    return await handler(call)


@dataclass(frozen=True, slots=True)
class Conventions:
    """What the endpoints of one API have in common, and those of another API do not."""

    error_form: ErrorForm = plain_error
    is_lenient: bool = False  # in bodies "true" and "1" may stand for true and 1; no body is an empty object
    run: Callable[[Endpoint, Handler, Call], Awaitable[object]] = _run
    path: Callable[[str], str] = str  # other spellings of a path -> the one in the table


READ_ONLY: Final = Role.READ_ONLY
READ_WRITE: Final = Role.READ_WRITE
ADMIN: Final = Role.ADMIN
# What most rows need. Lists show what the caller may read.
CONFIGURE: Final = Right(READ_WRITE, (Action.CONFIGURE,))
WRITE: Final = Right(READ_WRITE, (Action.WRITE,))
READ: Final = Right(READ_WRITE, (Action.READ,))
READ_OR_WRITE: Final = Right(READ_WRITE, (Action.READ, Action.WRITE), is_either=True)
LOOK: Final = Right(READ_ONLY, (Action.READ,))
LOOK_AT_QUEUE: Final = Right(READ_ONLY, (Action.READ,), path_name="queue")
READ_QUEUE: Final = Right(READ_WRITE, (Action.READ,), path_name="queue")
WRITE_QUEUE: Final = Right(READ_WRITE, (Action.WRITE,), path_name="queue")
CONFIGURE_QUEUE: Final = Right(READ_WRITE, (Action.CONFIGURE,), path_name="queue")
DESTROY: Final = Right(ADMIN, (Action.CONFIGURE,))
DESTROY_QUEUE: Final = Right(ADMIN, (Action.CONFIGURE,), path_name="queue")
MONITOR: Final = Right(READ_ONLY, tags=(MONITORING,))
ADMINISTER: Final = Right(ADMIN, tags=(ADMINISTRATOR,))
