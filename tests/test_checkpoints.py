"""A node's checkpoint with more queues than are copied in one step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aio_pika
import pytest
from pamqp.common import FieldTable

from holtmq.broker.partitioned.log import captured_queues
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.snapshot import CapturedQueue
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import PushItem
from holtmq.config import Amqp, Config, Data, Http, Limits
from holtmq.node import Node
from holtmq.testing.views import ready_messages
from holtmq.upkeep import checkpoints

QUEUES = 5
PATIENCE = 60


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_QUEUES_AT_ONCE", 1)


async def _started(folder: Path) -> Node:
    node = Node(
        Config(
            data=Data(dir=folder / "data"),
            amqp=Amqp(host=("127.0.0.1",), port=0),
            http=Http(host=("127.0.0.1",), port=0),
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        )
    )
    await node.start()
    return node


def _push(node: Node, name: str) -> None:
    items = [PushItem(f"log-{number}", "p", Body(f"{name}-{number}", b"1")) for number in range(QUEUES)]
    node.partitioned.push(items, node.clock())


async def _publish(node: Node, name: str) -> None:
    """A message to each work queue; the queues with odd numbers have priorities."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.amqp_port}/")
    async with connection, connection.channel() as channel:
        for number in range(QUEUES):
            arguments: FieldTable | None = {"x-max-priority": 3} if number % 2 else None
            queue = await channel.declare_queue(f"work-{number}", durable=True, arguments=arguments)
            message = aio_pika.Message(f"{name}-{number}".encode(), delivery_mode=2)
            await channel.default_exchange.publish(message, queue.name)


async def _get_and_ack(node: Node, queues: range) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.amqp_port}/")
    async with connection, connection.channel() as channel:
        for number in queues:
            queue = await channel.get_queue(f"work-{number}")
            await (await queue.get()).ack()


def _stored(node: Node) -> dict[str, list[str]]:
    store = node.partitioned.store
    return {
        name: [
            store.body(queue.log.position(offset)).transaction_id
            for offset in queue.log.live_offsets(0, queue.log.next_offset)
        ]
        for name, queue in store.queues.items()
    }


def _waiting(node: Node) -> dict[str, list[str]]:
    broker = node.broker
    return {
        queue.name: [message.text for message in ready_messages(broker, queue)]
        for queue in broker.work_queues()
    }


async def _published(node: Node, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while node.journal.stats().checkpoints < count:
            await asyncio.sleep(0.001)


async def test_clients_go_on_while_queues_are_copied_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    node = await _started(tmp_path)
    _push(node, "before")
    await _publish(node, "before")

    assert node.checkpoints.make()
    assert not node.checkpoints.make()  # one is being made
    _push(node, "during")
    await _publish(node, "during")
    await _get_and_ack(node, range(0, QUEUES, 2))
    await _published(node, 1)
    _push(node, "after")
    await _publish(node, "after")
    await node.settle()
    await node.stop(0)

    node = await _started(tmp_path)
    names = ["before", "during", "after"]
    assert _stored(node) == {f"log-{n}": [f"{name}-{n}" for name in names] for n in range(QUEUES)}
    assert _waiting(node) == {
        f"work-{n}": [f"{name}-{n}" for name in names[1 - n % 2 :]] for n in range(QUEUES)
    }
    assert node.journal.checkpoint_position > 0
    await node.stop(0)


async def test_queues_that_change_all_the_time_do_not_keep_a_checkpoint_from_its_moment(
    tmp_path: Path,
) -> None:
    node = await _started(tmp_path)
    await _publish(node, "before")

    def change() -> None:
        for queue in list(node.broker.queues_by_id.values()):
            node.broker.flow.touch(queue)
        if node.journal.stats().checkpoints == 0:
            asyncio.get_running_loop().call_soon(change)

    change()
    assert node.checkpoints.make()
    await _published(node, 1)
    await node.stop(0)


async def test_a_node_that_stops_completes_its_checkpoint(tmp_path: Path) -> None:
    node = await _started(tmp_path)
    _push(node, "before")
    node.checkpoints.make()
    assert node.journal.stats().checkpoints == 0

    await node.stop(0)

    assert node.journal.stats().checkpoints == 1
    assert node.journal.stats().checkpoint_failures == 0


async def test_after_a_copy_that_failed_comes_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(queue: PartitionedQueue) -> CapturedQueue:
        if queue.name == "log-2":
            raise MemoryError("no room for a copy")
        return CapturedQueue(queue)

    node = await _started(tmp_path)
    _push(node, "before")
    await node.settle()
    with monkeypatch.context() as broken:
        broken.setattr(captured_queues, "CapturedQueue", failing)
        node.checkpoints.make()
        with pytest.raises(MemoryError, match="no room for a copy"):
            node.checkpoints.complete()
    assert not node.checkpoints.is_making
    assert not node.journal.is_checkpointing

    node.checkpoints.make()
    await _published(node, 1)
    await node.stop(0)
