"""The verbs of a queue, a transaction, a group and the dead letters, against a real broker."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from client_waiting import PATIENCE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holtmq.client import (
    Ack,
    Client,
    Item,
    LeaseLost,
    MessageKey,
    MessageNotFound,
    NotFound,
    PushStatus,
    QueueFull,
    Status,
    TransactionFailed,
)
from holtmq.http.engine import paging
from holtmq.testing import TestBroker


async def test_what_is_pushed_is_popped_in_order_with_all_that_is_known_about_it(
    client: Client, name: str
) -> None:
    trace_id = "0b6fbd6a-8b7f-4c9e-9d3e-0f3a0c3b2a11"
    before = datetime.now(UTC)
    results = await client.queue(name).partition("p").push([{"n": 1}, Item([2], "second", trace_id)])

    first, second = await client.queue(name).partition("p").batch(5).pop()

    assert [first.data, second.data] == [{"n": 1}, [2]]
    assert (second.transaction_id, second.trace_id) == ("second", trace_id)
    assert [first.id, second.id] == [result.message_id for result in results]
    assert (first.queue, first.partition, first.attempt) == (name, "p", 1)
    assert first.lease_id == second.lease_id != ""
    assert first.created_at is not None
    slack = timedelta(seconds=1)  # no more than rounding
    assert before - slack < first.created_at < datetime.now(UTC) + slack


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(payloads=st.lists(JSON, min_size=1, max_size=5))
async def test_any_json_comes_back_as_it_went(client: Client, name: str, payloads: list[object]) -> None:
    await client.queue(name).push([Item(payload) for payload in payloads])

    popped = await client.queue(name).batch(10).auto_ack().pop()

    assert [message.data for message in popped] == payloads


async def test_a_payload_may_be_a_dataclass_and_is_read_as_one(client: Client, name: str) -> None:
    @dataclass
    class Order:
        number: int
        due: datetime

    order = Order(7, datetime(2026, 1, 2, tzinfo=UTC))
    await client.queue(name).push(order)

    (message,) = await client.queue(name).pop()

    assert message.decode(Order) == order
    with pytest.raises(msgspec.ValidationError):
        message.decode(list[int])


async def test_a_transaction_id_is_stored_once_per_partition(client: Client, name: str) -> None:
    queue = client.queue(name)
    first = await queue.push(Item(1, "same"))

    again = await queue.push([Item(2, "same"), Item(3, "same", partition="other")])

    assert [result.status for result in again] == [PushStatus.DUPLICATE, PushStatus.QUEUED]
    assert again[0].message_id == first[0].message_id


async def test_an_empty_push_and_an_empty_pop_are_empty(client: Client, name: str) -> None:
    assert await client.queue(name).push([]) == []
    assert await client.queue(name).pop() == []
    assert await client.queue(name).pop(wait=0.1) == []


async def test_a_waiting_pop_is_woken_by_a_push(client: Client, name: str) -> None:
    waiting = asyncio.create_task(client.queue(name).pop(wait=2 * PATIENCE))
    await asyncio.sleep(0.05)

    await client.queue(name).push("now")

    async with asyncio.timeout(PATIENCE):
        assert [message.data for message in await waiting] == ["now"]


async def test_a_message_is_acked_nacked_released_and_rejected(client: Client, name: str) -> None:
    queue = client.queue(name).batch(1)
    await queue.configure(retry_limit=1, retry_delay=0)
    await queue.push(["a", "b"])

    (message,) = await queue.pop()
    await client.release(message)
    (message,) = await queue.pop()
    assert message.data == "a"
    result = await message.ack()
    assert result.lease_released
    assert message.settled is Status.COMPLETED

    (message,) = await queue.pop()
    assert (await message.nack("first")).dlq is False
    (message,) = await queue.pop()
    assert (await message.nack(ValueError("second"))).dlq is True

    await queue.push("c")
    (message,) = await queue.pop()
    await client.reject(message, "never")
    letters = await queue.dlq().all()
    assert [(letter.data, letter.error_message) for letter in letters] == [("c", "never"), ("b", "second")]
    assert await queue.pop() == []


async def test_an_ack_that_does_not_count_says_why(client: Client, name: str) -> None:
    await client.queue(name).push([1, 2])
    first, second = await client.queue(name).batch(2).pop()

    with pytest.raises(MessageNotFound):
        await client.ack(MessageKey("nobody", first.partition_id, first.lease_id))
    await client.release(first)
    with pytest.raises(LeaseLost) as caught:
        await client.ack(second)

    assert caught.value.code == "invalid_lease"


async def test_a_batch_of_acks_has_a_verdict_for_each(client: Client, name: str) -> None:
    queue = client.queue(name).batch(5)
    await queue.configure(retry_limit=0)
    await queue.push([0, 1, 2, 3])
    messages = await queue.pop()

    results = await client.ack_batch(
        [
            messages[0],
            Ack(messages[1], Status.FAILED, "invalid"),
            MessageKey("nobody", messages[0].partition_id),
        ]
    )

    assert [result.success for result in results] == [True, True, False]
    assert [message.settled for message in messages] == [Status.COMPLETED, Status.FAILED, None, None]
    assert [letter.data for letter in await queue.dlq().all()] == [1]
    assert [message.data for message in await queue.pop()] == [2, 3]
    assert await client.ack_batch([]) == []


async def test_messages_of_different_groups_are_acked_in_one_call(client: Client, name: str) -> None:
    await client.queue(name).push(1)
    (one,) = await client.queue(name).group("one").pop()
    (two,) = await client.queue(name).group("two").pop()

    results = await client.ack_batch([one, two])

    assert [result.lease_released for result in results] == [True, True]


async def test_a_transaction_acks_and_pushes_together(client: Client, name: str) -> None:
    target = f"{name}-next"
    await client.queue(name).push("in")
    (message,) = await client.queue(name).group("flow").pop()

    result = await (
        client.transaction()
        .ack(message)
        .queue(target)
        .partition("w")
        .push([Item("out", "out-1")])
        .queue(target)
        .push("plain")
        .commit()
    )

    assert [operation.type for operation in result.results] == ["push", "push", "ack"]
    assert message.settled is Status.COMPLETED
    assert [m.data for m in await client.queue(target).partition("w").pop()] == ["out"]
    assert await client.queue(name).group("flow").pop() == []


async def test_a_transaction_with_a_lost_lease_does_nothing(client: Client, name: str) -> None:
    await client.queue(name).push(["in", "next"])
    first, second = await client.queue(name).batch(2).pop()
    await client.release(first)
    transaction = client.transaction().ack(second).queue(name).partition("out").push("x")

    with pytest.raises(TransactionFailed, match="lease"):
        await transaction.commit()

    assert await client.queue(name).partition("out").pop() == []
    with pytest.raises(ValueError, match="empty"):
        await client.transaction().commit()


async def test_a_lease_is_held_longer_by_renewing() -> None:
    with TestBroker() as broker:
        async with Client(broker.http_url) as client:
            await client.queue("q").push(1)
            (message,) = await client.queue("q").lease(10).pop()

            renewal = await message.renew(60)

            assert renewal.success
            broker.clock.advance(50)
            await message.ack()
            assert not (await client.renew(message)).success


async def test_dead_letters_are_filtered_paged_replayed_and_purged(client: Client, name: str) -> None:
    queue = client.queue(name)
    await queue.configure(retry_limit=0)
    for partition in ("a", "b"):
        await queue.partition(partition).push([f"{partition}{n}" for n in range(3)])
        for group in ("g", "h"):
            messages = await queue.partition(partition).group(group).batch(3).pop()
            await client.ack_batch([Ack(message, Status.DEAD_LETTER, group) for message in messages])

    page = await queue.dlq().limit(5).get()
    assert (len(page.messages), page.total) == (5, 12)
    assert len(await queue.dlq().limit(5).all()) == 12
    assert {letter.data for letter in await queue.dlq("g").partition("a").all()} == {"a0", "a1", "a2"}
    assert {letter.error_message for letter in await queue.dlq().group("h").all()} == {"h"}
    assert await queue.dlq().since(datetime.now(UTC) + timedelta(hours=1)).all() == []
    assert len(await queue.dlq().until(datetime.now(UTC) + timedelta(hours=1)).all()) == 12

    letter = (await queue.dlq("g").partition("b").all())[0]
    moved = await queue.dlq().replay(letter, partition="elsewhere")
    assert (moved.result, moved.queue, moved.partition) == ("moved", name, "elsewhere")
    with pytest.raises(NotFound):
        await queue.dlq().replay(letter)
    assert await queue.dlq("g").partition("a").replay_all() == 3
    replayed = await queue.partition("a").group("g").batch(9).pop()
    assert [message.data for message in replayed] == ["a0", "a1", "a2"]

    with pytest.raises(ValueError, match="purge"):
        await queue.dlq().partition("a").purge()
    assert await queue.dlq("h").purge() == 6
    assert len(await queue.dlq().all()) == 2


async def test_groups_seek_and_can_be_forgotten(client: Client, name: str) -> None:
    queue = client.queue(name).group(f"g-{name}").batch(9)
    await queue.partition("p").push([1, 2])
    between = datetime.now(UTC)
    await queue.partition("p").push(3)
    assert len(await queue.auto_ack().pop()) == 3

    assert await queue.seek(between) == 1
    assert [message.data for message in await queue.pop()] == [3]
    assert await queue.seek_to_end() == 1
    assert await queue.pop() == []
    await queue.partition("p").seek(between - timedelta(hours=1))
    assert [message.data for message in await queue.pop()] == [1, 2, 3]

    group = client.group(f"g-{name}")
    assert [progress.partition for progress in (await group.partitions())[name]] == ["p"]
    assert [known.queue_name for known in await client.groups() if known.name == f"g-{name}"] == [name]
    assert await group.delete(name) == 1
    assert [message.data for message in await queue.pop()] == [1, 2, 3]
    with pytest.raises(ValueError, match="group"):
        await client.queue(name).seek_to_end()


async def test_a_group_starts_where_its_first_pop_says(client: Client, name: str) -> None:
    queue = client.queue(name).batch(9)
    await queue.push("old")
    later = datetime.now(UTC) + timedelta(seconds=30)

    assert await queue.group("future").subscription_from(later).pop() == []
    assert [m.data for m in await queue.group("all").subscription_mode("all").pop()] == ["old"]
    assert await queue.group("future").pop() == []  # the first choice stays

    assert await client.group("future").start_from(datetime.now(UTC) - timedelta(hours=1)) == 1


async def test_a_namespace_is_popped_across_its_queues(client: Client, name: str) -> None:
    for number in range(2):
        queue = client.queue(f"{name}-{number}").namespace(name).task(f"t{number}")
        configured = await queue.config(lease_time=7).create()
        assert (configured.namespace, configured.options["leaseTime"]) == (name, 7)
        await queue.push(number)
    every = client.queue().namespace(name).group("g").batch(5)

    popped = [*(await every.pop()), *(await every.pop())]

    assert sorted(message.data for message in popped) == [0, 1]
    assert [m.data for m in await every.task("t1").group("h").pop()] == [1]
    await client.ack_batch(popped)


async def test_a_full_queue_says_so(broker: TestBroker, name: str) -> None:
    from holtmq.client import Backoff

    async with Client(broker.http_url, backoff=Backoff(tries=2, first=0.01)) as client:
        await client.queue(name).configure(max_size=2)
        await client.queue(name).push([1, 2])

        with pytest.raises(QueueFull):
            await client.queue(name).push(3)


async def test_a_queue_is_deleted_with_all_that_is_in_it(client: Client, name: str) -> None:
    await client.queue(name).push(1)

    assert await client.queue(name).delete() is True
    assert await client.queue(name).delete() is False
    assert await client.queue(name).pop() == []


async def test_traces_are_noted_and_found_and_never_raise(client: Client, name: str) -> None:
    await client.queue(name).push(1)
    (message,) = await client.queue(name).group("g").pop()

    assert await message.trace({"step": 1}, names=name, event="checked")
    assert await message.trace("done", names=[name, "other"])
    assert await client.trace(MessageKey("nobody", message.partition_id), {}) is False

    assert [(t.event_type, t.data) for t in await client.traces(message)] == [
        ("checked", {"step": 1}),
        ("info", "done"),
    ]
    named = await client.traces_named(name)
    assert {trace.transaction_id for trace in named} == {message.transaction_id}


async def test_traces_that_do_not_fit_into_one_answer_are_asked_for_page_by_page(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_BYTES", 20)
    await client.queue(name).push(1)
    (message,) = await client.queue(name).pop()
    for number in range(7):
        assert await message.trace([number, "0123456789"])

    assert [trace.data[0] for trace in await client.traces(message)] == [*range(7)]


async def test_words_do_not_change_what_they_were_said_to(client: Client, name: str) -> None:
    base = client.queue(name)
    await base.partition("p").push(1)

    base.partition("nowhere").batch(5).group("g")

    assert [message.data for message in await base.pop()] == [1]


@pytest.mark.parametrize("queue", ["a/b", "ü ö", "100%", "q?x=1#y", "..x", "a+b"])
async def test_names_may_have_any_characters(client: Client, name: str, queue: str) -> None:
    words = client.queue(queue + name).partition(queue).group(queue)
    await words.push(queue)

    (message,) = await words.pop()

    assert (message.queue, message.partition, message.group) == (queue + name, queue, queue)
    await message.ack()
    assert await words.delete()


def test_words_that_make_no_sense_are_refused(broker: TestBroker) -> None:
    queue = Client(broker.http_url).queue("q")
    wrongs: list[Callable[[], object]] = [
        lambda: queue.batch(0),
        lambda: queue.concurrency(0),
        lambda: queue.limit(0),
        lambda: queue.idle(0),
        lambda: queue.poll(0),
        lambda: queue.renew_lease(every=0),
        lambda: queue.renew_lease(every=5, seconds=4),
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError):  # noqa: PT011
            wrong()


async def test_a_queue_that_is_not_encrypted_says_so(client: Client, name: str) -> None:
    configured = await client.queue(name).configure(encryption_enabled=True)

    assert configured.encrypted is False
    assert "queue.encryption_key" in configured.warning
