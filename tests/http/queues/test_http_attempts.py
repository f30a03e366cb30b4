"""``deliveryAttempt`` goes on counting over restarts and crashes, as the retry budget does."""

import pytest
from http_support import Api

from holtmq.broker.records.checkpoint import snapshot
from holtmq.journal import FileJournal
from holtmq.node import Node
from holtmq.testing import TestBroker


def attempt(api: Api, queue: str = "q", **params: str) -> int:
    """Pop one message; which delivery of it this is."""
    (message,) = api.pop(queue, batch=1, **params)
    return int(message["deliveryAttempt"])


def expire(broker: TestBroker) -> None:
    """Leases outlive a restart."""
    broker.clock.advance(hours=1)


def lose_nothing(broker: TestBroker, api: Api) -> None:
    """A later answer proves that everything before it is durable."""
    broker.clock.advance(milliseconds=100)
    api.push("other", f"t{broker.clock.now}")


def _checkpoint(node: Node) -> None:
    node.journal.checkpoint(*snapshot(node.broker, node.partitioned.store))


@pytest.mark.parametrize("how", ["restart", "crash_and_restart"])
def test_failed_and_expired_deliveries_count_over_a_restart(broker: TestBroker, api: Api, how: str) -> None:
    api.configure("q", retryLimit=9, leaseTime=5)
    api.push("q", "a")
    api.ack(api.pop("q", batch=1)[0], "failed")
    assert attempt(api) == 2
    broker.clock.advance(6)  # the lease expires
    assert attempt(api) == 3
    lose_nothing(broker, api)

    getattr(broker, how)()
    expire(broker)

    assert attempt(api) == 4


@pytest.mark.parametrize("how", ["restart", "crash_and_restart"])
def test_a_first_delivery_that_was_not_settled_counts(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a")
    assert attempt(api) == 1
    if how != "restart":  # a stop in good order writes it down itself
        lose_nothing(broker, api)

    getattr(broker, how)()
    expire(broker)

    assert attempt(api) == 2


@pytest.mark.parametrize("how", ["restart", "crash_and_restart"])
def test_what_is_behind_a_settled_part_was_delivered_once(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a", "b", "c", "d")
    api.ack(api.pop("q", batch=3)[0], "failed")
    messages = api.pop("q", batch=3)
    assert [message["deliveryAttempt"] for message in messages] == [2, 2, 2]
    api.ack(messages[0])
    lose_nothing(broker, api)

    getattr(broker, how)()
    expire(broker)

    assert attempt(api) == 2


def test_a_message_that_was_never_handed_out_starts_at_one(broker: TestBroker, api: Api) -> None:
    api.push("q", "a", "b")
    api.ack(api.pop("q", batch=1)[0], "failed")
    api.ack(api.pop("q", batch=1)[0])
    lose_nothing(broker, api)

    broker.crash_and_restart()

    assert attempt(api) == 1


def test_each_group_counts_for_itself_and_through_a_checkpoint(broker: TestBroker, api: Api) -> None:
    api.configure("q", retryLimit=9)
    api.push("q", "a")
    for _ in range(3):
        api.ack(api.pop("q", batch=1, consumerGroup="one")[0], "failed", consumerGroup="one")
    assert attempt(api, consumerGroup="two") == 1
    assert attempt(api, consumerGroup="one") == 4
    lose_nothing(broker, api)
    broker.call(_checkpoint)

    broker.crash_and_restart()
    expire(broker)

    assert attempt(api, consumerGroup="one") == 5
    assert attempt(api, consumerGroup="two") == 2


def test_workers_that_are_quick_cost_no_record(
    broker: TestBroker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    append_batch = FileJournal.append_batch

    def counted(journal: FileJournal, records: list[tuple[int, bytes]]) -> list[int]:
        written.append(len(records))
        return append_batch(journal, records)

    api.push("q", *"abcdef")
    api.pop("q", batch=1)
    broker.clock.advance(hours=1)
    monkeypatch.setattr(FileJournal, "append_batch", counted)
    for message in api.pop("q", batch=6):
        api.ack(message)
    acked = len(written)
    broker.clock.advance(1)

    assert len(written) == acked
