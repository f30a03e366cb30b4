"""Frames: whole, in pieces, and broken."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.amqp.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    HEARTBEAT,
    PROTOCOL_HEADER,
    Frame,
    FrameReader,
    encode_frame,
)
from holtmq.wire.primitives import CodecError

FRAMES = st.tuples(
    st.sampled_from([FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT]),
    st.integers(0, 65535),
    st.binary(max_size=60),
)


def test_a_frame_has_the_bytes_of_the_specification() -> None:
    assert encode_frame(FRAME_BODY, 0x0102, b"hi") == b"\x03\x01\x02\x00\x00\x00\x02hi\xce"
    assert encode_frame(FRAME_HEARTBEAT, 0, b"") == HEARTBEAT


@given(st.lists(FRAMES, max_size=5))
def test_frames_come_back_whole_however_they_were_split(frames: list[Frame]) -> None:
    wire = b"".join(encode_frame(*frame) for frame in frames)
    byte_by_byte = FrameReader()

    assert FrameReader().feed(wire) == frames
    assert [frame for byte in wire for frame in byte_by_byte.feed(bytes((byte,)))] == frames


def test_the_beginning_of_a_next_frame_waits_for_its_rest() -> None:
    reader = FrameReader()

    assert reader.feed(HEARTBEAT + HEARTBEAT[:5]) == [(8, 0, b"")]
    assert reader.feed(HEARTBEAT[5:]) == [(8, 0, b"")]


BROKEN = [
    (b"\x03\x00\x01\x00\x00\x00\x01a\x00", "ends with 0x00 instead of 0xce"),
    (b"\x07\x00\x01\x00\x00\x00\x01a\xce", "unknown frame type 7"),
    (PROTOCOL_HEADER, "offers protocol"),
    (b"\x03\x00\x01\x00\x00\x10\x01", "frame of 4105 bytes; the most is 4096"),
    (b"\x03\x00\x01\xff\xff\xff\xff", "the most is 4096"),
]


@pytest.mark.parametrize(("wire", "reason"), BROKEN)
def test_a_broken_frame_is_refused_and_so_is_everything_after_it(wire: bytes, reason: str) -> None:
    reader = FrameReader(frame_max=4096)
    with pytest.raises(CodecError, match=reason):
        reader.feed(wire)

    with pytest.raises(CodecError, match=reason):
        reader.feed(HEARTBEAT)


@pytest.mark.parametrize(("wire", "reason"), BROKEN)
def test_a_broken_frame_is_refused_when_it_comes_byte_by_byte(wire: bytes, reason: str) -> None:
    reader = FrameReader(frame_max=4096)

    with pytest.raises(CodecError, match=reason):
        [reader.feed(bytes((byte,))) for byte in wire]


def test_whole_frames_before_the_damage_are_handed_out() -> None:
    # The last good frame is often the connection.close that explains the rest.
    reader = FrameReader()

    assert reader.feed(HEARTBEAT + b"\x07\x00\x00\x00\x00\x00\x00\xce") == [(8, 0, b"")]
    with pytest.raises(CodecError, match="unknown frame type 7"):
        reader.feed(b"")


def test_frame_max_counts_the_whole_frame() -> None:
    largest = encode_frame(FRAME_BODY, 1, bytes(4096 - FRAME_OVERHEAD))

    assert len(largest) == 4096
    assert len(FrameReader(frame_max=4096).feed(largest)) == 1
    with pytest.raises(CodecError):
        FrameReader(frame_max=4095).feed(largest)


def test_frame_max_zero_is_no_limit() -> None:
    assert len(FrameReader(frame_max=0).feed(encode_frame(FRAME_BODY, 1, bytes(200_000)))) == 1


@given(st.binary(max_size=100))
def test_random_bytes_are_frames_or_a_codec_error(data: bytes) -> None:
    with suppress(CodecError):
        FrameReader().feed(data)


@pytest.mark.parametrize(("kind", "channel"), [(256, 0), (1, 65536), (1, -1)])
def test_a_frame_that_cannot_be_is_not_written(kind: int, channel: int) -> None:
    with pytest.raises(CodecError, match="no frame"):
        encode_frame(kind, channel, b"")
