"""A trial start: checks whether a broker understands the contents of a journal.

Owns: the broker, which is discarded afterwards. Must not touch: files; the journal is read-only.
"""

from __future__ import annotations

from array import array

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.work import damage_review
from holtmq.journal.interface import Journal, Recovery


def rehearse(journal: Journal, recovery: Recovery) -> tuple[Broker, PartitionedService]:
    """Fold all records. Raises JournalError as a start would."""
    broker = Broker(journal)
    service = PartitionedService(journal, Settings())
    broker.attach(service)
    recover(broker, recovery, service.store)
    damage_review.review(broker.vhosts, broker.flow.damage)
    return broker, service


def live_positions(journal: Journal, recovery: Recovery) -> list[array[int]]:
    """Fold all records; return the positions of those that the state refers to."""
    broker, service = rehearse(journal, recovery)
    return snapshot(broker, service.store)[1]
