"""Varied messages are counted and checked, however the bytes are split."""

from dataclasses import replace

import pytest

from holtmq.amqp.methods import BasicDeliver, ChannelClose
from holtmq.load import frames
from holtmq.load.errors import LoadError
from holtmq.load.link import CHANNEL
from holtmq.load.varied_blob import VariedBlob, Variety
from holtmq.load.varied_stream import VariedStream
from holtmq.load.workloads import WORKLOADS

_TAG = "holt-load-consumer-0"
_BLOB = VariedBlob(Variety.of(replace(WORKLOADS["mixed-keys"], distinct=50)), "holt-load", 131072)


def _delivery(number: int, serial: int) -> bytes:
    published = _BLOB.data[_BLOB.end_of(serial) : _BLOB.end_of(serial + 1)]
    content = published[8 + int.from_bytes(published[3:7], "big") :]
    return frames.method(CHANNEL, BasicDeliver(_TAG, number, False, "holt-load", "k")) + content


def _feed(stream: VariedStream, data: bytes) -> None:
    stream.room()[: len(data)] = data
    stream.added(len(data))
    stream.settle()


def test_messages_differ_in_every_id_and_in_size() -> None:
    parts = [_BLOB.data[_BLOB.end_of(n) : _BLOB.end_of(n + 1)] for n in range(_BLOB.messages)]

    assert len(set(parts)) == len(parts)
    assert len({len(part) for part in parts}) > 20


@pytest.mark.parametrize("step", [1, 7, 300, 100_000])
def test_deliveries_are_counted_however_they_are_split(step: int) -> None:
    data = b"".join(_delivery(number, (number * 7) % 50) for number in range(1, 60))
    stream = VariedStream(_TAG, _BLOB)

    for at in range(0, len(data), step):
        _feed(stream, data[at : at + step])

    assert stream.count == 59


def test_a_lost_delivery_is_noticed() -> None:
    stream = VariedStream(_TAG, _BLOB)

    with pytest.raises(LoadError, match="another number"):
        _feed(stream, _delivery(1, 0) + _delivery(3, 2))


def test_a_changed_body_is_noticed() -> None:
    stream = VariedStream(_TAG, _BLOB)
    changed = bytearray(_delivery(1, 3))
    changed[-4] ^= 1

    with pytest.raises(LoadError, match="not one that was published"):
        _feed(stream, bytes(changed))


def test_a_close_between_deliveries_is_told() -> None:
    stream = VariedStream(_TAG, _BLOB)
    close = frames.method(CHANNEL, ChannelClose(404, "gone"))

    with pytest.raises(LoadError, match="404 gone"):
        _feed(stream, _delivery(1, 3) + close)
