"""A lease with a clock outlives the broker: its worker goes on, and no other one gets its messages."""

from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from http_support import Api, ids
from pika.exceptions import AMQPError

from holtmq.broker.partitioned.groups.partition_leases import FOR_EVER, PartitionLeases
from holtmq.broker.records.checkpoint import snapshot
from holtmq.node import Node
from holtmq.testing import TestBroker

LEASE = 300  # seconds, the default


def restart(broker: TestBroker, how: str) -> None:
    """Leases that are a while old are in the journal."""
    broker.clock.advance(milliseconds=100)
    broker.call(lambda node: node.journal.flush())
    if how == "checkpoint":
        broker.call(_checkpoint)
    if how == "restart":
        broker.restart()
    else:
        broker.crash_and_restart()


def _checkpoint(node: Node) -> None:
    node.journal.checkpoint(*snapshot(node.broker, node.partitioned.store))
    node.journal.flush()


@pytest.fixture(params=["restart", "crash", "checkpoint"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_worker_acks_and_no_other_gets_the_messages(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a", "b", "c")
    messages = api.pop("q", batch=2)

    restart(broker, how)

    assert api.pop("q") == []
    assert [verdict["success"] for verdict in api.ack_batch(messages)] == [True, True]
    assert ids(api.pop("q")) == ["c"]


def test_it_ends_at_its_time(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a")
    (late,) = api.pop("q")

    restart(broker, how)
    broker.clock.advance(LEASE - 1)
    before = api.pop("q")
    broker.clock.advance(2)

    assert before == []
    (again,) = api.pop("q")
    assert again["deliveryAttempt"] == 2
    assert not api.ack(late)["success"]
    assert api.ack(again)["success"]


def test_a_worker_that_waits_for_the_partition_gets_the_messages_when_it_ends(
    broker: TestBroker, api: Api, how: str
) -> None:
    api.push("q", "a", partition="p")
    api.pop("q", "p")
    restart(broker, how)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.pop, "q", "p", wait="true", timeout=600_000)
        while not broker.call(lambda node: node.partitioned.line.waiting_on("q")):
            pass
        broker.clock.advance(LEASE + 1)

        assert ids(waiting.result(60)) == ["a"]


def test_one_that_was_just_made_ends_with_the_node(broker: TestBroker, api: Api) -> None:
    api.push("q", "a")
    (late,) = api.pop("q")

    broker.crash_and_restart()

    assert ids(api.pop("q")) == ["a"]
    assert not api.ack(late)["success"]


def test_a_renewal_counts(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a")
    (message,) = api.pop("q")
    restart(broker, how)
    broker.clock.advance(LEASE - 10)
    assert api.post(f"/api/v1/lease/{message['leaseId']}/extend", {"seconds": 600}).status_code == 200

    restart(broker, how)
    broker.clock.advance(500)

    assert api.pop("q") == []
    assert api.ack(message)["success"]


@pytest.mark.parametrize("status", ["failed", "retry"])
def test_one_that_was_returned_does_not_come_back(
    broker: TestBroker, api: Api, how: str, status: str
) -> None:
    api.push("q", "a")
    (message,) = api.pop("q")
    restart(broker, how)
    assert api.ack(message, status)["success"]

    restart(broker, how)

    assert ids(api.pop("q")) == ["a"]


def test_the_rest_of_a_partly_settled_one_is_held(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a", "b", "c")
    messages = api.pop("q")
    restart(broker, how)
    assert api.ack(messages[0])["success"]

    restart(broker, how)

    assert api.pop("q") == []
    assert api.ack_batch(messages[1:])[-1]["success"]
    assert api.pop("q") == []


def test_one_that_an_operator_released_does_not_come_back(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a")
    (message,) = api.pop("q", consumerGroup="g", subscriptionMode="all")
    restart(broker, how)
    where = "/api/v1/consumer-groups/g/queues/q/partitions/Default/lease"
    assert api.delete(where).status_code == 200

    restart(broker, how)

    assert ids(api.pop("q", consumerGroup="g")) == ["a"]
    assert not api.ack(message)["success"]


def test_after_a_seek_it_is_gone(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a")
    (message,) = api.pop("q", consumerGroup="g", subscriptionMode="all")
    restart(broker, how)
    assert api.post("/api/v1/consumer-groups/g/queues/q/seek", {"toStart": True}).status_code == 200

    restart(broker, how)

    assert ids(api.pop("q", consumerGroup="g")) == ["a"]
    assert not api.ack(message)["success"]


def test_messages_that_are_deleted_meanwhile_leave_it(broker: TestBroker, api: Api, how: str) -> None:
    api.push("q", "a", "b", "c")
    messages = api.pop("q")
    assert api.delete(f"/api/v1/messages/{messages[0]['partitionId']}/c").status_code == 200
    restart(broker, how)
    assert api.delete(f"/api/v1/messages/{messages[0]['partitionId']}/a").status_code == 200

    restart(broker, how)

    assert api.pop("q") == []
    assert api.ack(messages[1])["success"]
    assert not api.ack(messages[2])["success"]
    api.push("q", "d")
    assert ids(api.pop("q")) == ["d"]


def test_several_partitions_are_held_and_renewed_under_one_id(broker: TestBroker, api: Api, how: str) -> None:
    for partition in ("p1", "p2"):
        api.push("q", partition, partition=partition)
    messages = api.pop("q", partitions=2)
    assert len({message["leaseId"] for message in messages}) == 1

    restart(broker, how)

    extended = api.post(f"/api/v1/lease/{messages[0]['leaseId']}/extend", {"seconds": 600})
    assert extended.status_code == 200, extended.text
    broker.clock.advance(500)
    assert [verdict["success"] for verdict in api.ack_batch(messages)] == [True, True]


def test_a_member_over_amqp_loses_it_with_its_connection(broker: TestBroker, api: Api) -> None:
    api.push("q", "a")
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(
        "q", lambda *_: None, arguments={"x-consumer-group": "g", "x-stream-offset": "first"}
    )
    connection.process_data_events(time_limit=1)

    restart(broker, "crash")

    with pytest.raises(AMQPError):
        connection.close()
    assert ids(api.pop("q", consumerGroup="g")) == ["a"]


def test_a_conflated_one_whose_messages_retention_has_taken_holds_nothing(
    broker: TestBroker, api: Api, how: str
) -> None:
    api.configure("q", retentionEnabled=True, retentionSeconds=60, leaseTime=100)
    api.push("q", "a", "b")
    (held,) = api.pop("q", "Default", consumerGroup="g", subscriptionMode="all", conflation="true")
    restart(broker, how)
    broker.clock.advance(90)
    broker.call(lambda node: node.partitioned.retain(node.clock()))

    verdict = api.ack(held, consumerGroup="g")

    assert not verdict["success"]
    api.push("q", "c")
    broker.clock.advance(20)
    assert ids(api.pop("q", "Default", consumerGroup="g", conflation="true")) == ["c"]


@pytest.mark.parametrize("now", [1_800_000_000.1, 1_900_000_000.7, 4_200_000_000.3])
def test_one_that_ends_with_its_holder_is_not_recorded_however_its_times_are_rounded(now: float) -> None:
    leases = PartitionLeases()
    leases.lend(0, "member", 0, 1, now + FOR_EVER, now)
    leases.lend(1, "worker", 0, 1, now + 86_400, now)

    assert [lease.id for lease in leases.to_record([0, 1])] == ["worker"]
