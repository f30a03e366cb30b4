"""A node: journal, broker and listeners, from start to graceful stop.

Owns: the order of starting and stopping, the work of each event loop turn, the clock, alarms, checkpoints.
Must not touch: rules and protocols.
"""

import asyncio
import logging
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from holtmq import address_file, start_checks
from holtmq.amqp.connection import Connection
from holtmq.amqp.handshake import Settings
from holtmq.amqp.interceptors import Intercept, Interceptors
from holtmq.amqp.server import AmqpServer, Limits
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.tokens import TokenVerifier
from holtmq.auth.users import ADMINISTRATOR, DEFAULT_USER, DEFAULT_VHOST, User
from holtmq.broker.broker import Broker
from holtmq.broker.damage import Damaged
from holtmq.broker.dialect import Dialect
from holtmq.broker.figures.sampling import Sampler
from holtmq.broker.partitioned.log.bodies import Cipher
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.service import Settings as PartitionedSettings
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import Fold, recover
from holtmq.client_listing import AmqpClients
from holtmq.config import Config, SyncMode
from holtmq.descriptors import affordable_sockets, raise_limit
from holtmq.heap import FreedMemory
from holtmq.http.engine.context import Context, ReplicaState
from holtmq.http.engine.doorkeeper import Doorkeeper
from holtmq.http.engine.history import History
from holtmq.http.engine.sessions import Sessions
from holtmq.http.hot_routes import HotApis
from holtmq.http.management.call import NODE
from holtmq.http.management.runtime import cluster_name
from holtmq.http.operator.system import resident_bytes, total_memory
from holtmq.http.server import HttpServer
from holtmq.journal import (
    Journal,
    JournalError,
    JournalFailed,
    JournalOptions,
    MemoryJournal,
    open_journal,
)
from holtmq.journal.checkpoint import SUFFIX as CHECKPOINT_SUFFIX
from holtmq.journal.disk import Disk, OsDisk
from holtmq.journal.replica.view import StoppedWaiting
from holtmq.journal.scrub import Rot, scrub
from holtmq.journal.spill_file import SpillFile
from holtmq.listeners import Listeners, tls_context
from holtmq.loop_watch import LoopWatch
from holtmq.password_upgrades import PasswordUpgrades
from holtmq.replica_life import ReplicaLife
from holtmq.shovel.destination import Inside
from holtmq.shovel.shovels import ShovelService

if TYPE_CHECKING:
    from holtmq.tracing.start import Tracing

log = logging.getLogger(__name__)

_HOUSEKEEPING_SECONDS: Final = 1.0
_CLEANUP_FIRST_MS: Final = 300_000  # after a start: short, so that a node that restarts often cleans up too
_CLEANUP_STEP_MS: Final = 100
_RETENTION_STEP_MS: Final = 20
_LOW_ON_DISK: Final = "low on disk"
_LONG_REPLAY: Final = 20_000  # records: about 50 ms of a start
_SCRUB_PAUSE_SECONDS: Final = 300.0
_FILLED_UP: Final = 1024  # a checkpoint may append a few bytes, to get a position of its own
_DRAIN_SECONDS: Final = 5.0  # for consumers, before a switchover
_LAST_CONFIRMS_SECONDS: Final = 0.2  # for publishers, between the last confirms and the close
_RELIEF_SECONDS: Final = 10.0  # between checkpoints that are only made to free disk space
# argon2 of "guest", precomputed: the password is public, and hashing it would only slow the first start.
GUEST_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$bdbnZKvwT/Zr7Nxwo9xflg$lpcXFLNyvAgs8eXRYDlhylMwWtAaiKo/a63BfxlsmPs"
)


class Node:
    """A running broker."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        disk: Disk | None = None,
        freed: FreedMemory | None = None,
    ) -> None:
        self._verifier = TokenVerifier(config.auth) if config.auth.jwt_enabled else None
        self.config = config
        self._freed = freed
        self.clock = clock
        self.listeners = Listeners(config)
        self.disk = disk  # where the journal is, if not in the configured folder
        self.journal: Journal
        self.broker: Broker
        self.partitioned: PartitionedService
        self.sampler: Sampler
        self.amqp: AmqpServer
        self.http: HttpServer
        self.shovels: ShovelService
        self.amqp_port = 0
        self.amqp_tls_port = 0
        self.http_tls_port = 0
        self.http_port = 0
        self.recovered_records = 0
        self.loop_watch = LoopWatch()
        self.tracing: Tracing | None = None
        self.started_at = 0.0
        self._password_upgrades: PasswordUpgrades
        self._loop: asyncio.AbstractEventLoop
        self._pulse_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._housekeeper: asyncio.Task[None] | None = None
        self._scrubber: asyncio.Task[None] | None = None
        self._stalled = False
        self._relieved_end = -1  # no checkpoint for disk space until the log has grown past this
        self._handover: asyncio.Task[None] | None = None
        self._cut_off = False  # from PostgreSQL
        self._retained_ms = 0  # when retention last ran
        self._retention_planned = False
        self._relieved_at = -math.inf  # when a checkpoint was last made to free disk space
        self._stopping = False
        self.replica: ReplicaLife | None = None
        self.ended = asyncio.Event()  # this node must stop: it lost the log, or handed it over

    async def start(self) -> None:
        """Recover, then listen."""
        self._loop = asyncio.get_running_loop()
        began = self._loop.time()
        self.started_at = self.clock()
        if self.config.tracing.enabled:
            self.tracing = start_tracing()
        if self.config.journal.replica:
            if self.disk is None:
                start_checks.make_private(self.config.data.dir)
            options = self._journal_options()
            self.replica = ReplicaLife(self.config, options, self.disk, self._defer_commit)
            await self._own_log(self.replica)
        else:
            self._open_broker()
        config = self.config.amqp
        sockets = affordable_sockets()
        most = min(config.max_connections, sockets * 3 // 4)
        if most < config.max_connections:
            log.warning(
                "the limit of open files allows fewer connections than configured",
                extra={"configured": config.max_connections, "allowed": most},
            )
        self.amqp = AmqpServer(
            self.broker,
            Settings(
                config.product,
                config.product_version,
                config.channel_max,
                config.frame_max,
                config.heartbeat,
                config.max_message_bytes,
                config.channel_flow,
                int(config.consumer_timeout * 1000),
                self._interceptors(),
            ),
            Limits(most, config.handshake_timeout),
            self.wake,
            self.refresh_clock,
            Connection if self.tracing is None else self.tracing.connect,
            self._verifier,
        )
        self._password_upgrades = PasswordUpgrades(self.broker, self.amqp.verified)
        self.broker.flow.on_dirty = self.partitioned.line.on_dirty = self.wake
        self.partitioned.line.at = self._at
        self.partitioned.plan_timed()
        if self.config.queue.partition_cleanup_days:
            self._plan_cleanup(_CLEANUP_FIRST_MS)
        self.wake()
        await self.listeners.open_amqp(self.amqp)
        self.shovels = self._shovel_service()
        apis = HotApis() if self.tracing is None else self.tracing.apis
        self.http = HttpServer(self._http_context(), sockets - most, apis)
        await self.listeners.open_http(self.http)
        ports = self.listeners.ports
        self.amqp_port, self.amqp_tls_port = ports.get("amqp", 0), ports.get("amqp/ssl", 0)
        self.http_port, self.http_tls_port = ports.get("http", 0), ports.get("https", 0)
        if self._has_folder:
            found = self.listeners.all()
            address_file.write(self.config.data.dir, [(one.protocol, one.host, one.port) for one in found])
        self.loop_watch.start(self._loop)
        self._housekeeper = asyncio.create_task(self._keep_house(), name="housekeeper")
        if self.config.journal.scrub_bytes_per_second and self._has_folder:
            self._scrubber = asyncio.create_task(self._keep_scrubbing(), name="scrubber")
        if self.recovered_records >= _LONG_REPLAY and self.journal.bytes_since_checkpoint:
            # A process that keeps crashing before a checkpoint is due must not replay more each time.
            self.checkpoint()
        self.shovels.start()
        start_checks.warn(self.config, self.broker)
        log.info(
            "ready",
            extra={
                **self.listeners.describe(),
                "seconds": round(self._loop.time() - began, 3),
                "records": self.recovered_records,
            },
        )

    def _open_broker(self) -> None:
        loop = self._loop
        config = self.config
        if config.data.memory:
            self._build_broker(MemoryJournal(self._defer_commit))
        else:
            if self.disk is None:
                start_checks.make_private(config.data.dir)
            journal, recovery = open_journal(
                config.data.dir,
                self._journal_options(),
                disk=self.disk,
                defer=self._defer_commit,
                notify=loop.call_soon_threadsafe,
                later=loop.call_later,
            )
            self._build_broker(journal)
            try:
                self.recovered_records = recover(self.broker, recovery, self.partitioned.store)
            except BaseException:
                self.journal.close()  # nothing was appended: this only unlocks the folder
                raise
            if recovery.torn is not None:
                log.warning(
                    "torn tail cut off",
                    extra={"bytes": recovery.torn.dropped_bytes, "where": recovery.torn.where},
                )
        self._complete_broker()

    def _journal_options(self) -> JournalOptions:
        journal = self.config.journal
        return JournalOptions(segment_bytes=journal.segment_bytes, sync=journal.sync is SyncMode.ALWAYS)

    def _build_broker(self, journal: Journal) -> None:
        self.journal = journal
        config, amqp = self.config, self.config.amqp
        self.broker = Broker(
            journal,
            max_priority=amqp.max_priority,
            cancel_requeue=amqp.cancel_requeue,
            dialect=Dialect(**msgspec.structs.asdict(config.compatibility)),
            spill=None if config.data.memory or self.disk is not None else SpillFile(config.data.dir),
        )
        self.broker.flow.memory.limit = config.limits.queue_memory_bytes(total_memory())
        self.partitioned = _partitioned(journal, self.config)
        self.sampler = Sampler(int(self.clock()))
        self._streams = self.broker.attach(self.partitioned)
        self.broker.flow.damage.on_found = _log_damage
        self.refresh_clock()

    def _complete_broker(self) -> None:
        damage = self.broker.flow.damage
        damage.look_again()
        if damage.dropped:
            log.warning("a repair had given up part of the journal", extra={"records": damage.dropped})
        if not self.broker.vhosts:
            put_defaults(self.broker)
        self._streams.follow()

    def _begin_fold(self, journal: Journal) -> Fold:
        self._build_broker(journal)
        return Fold(self.broker, self.partitioned.store)

    async def _own_log(self, replica: ReplicaLife) -> None:
        fold = await replica.own(self._begin_fold, tls_context)
        self.listeners.ports.update(replica.ports)
        self.refresh_clock()
        self.recovered_records = fold.finish()
        self._complete_broker()

    def _interceptors(self) -> Interceptors:
        asked = self.config.interceptors
        return Interceptors(
            Intercept(asked.timestamp.value),
            Intercept(asked.routing_node.value),
            Intercept(asked.client_id.value),
            f"holt@{platform.node()}",
        )

    def _doorkeeper(self) -> Doorkeeper:
        users, streams = self.broker.users, self.broker.streams
        assert streams is not None
        return Doorkeeper(
            users,
            self.amqp.authenticator,
            self._verifier,
            Sessions(users),
            self.clock,
            streams.place_of,
            self.config.http.anonymous,
        )

    def _shovel_service(self) -> ShovelService:
        inside = Inside(self.broker, lambda: self.amqp.alarm, self.refresh_clock, self.wake)
        return ShovelService(
            inside, self.amqp.connect_inside, self.clock, NODE, lambda: cluster_name(self.broker)
        )

    def _http_context(self) -> Context:
        return Context(
            self.config,
            self.partitioned,
            self.broker,
            self.journal,
            self.clock,
            self.health,
            self.wake,
            self._doorkeeper(),
            self.started_at,
            History(self.partitioned.counters),
            AmqpClients(self.amqp),
            lambda: self.amqp.alarm,
            self.listeners.all,
            self.sampler,
            self.shovels,
            self.loop_watch.delay,
            self.checkpoint,
            self._replica_state,
            watch_range=None if self.tracing is None else self.tracing.watch_range,
        )

    def _replica_state(self) -> ReplicaState | None:
        replica = self.replica
        if replica is None:
            return None
        return ReplicaState(replica.name, replica.view.owner, replica.view.epoch, replica.trouble())

    def stop_waiting(self) -> None:
        """Make ``start`` stop waiting for the log; it raises StoppedWaiting."""
        if self.replica is not None:
            self.replica.stop_waiting()

    async def stop(self, grace: float = 3.0) -> None:
        """Stop accepting, flush, sync, close. Clients have ``grace`` seconds to answer the close."""
        if self._stopping:
            return
        self._stopping = True
        await self.shovels.stop()
        await asyncio.gather(self.amqp.stop(grace), self.http.stop(grace))
        tasks = [task for task in (self._housekeeper, self._scrubber, self._handover) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self.loop_watch.stop()
        await self._password_upgrades.stop()
        self.broker.flow.turn()
        self.partitioned.record_deliveries()
        if self._has_folder:
            address_file.remove(self.config.data.dir)
        await asyncio.to_thread(self.journal.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.stop)
        log.info("stopped", extra={})

    @property
    def _has_folder(self) -> bool:
        return not self.config.data.memory and self.disk is None

    def refresh_clock(self) -> None:
        """Set the broker's time from the clock."""
        self.broker.flow.now_ms = int(self.clock() * 1000)

    def wake(self) -> None:
        """Schedule a turn, after the sockets of this loop iteration have been read."""
        if not self._pulse_due:
            self._pulse_due = True
            self._loop.call_soon(self._pulse)

    def _pulse(self) -> None:
        self._pulse_due = False
        self.refresh_clock()  # the caller of ``wake`` may not have done so
        try:
            self.broker.flow.turn()
        finally:  # an error in one half must not cost the other half the turn it has asked for
            try:
                self.amqp.flush()
                self.partitioned.turn(self.clock())
            finally:
                if self.partitioned.has_retention and not self._retention_planned:
                    self._plan_retention()
                self._arm_timer()

    def _defer_commit(self, hand_over: Callable[[], None]) -> None:
        self._loop.call_soon(self._commit, hand_over)

    def _commit(self, hand_over: Callable[[], None]) -> None:
        """Hand the journal's group to its writer, after a turn that appends the acks of this iteration.
        Otherwise a publish could be confirmed while an earlier ack of its connection is lost to a crash."""
        try:
            self.broker.flow.turn()
        finally:
            hand_over()

    def tick(self) -> None:
        """Run the timers that are due."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.refresh_clock()
        self.broker.flow.tick()
        self.wake()

    async def settle(self) -> None:
        """Wait until no turn is due and all that was appended is durable (or never will be)."""
        while self._pulse_due or (self.journal.failed is None and self.journal.backlog):
            if self._pulse_due:
                await asyncio.sleep(0)
                continue
            await self._all_appended_is_durable()

    async def _all_appended_is_durable(self) -> None:
        """Wait until what was appended so far is durable (or never will be)."""
        durable = asyncio.Event()

        def told(_: JournalFailed | None) -> None:
            durable.set()

        self.journal.on_durable(told)
        await durable.wait()

    def _arm_timer(self) -> None:
        due = self.broker.flow.timers.next_due()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - self.clock()), self.tick)

    def _at(self, at: float, action: Callable[[], None]) -> None:
        self.broker.flow.at(math.ceil(at * 1000), action)
        self.wake()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            self.sample_figures()
            if self._freed is not None:
                self._freed.sample(self.broker.flow.memory.used)
            if self.replica is not None:
                self._watch_replica(self.replica)
            self.check_alarms()
            self.checkpoint_if_due()
            due = self.broker.flow.timers.next_due()
            if due is not None and due <= self.clock():  # the clock was set forward; loop timers ignore that
                self.tick()
            if self.journal.failed is None:
                self.partitioned.drain_spool(self.clock())  # messages left by a full queue or a restart
                for _ in self.partitioned.staging.finish(self.clock()):
                    await asyncio.sleep(0)

    def sample_figures(self) -> None:
        """Count what happened in this second."""
        used, self.broker.flow.used = self.broker.flow.used, set()
        self.sampler.sample(int(self.clock()), used, self.partitioned.counters, self.broker.counts)
        exchanges, self.broker.flow.used_exchanges = self.broker.flow.used_exchanges, set()
        self.sampler.sample_exchanges(int(self.clock()), exchanges)

    def _watch_replica(self, replica: ReplicaLife) -> None:
        """End the node when another node owns the log; hand the log over when that is requested."""
        trouble = replica.trouble()
        if bool(trouble) != self._cut_off:
            # Clients should try another node: it may own the log by now, which this node cannot find out.
            self._cut_off = bool(trouble)
            log.warning("clients refused" if trouble else "clients admitted again", extra={"reason": trouble})
            self.amqp.refuse(trouble)
            self.http.refuse(trouble)
        elif trouble:
            self.http.refuse(trouble)  # also requests whose body came after the last time
        if self.journal.failed is not None:
            self.amqp.stop_listening()
            self.ended.set()
        elif replica.is_asked_for and self._handover is None:
            log.warning("handing the log over", extra={"to": replica.is_asked_for})
            self._handover = asyncio.create_task(self._hand_over(), name="handover")

    async def _hand_over(self) -> None:
        """Let consumers finish and confirm all publishes received, so that clients need not resend any."""
        await self.amqp.drain(_DRAIN_SECONDS)
        self.broker.flow.turn()
        # What was read so far, not until nothing is left: HTTP clients push on until the node stops.
        await self._all_appended_is_durable()
        self.amqp.flush()
        # A client that reads its last confirm together with our close takes the confirm for lost (pika does).
        await asyncio.sleep(_LAST_CONFIRMS_SECONDS)
        self.ended.set()

    def checkpoint_if_due(self) -> None:
        """Checkpoint when the journal has grown, or when the disk is low and acked messages can be freed:
        publishers are blocked then, so the journal would not grow enough by itself."""
        journal, now = self.journal, self._loop.time()
        grown = journal.bytes_since_checkpoint
        relief = self.amqp.alarm == _LOW_ON_DISK and now - self._relieved_at >= _RELIEF_SECONDS
        # One more without growth: the last checkpoint still kept what the checkpoint before it needs.
        again = relief and journal.end > self._relieved_end
        if journal.failed is None and (grown >= self.config.journal.checkpoint_bytes or again):
            if relief:
                self._relieved_at = now
                self._relieved_end = -1 if grown > 0 else journal.end + _FILLED_UP
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write the whole state, so that a restart reads it and not the whole log."""
        self.broker.flow.turn()
        self.partitioned.staging.drop_orphans(self.clock())
        self.journal.checkpoint(*snapshot(self.broker, self.partitioned.store))

    async def _keep_scrubbing(self) -> None:
        """Verify the stored files, slowly, again and again."""
        while True:
            await asyncio.sleep(_SCRUB_PAUSE_SECONDS)
            await self.scrub_once(self.config.journal.scrub_bytes_per_second)

    async def scrub_once(self, bytes_per_second: float = math.inf) -> int:
        """Verify all files except the one being written; return the number of damaged places."""
        found = 0
        steps = scrub(OsDisk(self.config.data.dir), self.journal.last_segment)
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            if isinstance(step, int):
                await asyncio.sleep(step / bytes_per_second)
                continue
            found += 1
            log.error("damage found", extra={"file": step.name, "at": step.position, "reason": step.reason})
            if step.name.endswith(CHECKPOINT_SUFFIX):
                self.checkpoint()  # replaces the damaged one
            elif not await self._refetch(step):
                self.partitioned.store.note_rot(step.error())
                self.broker.note_rot(step.error())
                self.wake()
        return found

    async def _refetch(self, rot: Rot) -> bool:
        """Replace a damaged segment by the replica's copy; True also when that has to wait."""
        try:
            return await asyncio.to_thread(self.journal.refetch, rot.position)
        except JournalError as error:
            log.warning("a damaged segment is fetched later", extra={"reason": str(error)})
            return True

    def _plan_retention(self, wait_ms: int | None = None) -> None:
        self._retention_planned = True
        queue = self.config.queue
        if wait_ms is None:
            wait_ms = min(queue.eviction_interval_ms, queue.retention_interval_ms)
        self.broker.flow.at(int(self.clock() * 1000) + wait_ms, self._retain)

    def _retain(self) -> None:
        """Drop messages of partitioned queues that are too old."""
        self._retention_planned = False
        if self.journal.failed is not None:
            return
        now_ms = self.broker.flow.now_ms
        due = now_ms - self._retained_ms >= self.config.queue.retention_interval_ms
        if self.partitioned.retain(self.clock(), retention=due):
            # Each step is bounded: repeat until a step finds nothing more to drop.
            self._plan_retention(_RETENTION_STEP_MS)
        elif due:
            self._retained_ms = now_ms
        self.wake()

    def _plan_cleanup(self, wait_ms: int) -> None:
        self.broker.flow.at(int(self.clock() * 1000) + wait_ms, self._drop_idle)

    def _drop_idle(self) -> None:
        """Delete empty partitions that were unused for days: a pass in steps, then a pause."""
        if self.journal.failed is None:
            days = self.config.queue.partition_cleanup_days
            more = self.partitioned.drop_idle(self.clock(), days)
            # The pause is an hour per configured day: a limit of one day is checked hourly.
            self._plan_cleanup(_CLEANUP_STEP_MS if more else days * 3_600_000)
            self.wake()

    def check_alarms(self) -> None:
        """Block publishers while memory or disk run short."""
        stalled = bool(self.journal.stalled)
        if self._stalled and not stalled:
            for queue in self.broker.queues_by_id.values():
                self.broker.flow.touch(queue)  # nothing was delivered to consumers meanwhile
            self.partitioned.line.wake_all()
        self._stalled = stalled
        reason = self._alarm()
        if reason and not self.amqp.alarm:
            log.warning("publishers blocked", extra={"reason": reason})
            self.amqp.raise_alarm(reason)
        elif not reason and self.amqp.alarm:
            log.info("publishers unblocked", extra={})
            self.amqp.lift_alarm()

    def _alarm(self) -> str:
        limits = self.config.limits
        most = limits.memory_bytes(total_memory())
        if resident_bytes() > most:
            if self._freed is not None:
                self._freed.give_back()
            if self._freed is None or resident_bytes() > most:
                return "low on memory"
        if self.journal.stalled:
            return _LOW_ON_DISK
        if not self.config.data.memory and self.disk is None and limits.disk_free_min_bytes:
            disk = os.statvfs(self.config.data.dir)
            # Keep room for two more segments: acks and a checkpoint still have to fit.
            wanted = limits.disk_free_min_bytes + 2 * self.config.journal.segment_bytes
            if disk.f_bavail * disk.f_frsize < wanted:
                return _LOW_ON_DISK
        return ""

    def health(self) -> tuple[bool, str]:
        """Whether the node can accept messages, and if not, why."""
        if self.journal.failed is not None:
            return False, str(self.journal.failed)
        if self.journal.stalled:
            return False, f"{self.journal.stalled}; the node goes on by itself when there is room"
        if self._stopping:
            return False, "stopping"
        trouble = self.replica.trouble() if self.replica is not None else ""
        if not trouble and self._cut_off:
            trouble = "PostgreSQL is back; clients are admitted in a moment"
        return not trouble, trouble


def _log_damage(row: Damaged) -> None:
    log.error(
        "a message cannot be read and was set aside",
        extra={
            "where": row.where,
            "vhost": row.vhost,
            "queue": row.name,
            "position": row.position,
            "size": row.size,
            "reason": row.reason,
        },
    )


def put_defaults(broker: Broker) -> None:
    """Create what a new node starts with: vhost ``/``, and user ``guest`` with full access to it."""
    broker.put_vhost(DEFAULT_VHOST)
    broker.put_user(User(DEFAULT_USER, GUEST_HASH, (ADMINISTRATOR,)))
    broker.set_permissions(DEFAULT_USER, DEFAULT_VHOST, FULL_ACCESS)


def _partitioned(journal: Journal, config: Config) -> PartitionedService:
    default = config.queue.default_subscription_mode.value
    service = PartitionedService(journal, PartitionedSettings(config.subscriptions.lookback, default))
    service.store.default_config = QueueConfig(dedup_window_seconds=config.queue.dedup_window_seconds)
    if config.queue.encryption_key:
        service.store.cipher = Cipher(bytes.fromhex(str(config.queue.encryption_key)), os.urandom)
    return service


class CannotStart(Exception):
    """A setting asks for something that this installation does not have; the text says what."""


def start_tracing() -> "Tracing":
    """OpenTelemetry, which is optional."""
    try:
        from holtmq.tracing.start import CannotTrace, Tracing
    except ModuleNotFoundError as error:
        raise CannotStart(f"tracing.enabled: {error}; pip install 'holtmq[otel]'") from None
    try:
        return Tracing()
    except CannotTrace as error:
        raise CannotStart(f"tracing.enabled: {error}") from None


def serve(config: Config) -> int:
    """Run a node until SIGTERM or SIGINT; return the process's exit status."""
    import gc

    import uvloop

    raise_limit()
    freed = FreedMemory(config.limits.queue_memory_bytes(total_memory()))
    # The writer thread needs the GIL briefly after each sync; with the default it would wait 5 ms under load.
    sys.setswitchinterval(0.0005)
    # What exists now lives as long as the process; messages and leases are not tracked at all (decision
    # 0009). The default threshold of 700 allocations would run the collector every few socket reads.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, freed))


async def _serve(config: Config, freed: FreedMemory) -> int:
    node = Node(config, freed=freed)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, node.listeners.reload)
    starting = asyncio.create_task(node.start(), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # a standby, or a long recovery
        node.stop_waiting()
    try:
        await starting
    except StoppedWaiting:
        log.info("stopped", extra={})
        return 0
    except (JournalError, OSError, CannotStart) as error:  # also a TLS certificate that cannot be read
        log.error("cannot start", extra={"reason": str(error)})
        stopped.cancel()
        return 1
    ended = asyncio.create_task(node.ended.wait(), name="ended")
    await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    stopped.cancel()
    await node.stop()
    return 1 if node.journal.failed else 0
