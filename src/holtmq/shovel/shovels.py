"""Every shovel of the node: started, stopped and restarted as the runtime parameters say.

Owns: one task per shovel, the pause between its runs, what is shown. Must not touch: how messages move
(``transfer.py``). A shovel whose ``src-delete-after`` is reached deletes its own parameter.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from holtmq.broker.errors import BrokerError, NotFound
from holtmq.broker.topology.shovels import (
    COMPONENT,
    PROGRESS_COMPONENT,
    Address,
    ShovelDefinition,
    parse_shovel,
)
from holtmq.http.engine.shovel_listing import ShovelRow
from holtmq.shovel.destination import AmqpDestination, Inside, LocalDestination
from holtmq.shovel.link import Link, LinkLost
from holtmq.shovel.progress import Progress, is_needed
from holtmq.shovel.stamping import Stamp
from holtmq.shovel.stream_source import StreamSource, is_stream
from holtmq.shovel.transfer import Counts, Doubts, Finished, Transfer
from holtmq.wire.tables import FieldTable

log = logging.getLogger(__name__)

_Key = tuple[str, str]  # vhost, name


@dataclass(slots=True)
class _Shovel:
    vhost: str
    name: str
    value: bytes  # the parameter it was started from
    definition: ShovelDefinition
    changed_at: float
    progress: Progress
    counts: Counts
    doubts: Doubts
    state: str = "starting"
    error: str = ""
    failing_since: float | None = None  # the first failure after it last ran
    connects: int = 0
    source: Address | None = None  # in use
    destination: Address | None = None
    transfer: Transfer | None = None
    task: asyncio.Task[None] | None = None


class ShovelService:
    """Implements ``holtmq.http.engine.shovel_listing.Shovels``."""

    def __init__(
        self,
        inside: Inside,
        connect: Callable[[], socket.socket],
        clock: Callable[[], float],
        node_name: str,
        cluster_name: Callable[[], str],
    ) -> None:
        self._inside = inside
        self._connect = connect  # to this broker
        self._clock = clock
        self._node_name = node_name
        self._cluster_name = cluster_name
        self._running: dict[_Key, _Shovel] = {}
        self._broken: dict[_Key, str] = {}  # stored, but cannot run: why
        self._ending: set[asyncio.Task[None]] = set()
        self._due = False
        self._stopped = False

    def start(self) -> None:
        """Start the stored shovels."""
        self._follow()

    async def stop(self) -> None:
        """Stop all shovels."""
        self._stopped = True
        for key in list(self._running):
            self._end(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def rows(self, vhost: str | None = None) -> list[ShovelRow]:
        """The shovels, sorted by vhost and name; only those of ``vhost`` if it is given."""
        broken = [
            ShovelRow(
                name=name,
                vhost=where,
                node=self._node_name,
                timestamp=_stamp(self._clock()),
                state="terminated",
                reason=reason,
                last_error=reason,
            )
            for (where, name), reason in self._broken.items()
        ]
        found = broken + [self._row(shovel) for shovel in self._running.values()]
        shown = [row for row in found if vhost in (None, row.vhost)]
        return sorted(shown, key=lambda row: (row.vhost, row.name))

    def restart(self, vhost: str, name: str) -> bool:
        """Stop a shovel and start it again; False when there is none."""
        key = vhost, name
        if key not in self._running:
            return False
        shovel = self._running[key]
        self._end(key)
        self._begin(key, shovel.value, shovel)
        return True

    def parameters_changed(self) -> None:
        """Start and stop shovels as the parameters say now."""
        if not self._due and not self._stopped:  # an import changes many at once
            self._due = True
            asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        """Make the running shovels those of the parameters."""
        self._due = False
        if self._stopped:
            return
        broker = self._inside.broker
        stored = broker.parameters.all(component=COMPONENT)
        wanted = {(parameter.vhost, parameter.name): parameter.value for parameter in stored}
        for old in broker.parameters.all(component=PROGRESS_COMPONENT):
            if (old.vhost, old.name) not in wanted and not is_needed(old, self._queue_id):
                broker.parameter_changes.delete(old.vhost, PROGRESS_COMPONENT, old.name)
        self._broken = {key: why for key, why in self._broken.items() if key in wanted}
        for key in [key for key, shovel in self._running.items() if wanted.get(key) != shovel.value]:
            self._end(key)
        for key, value in wanted.items():
            if key not in self._running:
                self._begin(key, value)

    def _queue_id(self, vhost: str, name: str) -> int | None:
        found = self._inside.broker.vhosts.get(vhost)
        queue = None if found is None else found.queues.get(name)
        return None if queue is None else queue.id

    def _begin(self, key: _Key, value: bytes, before: _Shovel | None = None) -> None:
        try:
            definition = parse_shovel(value)
        except BrokerError as error:
            self._broken[key] = str(error)
            return
        self._broken.pop(key, None)
        if before is None:
            progress = Progress(
                *key,
                value,
                self._inside.broker.parameters,
                definition.prefetch,
                is_stream(definition.src_consumer_args),
            )
            counts = Counts(forwarded=progress.forwarded, redelivered=progress.redelivered)
            doubts = Doubts(progress.marks)
        else:
            progress, counts, doubts = before.progress, before.counts, before.doubts
        shovel = _Shovel(*key, value, definition, self._clock(), progress, counts, doubts)
        if before is not None:
            shovel.failing_since = before.failing_since
        self._running[key] = shovel
        shovel.task = asyncio.create_task(self._keep_running(shovel), name=f"shovel {key[1]}")

    def _end(self, key: _Key) -> None:
        task = self._running.pop(key).task
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _keep_running(self, shovel: _Shovel) -> None:
        tried = 0
        while True:
            try:
                await self._run(shovel, tried)
            except Finished:
                self._finish(shovel)
                return
            except (LinkLost, BrokerError) as error:
                self._failed(shovel, str(error))
            except Exception as error:  # a bug of ours: the other shovels go on
                log.exception("shovel failed", extra={"shovel": shovel.name, "vhost": shovel.vhost})
                self._failed(shovel, f"internal error: {error!r}")
            tried += 1
            if not shovel.definition.reconnect_seconds:
                return
            await asyncio.sleep(shovel.definition.reconnect_seconds)
            self._enter(shovel, "starting")

    async def _run(self, shovel: _Shovel, tried: int) -> None:
        definition = shovel.definition
        name = f"Shovel {shovel.name}"
        shovel.source = definition.sources[tried % len(definition.sources)]
        shovel.destination = definition.destinations[tried % len(definition.destinations)]
        destination = await self._open_destination(shovel.destination, shovel, name)
        try:
            source = await Link.open(shovel.source, name, self._connect)
            try:
                stamp = Stamp(definition, self._about(shovel), self._clock)

                def refused(reason: str) -> None:
                    shovel.error = reason

                stream = None
                if shovel.progress.from_stream:
                    stream = StreamSource(shovel.progress)
                    if isinstance(destination, LocalDestination):
                        shovel.counts.forwarded = shovel.progress.forwarded  # where this run begins
                shovel.transfer = transfer = Transfer(
                    definition, source, destination, shovel.counts, shovel.doubts, stamp, refused, stream
                )
                await transfer.prepare()
                shovel.connects += 1
                shovel.failing_since = None
                self._enter(shovel, "running")
                await transfer.run()
            finally:
                shovel.transfer = None
                await source.close()
        finally:
            await destination.close()

    async def _open_destination(
        self, address: Address, shovel: _Shovel, name: str
    ) -> AmqpDestination | LocalDestination:
        definition = shovel.definition
        if address.is_local:
            local = LocalDestination(self._inside, address.vhost, definition, shovel.progress)
            local.prepare()
            return local
        remote = AmqpDestination(await Link.open(address, name, self._connect), definition)
        try:
            await remote.prepare()
        except BaseException:
            await remote.close()
            raise
        return remote

    def _about(self, shovel: _Shovel) -> FieldTable:
        """The entry of header ``x-shovelled``, with RabbitMQ's names."""
        definition = shovel.definition
        about: FieldTable = {
            "shovelled-by": self._cluster_name(),
            "shovel-type": "dynamic",
            "shovel-name": shovel.name,
            "shovel-vhost": shovel.vhost,
            "src-uri": str(shovel.source),
            "dest-uri": str(shovel.destination),
        }
        optional = {
            "src-queue": definition.src_queue,
            "src-exchange": definition.src_exchange,
            "src-exchange-key": definition.src_exchange_key or None,
            "dest-queue": definition.dest_queue,
            "dest-exchange": definition.dest_exchange,
            "dest-exchange-key": definition.dest_exchange_key,
        }
        return {**about, **{key: value for key, value in optional.items() if value is not None}}

    def _finish(self, shovel: _Shovel) -> None:
        log.info(
            "shovel finished",
            extra={"shovel": shovel.name, "vhost": shovel.vhost, "forwarded": shovel.counts.forwarded},
        )
        broker = self._inside.broker
        stored = broker.parameters.get(shovel.vhost, COMPONENT, shovel.name)
        if stored is not None and stored.value == shovel.value:
            try:
                broker.parameter_changes.delete(shovel.vhost, COMPONENT, shovel.name)
            except NotFound:  # its vhost is gone
                return
            self._inside.wake()

    def _failed(self, shovel: _Shovel, reason: str) -> None:
        shovel.error = reason
        if shovel.failing_since is None:
            shovel.failing_since = self._clock()
        log.warning("shovel stopped", extra={"shovel": shovel.name, "vhost": shovel.vhost, "reason": reason})
        self._enter(shovel, "terminated")

    def _enter(self, shovel: _Shovel, state: str) -> None:
        shovel.state = state
        shovel.changed_at = self._clock()

    def _row(self, shovel: _Shovel) -> ShovelRow:
        definition, counts, transfer = shovel.definition, shovel.counts, shovel.transfer
        blocked = "" if transfer is None else transfer.destination.blocked
        state = "blocked" if blocked and shovel.state == "running" else shovel.state
        why = blocked if state == "blocked" else shovel.error if state == "terminated" else ""
        ends = transfer is not None and transfer.remaining is not None
        return ShovelRow(
            name=shovel.name,
            vhost=shovel.vhost,
            node=self._node_name,
            timestamp=_stamp(shovel.changed_at),
            state=state,
            reason=why or None,
            src_uri=str(shovel.source or definition.sources[0]),
            dest_uri=str(shovel.destination or definition.destinations[0]),
            src_queue=definition.src_queue,
            src_exchange=definition.src_exchange,
            src_exchange_key=definition.src_exchange_key or None,
            dest_queue=definition.dest_queue,
            dest_exchange=definition.dest_exchange,
            dest_exchange_key=definition.dest_exchange_key,
            forwarded=counts.forwarded,
            pending=0 if transfer is None else len(transfer.pending),
            remaining=(transfer.remaining or 0) if transfer is not None and ends else "unlimited",
            remaining_unacked=(transfer.remaining_unacked or 0)
            if transfer is not None and ends
            else "unlimited",
            ack_mode=definition.ack_mode.value,
            redelivered=counts.redelivered,
            skipped=counts.skipped,
            refused=counts.refused,
            first_offset=shovel.progress.first_offset,
            last_offset=shovel.progress.last_offset,
            connects=shovel.connects,
            last_error=shovel.error or None,
            failing_since=None if shovel.failing_since is None else int(shovel.failing_since * 1000),
        )


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
