"""What publishers send is AMQP in the eyes of another codec, and deliveries look as foretold."""

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header
import pytest

from holtmq.load import frames
from holtmq.load.blobs import Blob, body, body_is_intact, layout, stamp_at
from holtmq.load.workloads import WORKLOADS, Workload

ALIKE = [workload for workload in WORKLOADS.values() if not workload.distinct]  # the others: test_load_varied
EVERY = pytest.mark.parametrize("workload", ALIKE, ids=[workload.name for workload in ALIKE])
FRAME_MAX = 131_072


def parse(data: bytes) -> list[object]:
    out: list[object] = []
    at = 0
    while at < len(data):
        size, _, parsed = pamqp.frame.unmarshal(data[at : at + FRAME_MAX + 8])
        out.append(parsed)
        at += size
    return out


@EVERY
def test_a_blob_holds_whole_publishes(workload: Workload) -> None:
    blob = Blob(workload, "ex", "queue", FRAME_MAX)

    parsed = parse(bytes(blob.data))

    assert len(parsed) == 3 * blob.messages
    for publish, header, content in zip(parsed[::3], parsed[1::3], parsed[2::3], strict=True):
        assert isinstance(publish, pamqp.commands.Basic.Publish)
        assert isinstance(header, pamqp.header.ContentHeader)
        assert isinstance(content, pamqp.body.ContentBody)
        assert publish.exchange == "ex"
        assert header.body_size == len(content.value) == workload.body_bytes
        assert header.properties.delivery_mode == (2 if workload.durable else None)


def test_priorities_and_routing_keys_take_turns() -> None:
    priorities = parse(bytes(Blob(WORKLOADS["priority-10"], "", "q", FRAME_MAX).data))[1::3]
    keys = parse(bytes(Blob(WORKLOADS["topic-1000"], "ex", "q", FRAME_MAX).data))[::3]

    assert {one.properties.priority for one in priorities} == set(range(1, 11))  # type: ignore[attr-defined]
    assert len({one.routing_key for one in keys}) == 100  # type: ignore[attr-defined]


@EVERY
def test_a_stamp_reaches_every_message_from_the_given_one_on(workload: Workload) -> None:
    blob = Blob(workload, "ex", "queue", FRAME_MAX)
    half = blob.messages // 2

    blob.stamp(0, 0x1122334455667788)
    blob.stamp(half, 0x99)
    first = [int.from_bytes(one.value[:8], "big") for one in parse(bytes(blob.data))[2::3]]  # type: ignore[attr-defined]
    blob.stamp(0, 0x1100000000000099)
    second = [int.from_bytes(one.value[:8], "big") for one in parse(bytes(blob.data))[2::3]]  # type: ignore[attr-defined]

    assert first == [0x1122334455667788] * half + [0x99] * (blob.messages - half)
    assert second == [0x1100000000000099] * blob.messages


@EVERY
def test_a_delivery_has_the_foretold_length_and_body(workload: Workload) -> None:
    expected = layout(workload, "ex", "queue", "c0", FRAME_MAX)
    key = parse(bytes(Blob(workload, "ex", "queue", FRAME_MAX).data))[0].routing_key  # type: ignore[attr-defined]
    props = frames.properties(persistent=workload.durable, priority=1 if workload.priorities else None)
    text = (77).to_bytes(8, "big") + body(workload)[8:]

    delivery = bytearray(
        pamqp.frame.marshal(pamqp.commands.Basic.Deliver("c0", 1, False, "ex", key), 1)
        + frames.content(1, props, text, FRAME_MAX)
    )

    assert len(delivery) == expected.message_bytes
    assert delivery.startswith(expected.prefix)
    assert stamp_at(delivery, expected.body_at) == 77
    assert body_is_intact(delivery, expected.body_at, workload.body_bytes)
    delivery[expected.body_at + 9] ^= 1
    assert not body_is_intact(delivery, expected.body_at, workload.body_bytes)
