"""``consume`` against a real broker: order, failures, leases, limits and stops."""

import asyncio
import logging
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from uuid import uuid4

import pytest
from client_waiting import PATIENCE, until

from holtmq.client import Client, LeaseLost, Message, Refused
from holtmq.testing import TestBroker


async def fill(client: Client, queue: str, partitions: int, each: int) -> None:
    for partition in range(partitions):
        await client.queue(queue).partition(f"p{partition}").push([[partition, n] for n in range(each)])


class Recorder:
    """Handlers' view: what came, in which order, from which partition, and who ran at once."""

    def __init__(self, seconds: float = 0.0, together: int = 1) -> None:
        self.by_partition: dict[str, list[int]] = defaultdict(list)
        self.running: Counter[str] = Counter()
        self.most_at_once = 0
        self.overlaps = 0
        self._seconds = seconds
        self._together = together  # the first ones wait until so many run at once
        self._met = asyncio.Event()

    async def each(self, message: Message) -> None:
        self.running[message.partition] += 1
        self.overlaps += self.running[message.partition] > 1
        self.most_at_once = max(self.most_at_once, self.running.total())
        if self.most_at_once >= self._together:
            self._met.set()
        await self._met.wait()
        await asyncio.sleep(self._seconds)
        self.by_partition[message.partition].append(message.data[1])
        self.running[message.partition] -= 1

    @property
    def count(self) -> int:
        return sum(map(len, self.by_partition.values()))


async def test_each_partition_is_handled_in_order_while_partitions_run_side_by_side(
    client: Client, name: str
) -> None:
    await fill(client, name, partitions=6, each=40)
    recorder = Recorder(seconds=0.001, together=4)

    done = (
        await client.queue(name).group("g").batch(7).concurrency(4).each().limit(240).consume(recorder.each)
    )

    assert done.handled == 240
    assert recorder.by_partition == {f"p{p}": list(range(40)) for p in range(6)}
    assert recorder.overlaps == 0
    assert recorder.most_at_once == 4
    assert await client.queue(name).group("g").pop() == []


async def test_one_pop_may_bring_several_partitions(client: Client, name: str) -> None:
    await fill(client, name, partitions=3, each=4)
    batches: list[set[str]] = []

    async def handler(messages: list[Message]) -> None:
        batches.append({message.partition for message in messages})

    await client.queue(name).partitions(3).batch(12).limit(12).consume(handler)

    assert batches == [{"p0", "p1", "p2"}]
    assert await client.queue(name).pop() == []


async def test_a_failure_ends_its_partition_and_the_rest_comes_again_in_order(
    client: Client, name: str
) -> None:
    await client.queue(name).configure(retry_limit=5, retry_delay=0)
    await client.queue(name).push(list(range(6)))
    seen: list[int] = []

    async def fails_once_at_two(message: Message) -> None:
        seen.append(message.data)
        if message.data == 2 and seen.count(2) == 1:
            raise ValueError("not yet")

    done = await client.queue(name).batch(6).each().idle(0.4).consume(fails_once_at_two)

    assert seen == [0, 1, 2, 2, 3, 4, 5]
    assert (done.handled, done.failed) == (6, 1)


async def test_other_partitions_of_the_pop_go_on_after_a_failure(client: Client, name: str) -> None:
    await client.queue(name).configure(retry_limit=0)
    await fill(client, name, partitions=2, each=3)
    recorder = Recorder()

    async def fails_on_p0(message: Message) -> None:
        if message.partition == "p0" and message.data[1] == 0:
            raise ValueError("bad")
        await recorder.each(message)

    queue = client.queue(name).batch(6).partitions(2)
    await queue.each().idle(0.4).consume(fails_on_p0)

    assert recorder.by_partition == {"p0": [1, 2], "p1": [0, 1, 2]}
    assert [letter.error_message for letter in await queue.dlq().all()] == ["ValueError: bad"]


async def test_a_failing_batch_is_nacked_as_a_whole_and_costs_one_retry(client: Client, name: str) -> None:
    await client.queue(name).configure(retry_limit=2, retry_delay=0)
    await client.queue(name).push([1, 2, 3])
    batches: list[list[int]] = []

    async def handler(messages: list[Message]) -> None:
        batches.append([message.data for message in messages])
        if len(batches) < 3:
            raise RuntimeError("again")

    await client.queue(name).batch(10).idle(0.4).consume(handler)

    assert batches == [[1, 2, 3]] * 3
    assert await client.queue(name).dlq().all() == []


async def test_what_a_handler_settles_itself_is_left_alone(client: Client, name: str) -> None:
    await client.queue(name).configure(retry_limit=0)
    await client.queue(name).push(["ack", "nack", "reject", "forward", "plain"])

    async def handler(message: Message) -> None:
        match message.data:
            case "ack":
                await message.ack()
            case "nack":
                await message.nack("own words")
            case "reject":
                await client.reject(message, "away")
            case "forward":
                await client.transaction().ack(message).queue(f"{name}-2").push("forwarded").commit()

    done = await client.queue(name).batch(5).each().idle(0.4).consume(handler)

    assert done.handled == 5
    letters = await client.queue(name).dlq().all()
    assert {(letter.data, letter.error_message) for letter in letters} == {
        ("nack", "own words"),
        ("reject", "away"),
    }
    assert [message.data for message in await client.queue(f"{name}-2").pop()] == ["forwarded"]
    assert await client.queue(name).pop() == []


async def test_a_message_nacked_by_its_handler_comes_before_those_that_followed_it(
    client: Client, name: str
) -> None:
    await client.queue(name).configure(retry_limit=5, retry_delay=0)
    await client.queue(name).push([1, 2, 3])
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            await message.nack("not yet")

    await client.queue(name).batch(3).each().idle(0.3).consume(handler)

    assert seen == [1, 1, 2, 3]


async def test_callbacks_see_every_outcome_and_may_settle(client: Client, name: str) -> None:
    await client.queue(name).configure(retry_limit=0)
    await client.queue(name).push([1, -1, 2, -2])
    fine: list[int] = []
    broken: list[tuple[int, str]] = []

    async def handler(message: Message) -> None:
        if message.data < 0:
            raise ValueError("negative")

    async def on_success(message: Message) -> None:
        fine.append(message.data)
        await client.ack(message)

    async def on_error(message: Message, error: Exception) -> None:
        broken.append((message.data, str(error)))
        if message.data == -2:
            await client.ack(message)  # known to be harmless

    await (
        client.queue(name)
        .batch(4)
        .each()
        .idle(0.4)
        .consume(handler)
        .on_success(on_success)
        .on_error(on_error)
    )

    assert fine == [1, 2]
    assert broken == [(-1, "negative"), (-2, "negative")]
    assert [letter.data for letter in await client.queue(name).dlq().all()] == [-1]
    assert await client.queue(name).pop() == []


async def test_a_callback_that_fails_is_a_failure_and_loses_nothing(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.queue(name).configure(retry_limit=0)
    await client.queue(name).push([1])

    async def fine(_: Message) -> None:
        return

    async def failing(*_: object) -> None:
        raise RuntimeError("the callback's own fault")

    with caplog.at_level(logging.ERROR, "holtmq.client"):
        await client.queue(name).each().idle(0.3).consume(fine).on_success(failing).on_error(failing)

    assert [letter.error_message for letter in await client.queue(name).dlq().all()] == [
        "RuntimeError: the callback's own fault"
    ]
    assert [record.message for record in caplog.records] == ["on_error failed"]


async def test_a_handler_cancelled_from_inside_is_a_failure_and_the_worker_goes_on(
    client: Client, name: str
) -> None:
    await client.queue(name).configure(retry_limit=0)
    await client.queue(name).push([1, 2])

    async def handler(message: Message) -> None:
        if message.data == 1:
            other = asyncio.create_task(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(other.cancel)
            await other

    done = await client.queue(name).each().idle(0.3).consume(handler)

    assert (done.handled, done.failed) == (1, 1)
    assert [letter.data for letter in await client.queue(name).dlq().all()] == [1]


async def test_auto_acked_messages_never_come_again(client: Client, name: str) -> None:
    await client.queue(name).push([1, 2, 3])
    seen: list[int] = []

    async def handler(message: Message) -> None:
        assert message.lease_id == ""
        seen.append(message.data)
        raise ValueError("lost, as agreed")

    done = await client.queue(name).auto_ack().batch(2).each().idle(0.3).consume(handler)

    assert seen == [1, 2, 3]
    assert done.failed == 3
    assert await client.queue(name).pop() == []


@pytest.fixture
def timed() -> Iterator[TestBroker]:
    """A broker whose leases run out when a test says so."""
    with TestBroker() as broker:
        yield broker


async def test_a_handler_longer_than_its_lease_is_kept_by_renewals(timed: TestBroker) -> None:
    seen: list[int] = []

    async def slow(message: Message) -> None:
        seen.append(message.data)
        for _ in range(3):  # each step is most of a lease
            ends = timed.partition_leases()[0].expires_at
            timed.clock.advance(25)
            await until(lambda before=ends: timed.partition_leases()[0].expires_at > before)  # type: ignore[misc]

    async with Client(timed.http_url) as client:
        await client.queue("q").configure(lease_time=30)
        await client.queue("q").push([1, 2])
        queue = client.queue("q").batch(2).concurrency(2).each()
        done = await queue.renew_lease(True, every=0.05, seconds=30).limit(2).consume(slow)

        assert seen == [1, 2]
        assert done.handled == 2
        assert await client.queue("q").pop() == []


async def test_without_renewal_the_message_comes_again_and_the_late_ack_is_refused(
    timed: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def slow_at_first(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            timed.clock.advance(31)

    with caplog.at_level(logging.WARNING, "holtmq.client"):
        async with Client(timed.http_url) as client:
            await client.queue("q").configure(lease_time=30)
            await client.queue("q").push([1, 2])
            await client.queue("q").batch(2).each().idle(0.5).consume(slow_at_first)

    assert seen == [1, 1, 2] or seen == [1, 2, 1, 2]  # the ack's refusal may cross with the next handler
    assert "acknowledgment refused" in {record.message for record in caplog.records}


async def test_nothing_more_is_started_under_a_lease_known_to_be_lost(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.queue(name).configure(lease_time=30)
    await client.queue(name).push([1, 2, 3])
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            await client.group("g").seek(name)  # an operator moves the group: its leases end
            await until(lambda: "a lease ended before its messages were handled" in caplog.messages)

    queue = client.queue(name).group("g").batch(3).each()
    with caplog.at_level(logging.WARNING, "holtmq.client"):
        await queue.renew_lease(every=0.05, seconds=30).idle(0.5).consume(handler)

    assert seen == [1]


async def test_a_refused_acknowledgment_ends_the_partition_of_that_batch(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.queue(name).push([1, 2, 3])
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.data)
        if message.data == 1:
            await client.group("g").seek(name)  # the lease is over; only the ack's refusal tells
        else:
            await until(lambda: "acknowledgment refused" in caplog.messages)

    with caplog.at_level(logging.WARNING, "holtmq.client"):
        await client.queue(name).group("g").batch(3).each().idle(0.3).consume(handler)

    assert seen in ([1], [1, 2])


async def test_an_ack_in_a_handler_under_a_lost_lease_raises(client: Client, name: str) -> None:
    await client.queue(name).push([1, 2])
    errors: list[Exception] = []

    async def handler(message: Message) -> None:
        await client.group("g").seek(name)
        await message.ack()

    async def on_error(_: Message, error: Exception) -> None:
        errors.append(error)

    await client.queue(name).group("g").batch(2).each().idle(0.3).consume(handler).on_error(on_error)

    assert [type(error) for error in errors] == [LeaseLost]


async def test_a_stop_finishes_what_runs_and_gives_back_what_was_not_started(
    client: Client, name: str
) -> None:
    await fill(client, name, partitions=4, each=50)
    recorder = Recorder(seconds=0.01)
    consuming = client.queue(name).group("g").batch(50).concurrency(4).each().consume(recorder.each).start()
    await until(lambda: recorder.count >= 20)

    await consuming.stop()

    handled = {partition: list(numbers) for partition, numbers in recorder.by_partition.items()}
    assert sum(map(len, handled.values())) < 200
    assert recorder.running.total() == 0
    assert (await consuming.wait()).handled == recorder.count
    # Exactly the rest is there, at once, without a wait for leases, and no retry was counted.
    await client.queue(name).group("g").batch(50).each().idle(0.3).consume(recorder.each)
    assert recorder.by_partition == {f"p{p}": list(range(50)) for p in range(4)}


async def test_a_stop_that_runs_out_of_patience_gives_back_the_interrupted_message(
    client: Client, name: str
) -> None:
    await client.queue(name).push([1, 2])
    started = asyncio.Event()

    async def endless(_: Message) -> None:
        started.set()
        await asyncio.sleep(60)

    consuming = client.queue(name).batch(2).each().consume(endless).start()
    await started.wait()

    await consuming.stop(timeout=0.05)

    assert (await consuming.wait()).handled == 0
    assert [message.data for message in await client.queue(name).batch(2).pop()] == [1, 2]


async def test_cancelling_a_consume_gives_back_what_it_held(client: Client, name: str) -> None:
    await client.queue(name).push([1, 2])
    started = asyncio.Event()

    async def endless(_: list[Message]) -> None:
        started.set()
        await asyncio.sleep(60)

    async def consume() -> None:
        await client.queue(name).batch(2).consume(endless)

    task = asyncio.create_task(consume())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [message.data for message in await client.queue(name).batch(2).pop()] == [1, 2]


async def test_the_clients_end_stops_every_consume(broker: TestBroker, name: str) -> None:
    recorder = Recorder(seconds=0.005)
    async with Client(broker.http_url) as client:
        await fill(client, name, partitions=2, each=100)
        running = [
            client.queue(name).group(group).batch(10).each().consume(recorder.each).start() for group in "ab"
        ]
        await until(lambda: recorder.count > 10)

    assert recorder.running.total() == 0
    assert sum([(await one.wait()).handled for one in running]) == recorder.count < 400


async def test_auto_acked_messages_are_handled_before_a_stop_since_they_cannot_be_given_back(
    client: Client, name: str
) -> None:
    await client.queue(name).partition("p0").push([[0, n] for n in range(10)])
    recorder = Recorder(seconds=0.01)
    consuming = client.queue(name).auto_ack().batch(10).each().consume(recorder.each).start()
    await until(lambda: recorder.count >= 1)

    await consuming.stop()

    assert recorder.by_partition["p0"] == list(range(10))


async def test_a_signal_stops_consuming_and_the_program_goes_on(client: Client, name: str) -> None:
    await client.queue(name).push([1])
    seen: list[int] = []

    async def handler(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        seen.append(message.data)

    client.stop_on_signals([signal.SIGTERM])
    try:
        async with asyncio.timeout(PATIENCE):
            done = await client.queue(name).each().consume(handler)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    assert (done.handled, seen) == (1, [1])


@pytest.mark.parametrize("limit", [1, 5, 17, 40])
async def test_a_limit_is_exact_whatever_the_workers_and_batches(
    client: Client, name: str, limit: int
) -> None:
    await fill(client, name, partitions=5, each=8)
    recorder = Recorder(seconds=0.001)

    await client.queue(name).batch(3).concurrency(4).each().limit(limit).consume(recorder.each)

    assert recorder.count == limit


async def test_a_limit_waits_for_messages_that_come_later(client: Client, name: str) -> None:
    recorder = Recorder()
    consuming = client.queue(name).batch(10).concurrency(3).each().limit(4).consume(recorder.each).start()
    for number in range(4):
        await client.queue(name).partition("p").push([[0, number]])
        await asyncio.sleep(0.02)

    async with asyncio.timeout(PATIENCE):
        assert (await consuming.wait()).handled == 4


async def test_a_process_that_stood_still_asks_before_it_calls_itself_idle(client: Client, name: str) -> None:
    await client.queue(name).push([1])
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.data)

    consuming = client.queue(name).each().idle(0.01).consume(handler).start()
    # Behind the consume's first step and before that of its worker.
    asyncio.get_running_loop().call_soon(time.sleep, 0.05)
    await consuming.wait()

    assert seen == [1]


async def test_an_error_no_retry_can_mend_ends_the_consume(client: Client, name: str) -> None:
    async def handler(_: list[Message]) -> None:
        return

    with pytest.raises(Refused, match="subscriptionFrom"):
        await client.queue(name).group("g").subscription_from("yesterday").concurrency(3).consume(handler)


async def test_consuming_a_namespace_takes_from_all_its_queues(client: Client) -> None:
    namespace = f"ns-{uuid4()}"
    for number in range(3):
        await client.queue(f"{namespace}-{number}").namespace(namespace).create()
        await client.queue(f"{namespace}-{number}").push(number)
    seen: set[tuple[str, int]] = set()

    async def handler(message: Message) -> None:
        seen.add((message.queue, message.data))

    await client.queue().namespace(namespace).group("g").each().limit(3).consume(handler)

    assert seen == {(f"{namespace}-{number}", number) for number in range(3)}


async def test_a_consume_cannot_be_waited_for_before_it_was_started(client: Client, name: str) -> None:
    async def handler(_: list[Message]) -> None:
        return

    consuming = client.queue(name).consume(handler)

    await consuming.stop()
    with pytest.raises(RuntimeError, match="started"):
        await consuming.wait()
