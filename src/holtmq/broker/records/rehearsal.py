"""A start without consequences: whether a broker understands what is in a journal.

Owns: the broker that is thrown away afterwards. Must not touch: files; it reads through a journal that only
looks.
"""

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.records.recovery import recover
from holtmq.journal.interface import Journal, Recovery


def rehearse(journal: Journal, recovery: Recovery) -> tuple[Broker, PartitionedService]:
    """Fold everything; raises JournalError as a start would."""
    broker = Broker(journal)
    service = PartitionedService(journal, Settings())
    broker.attach(service)
    recover(broker, recovery, service.store)
    broker.flow.damage.look_again()
    return broker, service
