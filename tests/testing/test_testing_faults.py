"""Faults on command, as a client sees them."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError, NackError

from holtmq.testing import BrokerDidNotStart, Keep, TestBroker

Connect = Callable[..., pika.BlockingConnection]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def confirming_channel(connect: Connect, broker: TestBroker) -> BlockingChannel:
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("work", durable=True)
    return channel


def bodies(broker: TestBroker) -> list[bytes]:
    return [message.body for message in broker.messages("work")]


@pytest.fixture(params=["memory", "folder"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestBroker]:
    with TestBroker(tmp_path if request.param == "folder" else None) as made:
        yield made


def test_dropped_clients_notice_and_can_come_back(holt_broker: TestBroker, connect: Connect) -> None:
    client = connect(holt_broker)

    assert holt_broker.drop_connections() == 1

    with pytest.raises(AMQPConnectionError):
        client.channel()
    connect(holt_broker).close()


def test_one_connection_is_dropped_by_its_name(holt_broker: TestBroker, connect: Connect) -> None:
    one, two = connect(holt_broker, "one"), connect(holt_broker, "two")

    assert holt_broker.drop_connections("one") == 1

    two.channel()
    assert [view.name for view in holt_broker.connections()] == ["two"]
    with pytest.raises(AMQPConnectionError):
        one.channel()


def test_a_dropped_consumers_messages_go_back(holt_broker: TestBroker, connect: Connect) -> None:
    channel = connect(holt_broker).channel()
    channel.queue_declare("work")
    channel.basic_publish("", "work", b"x")
    channel.basic_get("work")
    assert len(holt_broker.unacked("work")) == 1

    holt_broker.drop_connections()

    assert [message.redelivered for message in holt_broker.messages("work")] == [True]


def test_a_broker_that_does_not_read_is_not_reached_until_it_does(
    holt_broker: TestBroker, connect: Connect
) -> None:
    channel = connect(holt_broker).channel()
    channel.queue_declare("work")

    assert holt_broker.stop_reading() == 1
    channel.basic_publish("", "work", b"x")
    before = holt_broker.queue_depth("work")
    holt_broker.resume_reading()

    assert (before, holt_broker.queue_depth("work")) == (0, 1)


def test_a_delayed_broker_answers_late_and_in_order(holt_broker: TestBroker, connect: Connect) -> None:
    channel = connect(holt_broker).channel()
    holt_broker.delay(0.5)

    slow = _seconds(lambda: channel.queue_declare("work"))
    holt_broker.delay(0)
    channel.queue_declare("other")
    fast = min(_seconds(lambda: channel.queue_declare("third")) for _ in range(10))

    assert slow > 0.45 > fast


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def test_what_was_confirmed_survives_a_crash_and_what_was_not_does_not(
    broker: TestBroker, connect: Connect
) -> None:
    channel = confirming_channel(connect, broker)
    channel.basic_publish("", "work", b"confirmed", PERSISTENT)
    other = connect(broker).channel()
    broker.disk.stall()
    other.basic_publish("", "work", b"on its way", PERSISTENT)
    taken = broker.node.broker.vhosts["/"].queues["work"]
    deadline = time.monotonic() + 60
    while len(taken) < 2:  # the broker has it in memory, and its disk hangs
        assert time.monotonic() < deadline
        time.sleep(0.001)

    broker.crash_and_restart()

    assert bodies(broker) == [b"confirmed"]


@pytest.mark.parametrize("keep", list(Keep))
def test_every_kind_of_crash_keeps_what_was_confirmed(
    broker: TestBroker, keep: Keep, connect: Connect
) -> None:
    channel = confirming_channel(connect, broker)
    for number in range(50):
        channel.basic_publish("", "work", b"%d" % number, PERSISTENT)

    broker.crash_and_restart(keep=keep)

    assert bodies(broker) == [b"%d" % number for number in range(50)]


def test_a_torn_tail_is_cut_off_and_nothing_else(broker: TestBroker, connect: Connect) -> None:
    channel = confirming_channel(connect, broker)
    channel.basic_publish("", "work", b"confirmed" + bytes(50), PERSISTENT)

    broker.corrupt_journal_tail()

    assert bodies(broker) == [b"confirmed" + bytes(50)]
    channel = confirming_channel(connect, broker)
    channel.basic_publish("", "work", b"after", PERSISTENT)
    assert broker.queue_depth("work") == 2


@pytest.mark.parametrize("fault", ["fail_next_write", "fail_next_sync", "fill"])
def test_after_a_disk_error_nothing_is_confirmed_until_a_restart(
    broker: TestBroker, fault: str, connect: Connect
) -> None:
    channel = confirming_channel(connect, broker)
    channel.basic_publish("", "work", b"before", PERSISTENT)

    getattr(broker.disk, fault)()

    for _ in range(2):
        with pytest.raises(NackError):
            channel.basic_publish("", "work", b"refused", PERSISTENT)
    assert not broker.call(lambda node: node.health()[0])
    broker.disk.free()
    broker.crash_and_restart()
    assert bodies(broker) == [b"before"]
    confirming_channel(connect, broker).basic_publish("", "work", b"again", PERSISTENT)


def test_a_hanging_disk_holds_confirms_back(broker: TestBroker, connect: Connect) -> None:
    channel = confirming_channel(connect, broker)
    broker.disk.stall()
    confirmed = threading.Event()

    def publish() -> None:
        channel.basic_publish("", "work", b"x", PERSISTENT)
        confirmed.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    early = confirmed.wait(0.1)
    broker.disk.resume()

    assert (early, confirmed.wait(60)) == (False, True)
    publisher.join()


def test_a_stalled_disk_does_not_keep_a_broker_from_stopping(connect: Connect) -> None:
    broker = TestBroker().start()
    channel = connect(broker).channel()
    channel.queue_declare("work", durable=True)
    broker.disk.stall()
    channel.basic_publish("", "work", b"x", PERSISTENT)

    broker.stop()

    with pytest.raises(AMQPError):
        channel.queue_declare("work")


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with TestBroker(tmp_path), pytest.raises(BrokerDidNotStart, match="in use by pid"):
        TestBroker(tmp_path).start()


def test_a_changed_password_of_guest_holds_after_a_restart() -> None:
    with TestBroker() as broker:
        user = {"password": "other", "tags": "administrator"}
        changed = httpx.put(f"{broker.http_url}/api/users/guest", json=user, auth=("guest", "guest"))
        assert changed.status_code == 204, changed.text

        broker.restart()

        whoami = f"{broker.http_url}/api/whoami"
        assert httpx.get(whoami, auth=("guest", "guest")).status_code == 401
        assert httpx.get(whoami, auth=("guest", "other")).status_code == 200
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
