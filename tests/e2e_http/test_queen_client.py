"""The unmodified queen-mq client: everything it offers on queues, groups, dead letters and admin pages."""

import asyncio
from typing import Any

import pytest
from queen import Queen

from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e


async def test_create_push_pop_ack_delete(queen: Queen, name: str) -> None:
    created = await queen.queue(name).namespace("shop").task("orders").create()
    pushed = await queen.queue(name).push([{"data": {"n": 1}}, {"data": None}])
    messages = await queen.queue(name).batch(10).wait(False).pop()
    acked = await queen.ack(messages, True)
    empty = await queen.queue(name).batch(10).wait(False).pop()
    deleted = await queen.queue(name).delete()

    assert created["configured"] is True
    assert created["namespace"] == "shop"
    assert [row["status"] for row in pushed] == ["queued", "queued"]
    assert [message["data"] for message in messages] == [{"n": 1}, None]
    assert acked["success"] is True
    assert empty == []
    assert deleted["deleted"] is True


async def test_consume_handles_every_message_once_in_partition_order(queen: Queen, name: str) -> None:
    for n in range(30):
        await queen.queue(name).partition(f"p{n % 3}").push([{"data": {"n": n}}])
    seen: dict[str, list[int]] = {}

    async def handle(message: dict[str, Any]) -> None:
        seen.setdefault(message["partition"], []).append(message["data"]["n"])

    # The limit is each worker's own: they end when nothing has come for a while, after a poll of their own.
    workers = queue_of(queen, name).concurrency(4).batch(5).timeout_millis(1000)
    await workers.limit(30).each().idle_millis(4000).consume(handle)

    assert sorted(n for found in seen.values() for n in found) == list(range(30))
    assert all(found == sorted(found) for found in seen.values())


def queue_of(queen: Queen, name: str) -> Any:
    return queen.queue(name).group("workers").subscription_mode("all")


async def test_a_failing_handler_retries_then_the_message_is_a_dead_letter(queen: Queen, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 1}).create()
    await queen.queue(name).push([{"data": {"bad": True}}])
    tries = 0

    async def handle(message: dict[str, Any]) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("cannot do this")

    async def consume() -> None:
        consumer = queen.queue(name).batch(1).each().limit(2).idle_millis(30_000)
        await consumer.consume(handle).on_error(fail)

    async def fail(message: dict[str, Any], error: Exception) -> None:
        await queen.ack(message, False, {"error": str(error)})

    await consume()
    letters = await queen.queue(name).dlq().limit(10).get()

    assert tries == 2
    (letter,) = letters["messages"]
    assert letter["data"] == {"bad": True}
    assert letter["errorMessage"] == "cannot do this"
    replayed = await queen.admin.retry_message(letter["partitionId"], letter["transactionId"])
    assert replayed["success"] is True
    assert len(await queen.queue(name).batch(1).wait(False).pop()) == 1


async def test_a_waiting_pop_gets_what_is_pushed_meanwhile(queen: Queen, name: str) -> None:
    waiting = asyncio.create_task(queen.queue(name).batch(1).wait(True).timeout_millis(60_000).pop())
    await asyncio.sleep(0.05)

    await queen.queue(name).push([{"data": 7}])

    assert [message["data"] for message in await asyncio.wait_for(waiting, 60)] == [7]


async def test_a_transaction_moves_a_message_on(queen: Queen, name: str) -> None:
    await queen.queue(name).push([{"data": 1}])
    (message,) = await queen.queue(name).batch(1).wait(False).pop()

    done = await queen.transaction().ack(message).queue(f"{name}-next").push([{"data": 2}]).commit()

    assert done["success"] is True
    assert await queen.queue(name).batch(1).wait(False).pop() == []
    (moved,) = await queen.queue(f"{name}-next").batch(1).wait(False).pop()
    assert moved["data"] == 2


async def test_buffered_pushes_arrive_when_flushed(queen: Queen, name: str) -> None:
    for n in range(25):
        await queen.queue(name).buffer({"message_count": 100, "time_millis": 60_000}).push([{"data": n}])

    await queen.flush_all_buffers()

    messages = await queen.queue(name).batch(100).wait(False).pop()
    assert [message["data"] for message in messages] == list(range(25))


async def test_leases_are_renewed_and_groups_start_where_they_say(queen: Queen, name: str) -> None:
    await queen.queue(name).push([{"data": "old"}])
    (message,) = await queen.queue(name).group("g").batch(1).wait(False).pop()

    renewed = await queen.renew(message)
    seek = await queen.admin.seek_consumer_group("g", name, {"toEnd": True})
    moved = await queen.update_consumer_group_timestamp("g", "2020-01-01T00:00:00Z")
    gone = await queen.delete_consumer_group("g")
    again = await queen.queue(name).group("g").batch(1).wait(False).pop()

    assert renewed["success"] is True
    assert renewed["newExpiresAt"]
    assert seek["success"] is True
    assert moved["success"] is True
    assert gone["success"] is True
    assert [m["data"] for m in again] == ["old"]


async def test_traces_of_a_handler_are_found(queen: Queen, name: str) -> None:
    await queen.queue(name).push([{"data": 1}])

    async def handle(message: dict[str, Any]) -> None:
        await message["trace"]({"traceName": name, "data": {"step": "done"}})

    await queen.queue(name).batch(1).each().limit(1).idle_millis(30_000).consume(handle)

    found = await queen.admin.get_traces_by_name(name)
    assert [row["data"] for row in found["traces"]] == [{"step": "done"}]
    assert name in [row["trace_name"] for row in (await queen.admin.get_trace_names())["trace_names"]]


async def test_every_admin_page_answers(queen: Queen, name: str) -> None:
    (row,) = await queen.queue(name).push([{"data": 1, "transactionId": "t"}])
    where = (row["partition_id"], "t")
    admin = queen.admin

    assert (await admin.get_overview())["queues"] >= 1
    assert "namespaces" in await admin.get_namespaces()
    assert "tasks" in await admin.get_tasks()
    assert name in [queue["name"] for queue in (await admin.list_queues())["queues"]]
    assert (await admin.get_queue(name))["name"] == name
    assert (await admin.get_queue_depth(name))["pending"] == 1
    assert "partitions" in await admin.get_partitions(queue=name)
    assert (await admin.list_messages(queue=name))["messages"][0]["transactionId"] == "t"
    assert (await admin.get_message(*where))["payload"] == 1
    assert "throughput" in await admin.get_status()
    assert "queues" in await admin.get_queue_stats()
    assert (await admin.get_queue_detail(name))["queue"]["name"] == name
    assert "dataPoints" in await admin.get_analytics()
    assert isinstance(await admin.list_consumer_groups(), list)
    assert (await admin.refresh_consumer_stats())["success"] is True
    assert isinstance(await admin.get_lagging_consumers(1), list)
    assert await admin.get_consumer_group("nobody") == {}
    assert (await admin.health())["status"] == "healthy"
    assert "uptime" in await admin.metrics()
    assert "replicas" in await admin.get_system_metrics()
    assert "summary" in await admin.get_worker_metrics()
    assert (await admin.get_traces_for_message(*where))["traces"] == []
    assert (await admin.delete_message(*where))["success"] is True


async def test_rows_locks_timers_and_reads(queen: Queen, name: str) -> None:
    await queen.kv.put("test", name, {"a": 1}, ttl_seconds=60)
    lock = queen.lock(name, ttl_seconds=30)
    timer = await queen.timers.schedule(name, "k", {"late": True}, delay_ms=50)
    await queen.queue(name).partition("p").push([{"data": n} for n in range(3)])

    assert (await queen.kv.get("test", name))["value"] == {"a": 1}
    assert await lock.acquire() is True
    assert await lock.release() is True
    read = await queen.queue(name).fetch(["p"])
    assert [record["payload"] for record in read["p"]["records"]] == [0, 1, 2]
    found = await queen.queue(name).partitions(2).batch(10).wait(True).timeout_millis(5000).pop()
    while timer["txn"] not in [message["transactionId"] for message in found]:
        found += await queen.queue(name).batch(10).wait(True).timeout_millis(5000).pop()


async def test_a_conflating_group_sees_the_latest(queen: Queen, name: str) -> None:
    await queen.queue(name).push([{"data": n} for n in range(5)])

    messages = await queen.queue(name).group("screens").conflation().batch(10).wait(False).pop()

    assert [message["data"] for message in messages] == [4]
    assert (await queen.ack(messages, True, {"group": "screens"}))["success"] is True


async def test_a_stream_sums_its_windows(queen: Queen, shared: TestBroker, name: str) -> None:
    from queen.streams import Stream

    await queen.queue(name).partition("k").push([{"data": {"v": n}} for n in range(1, 5)])
    stream = (
        Stream.from_(queen.queue(name))
        .window_tumbling(seconds=1, idle_flush_ms=200)
        .aggregate({"total": lambda message: message["v"]})
        .to(queen.queue(f"{name}-out"))
    )
    handle = await stream.run(query_id=f"q-{name}", url=shared.http_url)
    try:
        total = 0
        for _ in range(60):
            for message in await queen.queue(f"{name}-out").batch(10).wait(True).timeout_millis(1000).pop():
                total += message["data"]["total"]
                await queen.ack(message, True)
            if total == 10:
                break
    finally:
        await handle.stop()

    assert total == 10
