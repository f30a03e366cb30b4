"""The streaming SDK that comes with Queen's own client: every operator, window and gate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from queen import Queen
from queen.streams import Stream, sliding_window_gate, token_bucket_gate
from queen_words import Scenario, items, scenario


@asynccontextmanager
async def running(stream: Stream, query: str, url: str, **options: Any) -> AsyncIterator[Any]:
    handle = await stream.run(query_id=query, url=url, max_wait_millis=200, **options)
    try:
        yield handle
    finally:
        await handle.stop()


async def sunk(queen: Queen, queue: str, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """What a stream wrote to its sink, once it is enough."""
    found: list[Any] = []
    while not enough(found):
        for message in await queen.queue(queue).group("look").batch(50).wait(True).timeout_millis(500).pop():
            found.append(message["data"])
            await queen.ack(message, True, {"group": "look"})
    return found


@scenario
async def stream_of_maps_filters_and_flat_maps(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).push(items(*range(6)))
    stream = (
        Stream.from_(queen.queue(name))
        .map(lambda message: message["data"])
        .filter(lambda message: message["data"]["n"] % 2 == 0)
        .flat_map(lambda message: [message["data"], {"n": message["data"]["n"] + 100}])
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, f"q-{name}", url, reset=True):
        found = await sunk(queen, f"{name}-out", lambda rows: len(rows) >= 6)
    assert sorted(row["n"] for row in found) == [0, 2, 4, 100, 102, 104]


@scenario
async def stream_for_each(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).partition("p").push(items(1, 2, 3))
    seen: list[int] = []
    three = asyncio.Event()

    def note(value: Any, context: Any = None) -> None:
        seen.append(value["data"]["n"] if "data" in value else value["n"])
        if len(seen) >= 3:
            three.set()

    async with running(Stream.from_(queen.queue(name)).foreach(note), f"q-{name}", url, reset=True):
        await three.wait()
    assert sorted(set(seen)) == [1, 2, 3]


async def window_total(queen: Queen, url: str, name: str, window: str, **options: Any) -> list[Any]:
    """Sums of four messages in one window each of two keys; the sums that came out, both keys complete."""
    await (
        queen.queue(name)
        .partition("p")
        .push([{"data": {"key": key, "v": v}} for v in range(1, 5) for key in ("a", "b")])
    )
    keyed = Stream.from_(queen.queue(name)).key_by(lambda message: message["data"]["key"])
    stream = (
        getattr(keyed, window)(idle_flush_ms=200, **options)
        .aggregate({"count": lambda row: 1, "sum": lambda row: row["v"]})
        .map(lambda row, context: {"key": context["key"], **row})
        .to(queen.queue(f"{name}-out"))
    )

    def complete(rows: list[Any]) -> bool:
        return all(sum(row["count"] for row in rows if row["key"] == key) >= 4 for key in ("a", "b"))

    async with running(stream, f"q-{name}", url, reset=True):
        return await sunk(queen, f"{name}-out", complete)


@scenario
async def stream_of_tumbling_windows(queen: Queen, url: str, name: str) -> None:
    rows = await window_total(queen, url, name, "window_tumbling", seconds=1)
    for key in ("a", "b"):
        mine = [row for row in rows if row["key"] == key]
        assert (sum(row["count"] for row in mine), sum(row["sum"] for row in mine)) == (4, 10)


@scenario
async def stream_of_cron_windows(queen: Queen, url: str, name: str) -> None:
    rows = await window_total(queen, url, name, "window_cron", every="second")
    for key in ("a", "b"):
        assert sum(row["sum"] for row in rows if row["key"] == key) == 10


@scenario
async def stream_of_session_windows(queen: Queen, url: str, name: str) -> None:
    rows = await window_total(queen, url, name, "window_session", gap=1)
    assert sorted((row["key"], row["count"], row["sum"]) for row in rows) == [("a", 4, 10), ("b", 4, 10)]


@scenario
async def stream_of_sliding_windows(queen: Queen, url: str, name: str) -> None:
    rows = await window_total(queen, url, name, "window_sliding", size=2, slide=1)
    # Each message is in two windows; only those that have closed so far are out.
    assert all(row["count"] <= 4 for row in rows)


@scenario
async def stream_in_event_time_with_a_reducer(queen: Queen, url: str, name: str) -> None:
    times = [("2026-01-01T10:00:01Z", 1), ("2026-01-01T10:00:30Z", 2), ("2026-01-01T10:01:05Z", 5)]
    await queen.queue(name).partition("p").push([{"data": {"at": at, "v": v}} for at, v in times])
    stream = (
        Stream.from_(queen.queue(name))
        .window_tumbling(seconds=60, event_time=lambda message: message["data"]["at"], idle_flush_ms=200)
        .reduce(lambda total, row: total + row["v"], 0)
        .map(lambda total, context: {"window": context["windowKey"], "total": total})
        .to(queen.queue(f"{name}-out"))
    )
    async with running(stream, f"q-{name}", url, reset=True):
        found = await sunk(queen, f"{name}-out", lambda rows: len(rows) >= 1)
    assert {"window": "2026-01-01T10:00:00.000Z", "total": 3} in found


@scenario
async def stream_gates(queen: Queen, url: str, name: str) -> None:
    # A gate that says no keeps the rest until the lease runs out: one second here.
    gates = {
        "bucket": token_bucket_gate(capacity=3, refill_per_sec=100),
        "sliding": sliding_window_gate(limit=3, window_sec=1),
    }
    for word, gate in gates.items():
        await queen.queue(f"{name}-{word}").config({"leaseTime": 1}).create()
        await queen.queue(f"{name}-{word}").partition("p").push(items(*range(7)))
        gated = Stream.from_(queen.queue(f"{name}-{word}")).gate(gate)
        stream = gated.to(queen.queue(f"{name}-{word}-out"))
        async with running(stream, f"q-{name}-{word}", url, reset=True):
            found = await sunk(queen, f"{name}-{word}-out", lambda rows: len(rows) >= 7)
        numbers = [row["data"]["n"] if "data" in row else row["n"] for row in found]
        assert numbers == list(range(7)), numbers


@scenario
async def a_stream_goes_on_and_refuses_another_shape(queen: Queen, url: str, name: str) -> None:
    def shape() -> Stream:
        return Stream.from_(queen.queue(name)).map(lambda message: message["data"])

    def out(stream: Stream) -> Stream:
        return stream.to(queen.queue(f"{name}-out"))

    await queen.queue(name).partition("p").push(items(1, 2))
    async with running(out(shape()), f"q-{name}", url, reset=True):
        first = await sunk(queen, f"{name}-out", lambda rows: len(rows) >= 2)
    await queen.queue(name).partition("p").push(items(3))
    async with running(out(shape()), f"q-{name}", url):
        second = await sunk(queen, f"{name}-out", lambda rows: len(rows) >= 1)
    assert ([row["n"] for row in first], [row["n"] for row in second]) == ([1, 2], [3])

    other = out(shape().filter(lambda row: True))
    with pytest.raises(Exception, match="config_hash mismatch"):
        await other.run(query_id=f"q-{name}", url=url)
    async with running(other, f"q-{name}", url, reset=True):
        pass


def with_a_token(token: str) -> Scenario:
    async def run(nobody: Queen, url: str, name: str) -> None:
        queen = Queen(url=url, bearer_token=token)
        try:
            await queen.queue(name).push(items(1, 2))
            (message,) = await queen.queue(name).batch(1).wait(False).pop()
            assert message["producerSub"] == "tester"
            assert (await queen.ack(message))["success"] is True
            assert (await queen.admin.get_overview())["queues"] >= 1
            stream = (
                Stream.from_(queen.queue(name)).map(lambda each: each["data"]).to(queen.queue(f"{name}-out"))
            )
            async with running(stream, f"q-{name}", url, reset=True, bearer_token=token):
                found = await sunk(queen, f"{name}-out", lambda rows: len(rows) >= 2)
            assert [row["n"] for row in found] == [1, 2]
        finally:
            await queen.close()
        with pytest.raises(Exception, match="Authentication required"):
            await nobody.queue(name).push(items(3))
        assert await nobody.queue(name).batch(1).wait(False).pop() == []

    return run
