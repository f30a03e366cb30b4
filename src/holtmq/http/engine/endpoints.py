"""What an endpoint is: one row of the route table, the call it gets, the reply it gives.

Owns: the shapes that the application, the documentation and the endpoint modules share. Must not touch:
routing, sockets, rules.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from holtmq.auth.tokens import Role
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import EMPTY_BODY, Refusal, invalid_json
from holtmq.http.engine.wire import Query
from holtmq.journal.interface import JournalFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not simply 200 with JSON."""

    status: int
    body: object = None
    content_type: str = "application/json"  # anything else: ``body`` is bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read."""

    context: Context
    path: dict[str, str]
    query: Query
    body: bytes
    subject: str | None

    @property
    def service(self) -> PartitionedService:
        return self.context.service

    @property
    def now(self) -> float:
        return self.context.clock()

    def json(self, kind: type[T]) -> T:
        """The body as this struct; 400 when it is missing or something else."""
        if not self.body.strip():
            raise Refusal(400, EMPTY_BODY)
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.MsgspecError as error:
            raise invalid_json(error) from None

    def json_or(self, kind: type[T], default: T) -> T:
        """The same where a body may be left out."""
        return self.json(kind) if self.body.strip() else default

    async def durable(self) -> None:
        """Wait until everything appended so far is on disk; raises when it never will be."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(failed: JournalFailed | None) -> None:
            if done.done():  # the client went away
                return
            if failed is None:
                done.set_result(None)
            else:
                done.set_exception(failed)

        self.context.journal.on_durable(told)
        await done


Handler = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the route table. Without a handler it is a hot route: documented here, served elsewhere."""

    method: str
    path: str
    role: Role | None  # None: public
    tag: str
    summary: str
    handler: Handler | None = None
    query: tuple[str, ...] = ()
    body: type | None = None
    statuses: tuple[int, ...] = field(default=(200,))


READ: Final = Role.READ_ONLY
WRITE: Final = Role.READ_WRITE
ADMIN: Final = Role.ADMIN
