"""When the answer of a pop may go out."""

from holtmq.broker.partitioned.bodies import Body
from holtmq.broker.partitioned.requests import PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.partitioned.staging import StagedRow, Winner
from holtmq.journal import MemoryJournal


def test_a_pop_waits_for_the_journal_only_if_it_hands_out_what_is_not_durable_yet() -> None:
    journal = MemoryJournal()  # durable when it is flushed
    service = PartitionedService(journal, Settings(0, "all"))
    service.push([PushItem("q", "p", Body(name, b"1")) for name in "ab"], 0.0)
    assert service.pop(PopRequest("l0", "q", partition="other"), 0.0) is None  # the group's first step
    journal.flush()
    service.push([PushItem("q", "p", Body("c", b"1")), PushItem("q", "p2", Body("d", b"1"))], 0.0)

    old = service.pop(PopRequest("l1", "q", limit=2), 0.0)
    young = service.pop(PopRequest("l2", "q", partition="p2"), 0.0)

    assert old is not None
    assert (old.count, old.waits) == (2, False)
    assert young is not None
    assert (young.count, young.waits) == (1, True)


def test_staged_rows_are_waited_for_until_their_commit_is_durable() -> None:
    journal = MemoryJournal()
    service = PartitionedService(journal, Settings(0, "all"))
    service.push([PushItem("q", "p", Body("before", b"1"))], 0.0)
    assert service.pop(PopRequest("l0", "q", partition="other"), 0.0) is None
    for batch, partition in ((1, "p"), (2, "p2")):
        rows = [StagedRow("q", partition, Body(f"staged {batch}", b"1"))]
        service.staging.stage("w", batch, 0, 0, 0, rows, 0.0)
    journal.flush()  # so the bodies are durable, and what is pushed
    for batch in (1, 2):
        list(service.staging.commit("w", batch, [Winner(0, 0, 1)], 0.0))
    log = service.store.queues["q"].log

    pushed = service.pop(PopRequest("l1", "q", partition="p", limit=1), 0.0)
    staged = service.pop(PopRequest("l2", "q", partition="p2"), 0.0)

    assert pushed is not None
    assert (pushed.count, pushed.waits) == (1, False)
    assert staged is not None
    assert (staged.count, staged.waits) == (1, True)
    assert log.sure_before(journal.durable) == 1
    journal.flush()
    assert log.sure_before(journal.durable) == 3
