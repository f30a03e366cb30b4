"""Requests over HTTP that name as much as one of them may: pushes, cycles of stream processors, reads."""

from __future__ import annotations

from collections.abc import Callable

from bench.stalls.site import Prepare, Site

Items = list[dict[str, object]]


def _push(site: Site, items: Items) -> None:
    site.http.post("/api/v1/push", json={"items": items}).raise_for_status()


def _of_one_partition(count: int) -> Items:
    payload = {"text": "x" * 100}
    return [
        {"queue": "log", "partition": "p", "transactionId": f"t{n}", "payload": {**payload, "n": n}}
        for n in range(count)
    ]


def _filled(site: Site, count: int, partition: Callable[[int], str]) -> None:
    for start in range(0, count, 1_000):
        numbers = range(start, min(start + 1_000, count))
        _push(site, [{"queue": "log", "partition": partition(n), "payload": n} for n in numbers])


def push(*, times: int) -> Prepare:
    """The same messages, for the first time, or again: then all are duplicates."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        items = _of_one_partition(count)
        for _ in range(times - 1):
            _push(site, items)
        return lambda: _push(site, items)

    return prepare


def push_to_new_partitions(site: Site, count: int) -> Callable[[], object]:
    """Ten times as many partitions are there already."""
    _filled(site, 10 * count, lambda number: f"p{number}")
    items: Items = [{"queue": "log", "partition": f"new-{n}", "payload": n} for n in range(count)]
    return lambda: _push(site, items)


def push_delayed(site: Site, count: int) -> Callable[[], object]:
    items: Items = [{"queue": "log", "payload": n, "delaySeconds": 1_000} for n in range(count)]
    return lambda: _push(site, items)


def fetch(*, partitions: bool) -> Prepare:
    """1,024 reads by offset, of as many partitions or of one."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _filled(site, count, lambda number: f"p{number}" if partitions else "p")
        entries = [
            {"queue": "log", "partition": f"p{number}", "offset": 0}
            if partitions
            else {"queue": "log", "partition": "p", "offset": number * (count // 1_024)}
            for number in range(1_024)
        ]
        return lambda: site.http.post("/api/v1/fetch", json={"entries": entries}).raise_for_status()

    return prepare


def changed(site: Site, count: int) -> Callable[[], object]:
    _filled(site, count, lambda number: f"p{number}")
    body = {"entries": [{"queue": "log"}] * 1_024}
    return lambda: site.http.post("/api/v1/partitions/changed", json=body).raise_for_status()


def cycle(*, pushes: bool) -> Prepare:
    """As many rows of state, or messages."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _filled(site, 1, lambda _: "p")
        asked = {"name": "s", "source_queue": "log", "config_hash": "h"}
        query = site.http.post("/streams/v1/queries", json=asked).json()["query_id"]
        popped = site.http.get("/api/v1/pop/queue/log?subscriptionMode=all").json()["messages"][0]
        body = {"query_id": query, "partition_id": popped["partitionId"]}
        numbers = range(count)
        if pushes:
            body["push_items"] = [{"queue": "out", "partition": f"p{n}", "payload": n} for n in numbers]
        else:
            body["state_ops"] = [{"type": "upsert", "key": f"k{n}", "value": {"n": n}} for n in numbers]
        return lambda: site.http.post("/streams/v1/cycle", json=body).raise_for_status()

    return prepare


READING: dict[str, tuple[int, Prepare]] = {
    "push messages in one request": (10_000, push(times=1)),
    "push messages again in one request": (10_000, push(times=2)),
    "push to new partitions in one request": (10_000, push_to_new_partitions),
    "push delayed messages in one request": (2_500, push_delayed),
    "fetch by offset from very many partitions": (100_000, fetch(partitions=True)),
    "fetch by offset from one partition": (100_000, fetch(partitions=False)),
    "list changed partitions": (100_000, changed),
    "cycle of a stream processor, state": (25_000, cycle(pushes=False)),
    "cycle of a stream processor, messages": (10_000, cycle(pushes=True)),
}
