"""The broker that is left: its definitions over HTTP, the depths of its queues over AMQP.

Owns: reading. Must not touch: anything there; messages are taken by the new broker's shovels
(``stream_ends.py``: where streams begin and end).
Depths come from passive declarations: they are exact, where RabbitMQ's HTTP API answers with figures that are
some seconds old.
"""

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import click
import msgspec

from holtmq.amqp.methods import QueueDeclare, QueueDeclareOk
from holtmq.broker.errors import Conflict
from holtmq.broker.topology.shovels import Address, parse_address
from holtmq.cli.broker_api import BrokerApi, BrokerUnreachable
from holtmq.cli.migrate.plan import EXCLUSIVE, Definitions, QueueRef
from holtmq.cli.migrate.stream_ends import StreamEnds, find_ends
from holtmq.shovel.link import Link, LinkLost


class Depth(NamedTuple):
    """A queue as the old broker shows it."""

    ready: int
    consumers: int


class OldBroker:
    """The source of a migration."""

    def __init__(self, url: str) -> None:
        try:
            self._address = parse_address(url)
        except Conflict as error:
            raise click.BadParameter(str(error)) from None
        if self._address.is_local:
            raise click.BadParameter("the address of the old broker needs a host: amqp://user:password@host")
        self._url = url

    @property
    def shown(self) -> str:
        """The address without credentials and vhost."""
        return str(self.address("/"))

    def address(self, vhost: str) -> Address:
        """The address of one vhost."""
        return msgspec.structs.replace(self._address, vhost=vhost)

    def uri(self, vhost: str) -> str:
        """The same as text, with credentials."""
        parts = urlsplit(self._url)
        return urlunsplit(parts._replace(path="/" + quote(vhost, safe="")))

    def definitions(self, management: str, tls_ca: Path | None) -> Definitions:
        """Everything but messages, from the management API; ``tls_ca`` as for our own broker."""
        parts = urlsplit(management)
        user = unquote(parts.username) if parts.username else self._address.user
        password = unquote(parts.password) if parts.password else self._address.password
        host = parts.netloc.rpartition("@")[2]
        api = BrokerApi(urlunsplit(parts._replace(netloc=host)), user, password, tls_ca)
        try:
            api.connect()
        except BrokerUnreachable as silence:
            raise click.ClickException(str(silence)) from None
        try:
            definitions = api.get(Definitions, "definitions")
            # An export lacks them, and the plan names them.
            columns = "columns=vhost,name,exclusive"
            rows = api.get(list[dict[str, object]], "queues", query=columns)
            definitions[EXCLUSIVE] = [row for row in rows if row.get("exclusive") is True]
            return definitions
        finally:
            api.close()

    def depths(self, queues: Iterable[QueueRef]) -> dict[QueueRef, Depth | None]:
        """Ready messages and consumers of each queue; None: it is gone. Raises LinkLost."""
        return asyncio.run(self._depths(queues))

    def stream_ends(self, streams: Iterable[QueueRef]) -> dict[QueueRef, StreamEnds | None]:
        """The first and the last offset of each stream; None: it is gone. Raises LinkLost."""
        return asyncio.run(self._stream_ends(streams))

    async def _stream_ends(self, streams: Iterable[QueueRef]) -> dict[QueueRef, StreamEnds | None]:
        found: dict[QueueRef, StreamEnds | None] = {}
        for vhost, wanted in _by_vhost(streams).items():
            async with self._link(vhost) as link:
                ends = await find_ends(link, [stream.name for stream in wanted])
            found |= {stream: ends[stream.name] for stream in wanted}
        return found

    async def _depths(self, queues: Iterable[QueueRef]) -> dict[QueueRef, Depth | None]:
        found: dict[QueueRef, Depth | None] = {}
        for vhost, wanted in _by_vhost(queues).items():
            async with self._link(vhost) as link:
                for queue in wanted:
                    answer = await link.ask(QueueDeclare(queue.name, passive=True), QueueDeclareOk)
                    depth = Depth(answer.message_count, answer.consumer_count) if answer else None
                    found[queue] = depth
        return found

    @asynccontextmanager
    async def _link(self, vhost: str) -> AsyncIterator[Link]:
        link = await Link.open(self.address(vhost), "holt migrate", _no_inside)
        try:
            yield link
        finally:
            await link.close()


def _by_vhost(queues: Iterable[QueueRef]) -> dict[str, list[QueueRef]]:
    by_vhost: dict[str, list[QueueRef]] = defaultdict(list)
    for queue in queues:
        by_vhost[queue.vhost].append(queue)
    return by_vhost


def _no_inside() -> socket.socket:
    raise LinkLost("the old broker is never this process")
