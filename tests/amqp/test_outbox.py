"""What is written is what was appended, in its order, whether it was copied or not."""

from hypothesis import given
from hypothesis import strategies as st

from holtmq.amqp.outbox import Outbox

chunks = st.lists(st.sampled_from([b"a", b"bc", b"x" * 300, b"y" * 16_384, b"z" * 70_000]), max_size=12)


@given(chunks)
def test_the_parts_are_the_chunks(chunks: list[bytes]) -> None:
    outbox = Outbox(lambda: None)
    for chunk in chunks:
        outbox.append(chunk)

    parts = outbox.take_parts()

    assert b"".join(parts) == b"".join(chunks)
    assert outbox.take_parts() == []
    assert outbox.size == 0


def test_large_bodies_are_not_copied() -> None:
    outbox = Outbox(lambda: None)
    body = b"z" * 70_000
    for chunk in (b"head", b"tag", body, b"\xce", b"head", b"tag", body, b"\xce"):
        outbox.append(chunk)

    parts = outbox.take_parts()

    assert [part is body for part in parts] == [False, True, False, True, False]


def test_small_messages_are_one_piece() -> None:
    outbox = Outbox(lambda: None)
    for _ in range(1000):
        outbox.append(b"x" * 100)

    assert outbox.take_parts() == [b"x" * 100_000]
