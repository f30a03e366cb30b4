"""When the answer of a pop may go out."""

from holtmq.broker.partitioned.bodies import Body
from holtmq.broker.partitioned.requests import PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService, Settings
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
