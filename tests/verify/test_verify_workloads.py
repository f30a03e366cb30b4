"""The judge's clients against a broker that sends some of them away, and one that is slow to deliver."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from random import Random

import pytest

from holtmq.amqp.methods import BasicDeliver, ConfirmSelect, ConfirmSelectOk, Method
from holtmq.testing import TestBroker
from holtmq.verify import amqp_workload
from holtmq.verify.amqp_client import AmqpClient
from holtmq.verify.amqp_workload import PLAIN, AmqpWorkload
from holtmq.verify.http_client import HttpClient
from holtmq.verify.http_workload import PARTITIONS, STORE, HttpWorkload, new_item, place_of
from holtmq.verify.record import make_body
from holtmq.verify.workload import Gone, Ports

NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuse pushes, as a node that is cut off for a moment; let consumers wait."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(size)
            writer.write(REFUSED if head.startswith(b"POST") else NOTHING)
            await writer.drain()
    writer.close()


async def test_consumers_do_not_go_on_alone_when_every_producer_was_sent_away() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        await HttpWorkload().work(Ports(0, server.sockets[0].getsockname()[1]), Random(1))


class SlowReader(AmqpClient):
    """The first delivery needs a while, as on a machine that is busy with something else."""

    _due = 0.0

    async def next(self) -> tuple[Method, bytes]:
        if self._arrived and isinstance(self._arrived[-1][0], BasicDeliver):
            now = asyncio.get_running_loop().time()
            self._due = self._due or now + 0.3
            await asyncio.sleep(max(0.0, self._due - now))
        return await super().next()


async def test_deliveries_that_are_late_are_not_called_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_workload, "AmqpClient", SlowReader)
    monkeypatch.setattr(amqp_workload, "_LOOK_SECONDS", 0.01)
    workload = AmqpWorkload()
    bodies = [make_body(f"{PLAIN}-{number}", 10) for number in range(3)]
    with TestBroker(clock="real") as broker:
        ports = Ports(broker.amqp_port, broker.http_port)
        async with asyncio.timeout(60):
            await workload.prepare(ports)
            with closing(await AmqpClient.connect(ports.amqp)) as client:
                await client.call(ConfirmSelect(), ConfirmSelectOk)
                for body in bodies:
                    client.publish(PLAIN, body)
                await client.next()
                broker.queue_depth(PLAIN)

            found = await workload.read(ports)

    assert found[PLAIN] == bodies


@pytest.mark.parametrize("most", [0, 1_000], ids=["purged", "released"])
async def test_what_was_leased_for_reading_is_released_again_after_a_lost_answer_or_a_restart(
    most: int,
) -> None:
    workload = HttpWorkload()
    with TestBroker(clock="real") as broker:
        ports = Ports(broker.amqp_port, broker.http_port)
        async with asyncio.timeout(60):
            await workload.prepare(ports)
            with closing(await HttpClient.connect(ports.http)) as client:
                for partition in PARTITIONS:
                    name = workload.record.next_name(place_of(STORE, partition), "p")
                    item = new_item(STORE, partition, name, 0)
                    await client.post("/api/v1/push", {"items": [item]})
                    workload.record.confirm(name)
            workload.record.compare(await workload.read(ports))
            held = list(workload._being_read)
            await workload.finish_reading(ports, most)
            workload._being_read += held  # the answer was lost

            await workload.finish_reading(ports, most)

            assert workload.watch.refusals == []
            assert not workload.record.compare(await workload.read(ports)).lost
            await asyncio.to_thread(broker.restart)
            await workload.finish_reading(ports, most)

    assert workload.watch.refusals == []


async def test_a_reading_finds_more_messages_than_one_answer_holds() -> None:
    workload = HttpWorkload()
    with TestBroker(clock="real") as broker:
        ports = Ports(broker.amqp_port, broker.http_port)
        async with asyncio.timeout(60):
            await workload.prepare(ports)
            with closing(await HttpClient.connect(ports.http)) as client:
                for partition in PARTITIONS:
                    place = place_of(STORE, partition)
                    names = [workload.record.next_name(place, "p") for _ in range(2_000)]
                    items = [new_item(STORE, partition, name, 0) for name in names]
                    assert (await client.post("/api/v1/push", {"items": items}))[0] == 201
                    for name in names:
                        workload.record.confirm(name)

            findings = workload.record.compare(await workload.read(ports))

    assert findings.is_clean


async def test_a_reading_that_is_lost_half_way_hides_nothing_from_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload, get = HttpWorkload(), HttpClient.get
    asked: list[str] = []

    async def lose(client: HttpClient, path: str, **options: str) -> tuple[int, bytes]:
        asked.append(path)
        if len(asked) == len(PARTITIONS):  # after the first of them has a lease
            raise Gone("the connection is lost")
        return await get(client, path, **options)

    with TestBroker(clock="real") as broker:
        ports = Ports(broker.amqp_port, broker.http_port)
        async with asyncio.timeout(60):
            await workload.prepare(ports)
            with closing(await HttpClient.connect(ports.http)) as client:
                name = workload.record.next_name(place_of(STORE, PARTITIONS[0]), "p")
                await client.post("/api/v1/push", {"items": [new_item(STORE, PARTITIONS[0], name, 0)]})
                workload.record.confirm(name)
            monkeypatch.setattr(HttpClient, "get", lose)
            with pytest.raises(Gone):
                await workload.read(ports)
            await workload.finish_reading(ports, 1_000)

            findings = workload.record.compare(await workload.read(ports))

    assert findings.is_clean
