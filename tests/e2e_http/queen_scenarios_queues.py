"""Queues, pushes and pops, by Queen's own client: everything before a message is in a worker's hands."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from queen import Queen
from queen_words import OLD, items, ns, popped, scenario


@scenario
async def create_configure_delete(queen: Queen, url: str, name: str) -> None:
    heard: list[Any] = []

    async def hear(answer: Any) -> None:
        heard.append(answer)

    made = (
        await queen.queue(name)
        .namespace("shop")
        .task("send")
        .config({"leaseTime": 7, "retryLimit": 0, "delayedProcessing": 0, "windowBuffer": 0, "maxSize": 50})
        .create()
        .on_success(hear)
    )
    assert [answer["configured"] for answer in (made, *heard)] == [True, True]
    shown = await queen.admin.get_queue(name)
    assert (shown["namespace"], shown["task"]) == ("shop", "send")
    options = (await queen.queue(name).namespace("shop").task("send").config({"leaseTime": 9}).create())[
        "options"
    ]
    assert options["leaseTime"] == 9
    assert (await queen.queue(name).delete())["deleted"] is True
    assert name not in [row["name"] for row in (await queen.admin.list_queues())["queues"]]


@scenario
async def push_and_its_callbacks(queen: Queen, url: str, name: str) -> None:
    told: dict[str, list[Any]] = {"good": [], "twice": []}

    async def good(rows: Any) -> None:
        told["good"] += rows

    async def twice(rows: Any, error: Any) -> None:
        told["twice"] += rows

    await queen.queue(name).push(items(1, 2)).on_success(good)
    await queen.queue(name).push(items(2, 3)).on_success(good).on_duplicate(twice)
    trace = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
    await queen.queue(name).push([{"data": None, "traceId": trace}, {"data": {}}, {"data": [1, "ü", 1.5]}])

    assert (len(told["good"]), len(told["twice"])) == (3, 1)
    messages = await popped(queen.queue(name).batch(10))
    assert [message["data"] for message in messages[:3]] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [message["data"] for message in messages[3:]] == [None, {}, [1, "ü", 1.5]]
    assert [message["traceId"] for message in messages[3:]] == [trace, None, None]


@scenario
async def the_same_id_in_other_partitions_and_queues(queen: Queen, url: str, name: str) -> None:
    for queue, partition in ((name, "p"), (name, "r"), (f"{name}-2", "p")):
        (row,) = await queen.queue(queue).partition(partition).push(items(1))
        assert row["status"] == "queued"
    (row,) = await queen.queue(name).partition("p").push(items(1))
    assert row["status"] == "duplicate"


@scenario
async def large_payloads_and_many_items(queen: Queen, url: str, name: str) -> None:
    text = "x" * 2_000_000
    await queen.queue(name).partition("big").push([{"data": {"text": text}}])
    await queen.queue(name).partition("many").push([{"data": {"n": n}} for n in range(1000)])

    (big,) = await popped(queen.queue(name).partition("big").batch(1))
    many = await popped(queen.queue(name).partition("many").batch(1000))

    assert big["data"]["text"] == text
    assert ns(many) == list(range(1000))


@scenario
async def buffered_pushes(queen: Queen, url: str, name: str) -> None:
    def buffered(queue: str, count: int) -> Any:
        return queen.queue(queue).buffer({"message_count": count, "time_millis": 60_000})

    for n in range(10):
        await buffered(name, 10).push(items(n))  # the tenth sends them all
    got: list[dict[str, Any]] = []
    while len(got) < 10:
        got += await queen.queue(name).batch(10).wait(True).timeout_millis(5000).pop()
    assert ns(got) == list(range(10))

    for n in range(5):
        await buffered(f"{name}-2", 1000).push(items(n))
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 5
    await queen.queue(f"{name}-2").flush_buffer()
    assert ns(await popped(queen.queue(f"{name}-2").batch(10))) == list(range(5))

    for n in range(5):
        await buffered(f"{name}-3", 1000).push(items(n))
    await queen.flush_all_buffers()
    assert ns(await popped(queen.queue(f"{name}-3").batch(10))) == list(range(5))


@scenario
async def pop_by_partition_batch_and_group(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).partition("p").push(items(1, 2, 3))
    await queen.queue(name).partition("r").push(items(4))

    assert ns(await popped(queen.queue(name).partition("r").batch(10))) == [4]
    first = await popped(queen.queue(name).partition("p").batch(2))
    assert ns(first) == [1, 2]
    assert await popped(queen.queue(name).partition("p").batch(2)) == []  # leased
    assert ns(await popped(queen.queue(name).partition("p").group("g").batch(10))) == [1, 2, 3]
    assert {message["leaseId"] for message in first} == {first[0]["leaseId"]}
    assert await popped(queen.queue(f"{name}-nothing").batch(10)) == []


@scenario
async def pop_over_several_partitions_is_one_lease(queen: Queen, url: str, name: str) -> None:
    for at in range(5):
        await queen.queue(name).partition(f"p{at}").push(items(*range(10 * at, 10 * at + 4)))

    one = await popped(queen.queue(name).group("one").partitions(1).batch(100))
    some = await popped(queen.queue(name).group("some").batch(10).partitions(5))

    assert len({message["partition"] for message in one}) == 1
    assert len(some) == 10
    assert len({message["partition"] for message in some}) > 1
    assert len({message["leaseId"] for message in some}) == 1
    assert (await queen.ack(some, True, {"group": "some"}))["success"] is True


@scenario
async def pop_waits_for_a_push(queen: Queen, url: str, name: str) -> None:
    waiting = asyncio.create_task(queen.queue(name).batch(1).wait(True).timeout_millis(30_000).pop())
    await asyncio.sleep(0.05)
    await queen.queue(name).push(items(7))
    assert ns(await waiting) == [7]
    assert await queen.queue(name).partition("none").wait(True).timeout_millis(200).pop() == []


@scenario
async def pop_that_settles_at_once(queen: Queen, url: str, name: str) -> None:
    if OLD:
        return  # it has no word for it
    await queen.queue(name).push(items(1, 2))
    (taken,) = await popped(queen.queue(name).batch(1).commit_on_delivery())
    assert (taken["data"], taken["leaseId"]) == ({"n": 1}, "")
    assert ns(await popped(queen.queue(name).batch(5))) == [2]


@scenario
async def pop_by_namespace_and_task(queen: Queen, url: str, name: str) -> None:
    await queen.queue(f"{name}-a").namespace(name).task("x").create()
    await queen.queue(f"{name}-b").namespace(name).task("y").create()
    await queen.queue(f"{name}-a").push(items(1))
    await queen.queue(f"{name}-b").push(items(2))

    (one,) = await popped(queen.queue().namespace(name).task("y").batch(10))
    assert one["data"] == {"n": 2}
    assert (await queen.ack(one, True))["success"] is True
    (other,) = await popped(queen.queue().namespace(name).batch(10))
    assert other["data"] == {"n": 1}


@scenario
async def delays_and_windows(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).config({"delayedProcessing": 1}).create()
    await queen.queue(f"{name}-w").config({"windowBuffer": 1}).create()
    for queue in (name, f"{name}-w"):
        await queen.queue(queue).push(items(1, 2))
    # Both wait on the server's side: the answer comes when the time is up, however slow the machine.
    for queue in (name, f"{name}-w"):
        got = await queen.queue(queue).batch(10).wait(True).timeout_millis(30_000).pop()
        created = datetime.fromisoformat(got[0]["createdAt"])
        assert ns(got) == [1, 2]
        assert datetime.now(UTC) - created >= timedelta(seconds=1)
