"""The sync face: the same names, the same behaviour, no event loop of one's own."""

import inspect
import os
import signal
import threading
import time
from collections import defaultdict

import pytest
from client_waiting import PATIENCE, somebody_waits

from holtmq.client import (
    Backoff,
    BadRequest,
    Buffer,
    Client,
    Item,
    LeaseLost,
    Message,
    NotFound,
    Queue,
    SyncClient,
    SyncMessage,
    SyncQueue,
)
from holtmq.client.consumption import Consumption
from holtmq.client.dead_letters import DeadLetters
from holtmq.client.grouping import Group
from holtmq.client.sync import (
    SyncBuffer,
    SyncConsumption,
    SyncDeadLetters,
    SyncGroup,
    SyncTransaction,
)
from holtmq.client.transacting import Transaction
from holtmq.testing import TestBroker


@pytest.mark.parametrize(
    ("aio", "sync"),
    [
        (Client, SyncClient),
        (Queue, SyncQueue),
        (Message, SyncMessage),
        (Consumption, SyncConsumption),
        (Transaction, SyncTransaction),
        (DeadLetters, SyncDeadLetters),
        (Group, SyncGroup),
        (Buffer, SyncBuffer),
    ],
)
def test_both_faces_have_the_same_methods_with_the_same_parameters(aio: type, sync: type) -> None:
    inner = {"adopt", "register", "unregister", "register_outbox", "begin_stop", "add", "share"}
    for name, member in inspect.getmembers(aio, callable):
        if name.startswith("_") or name in inner:
            continue
        twin = getattr(sync, name)
        names = list(inspect.signature(member).parameters)
        assert list(inspect.signature(twin).parameters) == names, name
    if aio is Client:
        assert str(inspect.signature(aio)) == str(inspect.signature(sync))


def test_a_program_without_a_loop_pushes_pops_and_settles(sync_client: SyncClient, name: str) -> None:
    queue = sync_client.queue(name).partition("p").group("g").batch(5)
    assert queue.configure(retry_limit=0).options["retryLimit"] == 0
    queue.push([{"n": 1}, Item({"n": 2}, "second")])

    first, second = queue.pop()
    assert first.trace({"seen": True}, names=name)
    assert first.renew().success
    first.ack()
    second.nack("broken")

    assert [letter.error_message for letter in queue.dlq()] == ["broken"]
    assert queue.dlq().get().total == 1
    assert queue.dlq().replay_all() == 1
    (replayed,) = queue.pop(wait=1)
    sync_client.transaction().ack(replayed).queue(f"{name}-2").push("next").commit()
    assert [message.data for message in sync_client.queue(f"{name}-2").pop()] == ["next"]
    assert [trace.data for trace in sync_client.traces(first)] == [{"seen": True}]
    assert queue.seek("2020-01-01T00:00:00Z") == 1
    assert sync_client.group("g").delete(name) == 1
    assert sync_client.queue(name).delete()


def test_errors_come_through_as_they_are(sync_client: SyncClient, name: str) -> None:
    sync_client.queue(name).push([1, 2])
    first, second = sync_client.queue(name).batch(2).pop()
    sync_client.release(first)

    with pytest.raises(LeaseLost):
        second.ack()
    with pytest.raises(NotFound):
        sync_client.queue(name).dlq().replay("none")
    with pytest.raises(BadRequest):
        sync_client.queue(name).group("g").subscription_from("never").pop()


def test_handlers_run_in_threads_side_by_side_and_in_order(sync_client: SyncClient, name: str) -> None:
    for partition in range(4):
        sync_client.queue(name).partition(f"p{partition}").push(list(range(10)))
    seen: dict[str, list[int]] = defaultdict(list)
    threads: set[str] = set()
    all_begun = threading.Barrier(4)

    def handler(message: SyncMessage) -> None:
        threads.add(threading.current_thread().name)
        if message.data == 0:
            all_begun.wait(PATIENCE)
        time.sleep(0.005)
        seen[message.partition].append(message.data)
        if message.data == 3:
            message.ack()

    done = sync_client.queue(name).batch(4).concurrency(4).each().limit(40).consume(handler).run()

    assert done.handled == 40
    assert seen == {f"p{p}": list(range(10)) for p in range(4)}
    assert len(threads) == 4


def test_callbacks_and_batches(sync_client: SyncClient, name: str) -> None:
    sync_client.queue(name).configure(retry_limit=0)
    sync_client.queue(name).push([1, 2, 3])
    seen: list[object] = []

    def handler(messages: list[SyncMessage]) -> None:
        if messages[0].data == 1:
            raise ValueError("first")

    (
        sync_client.queue(name)
        .batch(2)
        .idle(0.3)
        .consume(handler)
        .on_success(lambda messages: seen.append([message.data for message in messages]))
        .on_error(lambda messages, error: seen.append((len(messages), str(error))))
        .run()
    )

    assert seen == [(2, "first"), [3]]
    assert {letter.data for letter in sync_client.queue(name).dlq()} == {1, 2}


def test_a_stop_from_another_thread_finishes_what_runs(sync_client: SyncClient, name: str) -> None:
    sync_client.queue(name).push(list(range(20)))
    seen: list[int] = []
    at_the_fourth = threading.Event()

    def handler(message: SyncMessage) -> None:
        if message.data == 3:
            at_the_fourth.set()
            while not consuming._running._workers.stopping:
                time.sleep(0.005)
            time.sleep(0.02)
        seen.append(message.data)

    consuming = sync_client.queue(name).batch(20).each().consume(handler)
    consuming.start()
    assert at_the_fourth.wait(PATIENCE)

    consuming.stop()

    assert consuming.done.handled == len(seen) == 4
    rest = [message.data for message in sync_client.queue(name).batch(20).pop()]
    assert seen + rest == list(range(20))


def test_a_signal_stops_a_program_that_waits_in_its_main_thread(
    broker: TestBroker, sync_client: SyncClient, name: str
) -> None:
    def send_when_it_waits() -> None:
        while not somebody_waits(broker, name):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    sync_client.stop_on_signals([signal.SIGTERM])
    sender = threading.Thread(target=send_when_it_waits)
    sender.start()
    try:
        done = sync_client.queue(name).consume(lambda _: None).run()
    finally:
        sender.join()
        signal.signal(signal.SIGTERM, before)

    assert done.handled == 0


def test_a_buffer_is_flushed_at_its_end(sync_client: SyncClient, name: str) -> None:
    with sync_client.queue(name).buffer(count=10, seconds=5) as buffer:
        for number in range(25):
            buffer.push(number)

    assert len(buffer) == 0
    assert [message.data for message in sync_client.queue(name).batch(50).pop()] == list(range(25))


def test_a_closed_client_and_its_own_loop_are_no_places_to_call_from(broker: TestBroker, name: str) -> None:
    client = SyncClient(broker.http_url, backoff=Backoff(tries=1))
    caught: list[Exception] = []

    def from_the_loop() -> None:
        try:
            client.queue(name).push(1)
        except RuntimeError as error:
            caught.append(error)

    client.on_loop(from_the_loop)
    client.close()
    client.close()

    assert "own event loop" in str(caught[0])
    with pytest.raises(RuntimeError, match="closed"):
        client.queue(name).push(1)
