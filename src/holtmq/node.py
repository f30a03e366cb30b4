"""A node: journal, broker and listeners, from start to graceful stop.

Owns: the order of starting and stopping, and which part calls which: all callbacks are wired here. Must not
touch: rules and protocols. The work of a turn is in ``turn_scheduler.py``, regular work in ``upkeep/``.

Over 400 lines: the parts are made and connected in one place.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from holtmq import address_file, start_checks
from holtmq.amqp.connection import Connection
from holtmq.amqp.server import AmqpServer, Limits
from holtmq.broker.broker import Broker
from holtmq.broker.figures.sampling import Sampler
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.recovery import Fold, recover
from holtmq.broker.work import damage_review
from holtmq.broker_setup import (
    amqp_settings,
    journal_options,
    log_damage,
    log_lost,
    make_broker,
    make_partitioned,
    token_verifier,
)
from holtmq.client_listing import AmqpClients
from holtmq.config import Config
from holtmq.descriptors import affordable_sockets
from holtmq.first_start import put_defaults
from holtmq.heap import FreedMemory, lasting
from holtmq.http.dashboard.thresholds import Thresholds, stored_thresholds
from holtmq.http.engine.authentication import RequestAuthenticator
from holtmq.http.engine.context import NODE, Context, ReplicaState
from holtmq.http.engine.history import History
from holtmq.http.engine.sessions import Sessions
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.hot_routes import HotApis
from holtmq.http.management.runtime import cluster_name
from holtmq.http.server import HttpServer
from holtmq.journal import (
    Journal,
    MemoryJournal,
    open_journal,
)
from holtmq.journal.disk import Disk
from holtmq.journal.spill_file import SpillFile
from holtmq.listeners import Listeners
from holtmq.loop_watch import LoopWatch
from holtmq.password_upgrades import PasswordUpgrades
from holtmq.replica_life import ReplicaLife
from holtmq.shovel.destination import Inside
from holtmq.shovel.shovels import ShovelService
from holtmq.turn_scheduler import TurnScheduler, all_appended_is_durable
from holtmq.upkeep.alarms import LOW_ON_DISK, Alarms
from holtmq.upkeep.certificates import CertificateEnds
from holtmq.upkeep.checkpoints import Checkpoints
from holtmq.upkeep.dedup_memory import DedupMemory
from holtmq.upkeep.housekeeping import Duty, Housekeeping
from holtmq.upkeep.retention import Retention
from holtmq.upkeep.scrubber import Scrubber

if TYPE_CHECKING:
    from holtmq.tracing.start import Tracing

log = logging.getLogger(__name__)

_HOUSEKEEPING_SECONDS: Final = 1.0
_LONG_REPLAY: Final = 20_000  # records: about 50 ms of a start
_DRAIN_SECONDS: Final = 5.0  # for consumers, before a switchover
_LAST_CONFIRMS_SECONDS: Final = 0.2  # for publishers, between the last confirms and the close


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
        self._verifier = token_verifier(config)
        self.config = config
        self._freed = freed
        self.clock = clock
        self.listeners = Listeners(config)
        self.disk = disk  # where the journal is, if not in the configured folder
        self.journal: Journal
        self.broker: Broker
        self.partitioned: PartitionedService
        self.sampler: Sampler
        self.scheduler: TurnScheduler
        self.alarms: Alarms
        self.certificate_ends = CertificateEnds(self.listeners.certificates, self._thresholds, clock)
        self.checkpoints: Checkpoints
        self.scrubber: Scrubber
        self.amqp: AmqpServer
        self.http: HttpServer
        self.shovels: ShovelService
        self.amqp_port = self.amqp_tls_port = 0
        self.http_port = self.http_tls_port = 0
        self.recovered_records = 0
        self.loop_watch = LoopWatch()
        self.tracing: Tracing | None = None
        self.started_at = 0.0
        self._password_upgrades: PasswordUpgrades
        self._retention: Retention
        self._loop: asyncio.AbstractEventLoop
        self._housekeeper: asyncio.Task[None] | None = None
        self._scrubbing: asyncio.Task[None] | None = None
        self._handover: asyncio.Task[None] | None = None
        self._cut_off = False  # from PostgreSQL
        self._stopping = False
        self.replica: ReplicaLife | None = None
        self.ended = asyncio.Event()  # this node must stop: it lost the log, or handed it over

    async def start(self) -> None:
        """Recover, then listen."""
        self._loop = asyncio.get_running_loop()
        self.scheduler = self._make_scheduler(self._loop)
        began = self._loop.time()
        self.started_at = self.clock()
        if self.config.tracing.enabled:
            self.tracing = start_checks.start_tracing()
        if self.config.journal.replica:
            if self.disk is None:
                start_checks.make_private(self.config.data.dir)
            options = journal_options(self.config)
            self.replica = ReplicaLife(
                self.config, options, self.disk, self.scheduler.defer_commit, lambda: self.scheduler.flush()
            )
            await self._own_log(self.replica)
        else:
            self._open_broker()
        sockets = affordable_sockets()
        configured = self.config.amqp.max_connections
        most = min(configured, sockets * 3 // 4)
        if most < configured:
            log.warning(
                "the limit of open files allows fewer connections than configured",
                extra={"configured": configured, "allowed": most},
            )
        self.amqp = AmqpServer(
            self.broker,
            amqp_settings(self.config),
            Limits(most, self.config.amqp.handshake_timeout),
            self.scheduler.wake,
            self.scheduler.refresh_clock,
            Connection if self.tracing is None else self.tracing.connect,
            self._verifier,
        )
        self._password_upgrades = PasswordUpgrades(self.broker, self.amqp.verified)
        self._prepare_upkeep()
        self.scheduler.flush, self.scheduler.on_end = self.amqp.flush, self._retention.plan_if_needed
        self.broker.access.on_expelled = self.amqp.expel
        self.broker.flow.on_dirty = self.partitioned.line.on_dirty = self.scheduler.wake
        self.partitioned.line.at = self.scheduler.at
        self.partitioned.plan_timed()
        self._retention.plan_cleanup()
        self.scheduler.wake()
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
        self.journal.on_next_segment = lambda: self._loop.call_soon(self.alarms.check)
        self._housekeeper = asyncio.create_task(
            Housekeeping(self._duties()).run(_HOUSEKEEPING_SECONDS), name="housekeeper"
        )
        self.certificate_ends.report()
        if self.config.journal.scrub_bytes_per_second and self._has_folder:
            pace = self.config.journal.scrub_bytes_per_second
            self._scrubbing = asyncio.create_task(self.scrubber.run(pace), name="scrubber")
        was_repaired = self.broker.flow.damage.dropped > 0
        is_long = self.recovered_records >= _LONG_REPLAY
        if (was_repaired or is_long) and self.journal.bytes_since_checkpoint:
            # A process that keeps crashing before a checkpoint is due must not replay more each time. After a
            # repair, what follows it in the log is understood with allowances, which must not be made again.
            self.checkpoints.make()
        self.shovels.start()
        self.broker.parameter_changes.on_changed = self.shovels.parameters_changed
        start_checks.warn(self.config, self.broker)
        log.info(
            "ready",
            extra={
                **self.listeners.describe(),
                "seconds": round(self._loop.time() - began, 3),
                "records": self.recovered_records,
            },
        )

    def _make_scheduler(self, loop: asyncio.AbstractEventLoop) -> TurnScheduler:
        return TurnScheduler(loop, self.clock)

    def _open_broker(self) -> None:
        loop, config = self._loop, self.config
        if config.data.memory:
            self._build_broker(MemoryJournal(self.scheduler.defer_commit))
        else:
            if self.disk is None:
                start_checks.make_private(config.data.dir)
            journal, recovery = open_journal(
                config.data.dir,
                journal_options(config),
                disk=self.disk,
                defer=self.scheduler.defer_commit,
                notify=loop.call_soon_threadsafe,
                later=loop.call_later,
            )
            self._build_broker(journal)
            try:
                with lasting():
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

    def _build_broker(self, journal: Journal) -> None:
        self.journal = journal
        spill = SpillFile(self.config.data.dir) if self._has_folder else None
        self.broker = make_broker(journal, self.config, spill)
        self.partitioned = make_partitioned(journal, self.config)
        self.sampler = Sampler(int(self.clock()))
        self._streams = self.broker.attach(self.partitioned)
        self.broker.flow.damage.now_ms = lambda: int(self.clock() * 1000)
        self.broker.flow.damage.on_found = log_damage
        self.broker.flow.damage.on_lost = log_lost
        self.scheduler.attach(self.broker.flow, self.partitioned)

    def _prepare_upkeep(self) -> None:
        config, parts = self.config, (self.journal, self.broker, self.partitioned)
        clock, wake = self.clock, self.scheduler.wake
        self.alarms = Alarms(
            config, *parts, self.amqp, clock=self.clock, freed=self._freed, has_folder=self._has_folder
        )
        self.checkpoints = Checkpoints(*parts, every_bytes=config.journal.checkpoint_bytes, clock=clock)
        self.scrubber = Scrubber(config.data.dir, *parts, checkpoint=self.checkpoints.make, wake=wake)
        self._dedup_memory = DedupMemory(self.partitioned.store, clock)
        self._retention = Retention(config.queue, *parts, clock=clock, wake=wake)

    def _complete_broker(self) -> None:
        damage = self.broker.flow.damage
        damage_review.review(self.broker.vhosts, self.broker.flow.damage)
        if damage.dropped:
            log.warning("a repair had given up part of the journal", extra={"records": damage.dropped})
        if not self.broker.vhosts:
            put_defaults(self.broker)
        self._streams.follow()
        self.broker.flow.delays.finish_transactions()

    def _begin_fold(self, journal: Journal) -> Fold:
        self._build_broker(journal)
        return Fold(self.broker, self.partitioned.store)

    async def _own_log(self, replica: ReplicaLife) -> None:
        fold = await replica.own(self._begin_fold, self.listeners)
        self.listeners.ports.update(replica.ports)
        if self.listeners.certificates():
            self.listeners.reload()  # the files may have been renewed while it was a standby
        self.scheduler.refresh_clock()
        self.recovered_records = fold.finish()
        self._complete_broker()

    def _request_authenticator(self) -> RequestAuthenticator:
        users, streams = self.broker.users, self.broker.streams
        assert streams is not None
        return RequestAuthenticator(
            users,
            self.amqp.authenticator,
            self._verifier,
            Sessions(users),
            self.clock,
            streams.place_of,
            self.config.http.anonymous,
        )

    def _shovel_service(self) -> ShovelService:
        inside = Inside(
            self.broker, lambda: self.amqp.alarm, self.scheduler.refresh_clock, self.scheduler.wake
        )
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
            self.scheduler.wake,
            self._request_authenticator(),
            self.started_at,
            History(self.partitioned.counters),
            AmqpClients(self.amqp),
            lambda: self.amqp.alarm,
            self.listeners.all,
            self.sampler,
            self.shovels,
            self.loop_watch.delay,
            self.checkpoints,
            self._replica_state,
            None if self.replica is None else self.replica.hand_over,
            alarm_since=lambda: self.alarms.since,
            certificates=self.listeners.certificates,
            watch_range=None if self.tracing is None else self.tracing.watch_range,
        )

    def _thresholds(self) -> Thresholds:
        return Thresholds() if self._housekeeper is None else stored_thresholds(self.broker)

    def _replica_state(self) -> ReplicaState | None:
        replica = self.replica
        if replica is None:
            return None
        view = replica.view
        asked_for = replica.is_asked_for or view.hand_over_to
        return ReplicaState(replica.name, view.owner, view.epoch, replica.trouble(), view.peers, asked_for)

    async def settle(self) -> None:
        """Wait until no turn is due and all that was appended is durable (or never will be)."""
        await self.scheduler.settle(self.journal)

    def stop_waiting(self) -> None:
        """Make ``start`` stop waiting for the log; it raises StoppedWaiting."""
        if self.replica is not None:
            self.replica.stop_waiting()

    def reload(self) -> None:
        """Read the certificates again; say which of the new ones end soon."""
        self.listeners.reload()
        self.certificate_ends.report()

    async def stop(self, grace: float = 3.0) -> None:
        """Stop accepting, flush, sync, close. Clients have ``grace`` seconds to answer the close."""
        if self._stopping:
            return
        self._stopping = True
        await self.shovels.stop()
        await asyncio.gather(self.amqp.stop(grace), self.http.stop(grace))
        tasks = [task for task in (self._housekeeper, self._scrubbing, self._handover) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.scheduler.stop()
        self.loop_watch.stop()
        await self._password_upgrades.stop()
        self.broker.complete()
        self.partitioned.record_deliveries()
        self.checkpoints.complete()
        if self._has_folder:
            address_file.remove(self.config.data.dir)
        await asyncio.to_thread(self.journal.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.stop)
        log.info("stopped", extra={})

    @property
    def _has_folder(self) -> bool:
        return not self.config.data.memory and self.disk is None

    def _duties(self) -> dict[str, Duty]:
        """What is done once a second."""
        return {
            "figures": self._take_figures,
            "replica": self._watch_replica,
            "folder": self.journal.check_folder,
            "alarms": self.alarms.check,
            "certificates": self.certificate_ends.report_if_due,
            "checkpoint": self.checkpoint_if_due,
            "timers": self.scheduler.tick_if_late,
            "transaction ids": self._dedup_memory.keep,
            "spool": self._drain_spool,
            "staged batches": self._finish_batches,
        }

    async def _take_figures(self) -> None:
        await Stepwise().run(self._sampling())
        if self._freed is not None:
            self._freed.sample(self.broker.flow.memory.used)

    def _drain_spool(self) -> None:
        if self.journal.failed is None:
            self.partitioned.drain_spool(self.clock())  # messages left by a full queue or a restart

    async def _finish_batches(self) -> None:
        if self.journal.failed is None:
            for _ in self.partitioned.staging.finish(self.clock()):
                await asyncio.sleep(0)

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint when the journal has grown, or when the disk is low."""
        self.checkpoints.make_if_due(self._loop.time(), low_on_disk=self.amqp.alarm == LOW_ON_DISK)

    def sample_figures(self) -> None:
        """Count what happened in this second, at once."""
        for _ in self._sampling():
            pass

    def _sampling(self) -> Generator[None, None, None]:
        flow, second = self.broker.flow, int(self.clock())
        used, flow.used = flow.used, set()
        yield from self.sampler.sample(second, used, self.partitioned.counters, self.broker.counts)
        exchanges, flow.used_exchanges = flow.used_exchanges, set()
        yield from self.sampler.sample_exchanges(second, exchanges)

    def _watch_replica(self) -> None:
        """End the node when another node owns the log; hand the log over when that is requested."""
        replica = self.replica
        if replica is None:
            return
        trouble = replica.trouble()
        if trouble and self.journal.stalled:  # PostgreSQL was not asked
            trouble = f"{self.journal.stalled}: nothing is confirmed"
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
        elif replica.has_ready_successor and self._handover is None:
            log.warning("handing the log over", extra={"to": replica.is_asked_for})
            self._handover = asyncio.create_task(self._hand_over(), name="handover")

    async def _hand_over(self) -> None:
        """Let consumers finish and confirm all publishes received, so that clients need not resend any."""
        await self.amqp.drain(_DRAIN_SECONDS)
        self.broker.flow.complete()
        # What was read so far, not until nothing is left: HTTP clients push on until the node stops.
        await all_appended_is_durable(self.journal)
        while self.amqp.with_output:
            self.amqp.flush()
        # A client that reads its last confirm together with our close takes the confirm for lost (pika does).
        await asyncio.sleep(_LAST_CONFIRMS_SECONDS)
        self.ended.set()

    def health(self) -> tuple[bool, str]:
        """Whether the node can accept messages, and if not, why."""
        if self.journal.failed is not None:
            return False, f"{self.journal.failed}. Check the disk, then restart the node"
        if self.journal.stalled:
            return False, f"{self.journal.stalled}; the node goes on by itself when there is room"
        if self._stopping:
            return False, "stopping"
        trouble = self.replica.trouble() if self.replica is not None else ""
        if not trouble and self._cut_off:
            trouble = "PostgreSQL is back; clients are admitted in a moment"
        return not trouble, trouble
