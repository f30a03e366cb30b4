"""A checkpoint reuses the records of exchanges, queues and bindings, and never after a change of them."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.topology_records import TopologyRecords
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.journal import MemoryJournal

NAMES = ("a", "b", "c")
OPERATIONS = (
    "declare", "delete", "exchange", "fleeting exchange", "delete exchange", "bind", "unbind", "chain",
    "pause", "resume", "vhost", "delete vhost", "user", "step", "nothing",
)  # fmt: skip
Operation = tuple[str, str, str]


def new_broker() -> Broker:
    broker = Broker(MemoryJournal())
    broker.put_vhost("/")
    broker.access.put_user(User("guest", "unused"))
    broker.access.set_permissions("guest", "/", FULL_ACCESS)
    return broker


def apply(broker: Broker, what: str, one: str, two: str) -> None:
    vhost, exchanges = broker.vhost("/"), broker.exchanges
    match what:
        case "declare":
            broker.declare_queue(vhost, one, durable=two != "c", arguments={"x-max-length": len(two)})
        case "delete":
            broker.delete_queue(vhost, one)
        case "exchange":
            exchanges.declare(vhost, "x" + one, "topic", durable=True)
        case "fleeting exchange":
            exchanges.declare(vhost, "x" + one, "topic", durable=True, auto_delete=True)
        case "delete exchange":
            exchanges.delete(vhost, "x" + one)
        case "bind":
            for number in range(5):
                broker.bind(vhost, "x" + one, two, f"key.{number}")
        case "unbind":
            exchanges.unbind(vhost, "x" + one, two, "key.1")
        case "chain":
            exchanges.bind(vhost, "x" + one, "x" + two, "#", to_exchange=True)
        case "pause":
            broker.pauses.pause(vhost.queue(one), "me")
        case "resume":
            broker.pauses.resume(vhost.queue(one))
        case "vhost":
            broker.put_vhost(one)
            broker.declare_queue(broker.vhost(one), two, durable=True)
        case "delete vhost":
            broker.removals.delete_vhost(one)
        case "user":
            broker.access.put_user(User(one, "unused"))
        case "step":
            broker.flow.tick()


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=30
    )
)
def test_kept_records_are_those_of_the_topology(operations: list[Operation]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LongChanges.add, "__defaults__", (2,))
        patch.setattr("holtmq.broker.removals.STEP", 1)
        broker = new_broker()
        for first in [("declare", name, name) for name in "ab"] + [("exchange", name, "") for name in "ab"]:
            apply(broker, *first)
        for source in "ab":
            for target in "ab":
                apply(broker, "bind", source, target)
        for operation in operations:
            with suppress(BrokerError):  # there may be no such queue or exchange
                apply(broker, *operation)
            fresh = TopologyRecords(broker.vhosts, broker.change_log, broker.long_changes)
            assert broker.topology_records.captured().encoded() == fresh.captured().encoded()


def test_nothing_is_encoded_again_without_a_change() -> None:
    broker = new_broker()
    broker.declare_queue(broker.vhost("/"), "q", durable=True)
    first = broker.topology_records.captured().encoded()

    assert broker.topology_records.captured().encoded() is first
    broker.declare_queue(broker.vhost("/"), "other", durable=True)
    assert len(broker.topology_records.captured().encoded()) == len(first) + 1


def test_an_empty_queue_has_no_contents_in_a_checkpoint() -> None:
    broker = new_broker()
    empty = len(snapshot(broker)[0])

    broker.declare_queue(broker.vhost("/"), "q", durable=True)

    assert len(snapshot(broker)[0]) == empty + 1
