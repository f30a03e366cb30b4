"""Space given back around dead letters: a letter outlives its message, and its body with it."""

from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.bodies import Body, decode_body
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.journal import JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk

NOW = 1_800_000_000.0


def test_letters_stay_readable_when_retention_has_taken_their_messages() -> None:
    journal, recovery = open_journal(
        "", JournalOptions(segment_bytes=2048, compact_below=0.95), disk=FakeDisk()
    )
    recovery.drain()
    service = PartitionedService(journal, Settings(0, "all"))
    configure(service, "q", None, None, {"retention_enabled": True, "retention_seconds": 5}, NOW)
    payloads = {f"t{n}": b'"%d"' % n + b" " * 100 for n in range(60)}
    service.push([PushItem("q", "p", Body(name, payload)) for name, payload in payloads.items()], NOW)
    journal.flush()
    queue = service.store.queues["q"]
    for turn in range(6):
        popped = service.pop(PopRequest(f"lease-{turn}", "q", group=QUEUE_MODE, limit=10), NOW)
        assert popped is not None
        names = [body.transaction_id for run in popped.runs for body in run.bodies]
        status = {
            name: AckStatus.DEAD_LETTER if name.endswith("7") else AckStatus.COMPLETED for name in names
        }
        service.ack(
            [AckRequest(queue.number, 0, QUEUE_MODE, n, status[n], f"lease-{turn}", "bad") for n in names],
            NOW,
        )
    assert service.retain(NOW + 10)
    assert queue.log.live == 0

    for number in range(4):
        service.push([PushItem("other", "p", Body(f"o{number}", b'"x"' * 500))], NOW + 10)
        journal.flush()
        assert journal.checkpoint(*service.store.capture())
        journal.flush()

    letters = list(queue.dead_letters)
    bodies = [decode_body(journal.read(letter.journal_position)[1], None) for letter in letters]
    assert [body.transaction_id for body in bodies] == ["t7", "t17", "t27", "t37", "t47", "t57"]
    assert [body.payload for body in bodies] == [payloads[body.transaction_id] for body in bodies]
    assert journal.stats().compactions > 0
