"""A node: journal, broker and listeners, from start to a graceful stop.

Owns: the order of starting and stopping, the turn of the event loop, the clock, alarms, checkpoints.
Must not touch: rules and protocols.
"""

import asyncio
import logging
import math
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable
from typing import Final

from holtmq.amqp.handshake import Settings
from holtmq.amqp.server import AmqpServer, Limits
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.tokens import TokenVerifier
from holtmq.auth.users import ADMINISTRATOR, DEFAULT_USER, DEFAULT_VHOST, User
from holtmq.broker.broker import Broker
from holtmq.broker.figures.sampling import Sampler
from holtmq.broker.partitioned.log.bodies import Cipher
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.service import Settings as PartitionedSettings
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.client_listing import AmqpClients
from holtmq.config import Config, SyncMode, Tls, TlsVerify
from holtmq.descriptors import affordable_sockets, raise_limit
from holtmq.http.engine.context import Context, Listener
from holtmq.http.engine.history import History
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
from holtmq.journal.disk import Disk
from holtmq.password_upgrades import PasswordUpgrades

log = logging.getLogger(__name__)

_HOUSEKEEPING_SECONDS: Final = 1.0
_CLEANUP_FIRST_MS: Final = 300_000  # after a start; a node that is often restarted cleans up, too
_CLEANUP_STEP_MS: Final = 100
_RETENTION_STEP_MS: Final = 20
_LOW_ON_DISK: Final = "low on disk"
_RELIEF_SECONDS: Final = 10.0  # between checkpoints that only look for room on the disk
# argon2 of "guest", made once: the password is public, and hashing it anew would only slow the first start.
GUEST_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$bdbnZKvwT/Zr7Nxwo9xflg$lpcXFLNyvAgs8eXRYDlhylMwWtAaiKo/a63BfxlsmPs"
)


class Node:
    """A running broker."""

    def __init__(
        self, config: Config, *, clock: Callable[[], float] = time.time, disk: Disk | None = None
    ) -> None:
        self.config = config
        self.clock = clock
        self.disk = disk  # where the journal lives, if not in the folder of the configuration
        self.journal: Journal
        self.broker: Broker
        self.partitioned: PartitionedService
        self.sampler: Sampler
        self.amqp: AmqpServer
        self.http: HttpServer
        self.amqp_port = 0
        self.amqp_tls_port = 0
        self.http_tls_port = 0
        self.http_port = 0
        self.recovered_records = 0
        self.started_at = 0.0
        self._password_upgrades: PasswordUpgrades
        self._loop: asyncio.AbstractEventLoop
        self._pulse_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._housekeeper: asyncio.Task[None] | None = None
        self._retained_ms = 0  # when retention last ran
        self._retention_planned = False
        self._relieved_at = -math.inf  # when a checkpoint last looked for room
        self._stopping = False

    # -- starting and stopping -------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, then listen."""
        self._loop = asyncio.get_running_loop()
        began = self._loop.time()
        self.started_at = self.clock()
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
            ),
            Limits(most, config.handshake_timeout),
            self.wake,
            self.refresh_clock,
        )
        self._password_upgrades = PasswordUpgrades(self.broker, self.amqp.verified)
        self.broker.flow.on_dirty = self.partitioned.line.on_dirty = self.wake
        self.partitioned.line.at = self._at
        self.partitioned.plan_timed()
        if self.config.queue.partition_cleanup_days:
            self._plan_cleanup(_CLEANUP_FIRST_MS)
        self.wake()
        self.amqp_port = await self.amqp.listen(config.host, config.port)
        if config.tls_cert is not None:
            self.amqp_tls_port = await self.amqp.listen(config.host, config.tls_port, _tls_context(config))
        http = self.config.http
        self.http = HttpServer(self._http_context(), sockets - most)
        self.http_port = await self.http.listen(http.host, http.port)
        if http.tls_cert is not None:
            self.http_tls_port = await self.http.listen(http.host, http.tls_port, _tls_context(http))
        self._housekeeper = asyncio.create_task(self._keep_house(), name="housekeeper")
        self._warn_if_open()
        log.info(
            "ready",
            extra={
                "amqp_port": self.amqp_port,
                "http_port": self.http_port,
                "seconds": round(self._loop.time() - began, 3),
                "records": self.recovered_records,
            },
        )

    def _open_broker(self) -> None:
        loop = self._loop
        config = self.config
        if config.data.memory:
            self.journal = MemoryJournal(self._defer_commit)
            recovery = None
        else:
            if self.disk is None:
                config.data.dir.mkdir(parents=True, exist_ok=True)
            options = JournalOptions(
                segment_bytes=config.journal.segment_bytes, sync=config.journal.sync is SyncMode.ALWAYS
            )
            self.journal, recovery = open_journal(
                config.data.dir,
                options,
                disk=self.disk,
                defer=self._defer_commit,
                notify=loop.call_soon_threadsafe,
                later=loop.call_later,
            )
        self.broker = Broker(
            self.journal, max_priority=config.amqp.max_priority, cancel_requeue=config.amqp.cancel_requeue
        )
        self.partitioned = _partitioned(self.journal, config)
        self.sampler = Sampler(int(self.clock()))
        streams = self.broker.attach(self.partitioned)
        self.refresh_clock()
        if recovery is not None:
            self.recovered_records = recover(self.broker, recovery, self.partitioned.store)
            if recovery.torn is not None:
                log.warning(
                    "torn tail cut off",
                    extra={"bytes": recovery.torn.dropped_bytes, "where": recovery.torn.where},
                )
        if not self.broker.vhosts:
            put_defaults(self.broker)
        streams.follow()

    def _http_context(self) -> Context:
        auth = self.config.auth
        return Context(
            self.config,
            self.partitioned,
            self.broker,
            self.journal,
            self.clock,
            self.health,
            self.wake,
            TokenVerifier(auth) if auth.jwt_enabled else None,
            self.started_at,
            History(self.partitioned.counters),
            self.amqp.authenticator,
            AmqpClients(self.amqp),
            lambda: self.amqp.alarm,
            self._listeners,
            self.sampler,
        )

    def _listeners(self) -> list[Listener]:
        amqp, http = self.config.amqp.host, self.config.http.host
        ports = (
            ("amqp", amqp, self.amqp_port),
            ("amqp/ssl", amqp, self.amqp_tls_port),
            ("http", http, self.http_port),
            ("https", http, self.http_tls_port),
        )
        return [Listener(name, host, port) for name, hosts, port in ports if port for host in hosts]

    async def stop(self, grace: float = 3.0) -> None:
        """Stop taking, flush, sync, close. Clients have ``grace`` seconds to answer the goodbye."""
        if self._stopping:
            return
        self._stopping = True
        await asyncio.gather(self.amqp.stop(grace), self.http.stop(grace))
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            await asyncio.gather(self._housekeeper, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        await self._password_upgrades.stop()
        self.broker.flow.turn()
        await asyncio.to_thread(self.journal.close)
        log.info("stopped", extra={})

    # -- the turn --------------------------------------------------------------------------------

    def refresh_clock(self) -> None:
        """Read the clock, once per piece of work."""
        self.broker.flow.now_ms = int(self.clock() * 1000)

    def wake(self) -> None:
        """Something happened: finish it when this round of sockets has been read."""
        if not self._pulse_due:
            self._pulse_due = True
            self._loop.call_soon(self._pulse)

    def _pulse(self) -> None:
        self._pulse_due = False
        self.refresh_clock()  # what woke us need not have read it
        try:
            self.broker.flow.turn()
        finally:  # one half's trouble must not leave the other waiting for ever: it has asked for this turn
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
        """The journal hands over a group: with what was settled in this round, or a publish that came
        after an ack on the same connection could be confirmed while the ack is lost to a crash."""
        try:
            self.broker.flow.turn()
        finally:
            hand_over()

    def tick(self) -> None:
        """Do what the clock says is due."""
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
            durable = asyncio.Event()

            def told(_: JournalFailed | None, durable: asyncio.Event = durable) -> None:
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

    # -- housekeeping ----------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            self.sample_figures()
            self.check_alarms()
            self.checkpoint_if_due()
            due = self.broker.flow.timers.next_due()
            if due is not None and due <= self.clock():  # the clock was set forward: no timer knows
                self.tick()
            if self.journal.failed is None:
                self.partitioned.drain_spool(self.clock())  # what a full queue or a restart left there
                for _ in self.partitioned.staging.finish(self.clock()):
                    await asyncio.sleep(0)

    def sample_figures(self) -> None:
        """Count what happened in this second."""
        used, self.broker.flow.used = self.broker.flow.used, set()
        self.sampler.sample(int(self.clock()), used, self.partitioned.counters)

    def checkpoint_if_due(self) -> None:
        """Shorten the journal when it has grown, and when the disk needs the room of what is settled:
        publishers wait meanwhile, so it would not grow any more."""
        journal, now = self.journal, self._loop.time()
        grown = journal.bytes_since_checkpoint
        relief = self.amqp.alarm == _LOW_ON_DISK and now - self._relieved_at >= _RELIEF_SECONDS
        if journal.failed is None and (
            grown >= self.config.journal.checkpoint_bytes or (relief and grown > 0)
        ):
            self._relieved_at = now
            self.broker.flow.turn()
            self.partitioned.staging.drop_orphans(self.clock())
            journal.checkpoint(*snapshot(self.broker, self.partitioned.store))

    def _plan_retention(self, wait_ms: int | None = None) -> None:
        self._retention_planned = True
        queue = self.config.queue
        if wait_ms is None:
            wait_ms = min(queue.eviction_interval_ms, queue.retention_interval_ms)
        self.broker.flow.at(int(self.clock() * 1000) + wait_ms, self._retain)

    def _retain(self) -> None:
        """Let partitioned queues forget what is too old; planned again while any queue does that."""
        self._retention_planned = False
        if self.journal.failed is not None:
            return
        now_ms = self.broker.flow.now_ms
        due = now_ms - self._retained_ms >= self.config.queue.retention_interval_ms
        if self.partitioned.retain(self.clock(), retention=due):
            # A step is bounded, what is too old may be more: the run goes on until a step finds nothing.
            self._plan_retention(_RETENTION_STEP_MS)
        elif due:
            self._retained_ms = now_ms
        self.wake()

    def _plan_cleanup(self, wait_ms: int) -> None:
        self.broker.flow.at(int(self.clock() * 1000) + wait_ms, self._drop_idle)

    def _drop_idle(self) -> None:
        """Delete empty partitions that nobody used for days: a pass in steps, then a pause."""
        if self.journal.failed is None:
            days = self.config.queue.partition_cleanup_days
            more = self.partitioned.drop_idle(self.clock(), days)
            # A day more or less in a month is nobody's concern; a day's limit is looked at hourly.
            self._plan_cleanup(_CLEANUP_STEP_MS if more else days * 3_600_000)
            self.wake()

    def check_alarms(self) -> None:
        """Block publishers while memory or disk run short."""
        reason = self._alarm()
        if reason and not self.amqp.alarm:
            log.warning("publishers blocked", extra={"reason": reason})
            self.amqp.raise_alarm(reason)
        elif not reason and self.amqp.alarm:
            log.info("publishers unblocked", extra={})
            self.amqp.lift_alarm()

    def _alarm(self) -> str:
        limits = self.config.limits
        if resident_bytes() > limits.memory_bytes(total_memory()):
            return "low on memory"
        if not self.config.data.memory and self.disk is None:
            disk = os.statvfs(self.config.data.dir)
            if disk.f_bavail * disk.f_frsize < limits.disk_free_min_bytes:
                return _LOW_ON_DISK
        return ""

    def health(self) -> tuple[bool, str]:
        """Whether the node can take messages, and why not."""
        if self.journal.failed is not None:
            return False, str(self.journal.failed)
        if self._stopping:
            return False, "stopping"
        return True, ""

    def _warn_if_open(self) -> None:
        wide = [
            h
            for h in (*self.config.amqp.host, *self.config.http.host)
            if h not in ("127.0.0.1", "::1", "localhost")
        ]
        if wide and not self.broker.users.has_own_users:
            log.warning(
                "listening beyond this machine, but only guest exists, which works from loopback alone",
                extra={"hosts": ",".join(sorted(set(wide)))},
            )


def put_defaults(broker: Broker) -> None:
    """What a new node begins with: vhost ``/``, and ``guest`` with every right in it."""
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


def serve(config: Config) -> int:
    """Run a node until SIGTERM or SIGINT; the process's exit status."""
    import gc

    import uvloop

    raise_limit()
    # The writer thread needs the interpreter for a moment after each sync; 5 ms would be its wait under load.
    sys.setswitchinterval(0.0005)
    # What exists now stays; messages and leases are not tracked at all (decision 0009). The default threshold
    # of 700 allocations would walk the young objects of every few socket reads.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: Config) -> int:
    node = Node(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await node.start()
    except (JournalError, OSError) as error:
        log.error("cannot start", extra={"reason": str(error)})
        return 1
    await stop.wait()
    await node.stop()
    return 1 if node.journal.failed else 0


def _tls_context(config: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    assert config.tls_cert is not None
    context.load_cert_chain(config.tls_cert, config.tls_key)
    if config.tls_ca is not None:
        context.load_verify_locations(config.tls_ca)
    context.verify_mode = {
        TlsVerify.NONE: ssl.CERT_NONE,
        TlsVerify.OPTIONAL: ssl.CERT_OPTIONAL,
        TlsVerify.REQUIRED: ssl.CERT_REQUIRED,
    }[config.tls_verify]
    return context
