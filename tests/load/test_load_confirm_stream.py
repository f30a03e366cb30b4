"""Confirms are counted once each, in any order, grouped or single, whole or in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.amqp.frames import FRAME_HEARTBEAT, encode_frame
from holtmq.amqp.methods import BasicNack, ConnectionClose, ConnectionUnblocked
from holtmq.load import frames
from holtmq.load.confirm_stream import ConfirmStream
from holtmq.load.errors import LoadError


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return frames.ack(1, tag, multiple=multiple)


@given(st.data())
def test_any_legal_sequence_of_confirms_counts_every_publish_once(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 60))
    waiting, sent = set(range(1, total + 1)), b""
    while waiting:
        tag = data.draw(st.sampled_from(sorted(waiting)))
        multiple = data.draw(st.booleans())
        waiting -= {one for one in waiting if one <= tag} if multiple else {tag}
        sent += ack(tag, multiple=multiple)
    stream = ConfirmStream()

    while sent:
        cut = data.draw(st.integers(1, 70))
        stream.feed(sent[:cut])
        sent = sent[cut:]

    assert stream.confirmed == total


def test_other_frames_between_confirms_are_passed_over() -> None:
    heartbeat = encode_frame(FRAME_HEARTBEAT, 0, b"")
    unblocked = frames.method(0, ConnectionUnblocked())
    stream = ConfirmStream()

    for byte in ack(1) + heartbeat + ack(2) + unblocked + ack(5, multiple=True) + heartbeat:
        stream.feed(bytes((byte,)))

    assert stream.confirmed == 5


def test_a_confirm_that_comes_twice_is_an_error() -> None:
    stream = ConfirmStream()
    stream.feed(ack(2))

    with pytest.raises(LoadError, match="publish 2 twice"):
        stream.feed(ack(2))


def test_a_nack_is_an_error() -> None:
    nack = frames.method(1, BasicNack(1))

    with pytest.raises(LoadError, match=r"basic\.nack"):
        ConfirmStream().feed(ack(1) + nack)


def test_a_close_is_an_error_with_its_reason() -> None:
    close = frames.method(0, ConnectionClose(320, "bye"))

    with pytest.raises(LoadError, match="320 bye"):
        ConfirmStream().feed(ack(1) + close)
