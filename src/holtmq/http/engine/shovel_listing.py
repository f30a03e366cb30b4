"""The node's shovels, in the shape the management API lists.

Owns: the row and the ``Shovels`` interface. Must not touch: how shovels run; the node passes that in.
"""

from typing import Protocol

import msgspec


class ShovelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One shovel. The first fields are RabbitMQ's."""

    name: str
    vhost: str
    node: str
    timestamp: str  # of the last change of state
    type: str = "dynamic"
    state: str = "starting"  # starting, running, blocked, terminated
    reason: str | None = None  # why it is terminated or blocked
    src_uri: str = ""
    dest_uri: str = ""
    src_protocol: str = "amqp091"
    dest_protocol: str = "amqp091"
    src_queue: str | None = None
    src_exchange: str | None = None
    src_exchange_key: str | None = None
    dest_queue: str | None = None
    dest_exchange: str | None = None
    dest_exchange_key: str | None = None
    forwarded: int = 0
    pending: int = 0
    remaining: int | str = "unlimited"
    remaining_unacked: int | str = "unlimited"
    ack_mode: str = "on-confirm"
    # HoltMQ's own fields.
    redelivered: int = 0  # forwarded messages that the source had delivered before: perhaps twice
    skipped: int = 0  # known to be forwarded before, so not published again
    refused: int = 0  # times that the destination did not accept a message
    first_offset: int | None = None  # of a stream: of the first and the last message that was moved
    last_offset: int | None = None
    connects: int = 0  # times that the shovel began to run
    last_error: str | None = None
    failing_since: int | None = None  # milliseconds: since then no attempt to run has succeeded


class Shovels(Protocol):
    """All shovels of the node."""

    def rows(self, vhost: str | None = None) -> list[ShovelRow]:
        """The shovels, sorted by vhost and name; only those of ``vhost`` if it is given."""
        ...

    def restart(self, vhost: str, name: str) -> bool:
        """Stop a shovel and start it again; False when there is none."""
        ...
