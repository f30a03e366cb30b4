"""Management API: a document of definitions, decoded in steps.

Owns: which parts a document has, and the form of each. Must not touch: what the parts mean, the broker's
state. A document may have hundreds of thousands of rows, so each row is decoded by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import read_json
from holtmq.http.management.runtime import ParameterIn, TopicPermissionIn
from holtmq.http.management.wire import (
    BindingIn,
    ExchangeIn,
    PermissionIn,
    PolicyIn,
    QueueIn,
    UserIn,
    VhostIn,
)

T = TypeVar("T")


class DocumentIn(msgspec.Struct, kw_only=True):
    """The parts of a document, whose rows are not decoded yet."""

    vhosts: list[msgspec.Raw] = []
    users: list[msgspec.Raw] = []
    permissions: list[msgspec.Raw] = []
    topic_permissions: list[msgspec.Raw] = []
    parameters: list[msgspec.Raw] = []
    global_parameters: list[msgspec.Raw] = []
    policies: list[msgspec.Raw] = []
    exchanges: list[msgspec.Raw] = []
    queues: list[msgspec.Raw] = []
    bindings: list[msgspec.Raw] = []


@dataclass(slots=True)
class Definitions:
    """A whole document."""

    vhosts: list[VhostIn] = field(default_factory=list)
    users: list[UserIn] = field(default_factory=list)
    permissions: list[PermissionIn] = field(default_factory=list)
    topic_permissions: list[TopicPermissionIn] = field(default_factory=list)
    parameters: list[ParameterIn] = field(default_factory=list)
    global_parameters: list[ParameterIn] = field(default_factory=list)
    policies: list[PolicyIn] = field(default_factory=list)
    exchanges: list[ExchangeIn] = field(default_factory=list)
    queues: list[QueueIn] = field(default_factory=list)
    bindings: list[BindingIn] = field(default_factory=list)


ROWS: Final[dict[str, type[msgspec.Struct]]] = {
    "vhosts": VhostIn,
    "users": UserIn,
    "permissions": PermissionIn,
    "topic_permissions": TopicPermissionIn,
    "parameters": ParameterIn,
    "global_parameters": ParameterIn,
    "policies": PolicyIn,
    "exchanges": ExchangeIn,
    "queues": QueueIn,
    "bindings": BindingIn,
}
_OF_A_VHOST: Final = ("parameters", "policies", "exchanges", "queues", "bindings")


def rows_of(part: str, given: list[msgspec.Raw], kind: type[T]) -> Iterator[T]:
    """The rows of a part; raises 400 for the first that does not fit, with its number."""
    decoder = msgspec.json.Decoder(kind, strict=False)
    for number, raw in enumerate(given):
        try:
            yield decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise Refusal(400, f"{part}[{number}]: {error}") from None


async def read_definitions(body: bytes, vhost: str | None = None) -> Definitions:
    """A whole document. With a vhost, it is one of that vhost alone, whose rows need not name it."""
    given = read_json(body.strip() or b"{}", DocumentIn, is_lenient=True)
    if vhost is not None and (given.users or given.vhosts or given.permissions or given.topic_permissions):
        raise Refusal(400, "users, vhosts and permissions are not part of one vhost's definitions")
    found = Definitions()
    stepwise = Stepwise()
    for part, kind in ROWS.items():
        rows: list[object] = getattr(found, part)
        is_moved = vhost is not None and part in _OF_A_VHOST
        for row in rows_of(part, getattr(given, part), kind):
            if is_moved:
                row.vhost = vhost  # type: ignore[attr-defined]
            rows.append(row)
            await stepwise.between()
    return found
