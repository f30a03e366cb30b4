"""Publishers are blocked while memory or disk run short.

Owns: when an alarm starts and ends. Must not touch: sockets; the AMQP server blocks its clients.
"""

import logging
import os
from collections.abc import Callable
from typing import Final

from holtmq.amqp.server import AmqpServer
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.config import Config
from holtmq.heap import FreedMemory
from holtmq.http.operator.system import resident_bytes, total_memory
from holtmq.journal import Journal

log = logging.getLogger(__name__)

LOW_ON_DISK: Final = "low on disk"


class Alarms:
    """The alarms of one node, checked every second, and at each new segment: a second may fill several."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        broker: Broker,
        partitioned: PartitionedService,
        amqp: AmqpServer,
        *,
        clock: Callable[[], float],
        freed: FreedMemory | None,
        has_folder: bool,
    ) -> None:
        self._config = config
        self._journal = journal
        self._broker = broker
        self._partitioned = partitioned
        self._amqp = amqp
        self._clock = clock
        self._freed = freed
        self._has_folder = has_folder
        self._stalled = False
        self.since: float | None = None  # when the alarm began; None: there is none

    def check(self) -> None:
        """Start or end the alarm."""
        stalled = bool(self._journal.stalled)
        if self._stalled and not stalled:
            for queue in self._broker.queues_by_id.values():
                self._broker.flow.touch(queue)  # nothing was delivered to consumers meanwhile
            self._partitioned.line.wake_all()
        self._stalled = stalled
        reason = self.reason()
        if reason and not self._amqp.alarm:
            log.warning("publishers blocked", extra={"reason": reason})
            self.since = self._clock()
            self._amqp.raise_alarm(reason)
        elif not reason and self._amqp.alarm:
            log.info("publishers unblocked", extra={})
            self.since = None
            self._amqp.lift_alarm()
        elif reason != self._amqp.alarm:  # first the memory ran short, now the disk: they stay blocked
            log.warning("publishers still blocked", extra={"reason": reason})
            self._amqp.alarm = reason

    def reason(self) -> str:
        """Why publishers must be blocked now, or ""."""
        limits = self._config.limits
        most = limits.memory_bytes(total_memory())
        if resident_bytes() > most:
            if self._freed is not None:
                self._freed.give_back()
            if self._freed is None or resident_bytes() > most:
                return "low on memory"
        if self._journal.stalled:
            return LOW_ON_DISK
        if self._has_folder and limits.disk_free_min_bytes:
            disk = os.statvfs(self._config.data.dir)
            # Keep room for two more segments: acks and a checkpoint still have to fit.
            room = 2 * self._config.journal.segment_bytes + self._journal.backlog
            wanted = limits.disk_free_min_bytes + room
            if disk.f_bavail * disk.f_frsize < wanted:
                return LOW_ON_DISK
        return ""
