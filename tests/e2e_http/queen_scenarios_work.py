"""Acks, leases, dead letters, consumers, groups and transactions, by Queen's own client."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from queen import Queen
from queen_words import OLD, items, ns, popped, scenario


@scenario
async def acks_of_every_form(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 5}).create()
    await queen.queue(name).push(items(*range(1, 9)))

    (one,) = await popped(queen.queue(name).batch(1))
    assert (await queen.ack(one))["success"] is True
    two = await popped(queen.queue(name).batch(2))
    assert (await queen.ack(two, "completed"))["success"] is True
    three = await popped(queen.queue(name).batch(3))
    assert ns(three) == [4, 5, 6]
    each = [
        {**message, "_status": status} for message, status in zip(three, (True, False, True), strict=True)
    ]
    each[1]["_error"] = "once"
    await queen.ack(each, True)
    again = await popped(queen.queue(name).batch(2))
    assert ns(again) == [5, 6]  # what failed, and all behind it
    await queen.ack(again[0], "retry")
    late = await queen.ack(again[1], True)  # the lease went with the retry
    assert OLD or late["success"] is False
    last = await popped(queen.queue(name).batch(10))
    assert ns(last) == [5, 6, 7, 8]
    await queen.ack(last[0], "dlq", {"error": "away"})
    assert ns(await popped(queen.queue(name).batch(10))) == [6, 7, 8]
    letters = await queen.queue(name).dlq().get()
    assert [(row["data"]["n"], row["errorMessage"]) for row in letters["messages"]] == [(5, "away")]


@scenario
async def renewing_leases(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).push(items(1, 2))
    messages = await popped(queen.queue(name).batch(2))

    assert (await queen.renew(messages[0]))["success"] is True
    assert (await queen.renew(messages[0]["leaseId"]))["success"] is True
    assert all(row["success"] for row in await queen.renew(messages))
    await queen.ack(messages, True)
    late = await queen.renew(messages[0])
    assert OLD or late["success"] is False  # the old client takes every answer for a success
    assert late["newExpiresAt"] is None


@scenario
async def a_lease_that_runs_out_brings_the_message_back(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"leaseTime": 1, "retryLimit": 0}).create()
    await queen.queue(name).push(items(1))
    (held,) = await popped(queen.queue(name).batch(1))
    (again,) = await queen.queue(name).batch(1).wait(True).timeout_millis(30_000).pop()

    assert again["transactionId"] == held["transactionId"]
    assert again["leaseId"] != held["leaseId"]
    assert (await queen.queue(name).dlq().get())["messages"] == []


@scenario
async def dead_letters_by_group_time_and_page(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 0}).create()
    before = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    await queen.queue(name).push(items(1, 2, 3))
    for group in ("g", "h"):
        for _ in range(3):
            (message,) = await popped(queen.queue(name).group(group).batch(1))
            await queen.ack(message, False, {"group": group, "error": f"bad for {group}"})

    everything = await queen.queue(name).dlq().limit(100).get()
    mine = await queen.queue(name).dlq("g").limit(2).offset(1).get()
    old = await queen.queue(name).dlq("g").to(before).get()
    new = await queen.queue(name).dlq("g").from_(before).get()

    assert (len(everything["messages"]), everything["total"]) == (6, 6)
    assert [row["data"]["n"] for row in mine["messages"]] == [2, 1]  # newest failure first
    assert {row["errorMessage"] for row in mine["messages"]} == {"bad for g"}
    assert (len(old["messages"]), len(new["messages"])) == (0, 3)


@scenario
async def consume_one_by_one_in_partition_order(queen: Queen, url: str, name: str) -> None:
    for n in range(30):
        await queen.queue(name).partition(f"p{n % 3}").push(items(n))
    seen: dict[str, list[int]] = {}
    stop = asyncio.Event()

    async def handle(message: dict[str, Any]) -> None:
        seen.setdefault(message["partition"], []).append(message["data"]["n"])
        if sum(map(len, seen.values())) >= 30:
            stop.set()  # a limit would be each worker's own

    consumer = queen.queue(name).group("g").concurrency(4).batch(5).each().timeout_millis(1000)
    await consumer.consume(handle, signal=stop)

    assert sorted(n for found in seen.values() for n in found) == list(range(30))
    assert all(found == sorted(found) for found in seen.values())


@scenario
async def consume_batches_with_callbacks(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 1}).create()
    await queen.queue(name).push(items(1, 2, 3, 4))
    sizes: list[int] = []
    done: list[Any] = []

    async def handle(messages: list[dict[str, Any]]) -> str:
        sizes.append(len(messages))
        return "fine"

    async def good(messages: Any, result: Any) -> None:
        done.append(result)
        await queen.ack(messages, True)

    await (
        queen.queue(name)
        .batch(4)
        .limit(4)
        .auto_ack(False)
        .idle_millis(60_000)
        .consume(handle)
        .on_success(good)
    )

    assert (sizes, done) == ([4], ["fine"])
    assert await popped(queen.queue(name).batch(4)) == []


@scenario
async def a_failing_handler_retries_and_gives_up(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 1}).create()
    await queen.queue(name).push(items(1))
    tries = 0

    async def handle(message: dict[str, Any]) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("cannot do this")

    async def bad(message: dict[str, Any], error: Exception) -> None:
        await queen.ack(message, False, {"error": str(error)})

    await queen.queue(name).batch(1).each().limit(2).idle_millis(60_000).consume(handle).on_error(bad)

    assert tries == 2
    (letter,) = (await queen.queue(name).dlq().get())["messages"]
    assert (letter["data"], letter["errorMessage"]) == ({"n": 1}, "cannot do this")
    assert (await queen.admin.retry_message(letter["partitionId"], letter["transactionId"]))[
        "success"
    ] is True
    assert ns(await popped(queen.queue(name).batch(1))) == [1]


@scenario
async def the_lease_of_long_work_is_renewed(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"leaseTime": 60}).create()
    await queen.queue(name).push(items(1))

    async def handle(message: dict[str, Any]) -> None:
        async def expires_at() -> str:
            shown = await queen.admin.get_message(message["partitionId"], message["transactionId"])
            return str(shown["leaseExpiresAt"])

        first = await expires_at()
        while await expires_at() == first:
            await asyncio.sleep(0.05)

    consumer = queen.queue(name).group("g").batch(1).each().limit(1).idle_millis(60_000)
    await consumer.renew_lease(True, 100).consume(handle)

    assert await popped(queen.queue(name).group("g").batch(1)) == []


@scenario
async def consume_stops_when_told(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).push(items(1))
    stop = asyncio.Event()

    async def handle(message: dict[str, Any]) -> None:
        stop.set()

    await queen.queue(name).batch(1).each().timeout_millis(1000).consume(handle, signal=stop)

    assert await popped(queen.queue(name).batch(1)) == []


@scenario
async def traces_of_a_handler(queen: Queen, url: str, name: str) -> None:
    (row,) = await queen.queue(name).push(items(1))

    async def handle(message: dict[str, Any]) -> None:
        await message["trace"](
            {"traceName": [name, f"{name}-2"], "eventType": "step", "data": {"text": "done"}}
        )

    await queen.queue(name).batch(1).each().limit(1).idle_millis(60_000).consume(handle)

    found = await queen.admin.get_traces_by_name(name)
    assert [(event["data"], event["event_type"]) for event in found["traces"]] == [({"text": "done"}, "step")]
    (event,) = (await queen.admin.get_traces_for_message(row["partition_id"], "t1"))["traces"]
    assert sorted(event["trace_names"]) == [name, f"{name}-2"]
    names = await queen.admin.get_trace_names(limit=1000)
    assert name in [known["trace_name"] for known in names["trace_names"]]


@scenario
async def where_groups_start(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).push(items(1, 2))
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    earlier = (datetime.now(UTC) - timedelta(hours=1)).isoformat()

    async def pop(group: str, **how: str) -> list[Any]:
        builder = queen.queue(name).group(group).batch(10)
        if "mode" in how:
            builder = builder.subscription_mode(how["mode"])
        if "start" in how:
            builder = builder.subscription_from(how["start"])
        return ns(await popped(builder))

    assert await pop("plain") == [1, 2]
    assert await pop("all", mode="all") == [1, 2]
    assert await pop("beginning", mode="from_beginning") == [1, 2]
    assert await pop("earlier", start=earlier) == [1, 2]
    assert await pop("later", start=later) == []
    assert await pop("later") == []  # the first choice stays
    (row,) = [
        g for g in await queen.admin.list_consumer_groups() if g["name"] == "later" and g["queueName"] == name
    ]
    assert row["subscriptionMode"] == "timestamp"
    assert (await queen.update_consumer_group_timestamp("later", earlier))["success"] is True
    assert await pop("later") == [1, 2]


@scenario
async def a_new_group_gets_what_comes_after_it(queen: Queen, url: str, name: str) -> None:
    for group, how in (("mode", "subscription_mode"), ("from", "subscription_from")):
        word = "new" if how == "subscription_mode" else "now"
        first = queen.queue(name).group(group).batch(10)
        assert await popped(getattr(first, how)(word)) == []  # joins a queue that is not there yet
    await queen.queue(name).partition("p").push(items(1))
    await queen.queue(name).partition("r").push(items(2))

    for group in ("mode", "from"):
        got = await popped(queen.queue(name).group(group).batch(10).partitions(5))
        assert sorted(ns(got)) == [1, 2]


@scenario
async def seeking_and_forgetting_groups(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).push(items(1, 2))
    group = f"{name}-g"

    async def read() -> list[Any]:
        messages = await popped(queen.queue(name).group(group).batch(10))
        if messages:
            await queen.ack(messages, True, {"group": group})
        return ns(messages)

    assert await read() == [1, 2]
    back = {"timestamp": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}
    assert (await queen.admin.seek_consumer_group(group, name, back))["success"] is True
    assert await read() == [1, 2]
    assert (await queen.admin.seek_consumer_group(group, name, back))["success"] is True
    assert (await queen.admin.seek_consumer_group(group, name, {"toEnd": True}))["success"] is True
    assert await read() == []
    assert (await queen.admin.delete_consumer_group_for_queue(group, name))["success"] is True
    assert await read() == [1, 2]
    assert (await queen.delete_consumer_group(group))["success"] is True
    assert await read() == [1, 2]
    assert (await queen.delete_consumer_group(group, delete_metadata=False))["success"] is True


@scenario
async def a_transaction_acks_and_pushes(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).push(items(1, 2, 3))
    messages = await popped(queen.queue(name).group("g").batch(3))

    work = queen.transaction()
    for message in messages:
        work = work.ack(message, "completed", {"consumer_group": "g"})
    done = (
        await work.queue(f"{name}-a")
        .partition("p")
        .push(items(4, 5))
        .queue(f"{name}-b")
        .push(items(6))
        .commit()
    )

    assert done["success"] is True
    assert await popped(queen.queue(name).group("g").batch(3)) == []
    assert ns(await popped(queen.queue(f"{name}-a").partition("p").batch(5))) == [4, 5]
    assert ns(await popped(queen.queue(f"{name}-b").batch(5))) == [6]
    assert ns(await popped(queen.queue(name).batch(5))) == [1, 2, 3]  # another group's


@scenario
async def a_refused_transaction_leaves_nothing(queen: Queen, url: str, name: str) -> None:
    (row,) = await queen.queue(name).push(items(1))
    nowhere = {"transactionId": "unknown", "partitionId": row["partition_id"]}
    with pytest.raises(Exception, match=r"(?i)not found"):
        await queen.transaction().queue(f"{name}-out").push(items(2)).ack(nowhere).commit()
    assert await popped(queen.queue(f"{name}-out").batch(1)) == []


@scenario
async def a_failed_ack_in_a_transaction_is_filed(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 0}).create()
    await queen.queue(name).push(items(1))
    (message,) = await popped(queen.queue(name).batch(1))

    await queen.transaction().ack(message, "failed").queue(f"{name}-out").push(items(2)).commit()

    assert len((await queen.queue(name).dlq().get())["messages"]) == 1
    assert ns(await popped(queen.queue(f"{name}-out").batch(1))) == [2]
