"""A broker in a test: it starts at once, is real, and leaves nothing behind."""

import gc
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import Keep, TestBroker, broker_thread
from holtmq.testing.broker_thread import BrokerThread
from open_files import open_files

Connect = Callable[..., pika.BlockingConnection]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(channel: BlockingChannel, *bodies: bytes, queue: str = "work") -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT)


def test_the_fixture_is_found_and_speaks_amqp(holt_broker: TestBroker, connect: Connect) -> None:
    with connect(holt_broker) as client:
        channel = client.channel()
        channel.queue_declare("work")
        channel.basic_publish("", "work", b"hello")

        _, _, body = channel.basic_get("work", auto_ack=True)

        assert body == b"hello"


def test_the_factory_makes_brokers_that_know_nothing_of_each_other(
    holt_broker_factory: Callable[..., TestBroker], connect: Connect
) -> None:
    one, two = holt_broker_factory(), holt_broker_factory()
    with connect(one) as client:
        client.channel().queue_declare("here")

        assert one.amqp_port != two.amqp_port
        assert (one.queues(), two.queues()) == (["here"], [])


def test_fifty_brokers_start_fast_and_leave_no_thread_socket_or_file_behind(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes use the common one
    with TestBroker() as first, connect(first) as client:  # what is opened once per process is no leak
        client.channel()
        httpx.get(f"{first.http_url}/health", timeout=60)
    threads_before = set(threading.enumerate())
    gc.collect()
    descriptors_before = set(open_files().items())

    took = []
    for number in range(50):
        began = time.process_time()  # not the clock on the wall: others use this machine too
        broker = TestBroker(durable=number % 5 == 0).start()
        took.append(time.process_time() - began)
        with broker, connect(broker) as client, httpx.Client(base_url=broker.http_url, timeout=60) as http:
            client.channel().queue_declare("work", durable=True)
            item = {"queue": "orders", "payload": number}
            assert http.post("/api/v1/push", json={"items": [item]}).status_code == 201
            assert http.get("/api/v1/pop/queue/orders").json()["messages"][0]["data"] == number

    gc.collect()
    assert statistics.median(took) < 0.1
    # Other brokers of this process start a thread or open a file now and then: a leak would be tens of them.
    assert len(set(threading.enumerate()) - threads_before) < 5
    assert len(set(open_files().items()) - descriptors_before) < 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ended", ["_stop_node", "crash"])
def test_between_two_lives_no_other_server_or_client_gets_the_ports(ended: str) -> None:
    with TestBroker() as broker:
        ports = (broker.amqp_port, broker.http_port)
        if ended == "crash":
            broker._crash(Keep.NOTHING)
        else:
            broker._stop_node()

        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))

        broker._start_node()
        assert (broker.amqp_port, broker.http_port) == ports
        assert httpx.get(f"{broker.http_url}/health").status_code == 200


def test_no_task_is_left_on_the_loop_when_a_broker_stops(connect: Connect) -> None:
    import asyncio

    broker = TestBroker().start()
    with connect(broker), httpx.Client(base_url=broker.http_url, timeout=60) as http:
        broker.call(lambda node: None)
        assert http.get("/api/v1/status").status_code == 200
    thread = broker._thread
    assert thread is not None
    node = broker.node
    broker._stop_node()

    async def others() -> list[str]:
        me = asyncio.current_task()
        return [task.get_name() for task in asyncio.all_tasks() if task is not me]

    # The loop's own main coroutine is the one that waits for the thread's end.
    assert len(thread.run(others)) == 1
    assert not node.amqp.connections
    broker.stop()


def test_stopping_with_a_client_still_connected_does_not_wait_for_it(connect: Connect) -> None:
    took = []
    for _ in range(5):
        broker = TestBroker().start()
        client = connect(broker)
        began = time.perf_counter()
        broker.stop()
        took.append(time.perf_counter() - began)

        with pytest.raises(pika.exceptions.AMQPError):
            client.channel()

    assert min(took) < 1.0  # the others may have met with a busy machine


def test_what_a_client_has_sent_is_seen_without_a_confirm(holt_broker: TestBroker, connect: Connect) -> None:
    with connect(holt_broker) as client:
        channel = client.channel()
        channel.queue_declare("work")
        for number in range(200):
            channel.basic_publish("", "work", b"x")

            assert holt_broker.queue_depth("work") == number + 1


def test_a_restart_keeps_durable_queues_and_persistent_messages_alone(
    holt_broker: TestBroker, connect: Connect
) -> None:
    with connect(holt_broker) as client:
        channel = client.channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True)
        channel.queue_declare("fleeting")
        publish(channel, b"kept")
        channel.basic_publish("", "work", b"lost")
        port = holt_broker.amqp_port

    holt_broker.restart()

    assert holt_broker.amqp_port == port
    assert holt_broker.queues() == ["work"]
    assert [message.body for message in holt_broker.messages("work")] == [b"kept"]


def test_a_folder_keeps_its_data_from_one_broker_to_the_next(tmp_path: Path, connect: Connect) -> None:
    with TestBroker(tmp_path) as broker, connect(broker) as client:
        channel = client.channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True)
        publish(channel, b"kept")

    with TestBroker(tmp_path) as broker:
        assert [message.text for message in broker.messages("work")] == ["kept"]


def test_a_broker_can_be_used_from_several_threads(holt_broker: TestBroker, connect: Connect) -> None:
    def work(number: int) -> None:
        with connect(holt_broker) as client:
            channel = client.channel()
            channel.queue_declare(f"queue-{number}")
            channel.basic_publish("", f"queue-{number}", b"x")
            depths[number] = holt_broker.queue_depth(f"queue-{number}")

    depths: dict[int, int] = {}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert depths == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_broker_can_be_used_in_an_async_test() -> None:
    import aio_pika

    async with TestBroker() as broker:
        connection = await aio_pika.connect_robust(broker.amqp_url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("work")
            await channel.default_exchange.publish(aio_pika.Message(b"hello"), "work")
            message = await queue.get()
            await message.ack()

        assert message.body == b"hello"
        assert broker.queue_depth("work") == 0


def test_the_plugin_costs_nothing_until_a_fixture_is_used() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import holtmq.testing.plugin;"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] != 'holtmq'));"
        "print(sorted(m for m in sys.modules if m.startswith('holtmq.')))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert out.splitlines() == ["[]", "['holtmq.testing', 'holtmq.testing.plugin']"]


def test_a_loop_that_hangs_does_not_hang_the_test_that_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_thread, "CALL_TIMEOUT", 0.1)
    thread = BrokerThread("hangs")
    over = threading.Event()
    thread._loop.call_soon_threadsafe(over.wait)

    with pytest.raises(TimeoutError, match="the broker's thread did not end"):
        thread.close()

    over.set()
    thread._thread.join(60)
