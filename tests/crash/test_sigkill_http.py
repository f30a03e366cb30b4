"""kill -9 under HTTP load, again and again, against a record kept outside.

Owns: the load. Pushes, pops, acks, nacks, renewals, transactions, on partitioned queues and work queues and
over both at once. The record judges: nothing answered is lost or undone, nothing is half done, each partition
keeps its order, no pop returns what another lease holds. HOLT_TEST_CRASH_ROUNDS and HOLT_TEST_CRASH_SEED are
as for AMQP.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from crash_support import BrokerProcess, Gone, HttpPeer
from http_record import Record

pytestmark = [pytest.mark.crash, pytest.mark.slow]

# Read at import: the test session takes HOLT_ variables away from the tests themselves.
ROUNDS: Final = int(os.environ.get("HOLT_TEST_CRASH_ROUNDS", "8"))
SEED: Final = int(os.environ.get("HOLT_TEST_CRASH_SEED", "0")) or Random().randrange(1, 10**9)
ROUND_SECONDS: Final = 120.0
IN, OUT, JOBS, DONE = "in", "out", "jobs", "done"  # two partitioned queues, two work queues
PARTITIONS: Final = ("p0", "p1")
WORKERS: Final = {IN: 3, JOBS: 2}
WORK_PLACE: Final = "jobs"


class Round:
    """One life of the broker. It is killed when so many calls have been answered."""

    def __init__(self, port: int, record: Record, random: Random) -> None:
        self._port = port
        self._record = record
        self._random = random
        self._left = random.randrange(30, 200)
        self.enough = asyncio.Event()

    async def run(self, kill: asyncio.Task[None]) -> None:
        """Until all clients have noticed that the broker is gone."""
        clients = [self._client(self._push, place) for place in (*PARTITIONS, WORK_PLACE)]
        for queue, count in WORKERS.items():
            clients += [self._client(self._work, queue, f"{queue}{n}") for n in range(count)]
        await asyncio.gather(kill, *clients)

    async def _client(self, act: Any, *about: str) -> None:
        try:
            peer = await HttpPeer.connect(self._port)
        except Gone:
            return
        try:
            while True:
                await act(peer, *about)
        except Gone:
            self._record.doubts += 1
        finally:
            peer.close()

    def _answered(self, what: str) -> None:
        self._record.answered[what] += 1
        self._left -= 1
        if self._left <= 0:
            self.enough.set()

    async def _push(self, peer: HttpPeer, place: str) -> None:
        names = [self._record.sends(place) for _ in range(self._random.randint(1, 4))]
        queue = JOBS if place == WORK_PLACE else IN
        items = [
            {"queue": queue, "partition": place, "payload": {"is": name}, "transactionId": name}
            for name in names
        ]
        status, rows = await peer.call("POST", "/api/v1/push", {"items": items})
        assert (status, [row["status"] for row in rows]) == (201, ["queued"] * len(names)), rows
        self._record.pushed(names)
        self._answered("push")

    async def _work(self, peer: HttpPeer, queue: str, worker: str) -> None:
        batch = self._random.randint(1, 4)
        path = f"/api/v1/pop/queue/{queue}?batch={batch}&wait=true&timeout=200"
        status, answer = await peer.call("GET", path)
        if status == 204:
            return
        assert status == 200, answer
        messages = answer["messages"]
        names = [message["transactionId"] for message in messages]
        assert [message["data"] for message in messages] == [{"is": name} for name in names]
        self._record.delivered(names, worker, ordered=queue == IN)
        self._answered("pop")
        if self._random.random() < 0.1:
            path = f"/api/v1/lease/{answer['leaseId']}/extend"
            _, renewed = await peer.call("POST", path, {"seconds": 600})
            assert renewed["success"] is True, renewed
            self._answered("extend")
        dice = self._random.random()
        if dice < 0.2:
            await self._give_back(peer, messages, "failed" if dice < 0.1 else "retry")
        elif dice < 0.5:
            await self._ack(peer, messages)
        else:
            targets = self._random.choice(([OUT], [DONE], [OUT, DONE]))
            await self._pass_on(peer, messages, targets, worker)

    async def _give_back(self, peer: HttpPeer, messages: list[Any], verdict: str) -> None:
        # One says it for all of a partition's lease; messages of a work queue are settled each by itself.
        self._record.given_back([message["transactionId"] for message in messages])
        said = [{**address(message), "status": verdict} for message in messages]
        _, rows = await peer.call("POST", "/api/v1/ack/batch", {"acknowledgments": said})
        assert all(row["success"] for row in rows), rows
        self._answered("nack")

    async def _ack(self, peer: HttpPeer, messages: list[Any]) -> None:
        names = [message["transactionId"] for message in messages]
        moves = self._record.settles(names, [])
        _, rows = await peer.call(
            "POST", "/api/v1/ack/batch", {"acknowledgments": list(map(address, messages))}
        )
        assert all(row["success"] for row in rows), rows
        self._record.settled(names, moves)
        self._answered("ack")

    async def _pass_on(self, peer: HttpPeer, messages: list[Any], targets: list[str], worker: str) -> None:
        names = [message["transactionId"] for message in messages]
        copies = self._record.copy_names(targets, worker)
        operations: list[dict[str, object]] = [{"type": "ack", **address(message)} for message in messages]
        for queue, name in copies:
            item = {"queue": queue, "partition": worker, "payload": name, "transactionId": name}
            operations.insert(self._random.randint(0, len(operations)), {"type": "push", "items": [item]})
        moves = self._record.settles(names, copies)
        _, answer = await peer.call("POST", "/api/v1/transaction", {"operations": operations})
        assert answer["success"] is True, answer
        self._record.settled(names, moves)
        kinds = {queue in (JOBS, DONE) for queue in (messages[0]["queue"], *targets)}
        self._answered("transaction over both kinds" if len(kinds) == 2 else "transaction over one kind")


def address(message: Any) -> dict[str, str]:
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}


async def declare(port: int) -> None:
    peer = await HttpPeer.connect(port)
    for queue in (JOBS, DONE):
        status, _ = await peer.call("PUT", f"/api/queues/%2F/{queue}", {"durable": True})
        assert status in (201, 204)
    for queue in (IN, OUT):
        options = {"retryLimit": 1_000_000, "leaseTime": 3_600}
        status, _ = await peer.call("POST", "/api/v1/configure", {"queue": queue, "options": options})
        assert status == 200
    peer.close()


async def drain(peer: HttpPeer, queue: str) -> list[tuple[str, str]]:
    """(partition, transaction id) of everything, in the order it is handed out."""
    found: list[tuple[str, str]] = []
    while True:
        path = f"/api/v1/pop/queue/{queue}?batch=500&partitions=8&autoAck=true"
        status, answer = await peer.call("GET", path)
        if status == 204:
            return found
        found += [(message["partition"], message["transactionId"]) for message in answer["messages"]]


async def release(port: int) -> None:
    """End the leases of workers that have died with the broker: leases outlive both."""
    peer = await HttpPeer.connect(port)
    for partition in PARTITIONS:
        where = f"/api/v1/consumer-groups/__QUEUE_MODE__/queues/{IN}/partitions/{partition}/lease"
        status, _ = await peer.call("DELETE", where)
        assert status in (200, 404)
    peer.close()


async def verify(port: int, record: Record) -> None:
    peer = await HttpPeer.connect(port)
    left: dict[str, list[str]] = {place: [] for place in (*PARTITIONS, WORK_PLACE)}
    for partition, name in await drain(peer, IN):
        left[partition].append(name)
    left[WORK_PLACE] = [name for _, name in await drain(peer, JOBS)]
    copies = {queue: [name for _, name in await drain(peer, queue)] for queue in (OUT, DONE)}
    peer.close()
    record.compare(left, copies)


async def live_and_die(folder: Path) -> Record:
    random, record = Random(SEED), Record()
    broker = BrokerProcess(folder, HOLT_HTTP_HOST="127.0.0.1", HOLT_AMQP_HOST="127.0.0.1")
    try:
        for number in range(ROUNDS):
            await broker.start()
            if not number:
                await declare(broker.http_port)
            await release(broker.http_port)
            life = Round(broker.http_port, record, random)

            async def kill(life: Round = life) -> None:
                try:
                    await asyncio.wait_for(life.enough.wait(), ROUND_SECONDS)
                finally:
                    await broker.kill()

            await life.run(asyncio.create_task(kill(), name="kill"))
            record.killed()
        await broker.start()
        await release(broker.http_port)
        await verify(broker.http_port, record)
        assert await broker.stop() == 0
    finally:
        await broker.kill()
    return record


@pytest.mark.timeout(240 + 30 * ROUNDS)
def test_whatever_was_answered_survives_every_kill(tmp_path: Path) -> None:
    print(f"HOLT_TEST_CRASH_SEED={SEED}")
    record = asyncio.run(live_and_die(tmp_path))

    print(dict(record.answered), record.doubts, "in doubt")
    assert record.doubts > ROUNDS
    kinds = {"push", "pop", "ack", "nack", "transaction over both kinds", "transaction over one kind"}
    assert kinds <= set(record.answered)
