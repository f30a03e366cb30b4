"""Transactions across an alarm: a publisher's commit waits with its connection, a consumer's goes through."""

from collections.abc import Callable

import httpx
import pytest
from e2e_support import RawPeer

from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    ConnectionBlocked,
    ConnectionUnblocked,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from holtmq.node import Node
from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e
Raw = Callable[..., RawPeer]
UNDERSTANDS = {"connection.blocked": True}
LOW = pytest.mark.parametrize("reason", ["low on memory", "low on disk"])


@pytest.fixture
def broker(start_broker: Callable[..., TestBroker]) -> TestBroker:
    return start_broker()


def alarm(broker: TestBroker, reason: str) -> None:
    """Memory or disk run short, or no more."""

    def change(node: Node) -> None:
        node.alarms.reason = lambda: reason  # type: ignore[method-assign]
        node.alarms.check()

    broker.call(change)


def ready(broker: TestBroker, name: str) -> int:
    return broker.call(lambda node: len(node.broker.vhost("/").queues[name]))


def transactional(raw: Raw, broker: TestBroker, name: str) -> RawPeer:
    peer = raw(port=broker.amqp_port, capabilities=UNDERSTANDS)
    peer.send(1, QueueDeclare(name, durable=True))
    peer.expect(QueueDeclareOk)
    peer.send(1, TxSelect())
    peer.expect(TxSelectOk)
    return peer


def commit_waits_for_the_end(broker: TestBroker, publisher: RawPeer, name: str, messages: int) -> None:
    publisher.send(1, TxCommit())
    assert publisher.is_silent()
    assert ready(broker, name) == 0

    alarm(broker, "")
    publisher.expect(ConnectionUnblocked)
    publisher.expect(TxCommitOk)
    assert ready(broker, name) == messages


@LOW
def test_a_commit_of_publishes_waits_for_the_end_of_the_alarm_and_is_whole(
    broker: TestBroker, raw: Raw, name: str, reason: str
) -> None:
    publisher = transactional(raw, broker, name)
    publisher.publish(name, b"before")
    publisher.send(1, QueueDeclare(name, passive=True))
    publisher.expect(QueueDeclareOk)  # it has been read

    alarm(broker, reason)
    assert publisher.expect(ConnectionBlocked) == ConnectionBlocked(reason)
    publisher.publish(name, b"meanwhile")
    commit_waits_for_the_end(broker, publisher, name, 2)


@LOW
def test_a_transaction_that_begins_during_the_alarm_blocks_its_connection(
    broker: TestBroker, raw: Raw, name: str, reason: str
) -> None:
    publisher = transactional(raw, broker, name)
    alarm(broker, reason)

    publisher.publish(name, b"x")
    publisher.expect(ConnectionBlocked)
    commit_waits_for_the_end(broker, publisher, name, 1)


@LOW
def test_transactions_of_acks_go_on_during_the_alarm(
    broker: TestBroker, raw: Raw, name: str, reason: str
) -> None:
    publisher = transactional(raw, broker, name)
    for body in (b"first", b"second"):
        publisher.publish(name, body)
    publisher.send(1, TxCommit())
    publisher.expect(TxCommitOk)
    consumer = transactional(raw, broker, name)
    alarm(broker, reason)

    consumer.send(1, BasicConsume(name, "t"))
    consumer.expect(BasicConsumeOk)
    for _ in range(2):
        consumer.expect(BasicDeliver)
        consumer.read()
        consumer.read()
    consumer.send(1, BasicAck(1))
    consumer.send(1, TxCommit())
    consumer.expect(TxCommitOk)
    consumer.send(1, BasicAck(2))
    consumer.send(1, TxRollback())
    consumer.expect(TxRollbackOk)

    assert broker.call(lambda node: node.broker.vhost("/").queues[name].unacked) == 1
    alarm(broker, "")


@LOW
def test_a_transaction_over_http_is_refused_whole_if_it_pushes(
    broker: TestBroker, name: str, reason: str
) -> None:
    with httpx.Client(base_url=broker.http_url, auth=("guest", "guest")) as http:
        http.post("/api/v1/push", json={"items": [{"queue": name, "payload": 1}]}).raise_for_status()
        (popped,) = http.get(f"/api/v1/pop/queue/{name}").json()["messages"]
        ack = {
            "type": "ack",
            "transactionId": popped["transactionId"],
            "partitionId": popped["partitionId"],
            "leaseId": popped["leaseId"],
        }
        both = [ack, {"type": "push", "items": [{"queue": f"{name}-next", "payload": 2}]}]
        alarm(broker, reason)

        refused = http.post("/api/v1/transaction", json={"operations": both})

        assert (refused.status_code, refused.json()["code"]) == (503, "publishers_blocked")
        alone = http.post("/api/v1/transaction", json={"operations": [ack]})  # so it was not applied before
        assert alone.json()["success"], alone.text
        alarm(broker, "")
        pushed = http.post("/api/v1/transaction", json={"operations": both[1:]})
        assert pushed.json()["success"], pushed.text
