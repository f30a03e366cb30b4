"""Counting deliveries by arithmetic gives what reading every frame gives, however the bytes arrive."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holtmq.amqp.frames import FRAME_HEARTBEAT, encode_frame
from holtmq.amqp.methods import BasicDeliver, ChannelClose, ConnectionBlocked
from holtmq.load import frames
from holtmq.load.delivery_stream import AckWriter, DeliveryStream
from holtmq.load.errors import LoadError

PREFIX = frames.deliver_prefix(1, "tag", "ex", "key")
HEARTBEAT = encode_frame(FRAME_HEARTBEAT, 0, b"")
CLOSE = frames.method(1, ChannelClose(404, "NOT_FOUND - gone"))
BLOCKED = frames.method(0, ConnectionBlocked("low on memory"))


def delivery(tag: int, body: bytes = b"0123456789abcdef", frame_max: int = 4096) -> bytes:
    deliver = frames.method(1, BasicDeliver("tag", tag, False, "ex", "key"))
    return deliver + frames.content(1, b"\0\0", body, frame_max)


SIZE = len(delivery(1))


def new_stream(size: int = SIZE) -> DeliveryStream:
    return DeliveryStream(PREFIX, size, 0)


def feed(stream: DeliveryStream, data: bytes) -> None:
    while data:
        room = stream.room()
        part, data = data[: len(room)], data[len(room) :]
        room[: len(part)] = part
        stream.added(len(part))
        stream.settle()


def test_a_read_of_whole_messages_is_counted_without_looking_at_each() -> None:
    stream = new_stream()

    feed(stream, b"".join(delivery(tag) for tag in range(1, 1001)))

    assert (stream.count, stream.slow_reads) == (1000, 0)


def test_messages_that_arrive_byte_by_byte_are_counted_without_a_slow_read() -> None:
    stream = new_stream()

    for byte in delivery(1) + delivery(2) + delivery(3)[:-1]:
        feed(stream, bytes((byte,)))

    assert (stream.count, stream.slow_reads) == (2, 0)


@given(
    st.lists(st.sampled_from((b"message", b"long message", HEARTBEAT, BLOCKED)), max_size=40),
    st.lists(st.integers(1, 300), min_size=1, max_size=40),
)
def test_other_frames_and_other_sizes_between_deliveries_do_not_spoil_the_count(
    items: list[bytes], cuts: list[int]
) -> None:
    data, expected = b"", 0
    for item in items:
        if item in (HEARTBEAT, BLOCKED):
            data += item
        else:
            expected += 1
            data += delivery(expected) if item == b"message" else delivery(expected, b"x" * 50)
    stream = new_stream()

    turn = 0
    while data:
        cut = cuts[turn % len(cuts)]
        feed(stream, data[:cut])
        data, turn = data[cut:], turn + 1

    assert stream.count == expected


def test_a_body_in_several_frames_is_one_message() -> None:
    body = bytes(10_000)
    one = delivery(1, body)
    stream = new_stream(len(one))

    feed(stream, b"".join(delivery(tag, body) for tag in range(1, 201)))

    assert (stream.count, stream.slow_reads) == (200, 0)


def test_a_skipped_delivery_tag_is_noticed() -> None:
    stream = new_stream()

    feed(stream, delivery(1) + delivery(3))

    assert stream.slow_reads == 1


@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_close_among_deliveries_ends_the_round_with_the_brokers_reason(before: int) -> None:
    stream = new_stream()
    data = b"".join(delivery(tag) for tag in range(1, before + 1)) + CLOSE

    with pytest.raises(LoadError, match="404 NOT_FOUND - gone"):
        feed(stream, data)


def test_a_close_that_arrives_in_pieces_is_noticed_when_it_is_whole() -> None:
    stream = new_stream()
    feed(stream, delivery(1) + CLOSE[:20])

    with pytest.raises(LoadError, match="404"):
        feed(stream, CLOSE[20:])


@given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, 1 << 40))
@example([300], (1 << 16) - 100)  # a carry: an upper byte of the tag gets smaller
def test_a_block_of_acks_is_what_single_acks_would_be(steps: list[int], start: int) -> None:
    writer = AckWriter(1)
    at = start

    for step in steps:
        expected = b"".join(frames.ack(1, tag, multiple=False) for tag in range(at + 1, at + step + 1))
        assert writer.each(at, at + step) == expected
        at += step
