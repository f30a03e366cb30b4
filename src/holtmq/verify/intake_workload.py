"""The workload of the other ways in: staged batches, maintenance, timers, replayed dead letters.

Owns: what these clients do until the broker is killed, and reading what they left. Must not touch:
verdicts; every step is written into the record before or after it, never guessed.

Maintenance affects every push of the node, so this workload's ``read`` comes before the others': it ends
maintenance, and waits until the spool is empty and every timer has fired.
"""

import asyncio
import importlib.util
import io
import time
from base64 import b64encode
from collections.abc import Coroutine, Sequence
from contextlib import closing
from random import Random
from typing import Final

import msgspec

from holtmq.verify.http_client import HttpClient
from holtmq.verify.http_workload import (
    PoppedMessage,
    bodies_of,
    lease_all,
    let_go,
    new_item,
    place_of,
    pop,
    settle,
)
from holtmq.verify.record import Record, make_body, name_of, publisher_and_number
from holtmq.verify.workload import Gone, Ports, Watch, connect_all, raise_unless_gone

STAGED: Final = "in.staged"
TIMED: Final = "in.timed"
DYING: Final = "in.dying"
QUEUES: Final = (STAGED, TIMED, DYING)
PARTITIONS: Final = ("north", "south")

_TASKS: Final = 3
_PARTS: Final = 2
_ROWS_MAX: Final = 6
_PADDING_MAX: Final = 800
_DELAYS_MS: Final = (0, 20, 120)
_PATIENCE: Final = 60.0
_MAINTENANCE: Final = "/api/v1/system/maintenance"
_OPTIONS: Final = {"leaseTime": 300, "retentionEnabled": True, "completedRetentionSeconds": 1}


class _Letter(msgspec.Struct):
    id: str
    data: str | None  # None: the broker lists the letter and cannot read its body
    partition: str


class _Letters(msgspec.Struct):
    messages: list[_Letter]
    total: int


class _Spool(msgspec.Struct, rename="camel"):
    buffered_messages: int


class _Timers(msgspec.Struct):
    rows: list[object]


_letters: Final = msgspec.json.Decoder(_Letters).decode
_spool: Final = msgspec.json.Decoder(_Spool).decode
_timers: Final = msgspec.json.Decoder(_Timers).decode


class IntakeWorkload:
    """Clients that stage, schedule and replay. A place in the record is a partition with its dead letters."""

    def __init__(self) -> None:
        self.record = Record()
        self.watch = Watch()
        self.stages = importlib.util.find_spec("pyarrow") is not None  # rows are sent as Arrow
        self._batches = {"spark": 0, "flink": 0}
        self._timers = 0
        self._being_read: list[list[PoppedMessage]] = []

    async def prepare(self, ports: Ports) -> None:
        """Create queues that delete settled messages."""
        with closing(await HttpClient.connect(ports.http)) as client:
            for queue in QUEUES:
                await self._ask(client, "/api/v1/configure", {"queue": queue, "options": _OPTIONS})

    async def read(self, ports: Ports) -> dict[str, list[bytes]]:
        """Everything unsettled and every dead letter, by publisher and number: order has no meaning here."""
        with closing(await HttpClient.connect(ports.http)) as client:
            await self._settle_down(client)
            leased = await lease_all(client, QUEUES, PARTITIONS, self._being_read)
            found = bodies_of(leased)
            for letter in await self._all_letters(client):
                if letter.data is not None:  # else the comparison finds it lost
                    found[place_of(DYING, letter.partition)].append(letter.data.encode())
        return {place: sorted(bodies, key=publisher_and_number) for place, bodies in found.items()}

    async def _settle_down(self, client: HttpClient) -> None:
        """End maintenance; wait until the spool is empty and every timer has fired."""
        await self._ask(client, _MAINTENANCE, {"enabled": False})
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            _, spool = await client.get(_MAINTENANCE)
            _, timers = await client.get(f"/api/v1/timers/{TIMED}")
            if not _spool(spool).buffered_messages and not _timers(timers).rows:
                # They become visible once they are durable, and this response comes after that.
                await self._ask(client, _MAINTENANCE, {"enabled": False})
                return
            await asyncio.sleep(0.02)
        raise Gone(f"after {_PATIENCE:.0f} s messages are still in the spool, or timers have not fired")

    async def _all_letters(self, client: HttpClient) -> list[_Letter]:
        letters: list[_Letter] = []
        while True:
            status, body = await client.get(f"/api/v1/dlq?queue={DYING}&limit=500&offset={len(letters)}")
            if status != 200:
                raise Gone(f"dead letters could not be listed: {body[:200]!r}")
            page = _letters(body)
            letters += page.messages
            if not page.messages or len(letters) >= page.total:
                return letters

    async def finish_reading(self, ports: Ports, most: int) -> None:
        """Release the leases. Of a place with too many messages, ack the last one, which settles all."""
        with closing(await HttpClient.connect(ports.http)) as client:
            await let_go(client, self, self._being_read, most, _name)

    async def work(self, ports: Ports, random: Random) -> None:
        """Run all clients until each has lost its connection."""
        try:
            clients = await connect_all(HttpClient.connect, ports.http, 5 + len(self._batches))
        except Gone:
            return
        seeds = [Random(random.random()) for _ in clients]
        work: list[Coroutine[object, object, None]] = [
            self._maintain(clients[0], seeds[0]),
            self._set_timers(clients[1], seeds[1]),
            self._push(clients[2], seeds[2]),
            self._bury(clients[3], seeds[3]),
            self._replay(clients[4], seeds[4]),
        ]
        if self.stages:
            work += [
                self._stage(client, writer, seed)
                for client, writer, seed in zip(clients[5:], self._batches, seeds[5:], strict=True)
            ]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for client in clients:
            client.close()
        raise_unless_gone(outcomes)

    async def _stage(self, client: HttpClient, writer: str, random: Random) -> None:
        """Stage like Spark executors, all tasks in turn, part by part; commit most batches, abort some."""
        while True:
            self._batches[writer] += 1
            batch = f"/api/v1/staging/{writer}/{self._batches[writer]}"
            rows = dict.fromkeys(range(_TASKS), 0)
            names: list[str] = []
            for part in range(_PARTS):
                for task in random.sample(range(_TASKS), _TASKS):
                    partition = random.choice(PARTITIONS)
                    publisher = f"{writer}{task}"
                    count = random.randint(1, _ROWS_MAX)
                    mine = [
                        self.record.next_name(place_of(STAGED, partition), publisher) for _ in range(count)
                    ]
                    bodies = [make_body(name, int(random.random() ** 3 * _PADDING_MAX)) for name in mine]
                    where = f"{batch}/{task}/0?part={part}&queue={STAGED}&partition={partition}"
                    status, answer = await client.put(where, _arrow(bodies))
                    if status != 200:
                        raise self.watch.refuse(f"rows were not staged: {answer[:200]!r}")
                    rows[task] += count
                    names += mine
            if random.random() < 0.3:
                await client.delete(batch)
                self.record.purged_names(names)  # not committed: they must never be seen
                continue
            tasks = [{"task": task, "attempt": 0, "rows": count} for task, count in rows.items()]
            while True:
                status, answer = await client.post(f"{batch}/commit", {"tasks": tasks})
                if status != 503:  # maintenance: retry later
                    break
                await asyncio.sleep(0.02)
            if status != 200:
                raise self.watch.refuse(f"a batch was not committed: {answer[:200]!r}")
            self._confirmed(names)

    async def _maintain(self, client: HttpClient, random: Random) -> None:
        """Enter and leave maintenance repeatedly, for a short time."""
        while True:
            await asyncio.sleep(random.uniform(0.05, 0.4))
            await self._ask(client, _MAINTENANCE, {"enabled": True})
            await asyncio.sleep(random.uniform(0.01, 0.1))
            await self._ask(client, _MAINTENANCE, {"enabled": False})

    async def _set_timers(self, client: HttpClient, random: Random) -> None:
        while True:
            operations: list[dict[str, object]] = []
            names: list[str] = []
            for _ in range(random.randint(1, 4)):
                self._timers += 1
                partition = random.choice(PARTITIONS)
                name = self.record.next_name(place_of(TIMED, partition), "timer")
                body = make_body(name, int(random.random() ** 3 * _PADDING_MAX))
                names.append(name)
                operations.append(
                    {
                        "op": "schedule",
                        "queue": TIMED,
                        "timerKey": str(self._timers),
                        "partition": partition,
                        "delayMs": random.choice(_DELAYS_MS),
                        "payload": b64encode(msgspec.json.encode(body.decode())).decode(),
                    }
                )
            await self._ask(client, "/api/v1/timers", {"operations": operations})
            self._confirmed(names)

    async def _push(self, client: HttpClient, random: Random) -> None:
        while True:
            partition = random.choice(PARTITIONS)
            names = [self.record.next_name(place_of(DYING, partition), "mortal") for _ in range(4)]
            items = [new_item(DYING, partition, name, random.randint(0, _PADDING_MAX)) for name in names]
            await self._ask(client, "/api/v1/push", {"items": items}, expected=201)
            self._confirmed(names)

    async def _bury(self, client: HttpClient, random: Random) -> None:
        """Dead-letter most messages, and acknowledge the others."""
        while True:
            messages = await pop(client, DYING, random.randint(1, 6), 1, wait_ms=200)
            if not messages:
                continue
            if random.random() < 0.6:
                await settle(client, self.watch, messages, "dlq")
                self.watch.on_promise()
                continue
            names = [_name(message) for message in messages]
            for name in names:
                self.record.leave(name)
            await settle(client, self.watch, messages, "completed")
            self.record.ack_is_durable(names)
            self.watch.on_promise()

    async def _replay(self, client: HttpClient, random: Random) -> None:
        while True:
            status, body = await client.get(f"/api/v1/dlq?queue={DYING}&limit=20")
            if status != 200:
                raise self.watch.refuse(f"dead letters could not be listed: {body[:200]!r}")
            for letter in _letters(body).messages:
                if random.random() < 0.5:
                    status, answer = await client.post(f"/api/v1/dlq/{letter.id}/replay", {})
                    if status not in (200, 503):
                        raise self.watch.refuse(f"a dead letter was not sent back: {answer[:200]!r}")
            await asyncio.sleep(0.01)

    def _confirmed(self, names: Sequence[str]) -> None:
        for name in names:
            self.record.confirm(name)
        self.watch.on_promise()

    async def _ask(self, client: HttpClient, path: str, content: object, expected: int = 200) -> None:
        began = time.perf_counter()
        status, body = await client.post(path, content)
        if status != expected:
            raise self.watch.refuse(f"{path} was refused: {body[:200]!r}")
        self.watch.confirm_seconds.append(time.perf_counter() - began)


def _arrow(bodies: Sequence[bytes]) -> bytes:
    import pyarrow as pa  # optional dependency: without it nothing is staged

    sink = io.BytesIO()
    table = pa.table({"payload": [body.decode() for body in bodies]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _name(message: PoppedMessage) -> str:
    name = name_of(message.data.encode())
    if name is None:
        raise Gone("a damaged body was delivered")  # the comparison will find it
    return name
