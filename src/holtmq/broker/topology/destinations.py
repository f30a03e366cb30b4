"""What an exchange may be bound to.

Owns: what exchanges need from a queue. Must not touch: queues.
"""

from collections.abc import Mapping
from typing import Protocol, TypeAlias, TypeVar

Table: TypeAlias = Mapping[str, object]


class Named(Protocol):
    """All that an exchange needs from a queue."""

    @property
    def name(self) -> str: ...


Q = TypeVar("Q", bound=Named)
# Of a binding: whether it leads to an exchange, the name of its destination, its key, its arguments.
Identity: TypeAlias = tuple[bool, str, str, object]
